# SPDX-License-Identifier: Apache-2.0
"""Measurements of vllm-radix against stock vLLM, and what they need."""
