# SPDX-License-Identifier: Apache-2.0
"""Runs Megatron jobs: the environment, mpirun lines, and the comparison of their results."""

import functools
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))

import jobs  # noqa: E402
from obvious_export import export  # noqa: E402
from ports import free_port  # noqa: E402

PACKAGE = Path(os.environ.get("DRIFTLESS_PYTHON_PACKAGE", REPOSITORY / "build/python"))
STEPS = 10


@functools.cache
def venv_python():
    """The interpreter of the test environment; skips with the reason if it cannot be made."""
    if not list(PACKAGE.glob("driftless/_native*")):
        pytest.skip(f"the Python module is not built: no {PACKAGE}/driftless/_native*")
    return os.environ.get("DRIFTLESS_MEGATRON_PYTHON") or environment_python("megatron")


@functools.cache
def environment_python(name):
    line = [REPOSITORY / "scripts/python_env.sh", name]
    result = subprocess.run(line, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(f"no such environment: {result.stderr.strip()}")
    return result.stdout.strip() + "/bin/python"


def environment(**more):
    found = {
        **jobs.environment(),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(PACKAGE), str(HERE), os.environ.get("PYTHONPATH")])
        ),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "USE_LIBUV": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "MASTER_PORT": str(free_port()),
        **more,
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        found.pop(name, None)
    return found


