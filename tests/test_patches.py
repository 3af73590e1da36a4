# SPDX-License-Identifier: Apache-2.0
"""Every patch names its version, reason and gain, and applies cleanly to that version."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from vllm_radix.compat import vllm_version

FOLDER = Path(__file__).parents[1] / "patches"
PATCHES = sorted(FOLDER.glob("*/*.patch"))


def name_of(patch: Path) -> str:
    return f"{patch.parent.name}/{patch.stem}"


def test_each_version_has_the_same_patches() -> None:
    names = [sorted(p.name for p in folder.glob("*.patch")) for folder in FOLDER.glob("*/")]
    assert len(names) == 2
    assert names[0] == names[1] != []


@pytest.mark.parametrize("patch", PATCHES, ids=name_of)
def test_a_patch_says_what_it_is_for(patch: Path) -> None:
    head = patch.read_text().split("diff --git")[0]
    assert head.startswith(f"vLLM: {patch.parent.name}\nSubject: ")
    assert re.search(r"^Reason: \w", head, re.MULTILINE)
    assert re.search(r"^Gain: \w", head, re.MULTILINE)


@pytest.mark.parametrize("patch", PATCHES, ids=name_of)
def test_a_patch_applies_cleanly(patch: Path, tmp_path: Path) -> None:
    if Version(vllm_version()).base_version != patch.parent.name:
        pytest.skip(f"vLLM {vllm_version()} is installed, not {patch.parent.name}")
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    installed = Path(spec.origin).parent
    files = re.findall(r"^--- a/vllm/(.+)$", patch.read_text(), re.MULTILINE)
    assert files
    for file in files:
        copy = tmp_path / "vllm" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / file, copy)
    # Outside any repository: inside one, git leaves out the paths that it does not track.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, env=environment, check=True)
    for file in files:
        assert (tmp_path / "vllm" / file).read_text() != (installed / file).read_text()
        compile((tmp_path / "vllm" / file).read_text(), file, "exec")
