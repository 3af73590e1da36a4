# SPDX-License-Identifier: Apache-2.0
import logging

# Before vLLM is imported: what it says about this machine at its start is no part of the table.
logging.getLogger("vllm").setLevel(logging.ERROR)

from benchmarks.micro.cli import app  # noqa: E402

app()
