# SPDX-License-Identifier: Apache-2.0
"""Real Megatron with TP 2 and PP 2, or with EP 2 and PP 2, under torchrun; two ranks of real vLLM or
SGLang, with TP 2 or EP 2, follow it over the peer road. Each worker reads from the four trainer
ranks itself what its parameters are made of, and the agent only says when. Ten versions, two of
them dense."""

import json
import pickle
import shutil
import sys
import time
from collections import Counter
from types import SimpleNamespace

import engines
import pytest
from agents import Agent
from environments import REPOSITORY, install_entry_points, python_of, workers_config
from follows import assert_weights
from test_end_to_end import write_model

sys.path[:0] = [str(REPOSITORY / "tests/python/megatron"), str(REPOSITORY / "tests/python")]

import jobs  # noqa: E402
import megatron_jobs  # noqa: E402
import tiny_config  # noqa: E402
from jobs import PATIENCE_S, wait_for  # noqa: E402

STEPS, DENSE = 10, [4, 8]
# Large enough, and steps too, that what a receiver reads beside the blocks and their tables (the
# manifest, small gaps) is below 5 %.
RATE = 1e-5
SIZES = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768, "head_dim": 32,
         "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2,
         "max_position_embeddings": 256}  # fmt: skip
MOST_BESIDE = 0.05
DENSE_MODEL = {"tp": 2, "pp": 2, "sizes": SIZES}
EXPERTS = {"ep": 2, "pp": 2, "moe": True, "sizes": SIZES | {"moe_intermediate_size": 2048}}
SPECS = {
    "vllm": (engines.Spec("vllm_server", "megatron", 2), "tcp", DENSE_MODEL),
    "sglang": (engines.Spec("sglang", "megatron", 2), "auto", DENSE_MODEL),
    "vllm_experts": (engines.Spec("vllm_server", "megatron", 2, experts=True), "tcp", EXPERTS),
}


def new_job(work, layout, **job):
    work.mkdir()
    return megatron_jobs.Job(work, **layout, **job)


@pytest.fixture(scope="module")
def base(place):
    """Of a layout: (the model that every job of it starts from, its weights)."""
    made = {}

    def make(layout):
        name = "experts" if "moe" in layout else "dense"
        if name not in made:
            job = new_job(place / f"peer_base_{name}", layout, steps=0)
            job.job["sessions"] = [{"flags": []}]
            job.run_torchrun(4)
            weights = job.expected("start", tiny_config.hf_config(job.job))
            made[name] = write_checkpoint(place / f"peer_v0_{name}", weights, job), weights
        return made[name]

    return make


def write_checkpoint(path, weights, job):
    write_model(path, weights, job)
    if job.job.get("moe"):
        config = json.loads((path / "config.json").read_text())
        config["architectures"] = ["Qwen3MoeForCausalLM"]
        (path / "config.json").write_text(json.dumps(config))
    return str(path)


def start_engine(place, path, name, spec):
    python_of(spec.maker)
    pool = SimpleNamespace(
        place=place,
        models={"megatron": SimpleNamespace(checkpoint=lambda version: path)},
        entry_points=install_entry_points(place / f"entry_points-{time.monotonic_ns()}"),
        log=lambda spec: place / f"peer-{name}.log",
    )
    return engines.STARTS[spec.engine](pool, spec)


