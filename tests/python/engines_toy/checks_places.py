# SPDX-License-Identifier: Apache-2.0
"""Finds where an engine's weights differ from a checkpoint (element, rank, parameter), by the
driver and two ranks of a toy engine. Run like checks.py."""

import shutil

import torch
from safetensors.torch import save_file

import toy_run
from driftless.engines import ModuleTarget, drive
from driftless.engines import vllm as engine_vllm
from driftless.engines.rank_receiver import RankReceiver
from toy_checks import run_checks
from toy_engine import FFN, HEADS, HIDDEN, fresh
from toy_group import PLAIN, raises

TP = 2


class Llm:
    """vLLM's `LLM` with two ranks."""

    def __init__(self, ranks):
        self.ranks = ranks

    def collective_rpc(self, method, kwargs):
        calls = [getattr(rank, method.removeprefix("driftless_")) for rank in self.ranks]
        return [{**call(**kwargs), "session": False} for call in calls]

    def reset_prefix_cache(self):
        pass


class Following:
    """Two ranks that follow a run, and a driver."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(61)
        self.weights = toy_run.make_weights(self.generator, ())
        self.weights.pop("unused.weight")  # no rank holds it
        self.run = toy_run.Run(self.weights, "anchors.every=1")
        self.engines = [fresh(self.weights, rank, TP, ()) for rank in range(TP)]
        self.ranks = [
            RankReceiver(rank, lambda chunk_bytes, rank=rank: self.target(rank, chunk_bytes))
            for rank in range(TP)
        ]
        for rank in self.ranks:
            said = rank.open(f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {self.run.work}/road\n")
            assert said["ok"], said
        native = drive._native.EngineDriver.in_process(engine_vllm.Offline(Llm(self.ranks)), None)
        self.driver = drive.Driver(native)

    def target(self, rank, chunk_bytes):
        base = self.run.base
        return ModuleTarget(self.engines[rank], base, chunk_bytes=chunk_bytes, rank=rank)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for rank in self.ranks:
            rank.close()
        self.run.__exit__(*error)

    def step(self):
        """Publishes the next version; returns a checkpoint of it."""
        self.weights = toy_run.step(self.generator, self.weights, 0.1, PLAIN)
        self.run.publish(self.weights)
        for rank in self.ranks:
            assert rank.stage(timeout_s=10)["ok"]
            assert rank.wait(30)["state"] == "staged", rank.status()
            assert rank.commit()["ok"], rank.status()
        path = self.run.work / "checkpoint"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        save_file(
            {name: tensor.contiguous() for name, tensor in self.weights.items()},
            path / "model.safetensors",
        )
        return path


def flip(tensor, place, bit=0):
    toy_run.bits(tensor.data.view(-1))[place] ^= 1 << bit


def one_bit_is_found_at_its_place():
    """In a slice of rows, a slice of columns, a replica, a second copy, and a widened tensor."""
    columns, half = HEADS // TP, FFN // TP
    cases = [
        # rank, parameter, its element, tensor, the tensor's element
        (1, "layers.1.o", 3 * columns + 5, "layers.1.o.weight", 3 * HEADS + columns + 5),
        (0, "layers.0.down", 7, "layers.0.down.weight", 7),
        (1, "layers.1.gate_up", 2 * HIDDEN + 1, "layers.1.gate.weight", (half + 2) * HIDDEN + 1),
        (0, "embed.weight", 77, "embed.weight", 77),
        (1, "head_copy", 78, "embed.weight", 78),
        (1, "norm", 9, "norm.weight", 9),
    ]
    with Following() as it:
        for rank, parameter, place, tensor, element in cases:
            path = it.step()
            assert it.driver.prove()["differing"] == 0
            assert it.driver.places(path) == []
            flip(dict(it.engines[rank].named_parameters())[parameter], place)
            for state in ("before it is noticed", "after it is noticed"):
                (found,) = it.driver.places(path)
                assert found["rank"] == rank and found["tensor"] == tensor, (state, found)
                assert found["position"] == element, (state, found, element)
                assert parameter in found["parameter"] and found["value"] and found["expected"]
                assert it.driver.prove()["verdict"] == "differs"
            it.engines[rank].load_weights(it.weights.items())  # as another client would


def many_are_counted_up_to_a_limit():
    with Following() as it:
        path = it.step()
        for place in range(40):
            flip(it.engines[0].layers[0].down, place)
        assert len(it.driver.places(path)) == 16 and len(it.driver.places(path, limit=64)) == 40
        found = [each["position"] for each in it.driver.places(path, limit=3)]
        assert found == [0, 1, 2], found


def a_checkpoint_of_another_version_shows_its_differences():
    """A checkpoint of the base, for an engine at version 1: the real differences are reported."""
    with Following() as it:
        before = it.weights
        it.step()
        changed = sum(
            int((toy_run.bits(new) != toy_run.bits(before[name])).sum())
            for name, new in it.weights.items()
            if name != "unused.weight"
        )
        found = it.driver.places(it.run.base, limit=100_000)
        assert len({(each["tensor"], each["position"]) for each in found}) == changed


def ranks_that_follow_no_run_report_that():
    with Following() as it:
        path = it.step()
        it.ranks[1].close()
        with raises(Exception, "rank 1", "follows no run"):
            it.driver.places(path)


if __name__ == "__main__":
    run_checks(globals())
