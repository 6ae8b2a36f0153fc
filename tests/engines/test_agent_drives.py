"""Real engines driven by `driftless agent`: through shared memory to the receivers in their workers,
and by a checkpoint that it patches for engines as they come."""

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from engines import Spec
from environments import REPOSITORY
from follows import assert_weights

COMMAND = os.environ.get("DRIFTLESS_COMMAND", str(REPOSITORY / "build/bin/driftless"))
VERSIONS = 10
SERVED = [Spec("vllm_server", "qwen3", 2), Spec("sglang", "qwen3", 1)]


class Agent:
    def __init__(self, directory, run, engine, kind, *sets):
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.config = Path(directory) / "agent.yaml"
        self.config.write_text(run.config)
        self.log = Path(directory) / f"{self.name}.log"
        settings = [f"road.host_shm.name={self.name}", "agent.stage_timeout=60s"]
        settings += [f"agent.engines[0].url={engine.url}", f"agent.engines[0].kind={kind}", *sets]
        line = [COMMAND, "agent", "--config", str(self.config), "--verbose", "--json"]
        for setting in settings:
            line += ["--set", setting]
        with open(self.log, "w") as out:
            self.popen = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT)

    def lines(self):
        text = self.log.read_text().splitlines()
        return [json.loads(line) for line in text if line.startswith("{")]

    def wait_for(self, version, seconds=180):
        until = time.monotonic() + seconds
        while not any(x.get("engine") and x["version"] == version for x in self.lines()):
            assert self.popen.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)

    def stop(self):
        self.popen.send_signal(signal.SIGTERM)
        self.popen.wait(60)
        shutil.rmtree(f"/dev/shm/driftless-{os.geteuid()}-{self.name}", ignore_errors=True)


@pytest.fixture
def agent_of(place):
    made = []

    def make(*arguments):
        made.append(Agent(place, *arguments))
        return made[-1]

    yield make
    for agent in made:
        agent.stop()


# A checkpoint is loaded whole first, so it may come after another run.
CASES = [(spec, way) for spec in SERVED for way in ("host_shm", "checkpoint")]


@pytest.mark.parametrize(("spec", "hand_over"), CASES, ids=str)
def test_ten_versions(started, run_of, agent_of, place, spec, hand_over):
    engine, run = started.get(spec), run_of(spec.kind)
    kind = "sglang" if spec.engine == "sglang" else "vllm"
    sets = []
    if hand_over == "checkpoint":
        local = place / f"local-{uuid.uuid4().hex}"
        shutil.copytree(run.model.checkpoint(0), local)
        sets = ["agent.hand_over=checkpoint", f"agent.checkpoint_dir={local}"]
    agent = agent_of(run, engine, kind, *sets)
    for version in range(1, VERSIONS + 1):
        run.publish()
        agent.wait_for(version)
        assert engine.weight_version() == str(version)
        if kind == "vllm":
            assert_weights(engine, run.model, version)
        else:
            made = engine.generate(run.model.prompts, len(run.model.tokens[0][0]))
            assert made == run.model.tokens[version]
    times = [line for line in agent.lines() if line.get("engine")]
    print(hand_over, spec, [round(x["pause_ms"] + x["apply_ms"] + x["resume_ms"], 1) for x in times])
