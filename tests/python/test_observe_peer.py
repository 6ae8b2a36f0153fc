# SPDX-License-Identifier: Apache-2.0
"""The operator's views of a run over peer, which has no directory or bucket: the trainer's
endpoint, metrics files, spans, the report and doctor."""

import json
import signal

import pytest

import jobs
from jobs import ended, finish, make_run, stop_started, wait_for
from ports import free_port
from support import ok, run
from test_monitor import answers, ask
from test_peer import Peers

STEPS = 150
NAMES = {"early0", "early1"}


@pytest.fixture(autouse=True)
def processes():
    jobs.need("peer", "status_server")
    yield
    stop_started()


def status(*source):
    result = run("status", *source, "--json")
    assert result.returncode in (0, 1), result.stderr
    return result.returncode, json.loads(result.stdout)


def spans_of(path):
    """{trace: [(name, parent, id)]}"""
    found = {}
    for line in path.read_text().splitlines():
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            row = span["name"], span.get("parentSpanId", ""), span["spanId"]
            found.setdefault(span["traceId"], []).append(row)
    return found


def test_all_views_show_a_run_over_peer(work, rng):
    make_run(work / "run", rng, STEPS)
    job = Peers(work, "auto")
    job.set(**{"metrics.file": f"{work}/{{role}}_{{rank}}.jsonl", "monitor.spans_file": f"{work}/spans_{{role}}.jsonl"})
    base = ["--base", work / "run/step_000000"]
    rollouts = [job.start_rollout(*base, "--set", f"receiver.id={name}") for name in NAMES]
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    # Takes a minute unless it is stopped.
    trainer = job.start_trainer("--replay", work / "run", "--interval-ms", 1000, "--rollouts", 2,
                                "--set", f"monitor.address={port}")  # fmt: skip
    wait_for(answers(port), "the endpoint")
    wait_for(lambda: len(ask(port).json["rollouts"]) == 2, "both rollouts")
    wait_for(lambda: ask(port).json["version"] >= 2, "version 2")
    text = ask(port).text
    assert str(work) not in text and "0123456789abcdef" not in text
    assert ask(port, "/ready").status == 200 and "<!doctype html>" in ask(port, "/").text.lower()
    code, found = status(endpoint)
    assert code == 0 and found["trainer"]["state"] == "alive", found["wrong"]
    assert {each["id"] for each in found["rollouts"]} == NAMES
    assert all(each["proven"] for each in found["rollouts"]), found["rollouts"]
    assert [each["version"] for each in found["versions"]] == list(range(1, found["version"] + 1))
    shown = ask(port, "/metrics")
    if jobs.backends()["prometheus"]["built"]:
        for name in NAMES:
            assert f'driftless_rollout_proven{{id="{name}"}} 1' in shown.text
    trainer.send_signal(signal.SIGTERM)
    assert finish(trainer).returncode == 128 + signal.SIGTERM
    (last,) = {ended(process)["version"] for process in rollouts}

    files = [work / "trainer_0.jsonl", work / "rollout_0.jsonl"]
    code, found = status(*files)
    assert code == 0 and found["version"] == last and not found["damaged"]
    assert {each["id"] for each in found["rollouts"]} == NAMES
    assert all(each["proven"] and each["lag"] == 0 for each in found["rollouts"])

    ok("report", "--metrics", *files, "--out", work / "report.html")
    report = (work / "report.html").read_text()
    assert "Density by version" in report and "<script" not in report

    published, followed = spans_of(work / "spans_trainer.jsonl"), spans_of(work / "spans_rollout.jsonl")
    for version in range(1, last + 1):
        ((trace, root),) = [(trace, span) for trace, spans in published.items() for span in spans
                            if span[:2] == (f"publish version {version}", "")]  # fmt: skip
        names = {name for name, parent, _ in published[trace] if parent == root[2]}
        assert names <= {"compare", "encode", "send", "seal"} and "seal" in names, names
        tops = [span for span in followed.get(trace, []) if span[0] == f"follow version {version}"]
        assert len(tops) == 2 or version < last  # earlier ones may have been folded
        for top in tops:
            assert top[1] == root[2]
            assert {"fetch", "commit"} <= {name for name, parent, _ in followed[trace] if parent == top[2]}
