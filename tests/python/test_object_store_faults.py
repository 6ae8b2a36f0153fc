# SPDX-License-Identifier: Apache-2.0
"""Jobs over failing object stores: a proxy in front of the servers sends wrong answers, cuts
connections, or kills the publisher. A rollout ends at the old or the new version, never in
between."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import urllib.request

import pytest

import jobs
from jobs import make_run
from support import REPOSITORY, read_checkpoint, run
from test_object_store import StoreJob, only, server, versions_of  # noqa: F401

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402
from faulty_proxy import FaultyProxy  # noqa: E402

sys.path.insert(0, str(REPOSITORY / "tests/bench"))
import object_store  # noqa: E402


@pytest.fixture
def job(work, server):  # noqa: F811
    made = StoreJob(work, server)
    with FaultyProxy(made.endpoint) as proxy:
        made.proxy = proxy
        made.settings["road.object_store.endpoint"] = proxy.endpoint
        yield made
    jobs.stop_started()
    made.assert_no_credential()


def reader(job):
    """The command of a rollout that bypasses the proxy and starts from the anchor."""
    return job.line("rollout", "--timeout", "240s", "--json", **{"road.object_store.endpoint": job.endpoint})


def held(job, save):
    """The version and the weights with which a rollout without a base ends."""
    text = job.ok(*reader(job), "--save", save)
    version = json.loads(text.splitlines()[-1])["version"]
    return version, read_checkpoint(save / "rollout_00")


def sometimes(fault, share=0.15, seed=1):
    rng = random.Random(seed)
    return lambda request: fault if rng.random() < share else None


SEALS = itertools.count()  # every second seal fails, whatever comes in between
FAULTS = {
    "500": sometimes("500"),
    "503": sometimes("503"),
    "409": lambda request: "409" if request.seals and next(SEALS) % 2 == 0 else None,
    "cut": sometimes("cut"),
    "cut_after": sometimes("cut_after"),
    "truncate": sometimes("truncate"),
    # Repeats the first list for ever; not for receivers, which otherwise would never appear.
    "stale": lambda r: "stale" if r.lists and "receivers" not in r.query else None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_over_a_failing_store_ends_with_the_trainers_bits(job, rng, fault):
    work = job.work
    history = make_run(work / "run", rng, 4, rows=4096)
    job.proxy.fault = FAULTS[fault]
    base = ["--base", work / "run/step_000000", "--json"]
    rollout = job.start(*job.line("rollout", *base, "--save", work / "a"))
    trainer = ["--replay", work / "run", "--rollouts", 1, "--json"]
    assert versions_of(job.ok(*job.line("trainer", *trainer))) == [1, 2, 3, 4]
    job.finish(rollout)
    assert read_checkpoint(work / "a/rollout_00") == history[4]
    assert any(r.fault for r in job.proxy.log)
    job.proxy.fault = lambda request: None
    assert held(job, work / "late") == (4, history[4])


def test_a_store_far_away_is_followed_from_its_anchor(job, rng):
    """An answer takes longer than the interval between a rollout's polls."""
    history = make_run(job.work / "run", rng, 2)
    job.ok(*job.line("trainer", "--replay", job.work / "run"))
    job.proxy.fault = lambda request: time.sleep(0.3)
    job.ok(*job.line("rollout", "--timeout", "240s", "--save", job.work / "a"))
    assert read_checkpoint(job.work / "a/rollout_00") == history[2]


@pytest.mark.parametrize("where", ["manifest", "part"])
def test_wrong_lengths_are_noticed_and_fetched_again(job, rng, where):
    work = job.work
    history = make_run(work / "run", rng, 3)
    job.ok(*job.line("trainer", "--replay", work / "run"))
    word = "/versions/" if where == "manifest" else "/parts/"
    wrong = []

    def fault(request):
        if word in request.path and request.method == "GET" and len(wrong) < 4:
            wrong.append(request)
            return "short"
        return None

    job.proxy.fault = fault
    line = job.line("rollout", "--timeout", "240s", "--save", work / "a")
    job.ok(*line)
    assert len(wrong) == 4 and read_checkpoint(work / "a/rollout_00") == history[3]


