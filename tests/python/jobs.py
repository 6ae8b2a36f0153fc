"""Running the main job: trainers and rollouts under a real mpirun."""

import functools
import json
import os
import shutil
import subprocess

import pytest

import support
from support import COMMAND, REPOSITORY

CONFIGS = REPOSITORY / "configs"
# Every road and layout, by a configuration that people start from.
ROADS = {
    "mpi_rma": "single_node.yaml",
    "flush": "shared_fs_flush.yaml",
    "hf_delta": "shared_fs_sglang.yaml",
    "hdf5": "parallel_hdf5.yaml",
}
NEEDS = {"mpi_rma": ["mpi_rma"], "hdf5": ["shared_fs/hdf5", "mpi_rma"]}


@functools.cache
def backends():
    return {b["name"]: b for b in support.ok_json("info")["backends"]}


def need(*names):
    for name in names:
        if not backends()[name]["built"]:
            pytest.skip(f"{name}: {backends()[name]['why_not']}")


def need_mpirun():
    need("mpi_rma")
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")


def environment():
    # As root mpirun wants to be told twice that this is meant; and without an ssh, that it needs none.
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "isolated",
    }


def mpirun_line(*parts):
    """mpirun for several (count, arguments of driftless)."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for number, (count, arguments) in enumerate(parts):
        line += [":"] if number else []
        line += ["-n", str(count), COMMAND, *map(str, arguments)]
    return line


def start(line, **options):
    pipe = subprocess.PIPE
    return subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=environment(), **options)


def finish(process, timeout=120):
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"did not end in {timeout} s: {out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Job:
    """A road's configuration and directories within `work`."""

    def __init__(self, work, road):
        need(*NEEDS.get(road, []))
        self.work, self.road = work, road
        self.config = CONFIGS / ROADS[road]
        self.dir = work / "road"
        self.save = work / "save"
        self.settings = ["--set", "deadlines.connect=60s"]
        if road != "mpi_rma":
            self.settings += ["--set", f"road.dir={self.dir}"]

    def trainer(self, *arguments):
        return ["trainer", "--config", self.config, "--threads", 1, *self.settings, *arguments]

    def rollout(self, *arguments):
        return ["rollout", "--config", self.config, "--threads", 1, *self.settings, *arguments]

    def run(self, trainer=(), rollout=(), trainers=2, rollouts=2, timeout=120):
        need_mpirun()
        line = mpirun_line(
            (trainers, self.trainer("--json", *trainer)),
            (rollouts, self.rollout("--json", "--save", self.save, *rollout)),
        )
        return finish(start(line), timeout)


def events(result):
    """The JSON lines of a job, by kind."""
    found = {"version": [], "summary": [], "rollout": []}
    for line in result.stdout.splitlines():
        event = json.loads(line)
        found[event["event"]].append(event)
    return found
