# SPDX-License-Identifier: Apache-2.0
"""The cost of a step is the sum of its parts."""

import pytest

from vllm_radix.bench.replay.cost import CostModel


def test_each_part_counts() -> None:
    cost = CostModel(
        per_step=1.0, per_prefill_token=0.1, per_decoding_sequence=0.01, per_attended_token=0.001
    )
    assert cost.step_time(0, 0, 0) == 1.0
    assert cost.step_time(2, 3, 4) == pytest.approx(1.0 + 0.2 + 0.03 + 0.004)
