# SPDX-License-Identifier: Apache-2.0
"""The peer road between independent processes: real trainers and rollouts, stopped and killed."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import binding
import pytest
from jobs import CONFIGS, Files, ended, finish, make_run, need, start, stop_started, wait_for
from ports import free_port
from support import random_tensor, read_checkpoint, write_checkpoint

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "megatron"))

import megatron_jobs  # noqa: E402

STEPS = 6


class Peers(Files):
    """A trainer and rollouts over the peer road, on this host."""

    def __init__(self, work, carrier):
        need("peer")
        super().__init__(work)
        self.carrier = carrier
        self.config = CONFIGS / "peer.yaml"
        self.token = work / "token"
        self.token.write_text("0123456789abcdef0123456789abcdef\n")
        self.token.chmod(0o600)
        self.settings = [
            "--set",
            f"hub.address=127.0.0.1:{free_port()}",
            "--set",
            f"hub.token_file={self.token}",
        ]
        self.set(
            **{"road.peer.carrier": carrier, "road.poll_longest": "20ms", "road.peer.stall": "2s"}
        )
        self.set(**{"deadlines.connect": "60s", "deadlines.fetch": "20s", "anchors.every": "2"})
        if carrier == "nixl":
            self.set(**{"road.peer.library": nixl_library()})


@functools.cache
def nixl_library():
    """Real NIXL; skips with the reason if it cannot be installed."""
    line = [HERE.parents[1] / "scripts/python_env.sh", "nixl"]
    made = subprocess.run(line, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(made.stderr.strip())
    (found,) = Path(made.stdout.strip()).glob("lib/python3*/site-packages/.nixl_*/libnixl_capi.so")
    return found


@pytest.fixture(autouse=True)
def processes():
    yield
    stop_started()


@pytest.fixture(params=["tcp", "shm", "nixl"])
def job(request, work):
    return Peers(work, request.param)


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def versions(path):
    return [record["version"] for record in records(path)]


def test_every_rollout_ends_with_the_trainers_bits(job, work, rng):
    """Two rollouts that wait before the trainer starts, and one that joins during the run."""
    history = make_run(work / "run", rng, STEPS)
    base = ["--base", work / "run/step_000000"]
    early = [
        job.start_rollout(*base, "--save", work / f"early{i}", "--set", f"receiver.id=early{i}")
        for i in range(2)
    ]
    trainer = start_trainer(job, work, "--interval-ms", 300, "--rollouts", 2)
    wait_for(lambda: 3 in versions(work / "trainer.jsonl"), "version 3")
    late = job.start_rollout("--save", work / "late", "--set", "receiver.id=late")
    assert ended(trainer)["version"] == STEPS
    for process in [*early, late]:
        assert ended(process)["version"] == STEPS
    for saved in [work / "early0", work / "early1", work / "late"]:
        assert read_checkpoint(saved / "rollout_00") == history[STEPS]


def start_trainer(job, work, *arguments):
    """Starts a trainer, which waits for its first rollout if `arguments` say so."""
    return job.start_trainer(
        "--replay", work / "run", "--set", f"metrics.file={work}/trainer.jsonl", *arguments
    )


def start_pair(job, work, *arguments, interval_ms=200):
    trainer = start_trainer(job, work, "--interval-ms", interval_ms, "--rollouts", 1)
    line = [
        "--base",
        work / "run/step_000000",
        "--save",
        work / "saved",
        "--set",
        f"metrics.file={work}/rollout.jsonl",
    ]
    receiver = job.start_rollout(*line, *arguments)
    wait_for(lambda: versions(work / "rollout.jsonl"), "the first version")
    return trainer, receiver


def test_a_stopped_rollout_delays_no_other_process_and_continues(job, work, rng):
    history = make_run(work / "run", rng, STEPS)
    trainer, rollout = start_pair(job, work)
    rollout.send_signal(signal.SIGSTOP)
    wait_for(lambda: STEPS in versions(work / "trainer.jsonl"), "the trainer's last version")
    rollout.send_signal(signal.SIGCONT)
    assert ended(rollout)["version"] == STEPS
    assert ended(trainer)["version"] == STEPS
    assert read_checkpoint(work / "saved/rollout_00") == history[STEPS]


def test_a_killed_rollout_delays_no_version(job, work, rng):
    make_run(work / "run", rng, STEPS)
    job.set(**{"deadlines.connect": "5s"})
    trainer, rollout = start_pair(job, work, interval_ms=600)
    rollout.kill()
    result = finish(trainer)
    assert versions(work / "trainer.jsonl") == list(range(1, STEPS + 1))
    (line,) = job_error(result)  # the trainer waited for two rollouts, and one of them is dead
    assert line.startswith(
        "driftless: mismatch: not every rollout ended at the trainer's last version"
    ), line


def test_a_stopped_trainer_that_continues_loses_nothing(job, work, rng):
    history = make_run(work / "run", rng, STEPS)
    trainer, rollout = start_pair(job, work)
    trainer.send_signal(signal.SIGSTOP)
    time.sleep(3)  # longer than road.peer.stall
    assert rollout.poll() is None
    trainer.send_signal(signal.SIGCONT)
    assert ended(trainer)["version"] == STEPS
    assert ended(rollout)["version"] == STEPS
    assert read_checkpoint(work / "saved/rollout_00") == history[STEPS]
    carriers = {
        record["carrier"] for record in records(work / "rollout.jsonl") if "wire_bytes" in record
    }
    assert carriers == {job.carrier}


@pytest.mark.parametrize("cause", ["timeout", "signal"])
def test_a_stopped_trainer_does_not_hold_a_rollout(work, rng, cause):
    """Its own deadlines for the road are longer."""
    job = Peers(work, "tcp")
    history = make_run(work / "run", rng, STEPS)
    job.set(**{"deadlines.connect": "5min", "deadlines.fetch": "1min"})
    end = ["--timeout", "5s"] if cause == "timeout" else []
    trainer, rollout = start_pair(job, work, *end, interval_ms=1000)
    trainer.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    if cause == "signal":
        time.sleep(2)  # until it waits for the trainer
        rollout.send_signal(signal.SIGTERM)
    result = finish(rollout, 120)
    took = time.monotonic() - begin
    if cause == "timeout":
        assert took < 10, took
        assert result.returncode == 6 and "--timeout: still at version" in result.stderr, result.stderr
        return
    assert took < 2 + 15, took  # it signs off for 10 s at most
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    saved = read_checkpoint(work / "saved/rollout_00")
    assert saved == history[versions(work / "rollout.jsonl")[-1]]


CONNECT_S = 3


@pytest.mark.parametrize("fallback", ["", "shared_fs"])
def test_a_trainer_that_stays_stopped_ends_rollouts_within_their_deadline(work, rng, fallback):
    """One that follows the run, one that starts, and one that a signal ends, which signs off."""
    job = Peers(work, "tcp")
    make_run(work / "run", rng, 2)
    job.set(**{"road.peer.fallback": fallback, "road.shared_fs.dir": work / "road"})
    base = ["--base", work / "run/step_000000"]
    trainer = start_trainer(job, work, "--interval-ms", 300_000, "--rollouts", 2)
    job.set(**{"deadlines.connect": f"{CONNECT_S}s"})
    files = [f"metrics.file={work}/{name}.jsonl" for name in ("follows", "ends")]
    follows, ends = (job.start_rollout(*base, "--set", file) for file in files)
    wait_for(lambda: versions(work / "follows.jsonl") and versions(work / "ends.jsonl"), "version 1")
    trainer.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    starts = job.start_rollout(*base)
    ends.send_signal(signal.SIGTERM)
    for process, code in ((ends, 128 + signal.SIGTERM), (follows, 6), (starts, 6)):
        result = finish(process, 120)
        took = time.monotonic() - begin
        assert result.returncode == code, (result.returncode, result.stderr)
        assert took < CONNECT_S + 3, (took, result.stderr)  # 1 s, and the machine may be busy


LONG = [pytest.param(carrier, marks=pytest.mark.long) for carrier in ("shm", "nixl")]


@pytest.mark.parametrize("carrier", ["tcp", *LONG])
def test_workers_read_for_themselves_what_they_hold(work, rng, carrier):
    """Two processes that each hold half of every matrix, with a trainer that sends full
    versions."""
    job = Peers(work, carrier)
    versions_of_it = make_halves(work / "run", rng)
    python = megatron_jobs.venv_python()
    job.set(mode="full", **{"road.poll_longest": "20ms", "road.peer.farewell": "1s"})
    trainer = start_trainer(job, work, "--interval-ms", 300, "--rollouts", 2)
    workers = [start_worker(job, work, python, rank) for rank in range(2)]
    assert ended(trainer)["version"] == versions_of_it
    for rank, worker in enumerate(workers):
        found = ended(worker)
        reply = found["reply"]
        assert reply["error"] is None and reply["version"] == versions_of_it, found
        assert found["same"], "the bits of the trainer's last version"
        taken = [
            record for record in records(work / f"worker{rank}.jsonl") if "wire_bytes" in record
        ]
        assert taken and taken[-1]["version"] == versions_of_it
        for record in taken:
            assert record["carrier"] == job.carrier
            assert abs(record["wire_bytes"] - found["held_bytes"]) <= found["held_bytes"] * 0.05, (
                record
            )
            assert record["needed_bytes"] <= record["wire_bytes"]


def make_halves(path, rng, steps=2):
    shapes = {"up.weight": (1024, 4096), "down.weight": (1024, 4096), "norm.weight": (4096,)}
    for step in range(steps + 1):
        tensors = {name: random_tensor(rng, "BF16", shape) for name, shape in shapes.items()}
        write_checkpoint(path / f"step_{step:06d}", tensors, 1)
    return steps


def start_worker(job, work, python, rank):
    """As started by an engine: its environment has the road, and no request names it."""
    sets = [each for each in job.settings if each != "--set"]
    sets += [f"metrics.file={work}/worker{rank}.jsonl", f"receiver.id=worker{rank}"]
    operator = json.dumps({"config": str(job.config), "sets": list(map(str, sets))})
    environment = megatron_jobs.environment(DRIFTLESS_ENGINE=operator)
    line = [python, HERE / "pull_worker.py", rank, 2, work / "run", 2]
    return start(list(map(str, line)), env=environment, stdin=subprocess.PIPE)


def test_a_killed_trainer_ends_its_rollouts_within_their_deadline(job, work, rng):
    make_run(work / "run", rng, STEPS)
    trainer, rollout = start_pair(job, work, "--timeout", "10s", interval_ms=60_000)
    trainer.kill()
    result = finish(rollout)
    assert result.returncode != 0 and job_error(result), result.stderr


def job_error(result):
    return [line for line in result.stderr.splitlines() if line.startswith("driftless: ")]


def test_a_ring_that_cannot_hold_a_version_is_refused_at_start(work, rng):
    """Before the trainer waits for rollouts; what the message names is enough for every version."""
    job = Peers(work, "tcp")
    history = make_run(work / "run", rng, STEPS, rows=40_000)  # 2.5 MiB
    job.set(mode="full", **{"road.ring_size": "1MiB", "deadlines.connect": "300s"})
    result = finish(start_trainer(job, work, "--rollouts", 1))
    (line,) = job_error(result)
    assert result.returncode != 0 and not versions(work / "trainer.jsonl"), result.stderr
    found = re.search(
        r"takes up to (\d+) bytes, and road.ring_size is 1048576: raise road.ring_size to (\d+MiB)", line
    )
    assert found and 40_000 * 64 < int(found[1]) <= int(found[2][:-3]) << 20, line

    job.set(**{"road.ring_size": found[2]})
    trainer, rollout = start_pair(job, work)
    assert ended(trainer)["version"] == STEPS and ended(rollout)["version"] == STEPS
    assert versions(work / "trainer.jsonl") == list(range(1, STEPS + 1))
    assert read_checkpoint(work / "saved/rollout_00") == history[STEPS]


def ports_of(pid):
    """The TCP ports on which a process listens."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(entry))
        except OSError:
            continue  # closed meanwhile
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]
    return [int(line[1].split(":")[1], 16) for line in listening]


