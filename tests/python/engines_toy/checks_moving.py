# SPDX-License-Identifier: Apache-2.0
"""Changes that an engine makes to its tensors without the target's knowledge are found by name
before the next commit, and followed. Run like checks.py."""

import torch

import driftless
import toy_run
from driftless.engines import ModuleTarget
from driftless.engines.rank_receiver import RankReceiver
from driftless.engines.sglang import note_releases
from driftless.engines.vllm import note_sleeps
from toy_checks import run_checks
from toy_engine import DEVICE, ToyEngine, state_bits
from toy_group import raises
from toy_moving import Balanced, Published, Sleeping

ANCHORS = ("anchors.every=1",)


class FollowedEngine:
    """An engine of one rank that follows a run."""

    def __init__(self, kind, *overrides, tp=1, odd=(), **options):
        self.kind, self.tp, self.odd = kind, tp, odd
        self.generator = torch.Generator().manual_seed(31)
        self.weights = toy_run.make_weights(self.generator, odd)
        self.run = toy_run.Run(self.weights, *overrides)
        self.base = self.weights
        self.engine = self.fresh(self.weights)
        self.target = ModuleTarget(self.engine, self.run.base, **options)
        self.receiver = self.run.receiver(self.target)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run.__exit__(*error)

    def fresh(self, weights):
        engine = self.kind(0, self.tp, self.odd).to(DEVICE)
        ToyEngine.load_weights(engine, weights.items())
        return engine

    def publish(self):
        self.weights = toy_run.step(self.generator, self.weights, 0.2)
        self.run.publish(self.weights)

    def take(self):
        while self.receiver.stage(1):
            self.receiver.commit()

    def step(self):
        self.publish()
        self.take()
        assert self.holds(self.weights)

    def holds(self, weights):
        return state_bits(self.engine) == state_bits(self.fresh(weights))


def rebound(engine):
    for layer in engine.layers:
        layer.qkv = torch.nn.Parameter(layer.qkv.data.clone(), requires_grad=False)
    engine.norm.data = engine.norm.data.clone()
    return "'norm' is another tensor now"


def rebound_parameters_are_traced_again():
    for options in ({}, {"tp": 2}, {"allow": ("masked", "whole")}):
        with FollowedEngine(ToyEngine, **options) as it:
            it.step()
            it.publish()
            word = rebound(it.engine)
            with raises(driftless.errors.BusyError, word, "stage again"):
                it.receiver.stage(10)
            assert any(word in each for each in it.target.follow())
            assert it.target.state.version == 1 and it.target.state.valid
            it.take()
            if options.get("tp") != 2:
                assert it.holds(it.weights), options
            assert it.target.follow() == []
            it.step()


def between_staging_and_commit():
    with FollowedEngine(ToyEngine) as it:
        it.step()
        before = it.weights
        it.publish()
        assert it.receiver.stage(10)
        rebound(it.engine)
        with raises(driftless.errors.BusyError, "is another tensor now"):
            it.receiver.commit()
        assert it.target.follow() and it.holds(before)
        with raises(driftless.errors.InvalidArgumentError, "nothing to take back"):
            it.receiver.rollback()
        it.take()
        assert it.holds(it.weights)


def a_version_staged_before_a_move_is_not_committed_after_it():
    with FollowedEngine(ToyEngine) as it:
        it.step()
        before = it.weights
        it.publish()
        assert it.receiver.stage(10)
        rebound(it.engine)
        it.target.follow()
        with raises(driftless.errors.BusyError, "traced again since", "stage again"):
            it.receiver.commit()
        assert it.holds(before)
        it.take()
        assert it.holds(it.weights)
        # The version before cannot be undone either.
        rebound(it.engine)
        it.target.follow()
        with raises(driftless.errors.BusyError, "traced again since"):
            it.receiver.rollback()
        assert it.holds(it.weights)


def takes_a_full_version(it):
    assert not it.target.state.valid
    it.publish()
    it.take()
    assert it.holds(it.weights) and it.receiver.version == 2
    it.step()


