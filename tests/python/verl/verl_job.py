# SPDX-License-Identifier: Apache-2.0
"""verl's own trainer workers, rollout workers and manager on the CPU, with Driftless between them:
test_verl.py.

    verl_job.py WORK shards|whole

Real: Ray, the workers ActorRolloutRefWorker (with its FSDP2 engine) and CheckpointEngineWorker, and
CheckpointEngineManager, all configured through verl. Ours: the engine that rollouts load into,
which records its calls. `whole`: the training engine exports no shards.
"""

import asyncio
import os
import shutil
import sys

import ray
import torch
from driftless.errors import WrongLayoutError
from driftless.verl_shards import EngineShards
from hydra import compose, initialize_config_module
from tokenizers import Tokenizer, models
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config
from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.engine.spec import ShardSpec
from verl.workers.engine_workers import ActorRolloutRefWorker

RANKS, REPLICAS, VERSIONS = 2, 2, 4


class Actor(ActorRolloutRefWorker):
    """verl's worker, with the test's own calls."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        initialize_global_process_group_ray(backend="cpu:gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self, number):
        engine = self.actor.engine
        tokens = torch.randint(90, (2, 12), generator=torch.Generator().manual_seed(number))
        engine.optimizer_zero_grad()
        engine.module(input_ids=tokens).logits.float().square().mean().backward()
        engine.optimizer_step()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def whole(self):
        """The weights under the engines' names, by torch alone."""
        params, _ = self.actor.engine.get_per_tensor_param()
        found = {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
            for name, tensor in params
        }
        return {name: tensor.to(torch.bfloat16).clone() for name, tensor in found.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def without_shards(self):
        """Makes it an engine without the export of shards, as some of verl's are."""
        engine = self.actor.engine
        engine.get_per_tensor_param_shard = super(FSDPEngine, engine).get_per_tensor_param_shard

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def how(self):
        """Whether it sends shards or whole tensors; and how many elements this rank publishes."""
        trainer = self.checkpoint_engine._trainer
        if trainer._shards is None:
            return "whole", 0
        boxes = zip(trainer._shards.tensors(), trainer._shards.boxes(), strict=True)
        sizes = [list(spec.shape) if box is None else box[1] for spec, box in boxes]
        return "shards", sum(int(torch.Size(size).numel()) for size in sizes)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def plans(self):
        """The plans for shards that differ between ranks. All ranks must get the same plan."""
        trainer, rank = self.checkpoint_engine._trainer, torch.distributed.get_rank()
        plain = ("model.norm.weight", (32,))
        other = ("model.layers.0.input_layernorm.weight", (32,))
        stranger = ("nobody.weight", (32,))

        def planned(*given):
            engine = Shards(given)
            try:
                return EngineShards.of(engine, trainer._base, frozenset()), engine
            except Exception as error:
                return str(error), engine

        found = [
            planned(plain)[0] is not None,
            planned(plain, *([stranger] if rank == 1 else []))[0],  # fits on rank 0 only
            planned(plain, *([None] if rank == 1 else []))[0],  # fails on rank 1 only
        ]
        mine = planned(plain, *([other] if rank == 1 else []))[0]  # whole, on rank 1 only
        found.append([spec.name for spec in mine.tensors()])
        made, engine = planned(plain, other)
        engine.given = [other, plain]
        try:
            found.append(len([*made.visit()]))
        except WrongLayoutError as error:
            found.append(str(error))
        return found

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_again(self, road):
        """Acts as a restarted trainer whose road was emptied."""
        trainer = self.checkpoint_engine._trainer
        if trainer._publisher is not None:
            trainer._publisher.close()
            trainer._publisher = None
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(road)
        torch.distributed.barrier()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def group(self):
        return id(self.checkpoint_engine._trainer._group)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_next(self):
        """Makes the next publish fail in the middle of this rank's tensors."""
        trainer = self.checkpoint_engine._trainer
        real = trainer._publisher
        if real is None:  # the first rank publishes all whole tensors
            return

        class Failing:
            def publish(self, source, **given):
                trainer._publisher = real
                visit = source.visit

                def broken():
                    yield next(iter(visit()))
                    raise RuntimeError("injected: the source breaks")

                source.visit = broken
                try:
                    return real.publish(source, **given)
                finally:
                    source.visit = visit

        trainer._publisher = Failing()


class Shards:
    """A training engine that exports tensors of ones by name and shape; None: it fails."""

    def __init__(self, given):
        self.given = given

    def get_per_tensor_param_shard(self):
        def made():
            for each in self.given:
                if each is None:
                    raise RuntimeError("injected: no shards")
                name, shape = each
                ones = torch.ones(shape, dtype=torch.bfloat16)
                yield name, ones.view(-1), ShardSpec(full_shape=shape)

        return made(), None


class Engine:
    """What verl calls a server adapter, and its server: holds weights, and drops them when its
    cache is released, as vLLM's deep sleep does."""

    def __init__(self):
        self.weights, self.told, self.fail = {}, [], 0

    async def update_weights(self, weights, global_steps=None, **_):
        loaded = {name: tensor.clone() async for name, tensor in weights}
        if self.fail > 0:
            self.fail -= 1
            raise RuntimeError("injected: the engine does not load")
        self.weights = loaded
        self.told.append(f"load {global_steps}")


class Rollout(CheckpointEngineWorker):
    def __init__(self, rollout_config, model_config):
        super().__init__(rollout_config, model_config, server_adapter=Engine())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell(self, word):
        self.server_adapter.told.append(word)
        if word == "release":
            self.server_adapter.weights = {}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen(self):
        told, self.server_adapter.told = self.server_adapter.told, []
        return told, self.server_adapter.weights

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_loads(self, times):
        self.server_adapter.fail = times

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_next(self, method):
        engine = self.checkpoint_engine

        def broken(*_):
            delattr(engine, method)
            raise RuntimeError(f"injected: {method} fails")

        setattr(engine, method, broken)


class Replica:
    def __init__(self, number, worker):
        self.replica_rank, self.workers = number, [worker]
        self.at_cache = lambda: None

    async def _tell(self, word):
        await self.workers[0].tell.remote(word)

    async def abort_all_requests(self, reject_request=False):
        await self._tell("abort")

    async def release_kv_cache(self):
        await self._tell("release")

    async def resume_kv_cache(self):
        self.at_cache()
        await self._tell("resume cache")

    async def resume_generation(self):
        await self._tell("resume")


def checkpoint(path):
    torch.manual_seed(1)
    made = Qwen3Config(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(made).to(torch.bfloat16).save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2").save_pretrained(path)


def configured(work):
    """The configuration, as a user of verl writes it."""
    rollout = "actor_rollout_ref.rollout"
    engine = f"{rollout}.checkpoint_engine"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[
            f"actor_rollout_ref.model.path={work}/model",
            "actor_rollout_ref.actor.strategy=fsdp2",
            "actor_rollout_ref.actor.optim.lr=0.01",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
            "actor_rollout_ref.model.use_remove_padding=False",
            "+actor_rollout_ref.model.override_config.attn_implementation=eager",
            f"{rollout}.name=vllm",
            f"{rollout}.log_prob_micro_batch_size_per_gpu=1",
            f"{engine}.backend=driftless",
            f"{engine}.custom_backend_module=driftless.verl",
            f"+{engine}.engine_kwargs.driftless.config={work}/driftless.yaml",
            f"+{engine}.engine_kwargs.driftless.base={work}/model",
        ]).actor_rollout_ref  # fmt: skip


def workers(count, cls, **given):
    made = RayClassWithInitArgs(cls=ray.remote(cls), **given)
    pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=made, use_gpu=False, device_name="cpu"
    )


