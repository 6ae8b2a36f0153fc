# SPDX-License-Identifier: Apache-2.0
"""The reference engine generates on a thread while it follows a run. Also tests that need only its
model: vLLM's backend with older releases' interface."""

import json
import subprocess

import pytest
from environments import HERE, allow, environment, find_python
from hosts import Host, HostError

VERSIONS = 10


@pytest.fixture
def python():
    for name in ("vllm", "sglang"):
        found, why = find_python(name)
        if found:
            return found
    pytest.skip(why)


@pytest.fixture
def follows(python, place, run_of):
    made = []

    def make(kind):
        run = run_of(kind)
        options = {"config": run.config, "model": run.model.checkpoint(0)}
        log = place / f"transformers-{kind}.log"
        made.append(Host(python, "transformers_host.py", options, environment(), log))
        return made[-1].wait_ready(), run

    yield make
    for host in made:
        host.stop()


@pytest.mark.parametrize("kind", ("qwen3", "qwen3_tied"))
def test_ten_versions_while_it_generates(follows, kind):
    engine, run = follows(kind)
    assert engine.do("ways") == ["direct"]
    engine.do("start", prompts=run.model.prompts, tokens=20)
    for version in range(1, VERSIONS + 1):
        before = engine.do("steps")
        while engine.do("steps") == before:
            pass  # some tokens of every version
        run.publish()
        assert engine.do("stage") and engine.do("commit") == version
        wanted = engine.do("fresh_checksums", path=run.model.checkpoint(version))
        assert engine.do("checksums") == wanted
    made = engine.do("stop")
    seen = {version for one in made for version, _ in one["spans"]}
    assert len(seen) > 2, "the engine generated with several versions"
    texts = [one for one in made if len(one["spans"]) > 1][:5] + made[-3:]
    paths = {version: run.model.checkpoint(version) for version in range(VERSIONS + 1)}
    # A cache sums up in another order, and logits of bfloat16 differ by 1/32 here.
    below = engine.do("replay", generations=texts, paths=paths)
    assert max(below) <= 3 / 32, below
    below = engine.do("replay", generations=texts, paths=paths, later=1)
    assert max(below) > 1, "another version would have made other tokens"


def test_a_failed_commit_leaves_the_old_version_serving(follows):
    engine, run = follows("qwen3")
    engine.do("start", prompts=run.model.prompts, tokens=20)
    run.publish()
    assert engine.do("stage")
    with pytest.raises(HostError, match="Mismatch"):
        engine.do("fail")
    wanted = engine.do("fresh_checksums", path=run.model.checkpoint(0))
    assert engine.do("checksums") == wanted
    assert engine.do("stage") and engine.do("commit") == 1
    assert engine.do("checksums") == engine.do("fresh_checksums", path=run.model.checkpoint(1))


def test_the_command(python, place, run_of):
    run = run_of("qwen3")
    config = place / "transformers.yaml"
    config.write_text(run.config)
    for _ in range(3):
        run.publish()
    run.publisher.declare_end()
    line = [python, "-m", "driftless.engines.transformers", "--config", config, "--json"]
    line += ["--model", run.model.checkpoint(0)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    output = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    assert output[-1]["version"] == 3 and output[-1]["tokens"] > 0


@pytest.mark.parametrize("arguments", ("two", "three"))
def test_the_interface_of_older_vllm(python, run_of, arguments):
    run = run_of("qwen3")
    run.publish()
    line = [python, HERE / "older_vllm.py", allow(run.config), run.model.checkpoint(0), "1", arguments]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found, wanted = json.loads(done.stdout.splitlines()[-1])
    assert found == wanted
