# SPDX-License-Identifier: Apache-2.0
"""Spans: lines of OTLP/JSON, parsed by PyPI's opentelemetry-proto."""

import json
import subprocess

import numpy as np
import pytest

import jobs
from support import REPOSITORY
from test_agent import Engine, checkpoint_host, name, replay  # noqa: F401

BENCH = REPOSITORY / "build/bin/metrics_bench"


@pytest.fixture(scope="module")
def read_spans():
    made = subprocess.run(
        [REPOSITORY / "scripts/python_env.sh", "otlp"], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    python = REPOSITORY / made.stdout.strip() / "bin/python"

    def read(text):
        reader = REPOSITORY / "tests/python/otlp_reader.py"
        result = subprocess.run([python, reader], input=text, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return read


def assert_trees(spans):
    """Asserts that every span is within its parent of the same process, and that no id repeats."""
    by_id = {span["id"]: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span["begin"] <= span["end"] and span["end"] > 10**18
        parent = by_id.get(span["parent"])
        if parent is None or parent["resource"] != span["resource"]:
            continue
        assert parent["trace"] == span["trace"]
        assert parent["begin"] <= span["begin"] and span["end"] <= parent["end"], (parent, span)


def test_every_line_is_a_request(read_spans, tmp_path):
    if not BENCH.exists():
        pytest.skip(f"{BENCH} is not there: it is built with the tests")
    lines = tmp_path / "spans"  # a file: a full pipe would lose lines
    with lines.open("w") as out:
        made = subprocess.run([BENCH, "--spans", "3"], stdout=out, stderr=subprocess.PIPE, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    spans = read_spans(lines.read_text())
    assert_trees(spans)
    assert len({span["trace"] for span in spans}) == 3  # versions
    trace = next(span["trace"] for span in spans if span["name"] == "publish version 2")
    ours = [span for span in spans if span["trace"] == trace]
    names = {span["name"] for span in ours}
    assert names == {"publish version 2", "follow version 2", "engine update", "compare", "encode",
                     "send", "seal", "fetch", "process", "stage", "pause", "apply", "resume",
                     "commit"}  # fmt: skip
    (root,) = [span for span in ours if span["name"] == "publish version 2"]
    assert root["parent"] == "" and root["attributes"]["driftless.version"] == 2
    assert root["attributes"]["driftless.encoding"] == "deltas"
    assert root["attributes"]["driftless.density"] == 0.025
    assert root["end"] - root["begin"] == 200_000_000
    for span in ours:
        if span["name"] in ("follow version 2", "engine update"):
            assert span["parent"] == root["id"]
    (failed,) = [span for span in ours if span["failed"]]
    assert failed["name"] == "engine update" and failed["error"].startswith("mismatch: ")
    assert failed["attributes"]["driftless.engine"] == "http://10.0.0.63:8000"
    assert root["resource"] == {"service.name": "driftless", "host.name": "host-7",
                                "driftless.role": "trainer", "driftless.rank": 0}  # fmt: skip


def test_a_trainer_and_an_agent_write_one_trace_per_version(work, name, read_spans):  # noqa: F811
    jobs.make_run(work / "run", np.random.default_rng(6), 3)
    engine = Engine(work / "run/step_000000")
    host = checkpoint_host(work, name, ("vllm", engine))
    host.set(**{"monitor.spans_file": f"{work}/spans_{{role}}_{{rank}}.jsonl"})
    try:
        agent = host.start_agent()
        trainer = replay(host, work / "run", "--interval-ms", 300)
        assert jobs.finish(trainer).returncode == 0
        jobs.ended(agent)
    finally:
        jobs.stop_started()
    published = read_spans((work / "spans_trainer_0.jsonl").read_text())
    followed = read_spans((work / "spans_agent_0.jsonl").read_text())
    assert_trees(published + followed)
    roots = {span["trace"]: span for span in published if span["parent"] == ""}
    assert [root["name"] for root in roots.values()] == [f"publish version {v}" for v in (1, 2, 3)]
    for root in roots.values():
        stages = {span["name"] for span in published if span["parent"] == root["id"]}
        assert stages == {"compare", "encode", "send", "seal"}
        assert len(root["attributes"]["driftless.run"]) == 32
        assert 0 < root["attributes"]["driftless.density"] < 1
        assert root["attributes"]["driftless.wire_bytes"] > 0
    tops = [span for span in followed if span["name"].startswith(("follow", "engine"))]
    assert tops and all(span["parent"] == roots[span["trace"]]["id"] for span in tops)
    updates = [span for span in tops if span["name"] == "engine update"]
    assert updates[-1]["attributes"]["driftless.engine"] == engine.url
    assert updates[-1]["attributes"]["driftless.engine_version"] == 3
    assert not any(span["failed"] for span in updates)
    stages = {span["name"] for span in followed if span["parent"] == updates[-1]["id"]}
    assert {"pause", "apply", "resume", "commit"} <= stages
