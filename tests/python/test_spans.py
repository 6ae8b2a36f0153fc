# SPDX-License-Identifier: Apache-2.0
"""Spans: lines of OTLP/JSON, as PyPI's opentelemetry-proto reads them."""

import json
import subprocess

import pytest

from support import REPOSITORY

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
    """Every span lies within its parent, if that is of the same process, and no id comes twice."""
    by_id = {span["id"]: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span["begin"] <= span["end"] and span["end"] > 10**18
        parent = by_id.get(span["parent"])
        if parent is None or parent["resource"] != span["resource"]:
            continue
        assert parent["trace"] == span["trace"]
        assert parent["begin"] <= span["begin"] and span["end"] <= parent["end"], (parent, span)


def test_every_line_is_a_request(read_spans):
    if not BENCH.exists():
        pytest.skip(f"{BENCH} is not there: it is built with the tests")
    made = subprocess.run([BENCH, "--spans", "3"], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    spans = read_spans(made.stdout)
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
