# SPDX-License-Identifier: Apache-2.0
"""torchrun restarts a trainer's ranks (--max-restarts): messages of two attempts never mix."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import binding
from hub_keys import hub_yaml

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

driftless = binding.driftless()
SCRIPT = Path(__file__).resolve().parent / "sharded/restart_trainer.py"
VERSIONS, ROWS = 3, 32


def written(work, version):
    """The weights that the ranks may have published as this version: those of the attempt that
    reported it, or else those of any attempt that was about to publish it."""
    for pattern in (f"rank*_v{version}_attempt*_done.npy", f"rank*_v{version}_attempt*.npy"):
        attempts = sorted({path.stem.split("_")[2] for path in work.glob(pattern)})
        if attempts:
            break
    found = []
    for attempt in attempts:
        ranks = [next(work.glob(f"rank{rank}_v{version}_{attempt}*.npy")) for rank in (0, 1)]
        found.append(np.concatenate([np.load(path) for path in ranks]))
    return found


LONG = [
    pytest.param(*each, marks=pytest.mark.long)
    for each in (("gather", 1), ("part", 0), ("part", 1), ("open", 0))
]


@pytest.mark.parametrize("phase, victim", [("open", 1), ("seal", 0), ("after", 1), *LONG])
def test_versions_after_a_restart_have_the_ranks_weights(phase, victim, work):
    check_restart(phase, victim, work, "")


HUB = [pytest.param(*each, marks=pytest.mark.long) for each in (("open", 0), ("part", 1), ("after", 0))]


@pytest.mark.parametrize("phase, victim", [("part", 0), *HUB])
def test_groups_of_the_hub_after_a_restart(phase, victim, work):
    check_restart(phase, victim, work, hub_yaml(work))


def check_restart(phase, victim, work, hub):
    path = work / "driftless.yaml"
    path.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: frames }}\n"
        f"deadlines: {{ publish: 30s }}\nanchors: {{ first: true }}\n{hub}"
    )
    line = [megatron_jobs.venv_python(), "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1",
            SCRIPT, path, work, phase, victim]  # fmt: skip
    ended = subprocess.run([*map(str, line)], env=megatron_jobs.environment(), timeout=240,
                           capture_output=True, text=True)  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    held = {"w": np.zeros((2 * ROWS, 16), np.float32)}
    with driftless.Job(driftless.Config.load(path), "rollout", launched=False) as job:
        receiver = driftless.Receiver(job, driftless.MemoryTarget(held, version=0))
        seen = []
        while receiver.version < VERSIONS:
            assert receiver.stage(timeout_s=60), f"after version {receiver.version}: none"
            seen.append(receiver.commit().version)
            expected = written(work, seen[-1])
            assert any(np.array_equal(held["w"], each) for each in expected), f"version {seen[-1]}"
    assert seen[-1] == VERSIONS
