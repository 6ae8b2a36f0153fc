"""`driftless agent` as a process of the tests."""

import json
import os
import time

from environments import REPOSITORY
from hosts import Process

COMMAND = os.environ.get("DRIFTLESS_COMMAND", str(REPOSITORY / "build/bin/driftless"))


class Agent(Process):
    """Follows a run for engines: by shared memory with their workers, or by a checkpoint."""

    def __init__(self, run, engines, directory, name="agent", checkpoint=None):
        """`engines`: (kind, url) pairs. `checkpoint`: the directory that they read again."""
        lines = [run.config.rstrip(), f"  host_shm: {{ name: {directory.name}-{name} }}"]
        lines += ["receiver: { id: " + name + " }", "agent:"]
        if checkpoint:
            lines += ["  hand_over: checkpoint", f"  checkpoint_dir: {checkpoint}"]
        lines += ["  retry_wait: 100ms", "  engines:"]
        for kind, url in engines:
            lines += [f"    - {{ url: '{url}', kind: {kind} }}"]
        config = directory / f"{name}.yaml"
        config.write_text("\n".join(lines) + "\n")
        line = [COMMAND, "agent", "--config", config, "--json", "--verbose"]
        if checkpoint:
            line += ["--base", run.model.checkpoint(0)]
        super().__init__(line, directory / f"{name}.log")


def wait_for_version(engine, agent, version, timeout_s=120):
    """Until the engine says that it serves the version."""
    deadline = time.monotonic() + timeout_s
    while engine.weight_version() != str(version):
        assert agent.popen.poll() is None, f"the agent ended:\n{agent.tail()}"
        assert time.monotonic() < deadline, f"not there yet:\n{agent.tail()}\n{engine.tail()}"
        time.sleep(0.05)


def said(agent):
    lines = agent.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