def test_a_seal_that_is_refused_without_a_visible_owner_ends_the_publisher(job, rng):
    """Status 412 for the seal of version 2 though the object is missing: another may appear any
    time."""
    history = make_run(job.work / "run", rng, 3)
    number = "0000000000000000002.version"
    job.proxy.fault = lambda r: "412" if r.seals and number in r.path else None
    line = job.line("trainer", "--replay", job.work / "run", "--json")
    result = run(*line, env=job.environment)
    job.outputs += [result.stdout, result.stderr]
    assert result.returncode != 0 and "another publisher" in result.stderr
    job.proxy.fault = lambda request: None
    assert versions_of(job.ok(*line)) == [2, 3]
    assert held(job, job.work / "b") == (3, history[3])


def test_expired_credentials_are_read_again(job, rng):
    history = make_run(job.work / "run", rng, 2)
    expired = []

    def fault(request):
        if request.number % 7 == 3:
            expired.append(request)
            return "expired"
        return None

    job.proxy.fault = fault
    job.ok(*job.line("trainer", "--replay", job.work / "run"))
    assert expired and held(job, job.work / "a") == (2, history[2])
    job.proxy.fault = lambda request: "expired"
    result = run(*job.line("trainer", "--replay", job.work / "run"), env=job.environment)
    job.outputs += [result.stdout, result.stderr]
    assert result.returncode == 2 and "ExpiredToken" in result.stderr


def test_a_publisher_that_is_replaced_is_fenced(job, rng):
    history = make_run(job.work / "run", rng, 4)
    line = job.line("trainer", "--replay", job.work / "run", "--json")
    first = job.start(*line, "--interval-ms", "1500")
    first.stdout.readline()  # version 1 is visible, and its anchor
    jobs.stop(first)
    job.ok(*line)
    first.send_signal(signal.SIGCONT)
    ended = jobs.finish(first)
    job.outputs += [ended.stdout, ended.stderr]
    assert ended.returncode == 4 and "Another publisher has taken over" in ended.stderr
    assert held(job, job.work / "a") == (4, history[4])


def test_a_probe_that_another_publisher_removes_is_made_again(job, rng):
    removed = []

    def fault(request):
        if request.method == "GET" and "/attempts/probe-" in request.path and len(removed) < 2:
            removed.append(request.path)
            return "404"
        return None

    job.proxy.fault = fault
    history = make_run(job.work / "run", rng, 2)
    job.ok(*job.line("trainer", "--replay", job.work / "run"))
    assert len(removed) == 2 and held(job, job.work / "a") == (2, history[2])


def test_a_store_that_ignores_if_match_alone(job, rng):
    """It reserves no version; the versions' names fence publishers all the same."""
    job.proxy.dropped = ("if-match",)
    history = make_run(job.work / "run", rng, 6)
    line = job.line("trainer", "--replay", job.work / "run", "--json")
    assert versions_of(job.ok(*line, "--steps", "2")) == [1, 2]
    first = job.start(*line, "--interval-ms", "1500")
    assert '"version":3' in first.stdout.readline()
    jobs.stop(first)
    taken = jobs.finish(job.start(*line))
    first.send_signal(signal.SIGCONT)
    ended = jobs.finish(first)
    job.outputs += [taken.stdout, taken.stderr, ended.stdout, ended.stderr]
    assert ended.returncode == 4 and "Another publisher has taken over" in ended.stderr
    assert taken.returncode == 0
    assert not any("reserved" in r.path for r in job.proxy.log)
    assert held(job, job.work / "a") == (6, history[6])


def killed_at(job, fault, line, armed):
    """Runs a trainer that is killed when a request arrives after `armed`; returns whether it
    was."""
    process = None
    killed = []
    job.proxy.log.clear()

    def kill(request):
        if killed or not armed(request):
            return None
        killed.append(request)
        while process is None:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        return fault

    job.proxy.fault = kill
    process = job.start(*line)
    process.wait(300)
    process.communicate()
    job.proxy.fault = lambda request: None
    return bool(killed)


def test_a_delta_takes_two_requests_to_publish_and_one_to_notice(server):  # noqa: F811
    """In sequence, after its last byte; the receiver's request brings the manifest."""
    _, endpoint = server
    publisher, receiver = object_store.requests_of_a_delta(endpoint)
    assert [line.split()[0] for line in publisher] == ["PUT", "PUT"]
    assert receiver == ["GET 0000000000000000002.version.json"]


