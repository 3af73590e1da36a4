# SPDX-License-Identifier: Apache-2.0
"""The entry point that vLLM calls in each of its processes, any number of times."""


def register() -> None:
    """Do nothing: the package acts only once ``--scheduler-cls`` names it.

    The entry point exists so that vLLM lists the plugin at start. What the engine core needs is
    installed by the scheduler itself, in the engine core's process
    (:func:`vllm_radix.compat.install_engine_hooks`).
    """
