# SPDX-License-Identifier: Apache-2.0
"""Where a run writes to is checked before it starts."""

from pathlib import Path

import pytest

from vllm_radix.bench.outputs import check_file, check_folder


@pytest.mark.parametrize("name", ["new.png", "old.png", "UPPER.PNG"])
def test_a_file_may_be_new_or_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "old.png").write_text("old")
    check_file(tmp_path / name, "--png", ["png", "svg"])
    check_file(tmp_path / name, "--png")
    assert [one.name for one in tmp_path.iterdir()] == ["old.png"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing/a.png", r"^--png: there is no folder .*missing to write a\.png to\.$"),
        ("folder.png", r"^--png: .*folder\.png is a folder: name a file\.$"),
        ("a.foo", r"^--png: a\.foo must end with one of \.png, \.svg\.$"),
        ("a", r"^--png: a must end with one of \.png, \.svg\.$"),
        ("/dev/null", r"^--png: /dev/null is no ordinary file: name another one\.$"),
    ],
)
def test_what_is_no_file_is_named(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=message):
        check_file(tmp_path / path, "--png", ["svg", "png"])


def test_a_folder_may_be_new_or_without_results(tmp_path: Path) -> None:
    check_folder(tmp_path, "--out")
    check_folder(tmp_path / "some" / "new", "--out")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_results_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^--out: .* an earlier run: choose another folder, or"):
        check_folder(tmp_path, "--out")


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_is_no_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^--out: .*file is a file: name a folder\.$"):
        check_folder(tmp_path / path, "--out")
