# SPDX-License-Identifier: Apache-2.0
"""`driftless agent` as a process of the tests."""

import json
import os
import time

from environments import REPOSITORY, workers_config
from hosts import Process

COMMAND = os.environ.get("DRIFTLESS_COMMAND", str(REPOSITORY / "build/bin/driftless"))


class Agent(Process):
    """Drives engines to the versions of a run: through shared memory, or a checkpoint on disk."""

    def __init__(self, run, engines, directory, name="agent", checkpoint=None, settings=(),
                 workers=False, on_host=list):  # fmt: skip
        """`engines`: (kind, url) pairs. `checkpoint`: the directory that the engines reload.
        `workers`: their workers read the road themselves; a text: with these further settings.
        `settings`: more settings of the agent. `on_host`: makes of a line one that runs it on
        another host."""
        lines = [run.config.rstrip(), f"  host_shm: {{ name: {directory.name}-{name} }}"]
        lines += ["receiver: { id: " + name + " }", "engine_calls: { retry_wait: 100ms }", "agent:"]
        if checkpoint:
            lines += ["  hand_over: checkpoint", f"  checkpoint_dir: {checkpoint}"]
        if workers:
            workers_config().write_text(run.config + (workers if isinstance(workers, str) else ""))
            lines += ["  hand_over: workers"]
        lines += [f"  {each}" for each in settings] + ["engines:"]
        lines += [f"  - {{ url: '{url}', kind: {kind} }}" for kind, url in engines]
        self.metrics = directory / f"{name}.metrics"
        lines += [f"metrics: {{ file: {self.metrics} }}"]
        config = directory / f"{name}.yaml"
        config.write_text("\n".join(lines) + "\n")
        line = [COMMAND, "agent", "--config", config, "--json"]
        if checkpoint:
            line += ["--base", run.model.checkpoint(0)]
        super().__init__(on_host(line), directory / f"{name}.log")

    def taken(self, url):
        """The versions to which it has brought the engine, each counted after the update's last
        call. The engine itself reports a version earlier, while it is still paused."""
        text = self.metrics.read_text() if self.metrics.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [line["version"] for line in lines
                if line.get("engine") == url and line["status"] == "ok"]  # fmt: skip

    def wait_for(self, engine, version, timeout_s=600):
        deadline = time.monotonic() + timeout_s
        while version not in self.taken(engine.url):
            assert self.popen.poll() is None, f"the agent ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"not there:\n{self.tail()}\n{engine.tail()}"
            time.sleep(0.05)
        assert engine.weight_version() == str(version)
