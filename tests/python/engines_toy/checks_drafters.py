# SPDX-License-Identifier: Apache-2.0
"""Drafters are committed with the model, or left alone. Run like checks.py."""

import torch

import driftless
import toy_run
from driftless.engines import ModuleTarget
from toy_checks import run_checks
from toy_engine import DEVICE, ToyEngine, state_bits
from toy_group import raises
from toy_moving import Head, head_weights


def with_head(strict, **options):
    generator = torch.Generator().manual_seed(41)
    weights = toy_run.make_weights(generator, ()) | head_weights(generator)
    run = toy_run.Run(weights)
    engine, head = ToyEngine(odd=()).to(DEVICE), Head(strict).to(DEVICE)
    engine.load_weights(weights.items())
    head.load_weights((n, t) for n, t in weights.items() if n.startswith("mtp"))
    target = ModuleTarget(engine, run.base, drafters={"drafter": head}, **options)
    return generator, weights, run, engine, head, target


def drafters_are_committed_with_the_model():
    for strict in (False, True):
        for allow in (("direct", "plan", "masked", "whole"), ("masked", "whole"), ("whole",)):
            generator, weights, run, engine, head, target = with_head(strict, allow=allow)
            with run:
                receiver = run.receiver(target)
                way = target.ways["mtp.second.weight"]
                assert way.way == ("plan" if "plan" in allow else allow[0]), way
                assert way.parameter == "drafter.mix"
                assert "drafter: takes 3 tensors" in target.describe()
                assert "drafter.own" in target.describe() and target.unpublished
                for _ in range(3):
                    before = state_bits(engine), state_bits(head)
                    weights = toy_run.step(generator, weights, 0.2)
                    weights["mtp.second.weight"][3, 4:9] += 1
                    run.publish(weights)
                    assert receiver.stage(10)
                    receiver.commit()
                    other, second = ToyEngine(odd=()).to(DEVICE), Head().to(DEVICE)
                    other.load_weights(weights.items())
                    second.load_weights(weights.items())
                    assert state_bits(engine) == state_bits(other)
                    assert state_bits(head) == state_bits(second)
                    receiver.rollback()
                    assert (state_bits(engine), state_bits(head)) == before
                    assert receiver.stage(10)
                    receiver.commit()


def a_drafter_that_fails_leaves_the_model_alone():
    generator, weights, run, engine, head, target = with_head(False, allow=("masked", "whole"))
    with run:
        receiver = run.receiver(target)
        held = state_bits(engine), state_bits(head)
        weights = toy_run.step(generator, weights, 0.2)
        weights["mtp.first.weight"][0, :9] += 1
        run.publish(weights)
        assert receiver.stage(10)
        head.mix.data = head.mix.data.clone()
        with raises(driftless.errors.BusyError, "drafter.mix"):
            receiver.commit()
        assert (state_bits(engine), state_bits(head)) == held
        target.follow()
        assert receiver.stage(10)
        receiver.commit()
        assert torch.equal(head.mix.data[:32], weights["mtp.first.weight"])


def a_drafter_of_another_checkpoint_is_left_alone():
    """An EAGLE head may have tensors of its own under names of the model's tensors."""
    generator = torch.Generator().manual_seed(42)
    weights = toy_run.make_weights(generator, ()) | head_weights(generator)
    with toy_run.Run(weights) as run:
        engine, head = ToyEngine(odd=()).to(DEVICE), Head().to(DEVICE)
        engine.load_weights(weights.items())
        head.load_weights(head_weights(generator).items())  # other values
        target = ModuleTarget(engine, run.base, drafters={"drafter": head})
        assert "drafter: takes 0 tensors" in target.describe()
        assert "drafter.mix and 2 more: no tensor" in target.describe()
        held = state_bits(head)
        receiver = run.receiver(target)
        new = toy_run.step(generator, weights, 0.2)
        new["mtp.first.weight"][0, :9] += 1
        run.publish(new)
        assert receiver.stage(10)
        receiver.commit()
        assert state_bits(head) == held


if __name__ == "__main__":
    run_checks(globals())
