# SPDX-License-Identifier: Apache-2.0
"""The launch files of examples/ that start an engine run unchanged: on the CPU, with a small
model."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from engines import LIMITS, VLLM
from environments import HERE, PACKAGE, REPOSITORY, install_entry_points, python_of

sys.path[:0] = [str(REPOSITORY / "tests/python/megatron"), str(REPOSITORY / "tests/python")]

import megatron_jobs  # noqa: E402
from ports import free_port  # noqa: E402
from slurm import Slurm  # noqa: E402
from support import COMMAND, run  # noqa: E402

STEPS = 3
MEGATRON = REPOSITORY / "tests/python/megatron"
SGLANG_ON_CPU = """--device cpu --dtype float32 --tp 2 --attention-backend torch_native
 --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled --skip-tokenizer-init
 --mem-fraction-static 0.05 --max-total-tokens 1024 --max-running-requests 4 --context-length 128
 --skip-server-warmup --sleep-on-idle"""
VLLM_ON_CPU = f"""--dtype float32 --tensor-parallel-size 2 --enforce-eager --skip-tokenizer-init
 --max-model-len {LIMITS["max_model_len"]} --max-num-seqs {LIMITS["max_num_seqs"]}"""


def program(folder, name, *command, **more):
    """A program in an environment, as `pip install` writes it: runs `command` with our package."""
    folder = folder / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in more.items()]
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec {shlex.join(map(str, command))} "$@"\n']))
    path.chmod(0o755)


def train_environment(place, *script):
    """An environment with torch and Megatron. `script` runs Python's arguments."""
    python = megatron_jobs.venv_python()
    path = f"{PACKAGE}:{MEGATRON}"
    folder = place / "train"
    program(folder, "python", python, *script, PYTHONPATH=path)
    program(folder, "torchrun", python, "-m", "torch.distributed.run", PYTHONPATH=path)
    return folder


def engine_environment(place, name, *paths, **more):
    python, folder = Path(python_of(name)), place / name
    more |= {"PYTHONPATH": ":".join(map(str, [PACKAGE, *paths]))}
    program(folder, "python", python, **more)
    program(folder, name, python.with_name(name), **more)
    program(folder, "driftless", COMMAND)
    return folder


@pytest.fixture
def copied(place):
    """A copy of a folder of examples/, in a directory that also has the environments."""
    made = []

    def copy(name):
        made.append(Path(tempfile.mkdtemp(dir=place, prefix="launch-")))
        shutil.copytree(REPOSITORY / "examples" / name, made[-1] / "job")
        return made[-1] / "job"

    yield copy
    for path in made:
        shutil.rmtree(path, ignore_errors=True)


def ends_well(line, env, cwd, log, seconds=900):
    """Runs a process and all that it starts, which must succeed; returns its output."""
    with log.open("w") as out:
        process = subprocess.Popen(line, env=env, cwd=cwd, stdout=out, stderr=out, start_new_session=True)  # fmt: skip
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = f"none after {seconds} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    output = log.read_text(errors="replace")
    assert code == 0, f"exit status {code}: {output[-6000:]}"
    return output


def assert_published(job, output):
    """Every step is a version, and the agent succeeded, so every rank of the engine holds the last
    one with its digest. The agent's output names it."""
    found = run("status", job / "weights")
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"ended at version {STEPS}" in output, output[-6000:]
    assert (job / f"weights/weight_v{STEPS:06d}").is_dir()
    assert not (job / f"weights/weight_v{STEPS + 1:06d}").exists()


@pytest.mark.skipif(
    "DRIFTLESS_SLURM_SGLANG" not in os.environ,
    reason="SGLang's ranks took 10 GB each inside a Slurm job here, 0.7 GB outside; "
    "DRIFTLESS_SLURM_SGLANG=1 tries it",
)
def test_slurm_with_megatron_and_sglang_on_two_nodes(models, copied, place):
    job = copied("slurm_megatron_sglang")
    port, work = free_port(), Path(tempfile.mkdtemp(prefix="driftless-slurm-"))
    env = megatron_jobs.environment(
        MODEL=models["qwen3"].checkpoint(0),
        TRAIN_ENV=str(train_environment(job.parent, MEGATRON / "on_cpu.py")),
        SGLANG_ENV=str(engine_environment(
            job.parent, "sglang", HERE / "stand_in", SGLANG_USE_CPU_ENGINE=1,
            SGLANG_CPU_OMP_THREADS_BIND="0|1", HF_HUB_OFFLINE=1)),
        SGLANG_OPTIONS=SGLANG_ON_CPU,
        TRAIN_OPTIONS=f"--tp 2 --pp 2 --steps {STEPS}",
        PORT=str(port),
        MASTER_ADDR="127.0.0.1",  # the names of this cluster's nodes do not resolve
    )  # fmt: skip
    del env["PYTHONPATH"]
    slurm = Slurm(work, nodes=2)
    try:
        # This cluster's sizes override those in the file.
        line = ["sbatch", "--wait", "--ntasks-per-node=4", "--gpus-per-node=0", "--output=said"]
        log = job.parent / "sbatch.log"
        try:
            ends_well([*line, "job.sbatch"], env | slurm.env, job, log)
        except AssertionError as failed:
            output = job / "said"
            raise AssertionError(output.read_text()[-6000:] if output.exists() else "") from failed
    finally:
        slurm.stop()
        shutil.rmtree(work, ignore_errors=True)
    assert_published(job, (job / "said").read_text())


