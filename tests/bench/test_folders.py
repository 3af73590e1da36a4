# SPDX-License-Identifier: Apache-2.0
"""A folder is missed before the hub is asked for something of its name."""

from pathlib import Path

import pytest

from vllm_radix.bench.folders import check_named


@pytest.mark.parametrize("name", ["./x", "../x", "a/b/c", "name/", "owner/name/"])
def test_a_folder_must_exist(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(
        ValueError, match=f"^There is no model in {name}: there is no such folder.$"
    ):
        check_named("model", name)
    Path(name).mkdir(parents=True)
    check_named("model", name)
    check_named("model", str(Path(name).resolve()))


@pytest.mark.parametrize("name", ["name", "owner/name", "s3://bucket/a/b/c"])
def test_a_name_may_be_on_the_hub(name: str) -> None:
    check_named("model", name)