def sent_from(port):
    """Bytes that connections to this port have sent to their readers, while they are open."""
    if shutil.which("ss") is None:
        pytest.skip("no ss, which counts the bytes of a connection")
    line = ["ss", "-tinH", "state", "established", f"sport = :{port}"]
    output = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"bytes_sent:(\d+)", output)))


def test_a_rollout_that_joins_reads_a_full_version_from_another_ones_weights(work, rng):
    """The other rollout followed deltas and never read the anchor: it makes the anchor's parts from
    its weights."""
    job = Peers(work, "tcp")
    history = make_run(work / "run", rng, 3, rows=40_000)  # 2.5 MiB
    job.set(**{"anchors.first": "false", "anchors.every": "2", "road.peer.stall": "20s"})
    driftless = binding.driftless()
    settings = [str(each) for each in job.settings if each != "--set"]
    config = driftless.Config.load(job.config, settings)
    steps = [driftless.CheckpointSource(work / f"run/step_{step:06d}") for step in range(4)]
    with driftless.Job(config, "trainer", launched=False) as trainer:
        publisher = driftless.Publisher(trainer, steps[0])
        first = job.start_rollout(
            *["--base", work / "run/step_000000", "--save", work / "first"],
            *["--set", "receiver.id=first", "--set", f"metrics.file={work}/first.jsonl"],
        )
        for version in (1, 2):
            publisher.publish(steps[version])
            wait_for(lambda: version in versions(work / "first.jsonl"), "the version")  # noqa: B023
        wait_for(lambda: ports_of(first.pid), "a rollout that serves")
        (port,) = ports_of(first.pid)
        joined = job.start_rollout(
            *["--save", work / "joined", "--set", "receiver.id=joined"],
            *["--set", f"metrics.file={work}/joined.jsonl"],
        )
        wait_for(lambda: versions(work / "joined.jsonl"), "an anchor")
        assert versions(work / "joined.jsonl") == [2] and records(work / "joined.jsonl")[0]["anchor"]
        sent = sent_from(port)
        assert 40_000 * 64 * 0.9 < sent < 40_000 * 64 * 1.1, sent
        publisher.publish(steps[3])
        publisher.declare_end()
        for process in (first, joined):
            assert ended(process)["version"] == 3
    for saved in ("first", "joined"):
        assert read_checkpoint(work / saved / "rollout_00") == history[3]
    assert [r["anchor"] for r in records(work / "first.jsonl")] == [False] * 3


