# SPDX-License-Identifier: Apache-2.0
"""Models and tokenizers are named by a name on the hub or by a folder."""

from pathlib import Path


def check_named(what: str, name: str) -> None:
    """Return if ``name`` is that of a folder that exists, or may be one on the hub.

    Args:
        what: what it names.

    Raises:
        ValueError: in one sentence.
    """
    # On the hub there is at most an owner before the name; vLLM reads from other storage by URL.
    is_path = name.startswith(("/", ".")) or (
        "://" not in name and (name.count("/") > 1 or name.endswith("/"))
    )
    if is_path and not Path(name).exists():
        raise ValueError(f"There is no {what} in {name}: there is no such folder.")
