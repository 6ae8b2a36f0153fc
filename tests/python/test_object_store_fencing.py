# SPDX-License-Identifier: Apache-2.0
"""Object stores with adverse clients and servers: publishers that stall at any request and wake up
late, wrong ETags, wrong clocks, and foreign objects below the prefix."""

import contextlib
import json
import time
import urllib.request

import pytest

import jobs
from jobs import make_run
from support import assert_refusal, read_checkpoint, run
from test_object_store import only, server, versions_of  # noqa: F401
from test_object_store_faults import assert_tidy, job, objects, servers  # noqa: F401

# ruff: noqa: F811

KEEP = {"keep_versions": 1, "anchors.every": 2, "road.patience": "1ms"}


def read_object(job, prefix, key):
    if job.name == "rclone":
        path = job.endpoint.directory / servers.BUCKET / prefix / key
        for _ in range(100):  # rclone removes a file before it writes the new one
            if path.exists():
                with contextlib.suppress(FileNotFoundError):
                    return path.read_text()
            time.sleep(0.01)
        return path.read_text()
    with urllib.request.urlopen(request_of(job, prefix, key), timeout=30) as answer:
        return answer.read().decode()


def request_of(job, prefix, key, **more):
    """A request with a made-up signature: moto requires one, but does not check it."""
    scope = f"{servers.ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"
    signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
    url = f"{job.endpoint}/{servers.BUCKET}/{prefix}/{key}"
    return urllib.request.Request(url, headers={"Authorization": signed}, **more)


def put_object(job, prefix, key, text):
    if job.name == "rclone":
        path = job.endpoint.directory / servers.BUCKET / prefix / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    request = request_of(job, prefix, key, method="PUT", data=text.encode())
    urllib.request.urlopen(request, timeout=30).close()


def assert_index_is_true(job, prefix):
    """Asserts that the index lists exactly the existing versions."""
    there = set()
    for key in objects(job, prefix):
        if key.startswith("versions/"):
            text = read_object(job, prefix, key)
            if text and not text.startswith("reserved "):
                there.add(key.removeprefix("versions/").removesuffix(".json"))
    assert set(json.loads(read_object(job, prefix, "index.json"))["versions"]) == there


@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.long)])
def test_a_publisher_that_stalls_at_any_request_does_no_harm(job, rng, stride):
    """One trainer per request: it is stopped when that request arrives, another trainer takes over
    and publishes to the end, and then the first one continues."""
    work, history = job.work, make_run(job.work / "run", rng, 5)

    def line(prefix, **settings):
        settings = KEEP | {"road.object_store.url": f"{job.url}/{prefix}"} | settings
        return job.line("trainer", "--replay", work / "run", "--json", **settings)

    # The first trainer uses the proxy, the second one the server itself.
    assert versions_of(job.ok(*line("undisturbed"), "--steps", "3")) == [1, 2, 3]
    requests = len(job.proxy.log)
    for number in range(0, requests, stride):
        prefix = f"at-{number}"
        direct = line(prefix, **{"road.object_store.endpoint": job.endpoint})
        woken = []
        job.proxy.log.clear()

        def sleep(request, at=number, direct=direct, woken=woken):
            if request.number == at:
                woken.append(run(*direct, env=job.environment))
            return None

        job.proxy.fault = sleep
        first = run(*line(prefix), "--steps", "3", env=job.environment)
        job.proxy.fault = lambda request: None
        for result in (first, *woken):
            job.outputs += [result.stdout, result.stderr]
            # Allowed: success; fenced; a version appeared during its start; two runs began at once;
            # a request with its own deadline was answered too late.
            late = result.returncode == 5 and "gave up after" in result.stderr
            assert late or result.returncode in (0, 4, 6, 7), (number, result.stderr)
        job.ok(*direct)
        assert_tidy(job, f"{work.name}/{prefix}")
        assert_index_is_true(job, f"{work.name}/{prefix}")
        save = work / prefix
        reader = line(prefix, **{"road.object_store.endpoint": job.endpoint})
        reader[0:1] = ["rollout"]
        reader = [word for word in reader if word not in ("--replay", str(work / "run"))]
        text = job.ok(*reader, "--timeout", "240s", "--save", save)
        assert json.loads(text.splitlines()[-1])["version"] >= 5, number
        assert read_checkpoint(save / "rollout_00") == history[5], number


@only("moto")  # rclone does not notice files that are removed from its directory
def test_an_anchor_replaces_a_step_whose_parts_are_missing(job, rng):
    work, history = job.work, make_run(job.work / "run", rng, 5)
    job.ok(*job.line("trainer", "--replay", work / "run", "--steps", 4, **{"anchors.every": 2}))
    for key in objects(job, work.name):
        if key.startswith("parts/0000000000000000001.version."):
            request = request_of(job, work.name, key, method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()
    job.ok(*job.line("trainer", "--replay", work / "run"))  # the trainer reads the steps as well
    line = ["--base", work / "run/step_000000", "--save", work / "a", "--timeout", "240s"]
    job.ok(*job.line("rollout", *line))
    assert read_checkpoint(work / "a/rollout_00") == history[5]


FOREIGN = (
    "README.md", "versions/notes.txt", "versions/7.version.json", "versions/0000000000000000009.other.json",
    "parts/readme", "parts/0000000000000000001.version.xyz/part", "attempts/notes.txt",
    "other/versions/0000000000000000009.version.json",
)  # fmt: skip


def test_objects_of_others_below_the_prefix_are_left_alone(job, rng):
    work, history = job.work, make_run(job.work / "run", rng, 4)
    for key in FOREIGN:
        put_object(job, work.name, key, "not ours")
    line = job.line("trainer", "--replay", work / "run", "--json", **KEEP)
    assert versions_of(job.ok(*line, "--steps", "2")) == [1, 2]
    assert versions_of(job.ok(*line)) == [3, 4]
    job.ok(*job.line("rollout", "--save", work / "a", "--timeout", "240s"))
    assert read_checkpoint(work / "a/rollout_00") == history[4]
    left = set(objects(job, work.name))
    assert {key for key in FOREIGN if key not in left} == set()


def test_wrong_etags_are_detected(job, rng):
    """A store whose ETags are not those that If-Match accepts: no version is reserved, no call
    hangs."""
    job.proxy.lies = True
    history = make_run(job.work / "run", rng, 3)
    line = job.line("trainer", "--replay", job.work / "run", "--json", **{"deadlines.publish": "20s"})
    assert versions_of(job.ok(*line, "--steps", "2")) == [1, 2]
    assert versions_of(job.ok(*line)) == [3]
    job.ok(*job.line("rollout", "--save", job.work / "a", "--timeout", "240s"))
    assert read_checkpoint(job.work / "a/rollout_00") == history[3]


def test_a_wrong_clock_is_named(job, rng):
    make_run(job.work / "run", rng, 1)
    job.proxy.fault = lambda request: "skewed"
    result = run(*job.line("trainer", "--replay", job.work / "run"), env=job.environment)
    job.outputs += [result.stdout, result.stderr]
    assert_refusal(result, 2, "RequestTimeTooSkewed", "the clock")
    jobs.stop_started()
