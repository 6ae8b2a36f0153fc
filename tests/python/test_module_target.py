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
    """The functions of the check files, which import torch."""
    for path in sorted(HERE.glob("checks*.py")):
        for node in ast.parse(path.read_text()).body:
            # functions with arguments are helpers
            if isinstance(node, ast.FunctionDef) and not node.args.args:
                yield path.name, node.name


@functools.cache
def results(file):
    """Runs a whole file in one process: importing torch takes longer than most checks."""
    line = [venv_python(), HERE / file]
    result = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=900)
    return result.stdout, result.stderr


@pytest.mark.parametrize(("file", "name"), checks())
def test_module_target(file, name):
    output, errors = results(file)
    assert f"ok {name}\n" in output, output.split(f"failed {name}\n")[-1] + errors
