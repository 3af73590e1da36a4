# SPDX-License-Identifier: Apache-2.0
"""As much of torchvision as importing vLLM's image models takes.

PyPI has torchvision built for CUDA alone, so beside a CPU PyTorch there is often none that can be
imported; without one, transformers has no image processor for the models of vLLM's tests, which
want nothing of it but the number of tokens that an image takes. Where torchvision works, this
module is not on the path.

Every submodule exists and every name in it is a class that does nothing; ``pil_to_tensor`` alone
is called, and is real.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

__version__ = "0"
__path__: list[str] = []  # makes this module a package, whose submodules _Submodules finds


class _Placeholder(type):
    """The class of the classes that do nothing; an attribute of one (say, of an enum) is a name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def _attribute(name: str) -> Any:
    if name == "pil_to_tensor":
        return _pil_to_tensor
    if name.startswith("__") or name in ("functional", "io", "ops", "transforms", "v2"):
        raise AttributeError(name)  # a submodule is imported instead
    return _Placeholder(name, (), {})


def _pil_to_tensor(image: Any) -> Any:
    """The image as a tensor of uint8 (channels, height, width)."""
    import numpy
    import torch

    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


class _Submodules(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _attribute  # type: ignore[method-assign]


sys.meta_path.append(_Submodules())
__getattr__ = _attribute