def other_values_need_a_full_version():
    for tp in (1, 2):
        with FollowedEngine(ToyEngine, *ANCHORS, tp=tp) as it:
            it.step()
            engine = it.engine
            engine.norm = torch.nn.Parameter(engine.norm.data + 1, requires_grad=False)
            assert "'norm'" in it.target.follow()[0]
            takes_a_full_version(it)


def a_reload_of_the_base_is_followed_from_the_base():
    """As vLLM's reload_weights: the model's loader, with its checkpoint."""
    for options in ({}, {"tp": 2}, {"odd": ("broadcast", "quantized", "rebind", "converted")}):
        with FollowedEngine(ToyEngine, **options) as it:
            it.step()
            it.step()
            it.engine.load_weights(it.base.items())
            it.publish()
            with raises(driftless.errors.BusyError, "load_weights() was called by other code"):
                it.receiver.stage(10)
            assert "load_weights" in it.target.follow()[0]
            state = it.target.state
            assert (state.version, state.valid) == (0, True), state
            it.take()
            assert it.receiver.version == 3 and it.holds(it.weights)
            it.step()


def reloads_of_other_weights_need_a_full_version():
    with FollowedEngine(ToyEngine, *ANCHORS) as it:
        it.step()
        other = toy_run.step(it.generator, it.base, 0.5)
        it.engine.load_weights(other.items())
        assert "load_weights" in it.target.follow()[0]
        assert not it.target.state.valid and it.holds(other)
        it.publish()
        it.take()
        assert it.holds(it.weights) and it.receiver.version == 2
        it.step()


def a_reload_of_the_same_version_changes_nothing():
    """The digest proves it, because the module holds every tensor unchanged."""
    weights = {n: torch.randn(40, 8).to(torch.bfloat16) for n in ("a", "b")}
    with toy_run.Run(weights) as run:
        module = torch.nn.ParameterDict(
            {n: torch.nn.Parameter(t.clone(), requires_grad=False) for n, t in weights.items()}
        )

        def load(pairs):
            for name, tensor in pairs:
                module[name].data.copy_(tensor)

        module.load_weights = load
        target = ModuleTarget(module, run.base)
        receiver = run.receiver(target)
        new = {name: tensor.clone() for name, tensor in weights.items()}
        new["a"][3] += 1
        run.publish(new)
        assert target.proven and receiver.stage(10)
        receiver.commit()
        module.load_weights(new.items())
        assert target.follow() and target.state.version == 1 and target.state.valid
        module.load_weights(weights.items())
        assert target.follow() and target.state.version == 0 and target.state.valid
        assert receiver.stage(10) and receiver.commit().version == 1


def foreign_writes_are_named():
    with FollowedEngine(ToyEngine, *ANCHORS) as it:
        it.step()
        with torch.no_grad():
            it.engine.layers[1].down.add_(1)
        found = it.target.follow()
        assert "'layers.1.down' was written by other code" in found[0], found
        assert not it.target.state.valid
        it.publish()
        it.take()
        assert it.holds(it.weights)


def rebalanced_experts_are_traced_again():
    slots = [3, 1, 0, 2, 2, 3]
    with FollowedEngine(Balanced) as it:
        assert "map" not in " ".join(it.target.follow())
        it.engine.rebalance(slots)
        it.publish()
        with raises(driftless.errors.BusyError, "experts were rearranged", "physical_to_logical"):
            it.receiver.stage(10)
        found = it.target.follow()
        assert any("elsewhere now" in each for each in found), found
        assert it.target.state.valid and it.target.state.version == 0
        it.take()
        expected = Balanced()
        expected.physical_to_logical_map = torch.tensor(slots)
        expected.load_weights(it.weights.items())
        assert state_bits(it.engine) == state_bits(expected)