def mpirun(*parts):
    """mpirun with several (count, arguments of python)."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for number, (count, python, *arguments) in enumerate(parts):
        line += [":"] if number else []
        line += ["-n", str(count), python, *map(str, arguments)]
    return line


def nccl_by_hub(work, receivers):
    """A configuration for NCCL without MPI: the first version waits for `receivers`."""
    token = work / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    return (
        "road: { kind: nccl, nccl: { rendezvous: hub, receivers: %d } }\n"
        "hub: { address: '127.0.0.1:%d', token_file: '%s' }\n"
        "anchors: { first: true }\n"
        "threads: 1\ndeadlines: { connect: 120s, publish: 60s }\n"
    ) % (receivers, free_port(), token)


# The source rank of each stage gathers and compares, as with unknown optimizers.
GATHERED = ("--update-weight-snapshot", "host")


class Job:
    """A directory for the results of a training job and its rollouts."""

    def __init__(self, work, **job):
        jobs.need_mpirun()
        self.python = venv_python()
        self.work = work
        self.rma_name = "rma"
        for name in ("shards", "acks", "rollouts"):
            (work / name).mkdir()
        defaults = {"tp": 1, "pp": 1, "ep": 1, "steps": STEPS, "work": str(work), "sessions": []}
        self.job = {**defaults, **job}

    def write(self, name, value):
        path = self.work / name
        path.write_text(json.dumps(value))
        return path

    def over_rma(self, *flags, rollouts=("rma4", "rma5"), **more):
        """Adds a session over mpi_rma, with rollouts in the same mpirun."""
        flags = ["--update-weight-mode", "delta", "--update-weight-transport", "mpi_rma",
                 "--update-weight-buffer-size", "65536",
                 "--update-weight-config", self.yaml("rma"), *flags]  # fmt: skip
        self.job["sessions"].append({"flags": flags, "rollouts": list(rollouts)})
        self.rma = self.write("rma_rollout.json", {"work": str(self.work), "flags": flags, **more})

    def over_nccl(self, *flags, rollouts=("nccl4", "nccl5"), **more):
        """Adds a session over NCCL, with rollouts in the same mpirun. For machines with a GPU."""
        flags = ["--update-weight-mode", "delta", "--update-weight-transport", "nccl",
                 "--update-weight-buffer-size", "65536",
                 "--update-weight-config", self.yaml("nccl"), *flags]  # fmt: skip
        self.job["sessions"].append({"flags": flags, "rollouts": list(rollouts)})
        self.rma = self.write("rma_rollout.json", {"work": str(self.work), "flags": flags, **more})
        self.rma_name = "nccl"

    def over_nccl_by_hub(self, *flags, rollouts=("nccl0", "nccl1")):
        """The same with rollouts of their own, which find the trainers by the hub."""
        path = self.work / "nccl_hub.yaml"
        path.write_text(nccl_by_hub(self.work, len(rollouts)))
        flags = ["--update-weight-mode", "delta", "--update-weight-transport", "nccl",
                 "--update-weight-buffer-size", "65536", "--update-weight-config", str(path),
                 *flags]  # fmt: skip
        self.job["sessions"].append({"flags": flags, "rollouts": list(rollouts)})
        self.disk = self.write("nccl_rollout.json", {"work": str(self.work), "flags": flags})

    def over_disk(self, *flags, road="road", outside_mpi=True, rollouts=("disk0", "disk1"),
                  layout="flush", **more):  # fmt: skip
        """Adds a session over files, with its own rollouts."""
        self.road = self.work / road
        flags = ["--update-weight-mode", "delta", "--update-weight-transport", "disk",
                 "--update-weight-disk-dir", str(self.road), "--update-weight-buffer-size", "65536",
                 "--update-weight-config", self.yaml("disk", layout), *flags]  # fmt: skip
        session = {"flags": flags, "rollouts": list(rollouts), "outside_mpi": outside_mpi}
        self.job["sessions"].append(session)
        self.disk = self.write(
            f"{road}_rollout.json", {"work": str(self.work), "flags": flags, **more}
        )

    def over_peer(self, *flags, rollouts=("peer0",), mode="delta", settings="", **more):
        """Adds a session over the peer road, with its own rollouts."""
        token = self.work / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        path = self.work / "peer.yaml"
        path.write_text(
            f"road: {{ kind: peer, poll_longest: 20ms {settings} }}\n"
            "anchors: { first: true, every: 16 }\n"
            "threads: 1\ndeadlines: { connect: 120s, publish: 60s }\n"
        )
        flags = ["--update-weight-mode", mode, "--use-p2p-weight-update",
                 "--update-weight-hub-address", f"127.0.0.1:{free_port()}",
                 "--update-weight-token-file", str(token), "--update-weight-buffer-size", "65536",
                 "--update-weight-config", str(path), *flags]  # fmt: skip
        self.job["sessions"].append({"flags": flags, "rollouts": list(rollouts)})
        self.disk = self.write("peer_rollout.json", {"work": str(self.work), "flags": flags, **more})

    def yaml(self, name, layout="flush"):
        text = {
            "rma": "anchors: { first: true }\n",
            "nccl": "road: { kind: nccl }\nanchors: { first: true }\n",
            "disk": "road: { kind: shared_fs, shared_fs: { dir: unset }, poll_longest: 20ms, "
            f"layout: {layout} }}\n"
            "anchors: { first: true }\n",
        }[name]
        path = self.work / (f"{name}_{layout}.yaml" if name == "disk" else f"{name}.yaml")
        path.write_text(text + "threads: 1\ndeadlines: { connect: 120s, publish: 60s }\n")
        return str(path)

    def start_disk_rollouts(self, *names, **more):
        """Starts rollouts of the last session over files; `more` as in rollout.py."""
        given = json.loads(self.disk.read_text()) | more
        path = self.write(f"rollout_{names[0]}.json", given)
        line = [self.python, str(HERE / "rollout.py"), str(path)]
        return [jobs.start([*line, name], env=environment()) for name in names]

    def start(self, rma_rollouts=0, trainers=4):
        parts = [(trainers, self.python, HERE / "train.py", self.write("job.json", self.job))]
        if rma_rollouts:
            parts.append((rma_rollouts, self.python, HERE / "rollout.py", self.rma, self.rma_name))
        return jobs.start(mpirun(*parts), env=environment())

    def run(self, rma_rollouts=0, trainers=4, timeout=600):
        result = jobs.finish(self.start(rma_rollouts, trainers), timeout)
        assert result.returncode == 0, shown(result)
        return result

    def start_torchrun(self, trainers):
        return start_torchrun(trainers, HERE / "train.py", self.write("job.json", self.job))

    def run_torchrun(self, trainers, timeout=600):
        result = jobs.finish(self.start_torchrun(trainers), timeout)
        assert result.returncode == 0, shown(result)
        return result

    # --- checks ----------------------------------------------------------------------------------

    def versions(self, session=0):
        lines = (self.work / "versions.jsonl").read_text().splitlines()
        return [v for v in map(json.loads, lines) if v["session"] == session]

    def expected(self, label, config):
        files = sorted((self.work / "shards").glob(f"{label}_*.pickle"))
        ranks = [pickle.loads(file.read_bytes()) for file in files]
        for rank in ranks:
            rank["chunks"] = [{n: _bits(*p) for n, p in chunk.items()} for chunk in rank["chunks"]]
        return export(ranks, config)

    def rollout(self, name, version):
        return pickle.loads((self.work / "rollouts" / f"{name}_{version:06d}.pickle").read_bytes())

    def check(self, session, names, config):
        """Checks every version of a session on every rollout: it equals the reference export of its
        step, bit for bit."""
        for version in self.versions(session):
            wanted = self.expected(version["label"], config)
            for name in names:
                found = self.rollout(name, version["version"])
                assert found["digest"] == version["digest"]
                assert_same(found["tensors"], wanted, f"{name} {version}")


def start_torchrun(trainers, *arguments):
    env = environment()
    line = [venv_python(), "-m", "torch.distributed.run", "--nproc-per-node", trainers,
            "--master-port", env["MASTER_PORT"], *arguments]  # fmt: skip
    return jobs.start([*map(str, line)], env=env)


def all_ended(timeout, **processes):
    """Asserts that all succeeded, within one limit. If one fails, or is late, all are stopped, and
    the message has the output of each: the first one to be late seldom explains why."""
    until = time.monotonic() + timeout
    while time.monotonic() < until and any(p.poll() is None for p in processes.values()):
        if any(p.poll() for p in processes.values()):  # a failure: the others end soon, or never
            until = min(until, time.monotonic() + 5)
        time.sleep(0.05)
    good = all(p.poll() == 0 for p in processes.values())
    texts = []
    for name, process in processes.items():
        try:
            result = jobs.finish(process, 1)
            texts.append(f"{name}: exit code {result.returncode}\n{shown(result)}")
        except AssertionError as late:
            texts.append(f"{name}: {str(late)[-8000:]}")
    assert good, "\n\n".join(texts)


def ended(*processes, timeout=600):
    """Asserts that all processes succeeded."""
    for process in processes:
        result = jobs.finish(process, timeout)
        assert result.returncode == 0, shown(result)


def shown(result):
    """The output of the rank that explains the failure: seldom the first one to fail."""
    own = [
        line
        for line in result.stderr.splitlines()
        if "Error" in line or line.startswith("driftless")
    ]
    return "\n".join([*own, result.stderr[-5000:], result.stdout[-3000:]])


def _bits(size, shape, data):
    return np.frombuffer(data, dtype=f"<u{size}").reshape(shape)


def assert_same(tensors, wanted, what):
    assert set(tensors) == set(wanted), what
    for name, (_, shape, data) in tensors.items():
        bits = np.ascontiguousarray(wanted[name])
        assert tuple(shape) == bits.shape, f"{what}: {name}"
        assert data == bits.tobytes(), f"{what}: {name} differs"
