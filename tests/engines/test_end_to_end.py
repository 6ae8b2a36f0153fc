# SPDX-License-Identifier: Apache-2.0
"""Real Megatron trains; real vLLM and transformers follow it through an agent.

Over mpi_rma, trainers and agent are MPI ranks, and the agent drives the engines. Over files, the
agent runs alone, and transformers reads the files itself. vLLM generates all the while.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
from types import SimpleNamespace

import engines
import pytest
from environments import REPOSITORY, environment, install_entry_points, python_of
from follows import assert_weights

sys.path[:0] = [str(REPOSITORY / "tests/python/megatron"), str(REPOSITORY / "tests/python")]

import jobs  # noqa: E402
import megatron_jobs  # noqa: E402
import support  # noqa: E402
import tiny_config  # noqa: E402

STEPS = 10
SIZES = {"vocab_size": 256, "head_dim": 32, "num_hidden_layers": 2, "max_position_embeddings": 256}
# Not named SPEC: this file starts it itself, with a model of its own.
ENGINE = engines.Spec("vllm_server", "megatron", 1)
CONFIG = """
road: {{ kind: {road}, shared_fs: {{ dir: {directory} }}, host_shm: {{ name: {name}, size: 256MiB }} }}
threads: 1
deadlines: {{ connect: 120s, publish: 60s }}
agent:
  workers: {workers}
engines:
  - {{ url: "{url}", kind: vllm }}
"""


def new_job(work, **job):
    work.mkdir()
    return megatron_jobs.Job(work, tp=2, sizes=SIZES, last_shards_only=True, **job)


def write_model(path, weights, job):
    """Writes the reference export as a checkpoint that engines load."""
    tensors = {
        name: support.Tensor("BF16", bits.shape, bits.tobytes()) for name, bits in weights.items()
    }
    support.write_checkpoint(path, tensors)
    given = tiny_config.hf_config(job.job) | {"architectures": ["Qwen3ForCausalLM"],
                                              "dtype": "bfloat16"}  # fmt: skip
    (path / "config.json").write_text(json.dumps(given))
    return str(path)


@pytest.fixture(scope="module")
def trained(place):
    """The model as Megatron initializes it: every job of these sizes starts from it."""
    job = new_job(place / "base", steps=0)
    job.job["sessions"] = [{"flags": []}]
    job.run(trainers=2)
    weights = job.expected("start", tiny_config.hf_config(job.job))
    return write_model(place / "megatron_v0", weights, job)


@pytest.fixture
def server(place, trained):
    python_of("vllm")
    model = SimpleNamespace(checkpoint=lambda version: trained)
    entry_points = place / f"entry_points-{time.monotonic_ns()}"
    pool = SimpleNamespace(
        models={"megatron": model},
        entry_points=install_entry_points(entry_points),
        log=lambda spec: place / f"end-to-end-{time.monotonic_ns()}.log",
    )
    engine = engines.start_vllm_server(pool, ENGINE)
    yield engine
    engine.stop()


class Watcher:
    """Generates without a pause, and lets the trainer continue when vLLM reports a version."""

    def __init__(self, engine, acks):
        self.engine, self.acks = engine, acks
        self.made, self.seen, self.failures = 0, [], []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=each) for each in (self.generate, self.look)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def generate(self):
        while not self.over.is_set():
            try:
                assert len(self.engine.ask([5, 17, 42], 8)["token_ids"]) == 8
                self.made += 1
            except (urllib.error.URLError, AssertionError, OSError) as problem:
                self.failures.append(str(problem))

    def look(self):
        while not self.over.is_set():
            output = self.engine.weight_version()  # "default" before the first update
            version = int(output) if output.isdigit() else 0
            if version and version not in self.seen:
                self.seen.append(version)
                for each in range(1, version + 1):
                    (self.acks / f"vllm_{each:06d}").touch()
            time.sleep(0.02)


def start_transformers(config, model, log):
    line = [python_of("vllm"), "-m", "driftless.engines.transformers", "--config", str(config)]
    line += ["--model", model, "--json"]
    with log.open("w") as out:
        return subprocess.Popen(line, env=environment(), stdout=out, stderr=subprocess.STDOUT)


def assert_followed(job, engine, watcher, follower, log, place):
    """Both engines hold the trainer's last version; vLLM has its bits, and never stopped
    generating."""
    assert follower.wait(120) == 0, log.read_text()
    output = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert output[-1]["version"] == STEPS and output[-1]["tokens"] > 0, log.read_text()
    assert [v["version"] for v in job.versions()] == list(range(1, STEPS + 1))
    assert watcher.seen == list(range(1, STEPS + 1))
    assert watcher.made > STEPS and not watcher.failures, watcher.failures
    path = place / f"{job.work.name}-last"
    last = write_model(path, job.expected(f"step{STEPS}", tiny_config.hf_config(job.job)), job)
    model = SimpleNamespace(checkpoint=lambda version: last)
    assert_weights(engine, model, STEPS, tokens=False)
    shutil.rmtree(path)


def test_over_mpi_rma(place, trained, server):
    job = new_job(place / "rma", steps=STEPS, patience_s=120)
    job.over_rma(rollouts=("vllm",))
    engine = server.wait_ready()
    name = f"end-to-end-{time.monotonic_ns()}"
    given = {"name": name, "url": engine.url, "directory": "unused", "workers": 2}
    config, worker = job.work / "agent.yaml", job.work / "worker.yaml"
    config.write_text(CONFIG.format(road="mpi_rma", **given))
    worker.write_text(CONFIG.format(road="host_shm", **given))
    line = megatron_jobs.mpirun(
        (2, job.python, megatron_jobs.HERE / "train.py", job.write("job.json", job.job)),
        (1, support.COMMAND, "agent", "--config", config),
    )
    log = place / "transformers-rma.log"
    with Watcher(engine, job.work / "acks") as watcher:
        running = jobs.start(line, env=megatron_jobs.environment())
        follower = start_transformers(worker, trained, log)
        result = jobs.finish(running, 300)
        assert result.returncode == 0, megatron_jobs.shown(result)
    assert_followed(job, engine, watcher, follower, log, place)


def test_over_files(place, trained, server):
    job = new_job(place / "disk", steps=STEPS, patience_s=120)
    job.over_disk("--update-weight-hf-checkpoint", trained, rollouts=("vllm",))
    engine = server.wait_ready()
    given = {"name": f"files-{time.monotonic_ns()}", "url": engine.url, "directory": job.road}
    config = job.work / "agent.yaml"
    config.write_text(CONFIG.format(road="shared_fs", workers=1, **given))
    log = place / "transformers-disk.log"
    agent = jobs.start([support.COMMAND, "agent", "--config", str(config)])
    with Watcher(engine, job.work / "acks") as watcher:
        follower = start_transformers(config, trained, log)
        job.run(trainers=2, timeout=300)
        result = jobs.finish(agent)
        assert result.returncode == 0, result.stdout + result.stderr
    assert_followed(job, engine, watcher, follower, log, place)