def rebalanced_experts_of_a_later_version():
    """The values cannot be compared with the base: a full version comes, into the new slots."""
    slots = [3, 1, 0, 2, 2, 3]
    with FollowedEngine(Balanced, *ANCHORS) as it:
        it.step()
        it.engine.rebalance(slots)
        assert "experts were rearranged" in it.target.follow()[0]
        it.publish()
        it.take()
        expected = Balanced()
        expected.physical_to_logical_map = torch.tensor(slots)
        expected.load_weights(it.weights.items())
        assert state_bits(it.engine) == state_bits(expected)
        assert it.receiver.version == 2


def sleep_level_1():
    """While the engine sleeps, nothing is read or written. Afterwards the values are in other
    memory, and the target determines their version anew, because it could not observe them."""
    with FollowedEngine(Sleeping, *ANCHORS) as it:
        it.step()
        it.target.note_sleep(1)
        it.engine.sleep(1)
        it.publish()
        with raises(driftless.errors.BusyError, "sleeps at level 1"):
            it.receiver.stage(10)
        with raises(driftless.errors.BusyError, "sleeps at level 1"):
            it.target.follow()
        it.engine.wake_up()
        it.target.note_wake()
        it.target.follow()
        it.take()
        assert it.holds(it.weights) and it.receiver.version == 2
        it.step()


def sleep_level_1_in_the_same_memory():
    """As in vLLM: the addresses stay, and no new trace is needed."""
    with FollowedEngine(ToyEngine) as it:
        it.step()
        kept = {name: each.data.clone() for name, each in it.engine.named_parameters()}
        it.target.note_sleep(1)
        for each in it.engine.parameters():
            each.data.view(torch.uint8).zero_()
        with raises(driftless.errors.BusyError, "sleeps at level 1"):
            it.target.follow()
        for name, each in it.engine.named_parameters():
            each.data.copy_(kept[name])
        it.target.note_wake()
        assert it.target.follow() == [] and it.target.state.version == 1
        it.step()


def sleep_level_2():
    """The values are lost, and a full version comes; in the same memory, and in other memory."""
    for kind in (Published, Sleeping):
        with FollowedEngine(kind, *ANCHORS) as it:
            it.step()
            it.target.note_sleep(2)
            if kind is Sleeping:
                it.engine.sleep(2)
                it.engine.wake_up()
            else:
                for each in it.engine.parameters():
                    each.data.view(torch.uint8).fill_(0x5A)
            it.target.note_wake()
            assert "slept at level 2" in it.target.follow()[0]
            takes_a_full_version(it)


def sleep_level_2_of_a_parameter_that_no_version_has():
    """A parameter that the run does not publish is lost: reported until the weights are loaded
    again."""
    with FollowedEngine(ToyEngine) as it:
        it.target.note_sleep(2)
        it.target.note_wake()
        it.publish()
        for _ in range(2):
            with raises(driftless.errors.MismatchError, "level 2", "'odd_scale'", "reload"):
                it.target.follow()
        it.engine.load_weights(it.base.items())
        assert it.target.follow() and it.target.state.valid
        it.take()
        assert it.holds(it.weights)


def sleep_level_2_and_a_reload():
    """What the engine's operator does: reload_weights after waking up."""
    with FollowedEngine(Sleeping) as it:
        it.step()
        it.target.note_sleep(2)
        it.engine.sleep(2)
        it.engine.wake_up()
        it.target.note_wake()
        it.engine.load_weights(it.base.items())
        it.target.follow()
        assert it.target.state.valid and it.target.state.version == 0
        it.take()
        assert it.holds(it.weights) and it.receiver.version == 1


# --- in a worker ----------------------------------------------------------------------------------


class Worker:
    """vLLM's worker, with all that a worker extension uses."""

    def __init__(self, engine):
        self.engine, self.asleep = engine, None

    def sleep(self, level=1):
        self.asleep = level

    def wake_up(self, tags=None):
        if self.asleep == 2:
            for each in self.engine.parameters():
                each.data.view(torch.uint8).fill_(0x5A)


