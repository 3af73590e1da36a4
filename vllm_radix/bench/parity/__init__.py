# SPDX-License-Identifier: Apache-2.0
"""Parity: whether a model's answers to lm-eval's tasks stay the same with the radix tree.

The same tasks run three times, each in a process of its own (`worker`): without a prefix cache,
with vLLM's own, and with the tree (`arms`). `compare` counts the samples whose responses differ
from those without a cache, and judges: the tree may differ no more than vLLM's cache does.
"""