class Job:
    def __init__(self, work, how):
        config = configured(work)
        self.actors = workers(RANKS, Actor, config=config, role="actor")
        self.actors.init_model()
        if how == "whole":
            self.actors.without_shards()
        settings = omega_conf_to_dataclass(config.rollout)
        self.rollouts = workers(REPLICAS, Rollout, rollout_config=settings, model_config=None)
        self.manager = CheckpointEngineManager(
            config=settings.checkpoint_engine, actor_wg=self.actors,
            replicas=[Replica(i, each) for i, each in enumerate(self.rollouts.workers)],
        )  # fmt: skip
        self.steps = 0

    def sync(self):
        self.steps += 1
        return self.manager.update_weights(self.steps)

    def train(self):
        self.actors.step(self.steps)

    def refused(self, words):
        try:
            self.sync()
        except Exception as error:
            assert words in str(error), error
            return error
        raise SystemExit(f"nothing failed with: {words}")

    def check(self, expected, *told):
        """Asserts that all replicas hold these weights and got these calls."""
        for words, held in self.rollouts.seen():
            assert words == list(told), (words, told)
            assert set(held) == set(expected) - {"lm_head.weight"}, set(held) ^ set(expected)
            for name, tensor in held.items():
                assert torch.equal(tensor, expected[name]), name


