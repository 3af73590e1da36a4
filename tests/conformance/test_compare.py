# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from . import compare

LINE = "test_a.py::test_1[x-1]  # asserts block ids -> tests/cache/test_pool.py::test_order\n"


def exempt(test: str, ours: str = "tests/test_ours.py::test_promise") -> compare.Exempt:
    return compare.Exempt(test, "asserts block ids", ours)


def test_what_fails_or_is_gone_is_a_regression() -> None:
    passing = {"a", "b", "c", "d"}
    outcomes = {"a": "passed", "b": "failed in call", "c": "skipped", "e": "failed in call"}
    result = compare.compare(passing, outcomes, [])
    assert result.same == ["a"]
    assert result.regressions == {"b": "failed in call", "c": "skipped", "d": "did not run"}


def test_exceptions_are_counted_as_used_or_unused() -> None:
    outcomes = {"a": "failed in call", "b": "passed", "c": "passed"}
    result = compare.compare({"a", "b", "c"}, outcomes, [exempt("a"), exempt("b"), exempt("z")])
    assert (result.same, result.used, result.unused) == (["c"], ["a"], ["b"])
    assert not result.regressions
    assert result.summary(3) == (
        "1 same, 0 regressions, 1 exceptions used, 1 exceptions unused (3 of at most 40 lines)"
    )


def test_an_exception_does_not_excuse_a_test_that_is_gone() -> None:
    result = compare.compare({"a"}, {}, [exempt("a")])
    assert result.regressions == {"a": "did not run"}


def test_a_partial_run_misses_nothing() -> None:
    result = compare.compare({"a", "b"}, {"a": "failed in call"}, [], partial=True)
    assert result.regressions == {"a": "failed in call"}


def test_a_line_of_the_exceptions() -> None:
    [found] = compare.parse_exceptions(f"# a comment\n\n{LINE}")
    assert found == compare.Exempt(
        "test_a.py::test_1[x-1]", "asserts block ids", "tests/cache/test_pool.py::test_order"
    )


@pytest.mark.parametrize(
    "line",
    [
        "test_a.py::test_1",
        "test_a.py::test_1  # asserts block ids",
        "test_a.py::test_1  #  -> tests/test_ours.py::test_promise",
        "test_a.py::test_1  # asserts block ids ->",
    ],
)
def test_a_line_without_reason_or_counterpart_is_refused(line: str) -> None:
    with pytest.raises(compare.ListError, match=r"line 1 is not 'test  # reason -> our test'"):
        compare.parse_exceptions(line)


def test_a_test_named_twice_is_refused() -> None:
    with pytest.raises(compare.ListError, match=r"line 2 names .* again"):
        compare.parse_exceptions(LINE * 2)


def test_more_than_forty_exceptions_are_refused() -> None:
    lines = [LINE.replace("test_1", f"test_{i}") for i in range(41)]
    assert len(compare.parse_exceptions("".join(lines[:40]))) == 40
    with pytest.raises(compare.ListError, match="41 exceptions, and at most 40"):
        compare.parse_exceptions("".join(lines))


@pytest.mark.parametrize(
    ("ours", "complaint"),
    [
        ("tests/test_none.py::test_promise", "there is no file tests/test_none.py"),
        ("tests/test_ours.py::test_other", "tests/test_ours.py has no such test"),
        ("tests/test_ours.py::TestOther::test_method", "has no such test"),
        ("tests/test_ours.py::TestOurs::test_promise", "has no such test"),
        ("tests/test_ours.py::helper", "has no such test"),
        ("tests/test_ours.py", "has no such test"),
    ],
)
def test_an_exception_without_a_test_of_ours_is_refused(
    tmp_path: Path, ours: str, complaint: str
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_ours.py").write_text(
        "def test_promise(): ...\ndef helper(): ...\n"
        "class TestOurs:\n  def test_method(self): ...\n"
    )
    compare.check_counterparts(
        [
            exempt("a"),
            exempt("b", "tests/test_ours.py::test_promise[1]"),
            exempt("c", "tests/test_ours.py::TestOurs::test_method"),
        ],
        tmp_path,
    )
    with pytest.raises(compare.ListError, match=complaint):
        compare.check_counterparts([exempt("d", ours)], tmp_path)


def test_an_exception_of_a_test_on_no_list_is_refused() -> None:
    compare.check_known([exempt("a")], {"a"}, {"b"})
    with pytest.raises(compare.ListError, match="z passes on no stock version"):
        compare.check_known([exempt("z")], {"a"}, {"b"})


def test_a_list_of_passing_tests() -> None:
    assert compare.parse_passing("# made by run.py\na.py::b[c d]\n\ne\n") == {"a.py::b[c d]", "e"}
