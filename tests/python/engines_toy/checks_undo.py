# SPDX-License-Identifier: Apache-2.0
"""Checks for a module's loader that fails, and whose undo fails, too. Run like checks.py."""

from unittest import mock

import driftless
from driftless.engines import ModuleTarget, drive, vllm
from driftless.engines.masked import MaskedLoad
from driftless.engines.rank_receiver import RankReceiver
from driftless.engines.whole import WholeLoad
from toy_checks import run_checks
from toy_engine import fresh, state_bits
from toy_group import Group, raises


class Injected(RuntimeError):
    pass


def break_loader(engine, means):
    """Makes the loader fail after it has written. Returns the loader's original."""
    good = getattr(engine, "load_" + means)

    def bad(into, tensor):
        good(into, tensor)
        raise Injected("the loader breaks")

    setattr(engine, "load_" + means, bad)
    return good


def broken_undo(kind):
    return mock.patch.object(kind, "undo", side_effect=Injected("the undo fails, too"))


def a_failed_undo_leaves_no_version():
    for means, kind in (("broadcast", MaskedLoad), ("add", WholeLoad)):
        with Group(odd=(means,)) as group:
            engine, receiver = group.engines[0], group.receivers[0]
            group.step_changing(f"odd.{means}")
            held = state_bits(engine)
            good = break_loader(engine, means)
            assert receiver.stage(10)
            with broken_undo(kind), raises(driftless.Error, "loader breaks", "hold no version"):
                receiver.commit()
            assert state_bits(engine) != held, means
            assert not receiver.state.valid and not receiver.proven, means
            [report] = group.run.publisher.receivers()
            assert report.proof in ("", "anchor wanted"), report.proof
            setattr(engine, "load_" + means, good)
            group.run.publisher.publish_anchor()
            assert receiver.stage(10)
            receiver.commit()
            assert group.holds(group.weights) and receiver.proven, means


def an_undo_that_failed_once_is_tried_again():
    """The loader's own undo failed; the target's undo restores everything."""
    with Group(odd=("add",)) as group:
        engine, receiver = group.engines[0], group.receivers[0]
        group.step_changing("odd.add")
        held = state_bits(engine)
        good, undo, calls = break_loader(engine, "add"), WholeLoad.undo, []

        def first_fails(load):
            calls.append(load)
            if len(calls) == 1:
                raise Injected("the undo fails, too")
            undo(load)

        assert receiver.stage(10)
        with mock.patch.object(WholeLoad, "undo", first_fails), raises(driftless.Error):
            receiver.commit()
        assert state_bits(engine) == held and receiver.state.valid and receiver.version == 0
        engine.load_add = good
        group.take()
        assert group.holds(group.weights)


class Llm:
    """vLLM's `LLM` whose two workers are real ranks of this process."""

    def __init__(self, run, engines):
        self.config, self.label, self.cleared = f"{run.work}/job.yaml", "default", 0
        with open(self.config, "w") as file:
            file.write(f"road: {{kind: shared_fs, shared_fs: {{ dir: {run.work}/road }}}}\n")
        self.ranks = [
            RankReceiver(rank, lambda chunk_bytes, engine=engine: ModuleTarget(engine, run.base))
            for rank, engine in enumerate(engines)
        ]
        self.updating = False

    def collective_rpc(self, method, kwargs):
        what = method.removeprefix("driftless_")
        if what == "open":
            return [rank.open(self.config, nonce=kwargs["nonce"]) for rank in self.ranks]
        return [getattr(rank, what)(**kwargs) for rank in self.ranks]

    def start_weight_update(self):
        self.updating = True

    def update_weights(self, request):
        info = request["update_info"]
        for rank in self.ranks:
            rank.commit(info["version"], info["nonce"], info["ticket"])

    def finish_weight_update(self, weight_version=None):
        self.updating = False
        self.label = weight_version or self.label

    def reset_prefix_cache(self):
        self.cleared += 1

    def update_weight_version(self, version):
        self.label = version

    def get_weight_version(self):
        return self.label


def an_engine_with_such_a_rank_is_not_resumed():
    """The driver does not report that all ranks were restored; a full version repairs them."""
    with Group(tp=2, odd=("add",)) as group:
        engines = [fresh(group.weights, rank, 2, ("add",)) for rank in range(2)]
        llm = Llm(group.run, engines)
        driver = vllm.follow(llm)
        assert len({rank.worker.id for rank in llm.ranks}) == 2, "each worker has its own id"
        group.step_changing("odd.add")
        good = break_loader(engines[1], "add")
        with broken_undo(WholeLoad), raises(drive.EngineError, "left paused") as failed:
            driver.update(10)
        assert "again" not in str(failed.value), failed.value
        assert failed.value.left_paused and failed.value.versions[1] == -1, failed.value.versions
        assert llm.label == "default"
        engines[1].load_add = good
        for rank in llm.ranks:
            assert rank.status()["version"] in (-1, 0)
        group.run.publisher.publish_anchor()
        assert driver.update(10).version == 1 and llm.label == "1"
        expected = [state_bits(fresh(group.weights, rank, 2, ("add",))) for rank in range(2)]
        assert [state_bits(engine) for engine in engines] == expected
        for rank in llm.ranks:
            rank.close()


if __name__ == "__main__":
    run_checks(globals())
