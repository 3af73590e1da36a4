# SPDX-License-Identifier: Apache-2.0
"""Tests on real vLLM engines, in this process, on the CPU.

The environment below must be set before vLLM and torch are imported.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # else the first sampled logprob costs seconds
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
