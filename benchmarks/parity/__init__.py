# SPDX-License-Identifier: Apache-2.0
"""Tasks for ``vllm-radix parity``: `tasks` are our own, `local` read files of known benchmarks."""
