# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_radix`` is the command ``vllm-radix``."""

from vllm_radix.cli import app

app(prog_name="vllm-radix")
