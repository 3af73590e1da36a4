# SPDX-License-Identifier: Apache-2.0
"""The scheduler classes. vLLM's ``schedule()`` runs as it is; we replace what it talks to."""

from vllm_radix.compat import require_supported_vllm

# Before the modules of this package import from vLLM: on another version, that may fail.
require_supported_vllm()
