# SPDX-License-Identifier: Apache-2.0
"""Proven weights are those with which the engine computes: no move of its tensors hides a flipped
bit. Run like checks.py."""

import threading

import torch

import driftless
import toy_run
from checks_moving import ANCHORS, FollowedEngine, in_worker, rebound, take
from driftless.engines import ModuleTarget
from driftless.engines.rank_receiver import RankReceiver
from driftless.engines.target import HeldTarget
from driftless.engines.vllm_reload import ReloadTarget
from driftless.engines.ways import Way
from toy_checks import run_checks
from toy_engine import HIDDEN, ToyEngine
from toy_group import raises
from toy_moving import Balanced, Published


def flip(tensor):
    """Flips a bit without a write that torch counts."""
    tensor.data.view(torch.uint8).view(-1)[0] ^= 1


def a_flip_beside_a_rebound_parameter_is_found():
    """The engine replaced one parameter by a copy; the flipped bit is in another one."""
    for tp in (1, 2):
        with FollowedEngine(ToyEngine, *ANCHORS, tp=tp) as it:
            it.publish()
            it.take()
            flip(it.engine.layers[1].down)
            rebound(it.engine)
            assert it.target.follow(it.receiver.tensor_digests)
            assert not it.target.state.valid
            it.publish()
            it.take()
            assert it.target.state.valid and it.receiver.version == 2
            assert tp == 2 or it.holds(it.weights)


def a_flip_in_a_replaced_parameter_is_found():
    with FollowedEngine(ToyEngine, *ANCHORS, tp=2) as it:
        it.publish()
        it.take()
        flip(it.engine.layers[0].qkv)
        rebound(it.engine)  # copies the flipped bit, too
        assert it.target.follow(it.receiver.tensor_digests)
        assert not it.target.state.valid


def a_flip_in_a_replica_is_found_when_experts_move():
    """The second copy of an expert does not count in the rank's share."""
    for slot in (0, 5):
        with FollowedEngine(Balanced, *ANCHORS, tp=2) as it:
            it.publish()
            it.take()
            it.engine.rebalance([3, 1, 0, 2, 2, 3])
            flip(it.engine.layers[0].experts_up[slot])
            assert it.target.follow(it.receiver.tensor_digests)
            assert not it.target.state.valid, slot


def another_view_of_the_same_memory_is_found():
    def turn(engine):  # the matrix is square
        engine.fp8.data = engine.fp8.data.t()

    def cut(engine):
        engine.counts.data = engine.counts.data[:20]

    def retype(engine):
        engine.layers[0].qkv.data = engine.layers[0].qkv.data.view(torch.float16)

    for change, name in ((turn, "fp8"), (cut, "counts"), (retype, "layers.0.qkv")):
        with FollowedEngine(ToyEngine, *ANCHORS) as it:
            it.step()
            change(it.engine)
            it.publish()
            with raises(driftless.errors.BusyError, f"'{name}' is another tensor now"):
                it.receiver.stage(10)


def a_transposed_tensor_is_written_in_its_new_layout():
    with FollowedEngine(ToyEngine, *ANCHORS) as it:
        it.step()
        it.engine.fp8.data = it.engine.fp8.data.t()
        assert "'fp8'" in it.target.follow(it.receiver.tensor_digests)[0]
        assert not it.target.state.valid  # the engine computes with other values now
        it.publish()
        it.take()
        assert it.holds(it.weights)
        # The same values, in another memory order.
        it.engine.fp8.data = it.engine.fp8.data.contiguous()
        assert it.target.follow(it.receiver.tensor_digests) and it.target.state.version == 2
        it.step()


def a_moved_parameter_is_not_restored_in_its_old_memory():
    with FollowedEngine(ToyEngine) as it:
        it.step()
        it.step()
        rebound(it.engine)
        with raises(driftless.errors.BusyError, "cannot be taken back", "is another tensor now"):
            it.receiver.rollback()
        assert it.holds(it.weights) and it.target.state.version == 2


def a_sweep_reads_the_memory_that_the_engine_uses():
    """A parameter was replaced, with other values; the old memory still has the right ones."""
    with FollowedEngine(ToyEngine) as it:
        it.step()
        it.engine.norm.data = it.engine.norm.data + 1
        for read in (it.target.sweep, it.target.look):
            with raises(driftless.errors.BusyError, "'norm' is another tensor now"):
                read()
    it, rank = in_worker(*ANCHORS)
    with it:
        it.publish()
        take(rank)
        it.engine.norm.data = it.engine.norm.data.clone()
        assert rank.shares(sweep=True)["ok"]
        it.engine.norm.data = it.engine.norm.data + 1
        reply = rank.shares(sweep=True)
        assert not reply["ok"] and reply["version"] == -1 and "shares" not in reply, reply
        it.publish()
        assert take(rank)[1] == 2 and it.holds(it.weights)
        reply = rank.shares(sweep=True)
        assert reply["ok"] and reply["moved"] == [], reply
        rank.close()


