# SPDX-License-Identifier: Apache-2.0
"""What is matched: packed tokens, namespaces, and labels for what tokens do not tell apart."""

from collections import deque

import numpy as np
import pytest

from vllm_radix.tree import Key, LabelTable, Namespace, pack_tokens


class TestPacking:
    @pytest.mark.parametrize("tokens", [[], [1, 2, 3], [0, -1, 2**31 - 1, -(2**31)]])
    def test_four_bytes_a_token(self, tokens: list[int]) -> None:
        packed = pack_tokens(tokens)
        assert len(packed) == 4 * len(tokens)
        assert np.frombuffer(packed, np.int32).tolist() == tokens

    def test_any_sequence(self) -> None:
        expected = pack_tokens([1, 2, 3])
        assert pack_tokens((1, 2, 3)) == expected
        assert pack_tokens(range(1, 4)) == expected
        assert pack_tokens(np.array([1, 2, 3], np.int64)) == expected

    @pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
    def test_a_token_that_does_not_fit(self, token: int) -> None:
        with pytest.raises(OverflowError):
            pack_tokens([token])


class TestKey:
    def test_of_tokens(self) -> None:
        key = Key.of([7, -1, 9], Namespace("adapter", "salt"))
        assert len(key) == 3
        assert key.tokens.tolist() == [7, -1, 9]
        assert key.data == pack_tokens([7, -1, 9])
        assert key.namespace == Namespace("adapter", "salt")

    def test_without_a_namespace(self) -> None:
        assert Key.of([1]).namespace == Namespace(adapter=None, salt=None)

    def test_it_does_not_print_the_prompt(self) -> None:
        shown = repr(Key.of([1234, 5678]))
        assert shown == "Key(2 tokens, Namespace(adapter=None, salt=None))"


def test_namespaces_are_pairs_and_not_joined_strings() -> None:
    different = [
        Namespace(),
        Namespace(salt=""),
        Namespace(adapter=""),
        Namespace("a", "bc"),
        Namespace("ab", "c"),
        Namespace("a"),
        Namespace(salt="a"),
        Namespace("None"),
        Namespace(salt="None"),
        # The same name, loaded again with other weights.
        Namespace(("a", 1)),
        Namespace(("a", 2)),
    ]
    assert len(set(different)) == len(different)


class TestLabelTable:
    def test_a_label_is_negative_and_stays(self) -> None:
        table = LabelTable(list, int)
        labels = [table.label(f"image {i}") for i in range(1000)]
        assert len(set(labels)) == len(table) == 1000
        assert all(-(2**31) <= label < 0 for label in labels)
        assert [table.label(f"image {i}") for i in range(1000)] == labels

    def test_identifiers_are_compared_whole(self) -> None:
        class Collides(str):
            def __hash__(self) -> int:
                return 1

        table = LabelTable(list, int)
        labels = {table.label(Collides(f"{i:02}")) for i in range(50)}
        assert len(labels) == 50

    def test_a_million_identifiers_of_which_few_are_in_use(self) -> None:
        """Each is in use while the next hundred come; ten are in use for ever."""
        recent: deque[int] = deque(maxlen=100)
        lasting: list[int] = []
        num_sweeps = 0

        def in_use() -> list[int]:
            nonlocal num_sweeps
            num_sweeps += 1
            return [*recent, *lasting]

        table = LabelTable(in_use, int)
        lasting += [table.label(("lasting", i)) for i in range(10)]
        largest = 0
        lowest = min(lasting)
        for i in range(1_000_000):
            label = table.label(i)
            # Never given out before, so it cannot be taken for anything else.
            assert label < lowest
            lowest = label
            recent.append(label)
            if not i % 1000:
                largest = max(largest, len(table))
                assert [table.label(("lasting", i)) for i in range(10)] == lasting
        assert [table.label(i) for i in range(999_900, 1_000_000)] == list(recent)
        assert largest <= 1024
        assert num_sweeps <= 1_000_000 // (1024 - 110) + 1

    def test_room_for_all_that_is_in_use(self) -> None:
        """With many in use, the table grows with them, and sweeps do not pile up."""
        in_use: list[int] = []
        num_sweeps = 0

        def sweep() -> list[int]:
            nonlocal num_sweeps
            num_sweeps += 1
            return in_use

        table = LabelTable(sweep, int)
        for i in range(20_000):
            label = table.label(i)
            in_use.append(label)
        assert [table.label(i) for i in range(20_000)] == in_use
        assert len(table) == 20_000
        # At 1024, 2048, ... 16384.
        assert num_sweeps == 5

    def test_forgotten_and_seen_again(self) -> None:
        """What is labelled anew can only fail to match; it never matches something else."""
        table = LabelTable(list, int)
        old = [table.label(i) for i in range(1024)]
        new = [table.label(i) for i in range(1023, 2040)]
        assert table.label(0) not in old
        assert not set(old[:-1]) & set(new)

    def test_looking_through_a_large_cache_pays(self) -> None:
        """As many labels come between two sweeps as blocks are cached."""
        num_sweeps = 0

        def sweep() -> list[int]:
            nonlocal num_sweeps
            num_sweeps += 1
            return []

        table = LabelTable(sweep, lambda: 50_000)
        for i in range(110_000):
            table.label(i)
        # At 1024, 51,024 and 101,024.
        assert num_sweeps == 3

    def test_when_all_labels_were_given_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that nothing refers to any more are given out again, and only those."""
        monkeypatch.setattr(LabelTable, "LOWEST", -100)
        in_use: list[int] = []
        table = LabelTable(lambda: in_use, int)
        labels = [table.label(i) for i in range(100)]
        assert labels == list(range(-1, -101, -1))
        in_use += labels[::3]
        again = [table.label(("again", i)) for i in range(66)]
        assert sorted([*again, *in_use]) == sorted(labels)
        assert [table.label(i) for i in range(0, 100, 3)] == in_use
        in_use += again[:6]
        later = [table.label(("later", i)) for i in range(60)]
        assert sorted([*later, *in_use]) == sorted(labels)
        assert [table.label(("again", i)) for i in range(6)] == again[:6]
