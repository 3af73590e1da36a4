# SPDX-License-Identifier: Apache-2.0
"""How servers are started."""

from pathlib import Path
from typing import Any

import pytest

from vllm_radix.bench.ab import arms
from vllm_radix.bench.ab.arms import Arm, Stage
from vllm_radix.bench.server import ServerError


@pytest.mark.parametrize("images", [False, True])
def test_a_server_hangs_up_later_than_any_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: bool
) -> None:
    """`vllm bench serve` keeps idle connections for a minute."""
    environments = []

    def server(*args: Any, env: dict[str, str], **kwargs: Any) -> None:
        environments.append(env)
        raise ServerError

    monkeypatch.setattr(arms, "Server", server)
    stage = Stage(("model",), tmp_path, None, 1.0, images)
    with pytest.raises(ServerError), stage.serve(Arm("stock", ("--flag",)), 1):
        pass
    [env] = environments
    assert int(env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) > 60
    assert ("VLLM_LOGGING_LEVEL" in env) == images
