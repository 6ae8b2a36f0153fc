# SPDX-License-Identifier: Apache-2.0
"""A few of the random cases of `make test-night`, with fixed seeds; and a check that they can
fail."""

import subprocess
import sys

import pytest

from support import REPOSITORY, read_checkpoint, safetensors_bytes

sys.path.insert(0, str(REPOSITORY / "tests/night"))
import case  # noqa: E402
import record  # noqa: E402

NIGHT = REPOSITORY / "tests/night/night.py"


def night(*arguments):
    line = [sys.executable, NIGHT, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300)


def test_claims_of_simulated_fleets_are_true():
    ran = night("--simulated", 50, "--jobs", 2)
    assert ran.returncode == 0 and "50 seeds" in ran.stdout and "0 wrong" in ran.stdout, ran.stdout


def test_claims_of_real_processes_are_true():
    ran = night("--real-seeds", "13,20,61", "--jobs", 2)
    assert ran.returncode == 0 and "3 cases" in ran.stdout, ran.stdout + ran.stderr


def test_a_labelled_checkpoint_with_one_flipped_bit_is_found(work):
    """Shows that the check of claims can fail."""
    one = case.Case(23, work, None, case.CONTRACTS)
    one.road, one.faults, one.followers = "flush", ["none"], ["checkpoint"]
    one.settings |= {"road.layout": "flush", "encoding": "deltas"}
    one.config = "shared_fs_flush.yaml"
    try:
        one.run()
        assert one.compared > 0
        file = next((work / "checkpoint0").glob("*.safetensors"))
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        with pytest.raises(case.Wrong, match="checkpoint0 is labelled version"):
            one.check()
    finally:
        one.clean_up()


def test_the_record_distinguishes_versions(work):
    model = {"a": ("BF16", (3, 5)), "b": ("F32", ())}
    run = record.Run(work / "run", model, 1, 2)
    kept = record.Record([run])
    assert kept.wrong(run.history[1], 1) is None and kept.wrong(run.history[1], 2) is not None
    assert "no version 3" in kept.wrong(run.history[2], 3)
    assert read_checkpoint(run.step(2)) == run.history[2]
    assert safetensors_bytes(run.history[0]) != safetensors_bytes(run.history[2])
