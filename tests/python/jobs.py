# SPDX-License-Identifier: Apache-2.0
"""Running the main job: trainers and rollouts under a real mpirun."""

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import support
from support import COMMAND, REPOSITORY, changed, random_tensor, write_checkpoint

CONFIGS = REPOSITORY / "configs"
# Every road and layout, with a shipped configuration.
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
        pytest.skip("mpirun is missing")


def environment():
    # As root, mpirun runs only with two variables; with plm=isolated it does not need ssh.
    found = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "isolated",
        # There are more processes than cores: a waiting process yields its core.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    # MPI puts its windows in /dev/shm, which is often small in containers.
    if shutil.disk_usage("/dev/shm").free < 2e9:
        found["OMPI_MCA_osc_sm_backing_directory"] = tempfile.gettempdir()
    return found


def mpirun_line(*parts, options=()):
    """mpirun with several (count, arguments of driftless); `options` of mpirun apply to each of
    them."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for number, (count, arguments) in enumerate(parts):
        line += [":"] if number else []
        line += ["-n", str(count), *map(str, options), COMMAND, *map(str, arguments)]
    return line


_started = []


def start(line, **options):
    pipe = subprocess.PIPE
    options.setdefault("env", environment())
    process = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, **options)
    # Nobody reads before finish(): a line for each of 200 versions would not fit, and the process
    # would wait.
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, 1 << 20)
    _started.append(process)
    return process


def stop_started():
    """Ends processes that a failed test left running."""
    for process in _started:
        if process.poll() is None:
            _stop(process)
    _started.clear()


def _stop(process, wait_s=10):
    """Ends a process; returns what it printed. torchrun's workers outlive its SIGKILL and hold its
    pipes, so it gets SIGTERM first, which it forwards."""
    out = err = None
    forwards = "torch.distributed.run" in process.args
    for end in (process.terminate,) * forwards + (process.kill,):
        end()
        try:
            return process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired as late:
            out, err = late.output, late.stderr
    return tuple(t.decode(errors="replace") if isinstance(t, bytes) else t for t in (out, err))


# The limit for what ends or comes by itself, however busy the machine is. Only a test that hangs
# takes so long.
PATIENCE_S = 300


def finish(process, timeout=PATIENCE_S):
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        out, err = _stop(process)
        raise AssertionError(f"did not end in {timeout} s: {out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def make_run(path, rng, steps, rows=64, fraction=0.02):
    """Writes step_000000/ ... of a small model of several dtypes; returns the weights of each step.
    `rows` sets its size, and `fraction` of it changes with each step."""
    weights = {
        "embed.weight": random_tensor(rng, "BF16", (rows, 32)),
        "layers.0.weight": random_tensor(rng, "BF16", (48, 32)),
        "layers.1.weight": random_tensor(rng, "F32", (17, 3)),
        "layers.2.frozen": random_tensor(rng, "BF16", (16, 16)),
        "norm.weight": random_tensor(rng, "F16", (33,)),
    }
    history = []
    for step in range(steps + 1):
        history.append(weights)
        write_checkpoint(path / f"step_{step:06d}", weights, 1 + step % 2)
        weights = {
            name: tensor if "frozen" in name else changed(rng, tensor, fraction)
            for name, tensor in weights.items()
        }
    return history


class Job:
    """A road's configuration and directories within `work`."""

    def __init__(self, work, road):
        need(*NEEDS.get(road, []))
        work.mkdir(exist_ok=True)
        self.work, self.road = work, road
        self.config = CONFIGS / ROADS[road]
        self.dir = work / "road"
        self.save = work / "save"
        self.settings = ["--set", "deadlines.connect=60s"]
        self.threads = 1
        if road != "mpi_rma":
            self.settings += ["--set", f"road.shared_fs.dir={self.dir}"]

    def trainer(self, *arguments):
        return ["trainer", "--config", self.config, "--threads", self.threads, *self.settings, *arguments]

    def rollout(self, *arguments):
        return ["rollout", "--config", self.config, "--threads", self.threads, *self.settings, *arguments]

    def hold(self, *versions):
        """The trainer makes each of these versions visible only after go(version)."""
        line = "case $DRIFTLESS_VERSION_DIR in "
        for version in versions:
            waits = f"while [ -d {self.work} ] && [ ! -e {self.work}/go{version} ]; do sleep 0.02; done"
            line += f"*weight_v{version:06d}*) {waits};; "
        for key, value in (("before_visible", line + "esac"), ("hook_timeout", "10min")):
            self.settings += ["--set", f"road.shared_fs.{key}={value}"]

    def go(self, version):
        (self.work / f"go{version}").touch()

    def run(self, trainer=(), rollout=(), trainers=2, rollouts=2, timeout=PATIENCE_S, options=()):
        need_mpirun()
        line = mpirun_line(
            (trainers, self.trainer("--json", *trainer)),
            (rollouts, self.rollout("--json", "--save", self.save, *rollout)),
            options=options,
        )
        return finish(start(line), timeout)


def events(result):
    """The JSON lines of a job, by kind."""
    found = {"version": [], "summary": [], "rollout": []}
    for line in result.stdout.splitlines():
        event = json.loads(line)
        found[event["event"]].append(event)
    return found


class Files(Job):
    """A job over files, with deadlines of a few seconds."""

    def __init__(self, work, road="flush", **settings):
        super().__init__(work, road)
        self.set(**{"deadlines.fetch": "5s", "deadlines.connect": "20s"})
        self.set(**{"road.poll_longest": "20ms"})
        self.set(**settings)

    def set(self, **settings):
        for key, value in settings.items():
            self.settings += ["--set", f"{key}={value}"]

    def start_trainer(self, *arguments, **options):
        return start([COMMAND, *map(str, self.trainer("--json", *arguments))], **options)

    def start_rollout(self, *arguments, **options):
        return start([COMMAND, *map(str, self.rollout("--json", *arguments))], **options)

    def version_dir(self, version):
        return self.dir / f"weight_v{version:06d}"


def wait_for(condition, what, seconds=PATIENCE_S):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.005)


def stop(process):
    """Sends SIGSTOP, and waits until the process has stopped."""
    process.send_signal(signal.SIGSTOP)
    state = Path(f"/proc/{process.pid}/status")
    wait_for(lambda: "State:\tT" in state.read_text(), "the process to stop")


def ended(process, seconds=PATIENCE_S):
    """Waits for a process, which must succeed; returns its last line."""
    result = finish(process, seconds)
    assert result.returncode == 0, result.stderr + result.stdout
    return json.loads(result.stdout.splitlines()[-1])
