# SPDX-License-Identifier: Apache-2.0
"""driftless.verl between verl's own trainers and rollouts, on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

import binding

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "megatron"))
import megatron_jobs  # noqa: E402

binding.driftless()  # skips if there is none


@pytest.mark.long  # installs an environment of its own
@pytest.mark.parametrize("how, files", [("shards", "frames"), ("whole", "flush")])
def test_every_sync_is_what_the_engines_hold_whatever_fails(how, files, work):
    python = megatron_jobs.environment_python("verl")
    (work / "driftless.yaml").write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: {files} }}\nthreads: 1\n"
    )
    env = megatron_jobs.environment(
        RAY_AUTH_MODE="disabled", RAY_SCHEDULER_EVENTS="0", RAY_USAGE_STATS_ENABLED="0",
        VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_MODULES="verl_cpu", VERL_ENGINE_DEVICE="cuda",
    )  # fmt: skip
    env["PYTHONPATH"] += f":{HERE / 'verl'}"
    line = [python, str(HERE / "verl/verl_job.py"), str(work), how]
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-5000:]
    assert ended.stdout.strip().endswith("all versions held")
