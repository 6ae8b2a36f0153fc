# SPDX-License-Identifier: Apache-2.0
"""driftless.engines.ModuleTarget with a toy engine, in the environment that has torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "engines_toy"
sys.path.insert(0, str(HERE.parent / "megatron"))

from megatron_jobs import environment, venv_python  # noqa: E402


def checks():
    """The names of the functions of checks.py, which needs torch to be imported."""
    tree = ast.parse((HERE / "checks.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@pytest.fixture(scope="module")
def results():
    """All of them in one process: it takes longer to import torch than to run most."""
    line = [venv_python(), HERE / "checks.py"]
    result = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=900)
    return result.stdout, result.stderr


@pytest.mark.parametrize("name", checks())
def test_module_target(results, name):
    output, errors = results
    assert f"ok {name}\n" in output, output.split(f"failed {name}\n")[-1] + errors
