# SPDX-License-Identifier: Apache-2.0
"""index.json, which rollouts without credentials follow: if it cannot be written, if a list is
behind, and if a trainer and `driftless presign` write it at the same time."""

import json

import pytest

import jobs
from jobs import make_run
from support import assert_refusal, read_checkpoint, run
from test_object_store import server, versions_of  # noqa: F401
from test_object_store_fencing import assert_index_is_true, put_object, read_object
from test_object_store_faults import held, job  # noqa: F401
from test_object_store_web import presign, read_presigned

# ruff: noqa: F811

def ignore_if_match(job):
    if job.name == "rclone":
        job.endpoint.guard.ignored = ("if-match",)
    else:
        job.proxy.dropped = ("if-match",)


@pytest.fixture(autouse=True)
def all_conditions(server):
    yield
    if server[0] == "rclone":
        server[1].guard.ignored = ()


def past(job, number):
    """Whether the version has been sealed, according to the proxy's log."""
    return any(r.seals and f"{number}.version" in r.path for r in job.proxy.log)


def writes_index(request):
    return request.method == "PUT" and request.path.endswith("/index.json")


def trainer(job, *more, **settings):
    return job.line("trainer", "--replay", job.work / "run", *more, **settings)


def read_all(job, url, version):
    result = read_presigned(job, url)
    assert result.returncode == 0, result.stderr
    assert read_checkpoint(job.work / "a/rollout_00") == job.history[version]


def test_a_failed_write_of_the_index_is_reported_and_repeated_at_the_end(job, rng):
    job.history = make_run(job.work / "run", rng, 3)
    refused = []

    def once(request):
        if writes_index(request) and past(job, 3) and not refused:
            refused.append(request)
            return "403"
        return None

    job.proxy.fault = once
    outputs = job.ok(*trainer(job, **{"road.object_store.presign": "1h"})) + job.outputs[-1]
    assert refused and "index.json is not as new as the versions" in outputs, outputs
    assert_index_is_true(job, job.work.name)
    read_all(job, presign(job), 3)


def test_an_index_that_cannot_be_written_fails_the_trainer_only(job, rng):
    job.history = make_run(job.work / "run", rng, 3)
    job.proxy.fault = lambda r: "403" if writes_index(r) and past(job, 2) else None
    result = run(*trainer(job), env=job.environment)
    job.outputs += [result.stdout, result.stderr]
    assert result.returncode != 0 and "index.json is not as new" in result.stderr, result.stderr
    assert held(job, job.work / "b") == (3, job.history[3])  # and it saw the run's end
    job.proxy.fault = lambda request: None
    job.ok(*trainer(job))
    assert_index_is_true(job, job.work.name)


def test_an_index_is_written_while_the_trainer_computes(job, rng):
    job.history = make_run(job.work / "run", rng, 2)
    started = lambda r: any(writes_index(each) for each in job.proxy.log if each is not r)  # noqa: E731
    job.proxy.fault = lambda r: "403" if writes_index(r) and started(r) else None
    process = job.start(*trainer(job, "--interval-ms", 60_000))
    jobs.wait_for(lambda: any(r.fault for r in job.proxy.log), "a refused index")
    job.proxy.fault = lambda request: None
    newest = "0000000000000000001.version"
    jobs.wait_for(lambda: newest in read_object(job, job.work.name, "index.json"), "the index")
    process.terminate()
    jobs.finish(process)


def test_links_do_not_depend_on_lists(job, rng):
    """Parts that a list does not show yet have links."""
    job.history = make_run(job.work / "run", rng, 3)
    job.proxy.fault = lambda r: "stale" if r.lists else None
    job.ok(*trainer(job, **{"road.object_store.presign": "1h"}))
    job.proxy.fault = lambda request: None
    signed = json.loads(read_object(job, job.work.name, "index.json"))["links"]["signatures"]
    assert sum(key.startswith("parts/") for key in signed) >= 3
    direct = {"road.object_store.endpoint": job.endpoint}
    job.settings |= direct
    job.proxy.fault = lambda r: "stale" if r.lists else None
    read_all(job, presign(job), 3)


def test_a_trainer_renews_links_that_it_finds(job, rng):
    """It adds links to new versions, until the time that `driftless presign` set."""
    job.history = make_run(job.work / "run", rng, 3)
    job.ok(*trainer(job, "--steps", 1))
    assert "links" not in json.loads(read_object(job, job.work.name, "index.json"))
    url = presign(job, "--for", "2h")
    before = json.loads(read_object(job, job.work.name, "index.json"))["links"]
    assert versions_of(job.ok(*trainer(job, "--json"))) == [2, 3]
    after = json.loads(read_object(job, job.work.name, "index.json"))["links"]
    assert after["expires"][:16] == before["expires"][:16]
    assert len(after["signatures"]) > len(before["signatures"])
    read_all(job, url, 3)
    # An expired link is not renewed.
    ended = json.loads(read_object(job, job.work.name, "index.json"))
    ended["links"]["expires"] = "2020-01-01T00:00:00Z"
    put_object(job, job.work.name, "index.json", json.dumps(ended))
    job.ok(*trainer(job))
    assert "links" not in json.loads(read_object(job, job.work.name, "index.json"))
    assert_refusal(read_presigned(job, url), 2, "index.json", "road.object_store.presign")


def test_presign_during_a_run_hides_no_version(job, rng):
    """It writes its index late, over one with more versions; the store may ignore If-Match."""
    ignore_if_match(job)
    job.history = make_run(job.work / "run", rng, 3)
    direct = {"road.object_store.endpoint": job.endpoint, "road.object_store.presign": "1h"}
    job.ok(*trainer(job, "--steps", 1, **direct))
    meanwhile = []

    def publish(request):
        if writes_index(request) and not meanwhile:
            meanwhile.append(job.ok(*trainer(job, "--json", **direct)))
        return None

    job.proxy.fault = publish
    url = presign(job)
    job.proxy.fault = lambda request: None
    assert versions_of(meanwhile[0]) == [2, 3]
    assert_index_is_true(job, job.work.name)
    read_all(job, url, 3)


@pytest.mark.parametrize("if_match", [True, False])
def test_a_trainer_keeps_the_links_of_a_concurrent_presign(job, rng, if_match):
    """The trainer has read the index before, and writes it after presign."""
    if not if_match:
        ignore_if_match(job)
    job.history = make_run(job.work / "run", rng, 2)
    job.ok(*trainer(job, "--steps", 1))
    shared = []

    def share(request):
        if writes_index(request) and past(job, 2) and not shared:
            line = job.line("presign", **{"road.object_store.endpoint": job.endpoint})
            shared.append(run(*line, env=job.environment))
        return None

    job.proxy.fault = share
    job.ok(*trainer(job))
    job.proxy.fault = lambda request: None
    assert shared[0].returncode == 0, shared[0].stderr
    index = json.loads(read_object(job, job.work.name, "index.json"))
    # Without If-Match the trainer overwrites the links: readers get an error that says how to
    # continue.
    assert ("links" in index) == if_match
    if "links" not in index:
        url = shared[0].stdout.strip()
        assert_refusal(read_presigned(job, url), 2, "index.json", "driftless presign")
    read_all(job, presign(job), 2)
