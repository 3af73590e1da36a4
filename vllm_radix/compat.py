# SPDX-License-Identifier: Apache-2.0
"""Which vLLM is supported, and every line that depends on the inside of vLLM's start-up.

Three of vLLM's interfaces have no hook for what we need, so names are substituted:

* ``Scheduler.__init__`` builds ``KVCacheManager`` by its name in the module, and the coordinator
  does so with its parts. :func:`substituted` replaces such a name while one object is built.
* ``EngineCore.__init__`` decides on its own whether prompts are hashed, and
* ``EngineCore.add_lora`` does not tell the scheduler that an adapter has other weights now.
  :func:`install_engine_hooks` wraps both; for any scheduler but ours they do what they did.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

SUPPORTED_VLLM = ">=0.32,<0.34"

_substitution_lock = threading.RLock()


class UnsupportedVllmError(RuntimeError):
    """The installed vLLM is none that this package works with."""


def vllm_version() -> str:
    """The version of the vLLM that is imported here.

    Raises:
        UnsupportedVllmError: if there is none.
    """
    try:
        import vllm.version
    except ImportError:
        try:
            return version("vllm")
        except PackageNotFoundError:
            raise UnsupportedVllmError(
                f"vllm-radix needs vLLM {SUPPORTED_VLLM}, and none is installed: "
                f"pip install 'vllm{SUPPORTED_VLLM}'."
            ) from None
    return str(vars(vllm.version)["__version__"])


def require_supported_vllm() -> None:
    """Stop the start on a vLLM that this package was not made for.

    Raises:
        UnsupportedVllmError: naming the version found and the range supported.
    """
    found = vllm_version()
    try:
        supported = SpecifierSet(SUPPORTED_VLLM).contains(Version(found), prereleases=True)
    except InvalidVersion:
        supported = False
    if not supported:
        raise UnsupportedVllmError(
            f"vllm-radix supports vLLM {SUPPORTED_VLLM}, but this is vLLM {found}: install a "
            f"supported one (pip install 'vllm{SUPPORTED_VLLM}') or another release of vllm-radix."
        )


def get_logger(name: str) -> Any:
    """A logger that vLLM's own logging configuration covers: that of the name ``vllm``."""
    from vllm.logger import init_logger

    return init_logger(f"vllm.{name}")


@contextmanager
def substituted(module: ModuleType, name: str, replacement: Any) -> Iterator[None]:
    """Let ``module.name`` be ``replacement`` while one object is constructed."""
    with _substitution_lock:
        original = getattr(module, name)
        setattr(module, name, replacement)
        try:
            yield
        finally:
            setattr(module, name, original)


def hashes_have_consumers(vllm_config: Any) -> bool:
    """Whether anything but vLLM's own prefix cache reads ``Request.block_hashes``."""
    events = vllm_config.kv_events_config
    aux_output = getattr(vllm_config, "aux_output_config", None)
    return (
        vllm_config.kv_transfer_config is not None
        or (events is not None and events.enable_kv_cache_events)
        or (aux_output is not None and aux_output.enabled)
    )


def install_engine_hooks() -> None:
    """Let the engine core ask a scheduler of ours whether to hash, and tell it of new adapters.

    Wraps two functions of ``vllm.v1.engine.core``, once however often it is called.
    """
    from vllm.v1.engine import core

    _wrap(core, "get_request_block_hasher", _hasher_if_needed)
    _wrap(core.EngineCore, "add_lora", _add_lora_and_tell)


_WRAPPED = "_vllm_radix_wrapped"


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(wrapped, _WRAPPED, True)
    setattr(owner, name, wrapped)


def _hasher_if_needed(original: Any, *args: Any, **kwargs: Any) -> Any:
    """``get_request_block_hasher``, but None for an engine whose scheduler needs no hashes."""
    # The caller (above `wrapped`) is EngineCore.__init__, which has built its scheduler by now
    # and passes nothing that leads to it. Whoever else calls gets what they asked for.
    engine = sys._getframe(2).f_locals.get("self")
    if getattr(getattr(engine, "scheduler", None), "needs_block_hashes", True):
        return original(*args, **kwargs)
    return None


def _add_lora_and_tell(original: Any, engine: Any, lora_request: Any) -> Any:
    """``EngineCore.add_lora``, and the news to a scheduler that wants it."""
    added = original(engine, lora_request)
    on_adapter_reloaded = getattr(engine.scheduler, "on_adapter_reloaded", None)
    if on_adapter_reloaded is not None and lora_request.load_inplace:
        on_adapter_reloaded(lora_request.lora_int_id)
    return added
