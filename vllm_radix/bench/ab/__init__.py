# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix ab``: the same work through several servers, and what differs.

Reading order: :mod:`~vllm_radix.bench.ab.workloads` (what is asked),
:mod:`~vllm_radix.bench.ab.arms` (who is asked), :mod:`~vllm_radix.bench.ab.drive` (asking),
:mod:`~vllm_radix.bench.ab.rounds` (how often and in which order), then
:mod:`~vllm_radix.bench.ab.stats` and :mod:`~vllm_radix.bench.ab.compare` (what it says) and
:mod:`~vllm_radix.bench.ab.report`.
"""