def main():
    work, how = sys.argv[1:]
    checkpoint(f"{work}/model")
    passed = ("PYTHONPATH", *(name for name in os.environ if name.startswith("VERL_")))
    ray.init(
        num_cpus=8, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {name: os.environ[name] for name in passed}},
    )  # fmt: skip
    job = Job(work, how)
    for number in range(1, VERSIONS + 1):
        metrics = job.sync()
        assert metrics["driftless/version"] == number, metrics
        calls = ("abort", "release", f"load {number}", "resume cache", "resume")
        good = job.actors.whole()[0]
        job.check(good, *calls)
        job.train()
    ways, elements = zip(*job.actors.how(), strict=True)
    assert set(ways) == {how}, ways
    total = sum(tensor.numel() for name, tensor in good.items() if name != "lm_head.weight")
    assert how == "whole" or (sum(elements) == total and max(elements) < total), elements
    check_plans(*job.actors.plans())
    faults(job, good, VERSIONS)
    cancelled(job)
    another_run(job, f"{work}/road")
    print("all versions held")
    ray.shutdown()


def check_plans(first, second):
    assert first[:3] == second[:3], (first, second)
    assert first[:2] == [True, None], first
    assert "the shards of rank 1: RuntimeError: injected" in first[2], first
    assert first[3] == ["model.norm.weight"], first
    assert second[3] == ["model.norm.weight", "model.layers.0.input_layernorm.weight"], second
    for found in (first, second):
        assert "when the run was opened it was ('model.norm.weight', None)" in found[4], found


def another_run(job, road):
    """A version number of another run is refused: nothing is loaded, and the error says so."""
    held, groups = job.rollouts.seen(), job.actors.group()
    job.train()
    job.actors.start_again(road)
    job.refused("start the rollouts again")
    for (told, weights), (_, before) in zip(job.rollouts.seen(), held, strict=True):
        assert told == [], told
        assert all(torch.equal(weights[name], before[name]) for name in before)
    assert job.actors.group() == groups, "a second group of the publishers was made"


def cancelled(job):
    """The caller of a sync is cancelled in the middle: engines continue with the new version."""
    job.train()
    job.steps += 1

    async def run():
        task = asyncio.ensure_future(job.manager.update_weights(job.steps))
        job.manager.replicas[0].at_cache = task.cancel
        try:
            await task
        except asyncio.CancelledError:
            return
        raise SystemExit("it was not cancelled")

    asyncio.run(run())
    job.manager.replicas[0].at_cache = lambda: None
    calls = ("abort", "release", f"load {job.steps}", "resume cache", "resume")
    job.check(job.actors.whole()[0], *calls)


def faults(job, old, last):
    """Whatever fails, engines continue with weights of one version."""
    held = f"load {last}"
    job.actors.fail_next()  # nothing is published, and no engine is paused
    job.refused("injected: the source breaks")
    job.check(old)
    job.rollouts.workers[0].fail_next.remote("commit")  # both keep the version before
    job.refused("injected: commit fails")
    job.check(old, "abort", "release", held, "resume cache", "resume")
    # published, but one of two rollouts cannot fetch it
    job.rollouts.workers[1].fail_next.remote("stage")
    job.refused("injected: stage fails")
    job.check(old)
    job.rollouts.fail_loads(1)  # the second attempt succeeds
    new = job.actors.whole()[0]
    job.sync()
    job.check(new, "abort", "release", f"load {job.steps}", "resume cache", "resume")
    job.train()
    job.rollouts.workers[1].fail_loads.remote(2)  # its weights are then unknown
    error = job.refused("injected: the engine does not load")
    assert "replica 1 stays paused" in "".join(error.__notes__), error.__notes__
    (first, _), (second, _) = job.rollouts.seen()
    assert first[-1] == "resume" and second == ["abort", "release"], (first, second)
    job.sync()
    job.check(job.actors.whole()[0], "abort", "release", f"load {job.steps}", "resume cache", "resume")


if __name__ == "__main__":
    main()