def test_a_rollout_with_another_token_is_not_served(job, work, rng):
    make_run(work / "run", rng, STEPS)
    other = work / "other"
    other.write_text("another secret of another run\n")
    other.chmod(0o600)
    job.set(**{"deadlines.connect": "240s"})
    trainer = start_trainer(job, work, "--steps", 2, "--rollouts", 1)
    base = ["--base", work / "run/step_000000"]
    settings = ["--set", f"hub.token_file={other}", "--set", "deadlines.connect=2s"]
    result = finish(job.start_rollout(*base, *settings))
    assert result.returncode != 0 and "token" in result.stderr, result.stderr
    assert trainer.poll() is None
    assert ended(job.start_rollout(*base))["version"] == 2
    assert ended(trainer)["version"] == 2


def test_four_ranks_of_fsdp2_publish_to_a_rollout_that_runs_beside_them(work):
    """No MPI and no shared file system: torch's group joins the trainers, the hub all processes."""
    import test_sharded

    driftless = binding.driftless()
    token = work / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    path = work / "driftless.yaml"
    path.write_text(
        f"hub: {{ address: '127.0.0.1:{free_port()}', token_file: {token} }}\n"
        "road: { kind: peer }\nanchors: { first: true, every: 2 }\ndeadlines: { connect: 5min }\n"
    )
    target = driftless.OwnedTarget()
    seen = []

    def follow():
        with driftless.Job(driftless.Config.load(path), "rollout", launched=False) as job:
            receiver = driftless.Receiver(job, target)
            while receiver.end() is None or receiver.version < receiver.end().version:
                if receiver.stage(timeout_s=1.0):
                    receiver.commit()
                    seen.append(receiver.version)
            receiver.leave()

    rollout = threading.Thread(target=follow)
    rollout.start()
    test_sharded.trainers(work, "fsdp_trainer.py", "fsdp_tp", path, work)
    rollout.join(300)
    versions = test_sharded.bits_of(work / "versions.pt")
    assert seen[-1] == len(versions) - 1
    for name, tensor in versions[-1].items():
        assert target.tensor(name).tobytes() == tensor.tobytes(), name
