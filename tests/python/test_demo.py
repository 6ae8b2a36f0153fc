# SPDX-License-Identifier: Apache-2.0
"""`make demo` as in the README: every road, real Megatron and an engine, smaller."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_road_of_the_demo_is_bit_identical():
    if not (ROOT / "build/bin/driftless").exists():
        pytest.skip("the demo uses the tree's own build, and build/bin/driftless is missing")
    shown = subprocess.run(
        ["scripts/demo.sh", "2000000", "2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout[-6000:]
    if "MPI is missing" in shown.stdout:
        return
    same = dict(re.findall(r"^(\w+) .* (yes|NO) +\d+ s$", shown.stdout, re.MULTILINE))
    assert {"mpi_rma", "flush", "hf_delta"} <= same.keys(), shown.stdout[-6000:]
    assert set(same.values()) == {"yes"}
    left_out = "Megatron part left out" in shown.stdout
    assert left_out or "generat" in shown.stdout.split("== Megatron")[1]
