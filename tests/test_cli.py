# SPDX-License-Identifier: Apache-2.0
"""What the command says about the package itself."""

import subprocess
import sys

from typer.testing import CliRunner

import vllm_radix
from vllm_radix.cli import app
from vllm_radix.config import RadixConfig
from vllm_radix.tree import make_policy


def run(*arguments: str) -> str:
    # Wide enough for each option to have a line of its own.
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "1000"})
    assert result.exit_code == 0, result.output
    return result.output


def test_version() -> None:
    assert run("--version") == f"vllm-radix {vllm_radix.__version__}\n"


def test_it_is_a_module_as_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_radix", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"vllm-radix {vllm_radix.__version__}\n"


def test_info_shows_every_option_with_its_default() -> None:
    lines = run("info").splitlines()
    for name, field in RadixConfig.model_fields.items():
        (line,) = (line for line in lines if f" {name} " in line)
        assert f" {field.default} " in line
        assert str(field.description) in line


def test_info_lists_the_policies() -> None:
    (line,) = (line for line in run("info").splitlines() if " eviction " in line)
    policies = line.partition("One of ")[2].partition(".")[0].split(", ")
    assert len(policies) == 4
    for policy in policies:
        make_policy(policy)
