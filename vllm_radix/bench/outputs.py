# SPDX-License-Identifier: Apache-2.0
"""Places to write to, checked before a run that may take hours."""

from collections.abc import Collection
from pathlib import Path

RESULTS = "results.json"
"""The file in a run's folder that holds all of it."""


def check_file(path: Path, option: str, suffixes: Collection[str] = ()) -> None:
    """Return if a file can be written there.

    Args:
        path: the file.
        option: what the user gave it with.
        suffixes: what its name may end with, without the dot; anything if there are none.

    Raises:
        ValueError: in one sentence.
    """
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: there is no folder {path.parent} to write {path.name} to.")
    if path.is_dir():
        raise ValueError(f"{option}: {path} is a folder: name a file.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{option}: {path} is no ordinary file: name another one.")
    if suffixes and path.suffix.removeprefix(".").lower() not in suffixes:
        known = ", ".join(f".{suffix}" for suffix in sorted(suffixes))
        raise ValueError(f"{option}: {path.name} must end with one of {known}.")


def check_folder(path: Path, option: str) -> None:
    """Return if a run can have the folder for itself; it need not exist.

    Raises:
        ValueError: it holds an earlier run's results, or there cannot be such a folder.
    """
    if (path / RESULTS).exists():
        raise ValueError(
            f"{option}: {path} holds the results of an earlier run: choose another folder, or "
            "remove it."
        )
    in_the_way = next((one for one in (path, *path.parents) if one.exists()), path)
    if in_the_way.exists() and not in_the_way.is_dir():
        raise ValueError(f"{option}: {in_the_way} is a file: name a folder.")
