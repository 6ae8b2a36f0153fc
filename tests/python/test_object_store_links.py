# SPDX-License-Identifier: Apache-2.0
"""index.json, by which rollouts without credentials follow: when it cannot be written, when a list is
behind, and when a trainer and `driftless presign` write it at the same time."""

import json

import pytest

import jobs
from jobs import make_run
from support import assert_refusal, read_checkpoint, run
from test_object_store import server, versions_of  # noqa: F401
from test_object_store_attacks import assert_index_is_true, put_object, read_object
from test_object_store_faults import held, job  # noqa: F401
from test_object_store_web import presign, read_presigned

# ruff: noqa: F811

def past(job, number):
    """Whether the version has been sealed, by what the proxy saw."""
    return any(r.seals and f"{number}.version" in r.path for r in job.proxy.log)


def writes_index(request):
    return request.method == "PUT" and request.path.endswith("/index.json")


def trainer(job, *more, **settings):
    return job.line("trainer", "--replay", job.work / "run", *more, **settings)


def read_all(job, url, version):
    result = read_presigned(job, url)
    assert result.returncode == 0, result.stderr
    assert read_checkpoint(job.work / "a/rollout_00") == job.history[version]


def test_an_index_that_was_not_written_is_told_of_and_written_at_the_end(job, rng):
    job.history = make_run(job.work / "run", rng, 3)
    refused = []

    def once(request):
        if writes_index(request) and past(job, 3) and not refused:
            refused.append(request)
            return "403"
        return None

    job.proxy.fault = once
    said = job.ok(*trainer(job, **{"road.presign": "1h"})) + job.said[-1]
    assert refused and "index.json is not as new as the versions" in said, said
    assert_index_is_true(job, job.work.name)
    read_all(job, presign(job), 3)


def test_an_index_that_cannot_be_written_fails_the_trainer_and_nobody_else(job, rng):
    job.history = make_run(job.work / "run", rng, 3)
    job.proxy.fault = lambda r: "403" if writes_index(r) and past(job, 2) else None
    result = run(*trainer(job), env=job.environment)
    job.said += [result.stdout, result.stderr]
    assert result.returncode != 0 and "index.json is not as new" in result.stderr, result.stderr
    assert held(job, job.work / "b") == (3, job.history[3])  # and it heard of the end
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
    jobs.wait_for(lambda: newest in read_object(job, job.work.name, "index.json"), "the index", 30)
    process.terminate()
    jobs.finish(process)


def test_links_do_not_hang_on_lists(job, rng):
    """Parts that a list does not show yet have links."""
    job.history = make_run(job.work / "run", rng, 3)
    job.proxy.fault = lambda r: "stale" if r.lists else None
    job.ok(*trainer(job, **{"road.presign": "1h"}))
    job.proxy.fault = lambda request: None
    signed = json.loads(read_object(job, job.work.name, "index.json"))["links"]["signatures"]
    assert sum(key.startswith("parts/") for key in signed) >= 3
    direct = {"road.endpoint": job.endpoint}
    job.settings |= direct
    job.proxy.fault = lambda r: "stale" if r.lists else None
    read_all(job, presign(job), 3)


def test_a_trainer_renews_links_that_it_finds(job, rng):
    """It makes none unasked, and keeps those of `driftless presign` to their end."""
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
    # What has expired stays so.
    ended = json.loads(read_object(job, job.work.name, "index.json"))
    ended["links"]["expires"] = "2020-01-01T00:00:00Z"
    put_object(job, job.work.name, "index.json", json.dumps(ended))
    job.ok(*trainer(job))
    assert "links" not in json.loads(read_object(job, job.work.name, "index.json"))
    assert_refusal(read_presigned(job, url), 2, "index.json", "road.presign")


def test_presign_beside_a_trainer_hides_no_version(job, rng):
    """It writes its index late, over one that has more versions; the store may ignore If-Match."""
    job.proxy.dropped = ("if-match",)
    job.history = make_run(job.work / "run", rng, 3)
    direct = {"road.endpoint": job.endpoint, "road.presign": "1h"}
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


@pytest.mark.parametrize("ignored", [(), ("if-match",)], ids=["conditions", "no-if-match"])
def test_a_trainer_beside_presign_keeps_its_links(job, rng, ignored):
    """The trainer has read the index, and writes it late."""
    job.proxy.dropped = ignored
    job.history = make_run(job.work / "run", rng, 2)
    job.ok(*trainer(job, "--steps", 1))
    shared = []

    def share(request):
        if writes_index(request) and past(job, 2) and not shared:
            line = job.line("presign", **{"road.endpoint": job.endpoint})
            shared.append(run(*line, env=job.environment))
        return None

    job.proxy.fault = share
    job.ok(*trainer(job))
    job.proxy.fault = lambda request: None
    assert shared[0].returncode == 0, shared[0].stderr
    index = json.loads(read_object(job, job.work.name, "index.json"))
    # Without If-Match nothing keeps it from writing over them: a reader is told so, and how to go on.
    assert ("links" in index) != bool(ignored)
    if "links" not in index:
        url = shared[0].stdout.strip()
        assert_refusal(read_presigned(job, url), 2, "index.json", "driftless presign")
    read_all(job, presign(job), 2)