@only("rclone")  # moto keeps all objects in memory
def test_memory_does_not_grow_with_a_version(server):  # noqa: F811
    _, endpoint = server
    for what in ("publish", "fetch"):
        assert object_store.bench(what, endpoint, "memory", 512)["peak_mib"] < 192


def objects(job, prefix):
    """Keys below the job's own prefix, as listed by the server."""
    if job.name == "rclone":
        root = job.endpoint.directory / servers.BUCKET / prefix
        return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    with urllib.request.urlopen(
        f"{job.endpoint}/{servers.BUCKET}?list-type=2&prefix={prefix}/", timeout=30
    ) as answer:
        keys = re.findall("<Key>([^<]*)</Key>", answer.read().decode())
    return [key.removeprefix(f"{prefix}/") for key in keys]


def unfinished_uploads(job):
    if job.name == "rclone":
        return 0  # this server does not list them
    with urllib.request.urlopen(f"{job.endpoint}/{servers.BUCKET}?uploads", timeout=30) as answer:
        return answer.read().decode().count("<UploadId>")


def assert_tidy(job, prefix):
    """Asserts that every publication has the parts of one attempt, and that nothing else is
    left."""
    keys = objects(job, prefix)
    attempts = {key.split("/")[1] for key in keys if key.startswith("parts/")}
    publications = [attempt.rsplit(".", 1)[0] for attempt in attempts]
    assert len(set(publications)) == len(publications), keys
    assert {f"versions/{name}.json" for name in publications} <= set(keys)
    assert not [key for key in keys if key.startswith("attempts/")]
    assert unfinished_uploads(job) == 0


# Number of versions; faults of the request at which the trainer is killed; stride over the
# requests.
EVERY = [(1, ("cut_after",), 3), pytest.param(2, ("cut", "cut_after"), 1, marks=pytest.mark.long)]


@pytest.mark.parametrize("steps, faults, stride", EVERY)
def test_kill_the_publisher_at_every_request(job, rng, steps, faults, stride):
    """One trainer per request of a run: it is killed when that request arrives, before or after the
    server has executed it. Visible versions are complete, another trainer continues, and nothing of
    the dead one stays. Versions are full ones, with a part of two pieces."""
    work = job.work
    history = make_run(work / "run", rng, steps, rows=140_000)
    first = str(steps > 1).lower()
    whole = ["--set", "mode=full", "--set", "buffer_size=64MiB", "--set", f"anchors.first={first}"]

    def line(prefix):
        job.settings["road.object_store.url"] = f"{job.url}/{prefix}"
        return job.line("trainer", "--replay", work / "run", "--json", *whole)

    assert versions_of(job.ok(*line("undisturbed")))[-1] == steps
    requests = list(job.proxy.log)
    assert sum("partNumber" in request.query for request in requests) >= 2 * steps
    for fault in faults:
        for number in range(int(rng.integers(stride)), len(requests), stride):
            # A request that only reads leaves the same state as the one before it.
            if steps == 1 and requests[number].method in ("GET", "HEAD"):
                continue
            name = f"{fault}-{number}"
            killed = killed_at(job, fault, line(name), lambda r, at=number: r.number == at)
            assert killed or number >= len(requests) - 4  # the number of lists of rollouts varies
            assert versions_of(job.ok(*line(name)))[-1:] in ([steps], []), requests[number]
            assert_tidy(job, f"{work.name}/{name}")
            if steps > 1 or requests[number].seals or number % 6 == 0:
                assert held(job, work / name) == (steps, history[steps]), requests[number]
                shutil.rmtree(work / name)


@only("moto")
def test_a_store_that_does_not_answer_for_a_while_does_not_end_a_trainer_at_its_start(job, rng):
    """One look at the store takes 5 s, and the trainer looks twice before it decides whether to resume."""
    history = make_run(job.work / "run", rng, 2)
    until = time.monotonic() + 14
    job.proxy.fault = lambda request: time.sleep(max(0, until - time.monotonic()))
    line = ["--replay", job.work / "run", "--json"]
    assert versions_of(job.ok(*job.line("trainer", *line))) == [1, 2]
    assert held(job, job.work / "late") == (2, history[2])
