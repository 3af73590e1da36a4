# SPDX-License-Identifier: Apache-2.0
"""What is usual, as far as the last few observations tell."""

_WEIGHT = 0.05


class RunningMean:
    """An exponentially weighted mean, in which each new value has a weight of a twentieth.

    Attributes:
        value: the mean; 0 until something was seen that is not 0.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = self.value + _WEIGHT * (value - self.value) if self.value else value