def places_are_read_where_the_engine_has_them():
    it, rank = in_worker(*ANCHORS)
    with it:
        before = {row[0]: row[4] for row in rank.shares()["shares"]}
        it.engine.norm.data = it.engine.norm.data * 2
        after = {row[0]: row[4] for row in rank.read()["shares"]}
        assert [name for name in before if before[name] != after[name]] == ["norm.weight"]
        rank.close()


def empty_tensors_are_ignored():
    weights = {"a": torch.randn(40, 8).to(torch.bfloat16), "empty": torch.zeros(0, 8)}
    with toy_run.Run(weights) as run:
        module = torch.nn.ParameterDict(
            {n: torch.nn.Parameter(t.clone(), requires_grad=False) for n, t in weights.items()}
        )
        rank = RankReceiver(0, lambda chunk_bytes: ModuleTarget(module, run.base))
        assert rank.open(f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {run.work}/road\n")["ok"]
        reply = rank.shares(sweep=True)
        assert reply["ok"] and [row[0] for row in reply["shares"]] == ["a"], reply
        assert reply["absent"] == [] and reply["unproven"] == [], reply
        rank.close()


def tensors_in_unknown_places_are_refused():
    """Otherwise the engine would keep the old values, and every commit would succeed."""

    class Box:
        __slots__ = ("norm",)

    class Hiding(Published):
        def __init__(self, rank=0, tp=1, odd=()):
            super().__init__(rank, tp, odd)
            del self.norm
            self.box = Box()
            self.box.norm = torch.zeros(HIDDEN)

        def load_plain(self, name, tensor):
            if name == "norm.weight":
                self.box.norm.copy_(tensor)
            else:
                super().load_plain(name, tensor)

    with FollowedEngine(Hiding) as it:
        way = it.target.ways["norm.weight"]
        assert way.way == "refused" and "outside the modules" in way.reason, way
        assert it.target.ways["unused.weight"].way == "plan"
        it.publish()
        with raises(driftless.errors.UnsupportedError, "'norm.weight'", "outside the modules"):
            it.receiver.stage(10)


def memory_is_not_released_while_it_is_read():
    """Unmapping a GPU's memory during a sweep would end the engine."""
    it, rank = in_worker(*ANCHORS)
    with it:
        reading, go_on = threading.Event(), threading.Event()
        look = rank.target._moves.check

        def slow(*paused):
            look(*paused)
            if paused:  # called by staging
                reading.set()
                go_on.wait(10)

        rank.target._moves.check = slow
        it.publish()
        assert rank.stage(timeout_s=5)["ok"] and reading.wait(10)
        threading.Timer(0.3, go_on.set).start()
        rank.note_sleep(1)
        assert rank.status()["state"] == "staged", rank.status()
        rank.target._moves.check = look
        assert "sleeps at level 1" in rank.commit()["error"]
        rank.note_wake()
        assert take(rank) == ([], 1) and it.holds(it.weights)
        # While it waits for a version, staging does not read the weights.
        assert rank.stage(timeout_s=3)["ok"]
        rank.note_sleep(1)
        assert rank.status()["state"] == "staging"
        rank.note_wake()
        rank.wait(10)
        rank.close()


def the_tensors_that_an_engine_reloads_from_are_not_its_weights():
    """The receiver writes into host memory, and the engine's own loader packs the tensors."""
    with FollowedEngine(ToyEngine) as it:
        it.receiver.close()
        ways = {spec.name: Way("whole", "packed", "") for spec in it.target.layout.tensors}
        reloaded = ReloadTarget.__new__(ReloadTarget)  # skips __init__, which needs vLLM
        HeldTarget.__init__(reloaded, it.target, ways)
        reloaded.unread, reloaded.written = "packed", lambda: None
        rank = RankReceiver(0, lambda chunk_bytes: reloaded)
        road = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {it.run.work}/road\n"
        assert rank.open(road)["ok"], rank.status()
        reply = rank.shares(sweep=True)
        rank.close()
        assert reply["shares"] == [] and reply["absent"] == [], reply
        assert ["norm.weight", "packed"] in reply["unproven"]


def unproven_tensors_are_counted_in_the_receivers_report():
    for odd in ((), ("quantized",)):
        with FollowedEngine(ToyEngine, odd=odd) as it:
            it.publish()
            it.take()
            (report,) = it.run.publisher.receivers()
            unproven = len(it.target.tracked()[1])
            assert (unproven > 0) == bool(odd)
            assert (f" unproven={unproven} " in report.proof) == bool(odd), report.proof


if __name__ == "__main__":
    run_checks(globals())
