# SPDX-License-Identifier: Apache-2.0
"""Replaying a workload on a real scheduler in virtual time, with no model.

Reading order: :mod:`~vllm_radix.bench.replay.sessions` (what is replayed),
:mod:`~vllm_radix.bench.replay.workloads` and :mod:`~vllm_radix.bench.replay.traces` (where it
comes from), :mod:`~vllm_radix.bench.replay.engine` (the loop), then
:mod:`~vllm_radix.bench.replay.bounds` (what could be reached).
"""
