# SPDX-License-Identifier: Apache-2.0
"""driftless.engines.ModuleTarget with a toy engine, in the environment that has torch."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "engines_toy"
sys.path.insert(0, str(HERE.parent / "megatron"))

from megatron_jobs import environment, venv_python  # noqa: E402


def checks():
    """The functions of the files of checks, which need torch to be imported."""
    for path in sorted(HERE.glob("checks*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.args.args:  # others help them
                yield path.name, node.name


@functools.cache
def results(file):
    """All of a file in one process: it takes longer to import torch than to run most."""
    line = [venv_python(), HERE / file]
    result = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=900)
    return result.stdout, result.stderr


@pytest.mark.parametrize(("file", "name"), checks())
def test_module_target(file, name):
    output, errors = results(file)
    assert f"ok {name}\n" in output, output.split(f"failed {name}\n")[-1] + errors
