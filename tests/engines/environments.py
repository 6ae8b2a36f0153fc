# SPDX-License-Identifier: Apache-2.0
"""The engines' environments: given by a variable, or made once from pinned requirements."""

import atexit
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PACKAGE = REPOSITORY / "build/python"

sys.path.insert(0, str(PACKAGE))


@functools.cache
def find_python(name):
    """(the engine's python, "") or (None, the reason why there is none)."""
    variable = f"DRIFTLESS_{name.upper()}_PYTHON"
    given = os.environ.get(variable)
    if given:
        there = os.access(given, os.X_OK)
        return (given, "") if there else (None, f"{variable}={given}: not there")
    made = subprocess.run(
        [REPOSITORY / "scripts/python_env.sh", name], capture_output=True, text=True
    )
    if made.returncode != 0:
        return None, (made.stderr.strip() or f"exit code {made.returncode}").splitlines()[-1]
    return made.stdout.strip() + "/bin/python", ""


def python_of(name):
    """The engine's python; skips the test with the reason if there is none."""
    found, why = find_python(name)
    if found is None:
        pytest.skip(f"no environment with {name}: {why}")
    return found


def package():
    """Imports driftless into this process, or skips the test."""
    if not list((PACKAGE / "driftless").glob("_native*.so")):
        pytest.skip(f"{PACKAGE} has no module: driftless was configured without Python")
    import driftless

    return driftless


def install_entry_points(directory):
    """Writes the entry points of pyproject.toml, as `pip install` does. Returns the directory for
    PYTHONPATH."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    info = Path(directory) / "driftless-0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: driftless\nVersion: 0.0\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    tests = Path(directory) / "driftless_tests-0.0.dist-info"
    tests.mkdir()
    (tests / "METADATA").write_text("Metadata-Version: 2.1\nName: driftless-tests\nVersion: 0.0\n")
    plugin = "[vllm.general_plugins]\nplain_fp8 = vllm_plain_fp8:register\n"
    (tests / "entry_points.txt").write_text(plugin)
    return str(directory)


@functools.cache
def allowed_configs():
    """The directory of configurations that every engine of the tests may follow, by name."""
    place = tempfile.mkdtemp(prefix="driftless-configs-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


def workers_config():
    """The configuration with which every engine of the tests starts; a test may overwrite it."""
    return allowed_configs() / "own.yaml"


def allow(config):
    """Copies a configuration to allowed_configs(); returns its name."""
    name = f"job-{hashlib.sha256(config.encode()).hexdigest()[:16]}"
    (allowed_configs() / f"{name}.yaml").write_text(config)
    return name


def environment(*paths, **more):
    """The environment of an engine's process: offline, and without this process' Python paths."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OMPI_", "PMIX_"))}
    kept["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), str(HERE), *map(str, paths)])
    kept |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    kept["DRIFTLESS_ENGINE"] = json.dumps({"config_dir": str(allowed_configs()), "config": str(workers_config())})
    return kept | {k: str(v) for k, v in more.items()}