def in_worker(*overrides):
    it = FollowedEngine(Published, *overrides)
    it.receiver.close()

    def make(chunk_bytes):
        return ModuleTarget(it.engine, it.run.base, chunk_bytes=chunk_bytes)

    rank = RankReceiver(0, make)
    road = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {it.run.work}/road\n"
    assert rank.open(road)["ok"], rank.status()
    return it, rank


def take(rank):
    reply = rank.stage(timeout_s=5)
    assert reply["ok"], reply
    reply = rank.wait(30)
    assert reply["state"] == "staged", reply
    done = rank.commit()
    assert done["ok"], done
    return reply["moved"], done["version"]


def a_rank_follows_what_its_engine_does():
    it, rank = in_worker(*ANCHORS)
    with it:
        it.publish()
        assert take(rank) == ([], 1)
        it.engine.load_weights(it.base.items())
        it.publish()
        moved, version = take(rank)
        assert version == 2 and "load_weights" in moved[0] and it.holds(it.weights)
        it.publish()
        assert take(rank) == ([], 3) and it.holds(it.weights)
        rank.close()


def a_rank_whose_engine_sleeps_says_so():
    it, rank = in_worker(*ANCHORS)
    with it:
        worker = Worker(it.engine)
        note_sleeps(worker, rank)
        it.publish()
        assert take(rank) == ([], 1)
        it.publish()
        for level in (1, 2):
            worker.sleep(level)
            worker.wake_up(tags=["kv_cache"])
            reply = rank.stage(timeout_s=5)
            assert not reply["ok"] and f"sleeps at level {level}" in reply["error"], reply
            worker.wake_up(tags=["weights"])
            moved, version = take(rank)
            assert version == level + 1 and it.holds(it.weights), level
            assert bool(moved) == (level == 2)
            it.publish()
        rank.close()


class Saver:
    """SGLang's adapter of torch_memory_saver, which releases memory and takes it again, at the same
    addresses."""

    enabled = True

    def __init__(self, engine, kept):
        self.engine, self.kept, self.stash = engine, kept, None

    def pause(self, tag):
        if tag != "weights":
            return
        self.stash = [each.data.clone() for each in self.engine.parameters()]
        for each in self.engine.parameters():
            each.data.view(torch.uint8).fill_(0x5A)

    def resume(self, tag):
        if tag == "weights" and self.kept:
            for each, values in zip(self.engine.parameters(), self.stash, strict=True):
                each.data.copy_(values)


def a_rank_whose_engine_releases_its_memory_says_so():
    """SGLang's /release_memory_occupation and /resume_memory_occupation, with and without a copy of
    the weights on the host."""
    for kept in (True, False):
        it, rank = in_worker(*ANCHORS)
        with it:
            saver = type("OneSaver", (Saver,), {"pause": Saver.pause, "resume": Saver.resume})
            memory = saver(it.engine, kept)
            for _ in range(2):  # wrapped once, however often it is called
                note_releases([saver], rank, lambda kept=kept: kept)
            it.publish()
            assert take(rank) == ([], 1)
            it.publish()
            memory.pause("kv_cache")
            assert take(rank) == ([], 2)
            memory.pause("weights")
            memory.resume("kv_cache")
            it.publish()
            for reply in (rank.stage(timeout_s=5), rank.shares(sweep=True)):
                assert not reply["ok"] and f"sleeps at level {1 if kept else 2}" in reply["error"]
            memory.resume("weights")
            moved, version = take(rank)
            assert version == 3 and it.holds(it.weights) and bool(moved) != kept, moved
            rank.close()


def memory_that_is_not_released_is_not_lost():
    """Without --enable-memory-saver SGLang's calls do nothing."""
    it, rank = in_worker()
    with it:

        class Idle:
            enabled = False

            def pause(self, tag):
                pass

            def resume(self, tag):
                pass

        note_releases([Idle], rank, lambda: False)
        Idle().pause("weights")
        it.publish()
        assert "sleeps at level 1" in rank.stage(timeout_s=5)["error"]
        Idle().resume("weights")
        assert take(rank) == ([], 1) and it.holds(it.weights)
        rank.close()


if __name__ == "__main__":
    run_checks(globals())
