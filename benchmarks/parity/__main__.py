# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix parity`` with our own tasks and SmolLM2-135M-Instruct on the CPU.

python -m benchmarks.parity [FLAGS]        FLAGS are those of vllm-radix parity
"""

import os
import sys
from pathlib import Path

from benchmarks.models.smollm2 import checkpoint
from vllm_radix.cli import app

# The longest prompt has 437 tokens, its answer at most 40. In float32 hardly any two tokens tie.
MODEL_ARGS = "dtype=float32,max_model_len=640,block_size=32,enforce_eager=True"

if __name__ == "__main__":
    # The engines inherit them; GiB.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tasks = ("--tasks", "radix_parity", "--include-path", str(Path(__file__).parent / "tasks"))
    engine = ("--model-args", MODEL_ARGS)
    app(["parity", str(checkpoint()), *tasks, *engine, *sys.argv[1:]])
