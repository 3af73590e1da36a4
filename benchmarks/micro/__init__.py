# SPDX-License-Identifier: Apache-2.0
"""What the scheduler costs with the tree and with stock vLLM's prefix cache, without a model.

    python -m benchmarks.micro

Both schedulers are vLLM's, built and driven as the engine core does; only the model is missing:
the sampled tokens are made up. They take turns in one process, and the table shows medians.

Reading order: :mod:`.contenders` (the two sides), :mod:`.timing`, :mod:`.figures` (a line of the
table), then what is measured: :mod:`.requests`, :mod:`.images`, :mod:`.decode`, :mod:`.tree`,
:mod:`.memory`.
"""
