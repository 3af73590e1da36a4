# SPDX-License-Identifier: Apache-2.0
"""The arguments of the arms."""

import pytest

from vllm_radix.bench.parity.arms import ARMS, RADIX, REFERENCE, arm_args, check_model_args


def test_the_arms_differ_in_the_cache_alone() -> None:
    args = [arm_args(arm, "model", {"dtype": "float32"}, stress=False) for arm in ARMS]
    shared = {"pretrained": "model", "dtype": "float32", "disable_log_stats": False}
    assert args == [
        {**shared, "enable_prefix_caching": False},
        {**shared, "enable_prefix_caching": True},
        {**shared, "enable_prefix_caching": True, "scheduler_cls": "vllm_radix.Scheduler"},
    ]


def test_stress_gives_every_arm_a_pool_of_two_requests() -> None:
    for arm in ARMS:
        args = arm_args(arm, "model", {"max_model_len": 500}, stress=True)
        assert args["num_gpu_blocks_override"] == 2 * 16 + 1
        assert args["block_size"] == 32
        assert args["max_num_seqs"] == 32
        assert args["max_num_batched_tokens"] == 64
        assert args["enable_chunked_prefill"] is True


def test_stress_leaves_what_the_user_says() -> None:
    given = {"max_model_len": 512, "block_size": 16, "max_num_batched_tokens": 128}
    args = arm_args(RADIX, "model", given, stress=True)
    assert args["num_gpu_blocks_override"] == 2 * 32 + 1
    assert args["max_num_batched_tokens"] == 128


def test_stress_needs_to_know_how_long_a_request_is() -> None:
    with pytest.raises(ValueError, match="put a max_model_len into --model-args"):
        arm_args(REFERENCE, "model", {}, stress=True)


@pytest.mark.parametrize("name", ["scheduler_cls", "enable_prefix_caching", "pretrained"])
def test_what_the_arms_are_about_cannot_be_set(name: str) -> None:
    with pytest.raises(ValueError, match=f"leave {name} out"):
        check_model_args({name: "anything"})


def test_one_engine_alone_can_be_counted() -> None:
    check_model_args({"data_parallel_size": 1})
    with pytest.raises(ValueError, match="leave data_parallel_size out"):
        check_model_args({"data_parallel_size": 2})
