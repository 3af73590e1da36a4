# SPDX-License-Identifier: Apache-2.0
"""What is said of a copy's cost follows from the times measured."""

from benchmarks import copies


def test_a_slow_round_changes_nothing() -> None:
    """In one round everything takes a second longer."""
    slow = [0.0, 0.0, 1.0, 0.0, 0.0]
    found = {
        "copy": [0.040 + more for more in slow],
        "no copy": [0.036 + more for more in slow],
        "more tokens": [0.036 + 0.002 * copies.MORE_TOKENS + more for more in slow],
    }
    assert copies.row(128, found) == [
        "128",
        "36.0 ms",
        "4.00 ms (4.00 to 4.00)",
        "2.00 ms",
        "2.0",
    ]