def held_bytes(weights):
    """What one of two ranks holds of the model: half of each matrix, or of the experts, and every
    vector and router."""
    whole = {name for name, bits in weights.items() if bits.ndim == 1 or name.endswith("mlp.gate.weight")}
    return sum(bits.nbytes // (1 if name in whole else 2) for name, bits in weights.items())


class Follower:
    """A run over the peer road, and the agent of an engine that follows it."""

    def __init__(self, place, name, engine):
        self.place, self.engine = place / f"peer_{name}", engine
        spec, carrier, layout = SPECS[name]
        self.job = new_job(self.place, layout, steps=STEPS, patience_s=PATIENCE_S, dense_at=DENSE, lr=RATE)
        self.job.over_peer(
            "--update-weight-wait", "--update-weight-buffer-size", "1048576",
            settings=f", peer: {{ carrier: {carrier}, farewell: 2s }}", rollouts=(name,),
        )  # fmt: skip
        settings = self.place / "peer.yaml"
        settings.write_text(settings.read_text() + "encoding: deltas\n")
        flags = self.job.job["sessions"][0]["flags"]
        address = flags[flags.index("--update-weight-hub-address") + 1]
        token = flags[flags.index("--update-weight-token-file") + 1]
        self.config = (
            f"hub:\n  address: '{address}'\n  token_file: {token}\n"
            f"deadlines: {{ connect: 120s }}\nroad:\n  kind: peer\n  poll_longest: 20ms\n"
            f"  peer: {{ carrier: {carrier} }}\n"
        )
        self.workers = self.place / "workers.jsonl"
        own = f"metrics: {{ file: {self.workers} }}\n"
        self.name = name
        self.agent = Agent(self, [(spec.maker, engine.url)], self.place, workers=own)
        self.trainer = start_torchrun(self.job)

    def version(self, number):
        """The checkpoint that a fresh load of a version reads. Ranks leave their shards once they
        hear that it is visible, perhaps after the engine has it."""
        wait_for(lambda: self.left_shards(number), "the trainer's shards")
        path = self.place / f"v{number:02d}"
        wanted = self.job.expected(f"step{number}", tiny_config.hf_config(self.job.job))
        return write_checkpoint(path, wanted, self.job)

    def left_shards(self, number):
        files = list((self.job.work / "shards").glob(f"step{number}_*.pickle"))
        try:
            return len(files) == 4 and all(pickle.loads(each.read_bytes()) for each in files)
        except (EOFError, pickle.UnpicklingError):  # it is being written
            return False

    def take(self, number):
        """The engine is at the version, bit for bit; the trainer goes on."""
        wait_for(lambda: self.taken(number) or self.trainer.poll() is not None, "a version")
        assert self.taken(number), self.shown()
        self.agent.wait_for(self.engine, number)
        path = self.version(number)
        model = SimpleNamespace(checkpoint=lambda version: path)
        assert_weights(self.engine, model, number, tokens=False)
        shutil.rmtree(path)
        (self.job.work / "acks" / f"{self.name}_{number:06d}").touch()

    def taken(self, number):
        return number in self.agent.taken(self.engine.url)

    def shown(self):
        """The ends of what the trainer, which waited in vain, the agent and the engine wrote."""
        trainer = megatron_jobs.shown(jobs.finish(self.trainer, 10))
        return f"{trainer}\nagent:\n{self.agent.tail()}\nengine:\n{self.engine.tail()}"

    def records(self):
        lines = self.workers.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in found if "needed_bytes" in record]


@pytest.mark.parametrize("name", SPECS)
def test_workers_read_from_trainer_ranks_what_their_maps_meet(place, base, name):
    spec, carrier, layout = SPECS[name]
    path, weights = base(layout)
    engine = start_engine(place, path, name, spec)
    follower = None
    try:
        engine.wait_ready()
        follower = Follower(place, name, engine)
        for number in range(1, STEPS + 1):
            follower.take(number)
        result = jobs.finish(follower.trainer)
        assert result.returncode == 0, megatron_jobs.shown(result)
        check_bytes(follower, weights, "shm" if carrier == "auto" else carrier)
    finally:
        if follower is not None:
            follower.agent.stop()
            jobs.stop_started()
        workers_config().unlink(missing_ok=True)
        engine.stop()


def start_torchrun(job):
    path, env = job.write("job.json", job.job), megatron_jobs.environment()
    line = [job.python, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    line += ["--master-port", env["MASTER_PORT"], str(megatron_jobs.HERE / "train.py"), str(path)]
    return jobs.start(line, env=env)


def check_bytes(follower, weights, carrier):
    """Of each worker and version: the payload is what the maps need, and 5 % at most beside it."""
    made = {v["version"]: v for v in follower.job.versions()}
    assert sorted(made) == list(range(1, STEPS + 1))
    assert all(v["publishers"] == 4 for v in made.values())
    dense = [number for number, v in made.items() if v["encoding"] == "full"]
    assert set(DENSE) <= set(dense) and len(dense) <= len(DENSE) + 1, made  # the first, at times
    taken = follower.records()
    assert Counter(record["version"] for record in taken) == dict.fromkeys(made, 2), taken
    held = held_bytes(weights)
    for record in taken:
        read, needed = record["wire_bytes"], record["needed_bytes"]
        version = made[record["version"]]
        assert record["carrier"] == carrier, record
        assert needed <= read <= needed * (1 + MOST_BESIDE), record
        if version["encoding"] == "full":
            assert abs(read - held) <= held * MOST_BESIDE, (held, record)
        else:  # of the rows and columns that it holds, and no other rank's
            assert 0 < read < version["wire_bytes"] * 0.75, (version, record)
    print(f"{len(taken)} reads by two workers over {carrier}: {held} bytes held, read of dense versions "
          f"{[r['wire_bytes'] for r in taken if r['version'] in dense]}, of deltas "
          f"{[(r['wire_bytes'], r['needed_bytes']) for r in taken if r['version'] not in dense]}")  # fmt: skip
