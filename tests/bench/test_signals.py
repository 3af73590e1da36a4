# SPDX-License-Identifier: Apache-2.0
"""What ends a run."""

import signal

import pytest

from vllm_radix.bench.signals import terminable


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_of_them_is_a_ctrl_c_and_then_what_it_was(kind: signal.Signals) -> None:
    before = signal.signal(kind, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), terminable():
            signal.raise_signal(kind)
        assert signal.getsignal(kind) is signal.SIG_IGN
        signal.raise_signal(kind)
    finally:
        signal.signal(kind, before)