def test_torchrun_with_fsdp2_and_vllm(models, copied, place):
    job = copied("torchrun_fsdp2_vllm")
    vllm = engine_environment(
        job.parent, "vllm", install_entry_points(job.parent / "entry_points"), **VLLM,
        DRIFTLESS_VLLM_KEEP_LOAD_LAYOUT=1,
    )  # fmt: skip
    env = megatron_jobs.environment(
        MODEL=models["qwen3"].checkpoint(0), TRAIN_ENV=str(train_environment(job.parent)),
        VLLM_ENV=str(vllm), VLLM_OPTIONS=VLLM_ON_CPU, RANKS="2", STEPS=str(STEPS),
        PORT=str(free_port()), TRAIN_GPUS="", VLLM_GPUS="",
    )  # fmt: skip
    del env["PYTHONPATH"]
    output = ends_well(["./launch.sh"], env, job, job.parent / "launch.log")
    assert_published(job, output)


# --- Kubernetes ----------------------------------------------------------------------------------


def containers():
    """{container: its description} of the pods in the workloads."""
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    text = (REPOSITORY / "examples/kubernetes_vllm/workloads.yaml").read_text()
    pods = [each["spec"]["template"] for each in yaml.safe_load_all(text) if "template" in each.get("spec", {})]  # fmt: skip
    return {each["name"]: each for pod in pods for each in pod["spec"]["containers"]}


class Container:
    """A container's command on this machine: volumes are directories of `root`, its programs are
    those of `programs`, and `more` is appended to its arguments."""

    def __init__(self, described, root, programs, *more, ports=()):
        self.described, self.root, self.ports = described, root, dict(ports)
        self.env = megatron_jobs.environment(
            PATH=f"{programs}/bin:{os.environ['PATH']}",
            **{each["name"]: each["value"] for each in described.get("env", ())},
        )
        del self.env["PYTHONPATH"]
        self.log = root / f"{described['name']}.log"
        line = [*map(self.here, described["command"] + described.get("args", [])), *map(str, more)]
        with self.log.open("w") as out:
            self.popen = subprocess.Popen(
                line, env=self.env, cwd=root, stdout=out, stderr=out, start_new_session=True
            )

    def here(self, word):
        """A word with the paths and ports of this machine."""
        for path in ("/job", "/weights"):
            word = f"{self.root}{word}" if word.startswith(f"{path}/") else word
        for theirs, ours in self.ports.items():
            word = word.replace(theirs, ours)
        return word

    def ready(self):
        probe = self.described["readinessProbe"]["exec"]["command"]
        line = [self.here(word) for word in probe]
        return subprocess.run(line, env=self.env, capture_output=True).returncode == 0

    def tail(self):
        return self.log.read_text(errors="replace")[-4000:]

    def end(self, seconds=400):
        assert self.popen.wait(seconds) == 0, self.tail()

    def stop(self):
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()


def wait_until_served(url, container, seconds=300):
    """An agent whose run has ended does not wait for an engine that is still loading."""
    until = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert time.monotonic() < until and container.popen.poll() is None, container.tail()
            time.sleep(0.5)


def test_the_containers_of_kubernetes_and_their_probes(models, copied, place):
    """The trainer's pod ends early and is restarted; the engine's pod is ready once it has a
    version."""
    job, described = copied("kubernetes_vllm"), containers()
    root = job.parent
    (root / "weights").mkdir()
    shutil.copytree(models["qwen3"].checkpoint(0), root / "weights/model")
    vllm = engine_environment(
        root, "vllm", install_entry_points(root / "entry_points"), **VLLM,
        DRIFTLESS_VLLM_KEEP_LOAD_LAYOUT=1,
    )  # fmt: skip
    program(vllm, "python3", python_of("vllm"))
    train, running = train_environment(root), []
    serving, status = str(free_port()), str(free_port())
    ports = {"8000": serving, "9400": status}
    run_of_it = f"road.shared_fs.dir={root}/weights/run"
    settings = [f"engines[0].url=http://127.0.0.1:{serving}", run_of_it,
                f"monitor.address=127.0.0.1:{status}", f"road.host_shm.name=pod-{serving}"]  # fmt: skip
    sizes = ["--tensor-parallel-size=1", *VLLM_ON_CPU.replace("--tensor-parallel-size 2", "").split()]

    def start(name, programs, *more, **changes):
        running.append(Container(described[name] | changes, root, programs, *more, ports=ports))
        return running[-1]

    def trainer(steps):
        (model, checkpoint, _), (*torchrun, ranks, script) = described["trainer"]["args"], described["trainer"]["command"]  # fmt: skip
        assert ranks == "8"
        sized = {"command": [*torchrun, "2", script], "args": [model, checkpoint, str(steps)]}
        return start("trainer", train, run_of_it, **sized)

    try:
        start("vllm", vllm, *sizes)
        agent = start("agent", vllm, *(word for each in settings for word in ("--set", each)))
        assert not agent.ready()
        wait_until_served(f"http://127.0.0.1:{serving}/health", running[0])
        trainer(STEPS).end()
        agent.end()
        assert f"ended at version {STEPS}" in agent.log.read_text(), agent.tail()
        # The Job's next pod continues the run from its checkpoint. An agent that starts before it
        # does ends with the run as it is.
        again = trainer(STEPS + 400)
        until = time.monotonic() + 300
        while f"version={STEPS + 1}" not in again.log.read_text():
            assert time.monotonic() < until and again.popen.poll() is None, again.tail()
            time.sleep(0.2)
        settings.append("agent.max_lag=1000")  # steps take less time here than updates
        agent = start("agent", vllm, *(word for each in settings for word in ("--set", each)))
        while not agent.ready():
            assert time.monotonic() < until and agent.popen.poll() is None, agent.tail()
            time.sleep(0.2)
    finally:
        for each in reversed(running):
            each.stop()
