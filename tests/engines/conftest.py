# SPDX-License-Identifier: Apache-2.0
"""Real engines for the tests. An engine takes most of a minute to start: all tests that need the
same one share it, and the next one starts meanwhile."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import engines  # noqa: E402
import make_fp8  # noqa: E402
from environments import HERE, environment, find_python, install_entry_points, package  # noqa: E402
from jobs import wait_for  # noqa: E402

VERSIONS = 10
KINDS = ("qwen3", "qwen3_tied", "qwen3_moe", "deepseek")


@pytest.fixture(scope="session")
def place():
    """A directory for all files of the tests, in memory if the system has such a directory."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    path = Path(tempfile.mkdtemp(prefix="driftless-engines-", dir=memory if roomy else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


# Made on first use: (the kind they are made of, the rule). Their runs replay the steps.
FP8_KINDS = {
    f"{kind}.{rule}": (kind, rule)
    for kind in ("qwen3_blocks", "qwen3_moe_blocks")
    for rule in ("linear", "ue8m0")
}


class Model:
    def __init__(self, path):
        self.path = path
        found = json.loads((path / "tokens.json").read_text())
        self.prompts, self.tokens = found["prompts"], found["tokens"]
        assert len({str(tokens) for tokens in self.tokens}) == len(self.tokens), "versions must give different tokens"

    def checkpoint(self, version):
        return str(self.path / f"v{version:02d}")


@pytest.fixture(scope="session")
def models(place):
    """{kind: Model}, made in the environment of any engine that is installed."""
    pythons = [find_python(name) for name in ("vllm", "sglang")]
    found = [python for python, _ in pythons if python]
    if not found:
        pytest.skip("; ".join(why for _, why in pythons))
    return Models(found[0], place / "models")


class Models(dict):
    """{kind: Model}; models in FP8 are made on first use."""

    def __init__(self, python, place):
        self.python, self.place = python, place
        self.make(place, VERSIONS, *KINDS)
        super().__init__({kind: Model(place / kind) for kind in KINDS})

    def make(self, *arguments):
        line = [self.python, HERE / "make_models.py", *map(str, arguments)]
        subprocess.run(line, check=True, env=environment(), timeout=900)

    def __missing__(self, name):
        kind, rule = FP8_KINDS[name]
        if not (self.place / kind).exists():
            self.make(self.place, VERSIONS, kind)
        path = make_fp8.convert_steps(self.place / kind, VERSIONS, rule)
        self.make("--tokens", path)
        self[name] = Model(path)
        return self[name]


class Run:
    """A trainer that publishes the versions of a model, and the configuration to follow it."""

    def __init__(self, directory, model, *overrides):
        driftless = package()
        self.driftless, self.model = driftless, model
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self.config = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {self.directory}\n"
        settings = driftless.Config.parse(self.config, list(overrides))
        self.job = driftless.Job(settings, "trainer", launched=False)
        self.publisher = driftless.Publisher(self.job, self.source(0))
        self.version = 0

    def source(self, version):
        return self.driftless.CheckpointSource(self.model.checkpoint(version))

    def publish(self, version=None):
        """Publishes the next version, or another version's weights under the next number."""
        self.version += 1
        self.publisher.publish(self.source(self.version if version is None else version))
        return self.version

    def close(self):
        self.publisher.close()
        self.job.close()


class Replay:
    """A trainer in bfloat16 that quantizes. Every version has a process of its own, which ends when
    the engine has the version."""

    def __init__(self, directory, model, *overrides):
        package()
        self.model, self.version = model, 0
        self.overrides = [each for set_ in overrides for each in ("--set", set_)]
        self.config = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {directory}\n"
        self.directory = Path(directory)
        self.file = self.directory.with_suffix(".yaml")
        self.file.write_text(self.config)
        self.trainer = self.train()
        assert self.trainer.wait(600) == 0, self.output()

    def train(self):
        line = [make_fp8.COMMAND, "trainer", "--config", self.file, *self.overrides]
        line += ["--replay", self.model.path.parent / "run", "--base", self.model.checkpoint(0)]
        line += ["--steps", self.version]
        with open(self.file.with_suffix(".log"), "w") as log:
            return subprocess.Popen(list(map(str, line)), stdout=log, stderr=log)

    def output(self):
        return self.file.with_suffix(".log").read_text()

    def publish(self):
        """Publishes the next version. The previous trainer ends once the engine has its version; if
        the engine refused it, that trainer is killed."""
        try:
            assert self.trainer.wait(20) == 0, self.output()
        except subprocess.TimeoutExpired:
            self.close()
        self.version += 1
        self.trainer = self.train()
        wait_for(
            lambda: self.on_road() or self.trainer.poll() not in (None, 0), "a version"
        )
        assert self.on_road(), self.output()
        return self.version

    def on_road(self):
        return (self.directory / f"weight_v{self.version:06d}" / "DONE").exists()

    def close(self):
        """Kills the last trainer: its version may have no receiver."""
        self.trainer.kill()
        self.trainer.wait(60)


@pytest.fixture
def run_of(place, models):
    """Makes runs that end with the test. `replay=False`: codes and scales are published
    unchanged."""
    made = []

    def make(kind, *overrides, replay=True):
        directory = tempfile.mkdtemp(dir=place, prefix="run-")
        maker = Replay if kind in FP8_KINDS and replay else Run
        made.append(maker(Path(directory) / "road", models[kind], *overrides))
        return made[-1]

    yield make
    for run in made:
        run.close()


def spec_of(item):
    """The engine of a test: its parameter `spec`, or its module's SPEC."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("spec") or getattr(item.module, "SPEC", None)


def pytest_collection_modifyitems(items):
    """Orders tests by engine, so that each engine starts once."""
    line = list(dict.fromkeys(map(spec_of, items)))
    items.sort(key=lambda item: line.index(spec_of(item)))  # stable


@pytest.fixture(scope="session")
def started(place, models, request):
    """Starts engines by specification, each together with the next one in line."""
    entry_points = install_entry_points(place / "entry_points")
    line = list(dict.fromkeys(filter(None, map(spec_of, request.session.items))))
    pool = engines.Pool(place, models, entry_points, line)
    yield pool
    pool.stop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Adds the end of the engines' logs to the report of a failed test."""
    outcome = yield
    report, pool = outcome.get_result(), getattr(item, "funcargs", {}).get("started")
    if not report.failed or pool is None:
        return
    for spec, engine in pool.running.items():
        ended = engine.popen.poll()
        state = "running" if ended is None else f"ended with {ended}"
        report.sections.append((f"end of the log of {spec} ({state})", engine.tail(60)))
