# SPDX-License-Identifier: Apache-2.0
"""Copies that loaders make in other threads are observed, or the tensor is refused. Run like
checks.py."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import driftless
import toy_engine
import toy_run
import toy_threads
from driftless.engines import ModuleTarget
from toy_checks import run_checks
from toy_engine import DEVICE, fresh, state_bits
from toy_group import one_small_step, raises

ALL_WAYS = ("direct", "plan", "masked", "whole")


def loaded(kind, weights):
    engine = kind().to(DEVICE)
    toy_engine.ToyEngine.load_weights(engine, weights.items())
    return engine


def follow(kind, allow, versions=4):
    """Follows some versions, which all arrive to the bit; returns the target."""
    generator = torch.Generator().manual_seed(11)
    weights = toy_run.make_weights(generator, ())
    with toy_run.Run(weights) as run:
        engine = loaded(kind, weights)
        target = ModuleTarget(engine, run.base, allow=allow)
        receiver = run.receiver(target)
        for _ in range(versions):
            before = weights
            weights = toy_run.step(generator, weights, 0.1)
            run.publish(weights)
            assert receiver.stage(10)
            receiver.commit()
            assert state_bits(engine) == state_bits(fresh(weights, odd=()))
            receiver.rollback()
            assert state_bits(engine) == state_bits(fresh(before, odd=()))
            assert receiver.stage(10)
            receiver.commit()
        return target


def copies_in_pools_are_observed():
    for kind in (toy_threads.Pooled, toy_threads.KeptPool, toy_threads.Threaded):
        for allow in (ALL_WAYS, ("masked", "whole"), ("whole",)):
            target = follow(kind, allow)
            expected = {"plan", "direct"} if allow == ALL_WAYS else {allow[0]}
            ways = {target.ways[name].way for name in ("layers.0.q.weight", "counts")}
            assert ways <= expected, (kind, allow, ways)


def tensors_copied_in_hidden_threads_are_refused():
    """By name and before any write, unless maps write them, which need no loader."""
    generator = torch.Generator().manual_seed(12)
    weights = toy_run.make_weights(generator, ())
    with toy_run.Run(weights) as run:
        engine = loaded(toy_threads.Hidden, weights)
        held = state_bits(engine)
        target = ModuleTarget(engine, run.base, allow=("masked", "whole"))
        assert state_bits(engine) == held
        way = target.ways["layers.0.q.weight"]
        assert way.way == "refused" and "observed" in way.reason, way
        receiver = run.receiver(target)
        run.publish(toy_run.step(generator, weights))
        with raises(driftless.errors.UnsupportedError, "observed"):
            receiver.stage(10)
        assert state_bits(engine) == held


def tensors_copied_below_torch_are_refused():
    """A C library copies by pointers. If some or all copies of a tensor are not observed, the
    loader gets no sentinels and the tensor is refused by name; maps can write it, because they need
    no loader."""
    for kind, word in (
        (toy_threads.BelowTorch, "no copy of tensor 'embed.weight' by the loader was observed"),
        (toy_threads.HalfBelowTorch, "the write into 'head_copy' cannot be observed"),
    ):
        assert follow(kind, ALL_WAYS).ways["embed.weight"].way == "plan"
        for allow in (("masked", "whole"), ("whole",)):
            with one_small_step(kind, allow) as (engine, target, receiver):
                held = state_bits(engine)
                way = target.ways["embed.weight"]
                assert way.way == "refused" and "observed" in way.reason, way
                assert word in way.reason or allow == ("whole",), way
                with raises(driftless.errors.UnsupportedError, "'embed.weight'", "observed"):
                    receiver.stage(10)
                assert state_bits(engine) == held


def a_parameter_that_a_loader_clears_below_torch_is_named():
    """During the trace the loader gets no values, but clears the parameter nevertheless."""
    for allow in (ALL_WAYS, ("whole",)):
        with one_small_step(toy_threads.Clearing, allow) as (_, target, receiver):
            way = target.ways["embed.weight"]
            assert way.way == "refused" and "'embed.weight' does not hold" in way.reason, way
            with raises(driftless.errors.UnsupportedError, "'embed.weight' does not hold"):
                receiver.stage(10)


def no_mode_or_patch_remains():
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    follow(toy_threads.KeptPool, ("masked", "whole"), versions=1)
    assert threading.Thread.start is start and ThreadPoolExecutor.submit is submit
    # A pool's thread that worked for us is no longer inside a mode.
    seen = toy_threads.KeptPool.pool.submit(torch._C._len_torch_dispatch_stack).result()
    assert seen == 0, seen


def foreign_threads_are_left_alone():
    """The work of another thread does not count as the loader's."""
    other, stop = ThreadPoolExecutor(max_workers=1), threading.Event()
    tensor = torch.zeros(8)

    def work():
        while not stop.is_set():
            other.submit(tensor.fill_, 1).result()
            tensor.fill_(0)

    busy = threading.Thread(target=work)
    busy.start()
    try:
        follow(toy_threads.Pooled, ("masked", "whole"), versions=2)
    finally:
        stop.set()
        busy.join()
        other.shutdown()


if __name__ == "__main__":
    run_checks(globals())
