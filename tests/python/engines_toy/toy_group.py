# SPDX-License-Identifier: Apache-2.0
"""The ranks of one toy engine that follow a run, with the helpers of checks.py."""

import contextlib
from types import SimpleNamespace

import torch

import toy_run
from driftless.engines import ModuleTarget
from toy_engine import DEVICE, ODD, ToyEngine, fresh, state_bits

# In these, the loader's result for a NaN depends on torch's rounding.
PLAIN = ("odd.quantized", "odd.converted")


def raises(kind, *words):
    class Expectation:
        def __enter__(self):
            return self

        def __exit__(self, type_, value, traceback):
            assert type_ is not None, f"nothing was raised, expected {kind.__name__}"
            if not issubclass(type_, kind):
                return False
            for word in words:
                assert word in str(value), f"no {word!r} in {value}"
            self.value = value
            return True

    return Expectation()


class Group:
    """The ranks of one engine, and the run that they follow."""

    def __init__(self, tp=1, odd=ODD, seed=7, overrides=(), **options):
        self.generator = torch.Generator().manual_seed(seed)
        self.tp, self.odd = tp, odd
        self.weights = toy_run.make_weights(self.generator, odd)
        self.run = toy_run.Run(self.weights, *overrides)
        self.engines = [fresh(self.weights, rank, tp, odd) for rank in range(tp)]
        self.targets = [ModuleTarget(engine, self.run.base, **options) for engine in self.engines]
        self.receivers = [
            self.run.receiver(target, id=f"rank{rank}") for rank, target in enumerate(self.targets)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run.__exit__(*error)

    def step(self, share=0.05):
        self.before = self.weights
        self.weights = toy_run.step(self.generator, self.weights, share, PLAIN)
        return self.run.publish(self.weights)

    def step_changing(self, name):
        """One step, which changes `name` among others."""
        while True:
            start = self.weights
            new = toy_run.step(self.generator, start, 0.2, PLAIN)
            if not torch.equal(toy_run.bits(start[name]), toy_run.bits(new[name])):
                break
        self.before, self.weights = start, new
        return self.run.publish(new)

    def take(self):
        return [receiver.commit() for receiver in self.receivers if receiver.stage(10)]

    def take_and_go_back_to(self, weights, version):
        """Takes the newest version, goes back, and takes it again."""
        assert len(self.take()) == self.tp and self.holds(self.weights)
        for receiver in self.receivers:
            receiver.rollback()
            assert receiver.version == version
        assert self.holds(weights)
        self.take()
        assert self.holds(self.weights)

    def holds(self, weights):
        return all(self.rank_holds(rank, weights) for rank in range(self.tp))

    def rank_holds(self, rank, weights):
        found = state_bits(self.engines[rank])
        expected = state_bits(fresh(weights, rank, self.tp, self.odd))
        different = [name for name in expected if found[name] != expected[name]]
        if different:
            print("rank", rank, "differs in", different)
        return not different

    def addresses(self, rank):
        return [parameter.data_ptr() for parameter in self.engines[rank].parameters()]

    def ways(self, *names):
        return {self.targets[0].ways[name].way for name in names}


def follow(versions, **options):
    with Group(**options) as group:
        addresses = [group.addresses(rank) for rank in range(group.tp)]
        for version in range(1, versions + 1):
            report = group.step(share=0.3 if version % 10 == 0 else 0.02)
            for update in group.take():
                assert (update.version, update.digest) == (version, report.digest)
            assert group.holds(group.weights), version
        assert addresses == [group.addresses(rank) for rank in range(group.tp)]
        return group.targets[0]


@contextlib.contextmanager
def one_masked_version(engine, chunk_bytes):
    """A staged version of an engine without odd parameters, all of it by masked overwrite."""
    generator = torch.Generator().manual_seed(5)
    before = toy_run.make_weights(generator, ())
    with toy_run.Run(before) as run:
        engine.to(DEVICE).load_weights(before.items())
        target = ModuleTarget(engine, run.base, allow=("masked", "whole"), chunk_bytes=chunk_bytes)
        receiver = run.receiver(target)
        after = toy_run.step(generator, before, 0.2)
        run.publish(after)
        assert receiver.stage(10)
        yield SimpleNamespace(target=target, receiver=receiver, before=before, after=after)


@contextlib.contextmanager
def one_small_step(kind, allow):
    """A version with few changes, all in the embedding: (the engine, its target, a receiver)."""
    weights = toy_run.make_weights(torch.Generator().manual_seed(12), ())
    with toy_run.Run(weights) as run:
        engine = kind().to(DEVICE)
        ToyEngine.load_weights(engine, weights.items())
        target = ModuleTarget(engine, run.base, allow=allow)
        receiver = run.receiver(target)
        weights = weights | {"embed.weight": weights["embed.weight"].clone()}
        weights["embed.weight"][3, :4] += 1
        run.publish(weights)
        yield engine, target, receiver
