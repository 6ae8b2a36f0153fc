# SPDX-License-Identifier: Apache-2.0
"""Derived tensors are computed again when their parameters change, or the version is refused. Run
like checks.py."""

import torch

import driftless
import toy_derived
import toy_run
from driftless.engines import ModuleTarget
from toy_checks import run_checks
from toy_engine import DEVICE, state_bits
from toy_group import raises


def loaded(kind, weights):
    engine = kind(odd=()).to(DEVICE)
    engine.load_weights(weights.items())
    if hasattr(engine, "post_load_weights"):
        engine.post_load_weights()
    return engine


def bits_of(engine):
    derived = engine.derived()
    return state_bits(engine), {name: toy_run.bits(t.cpu()).tolist() for name, t in derived.items()}


def setup(kind, seed=21):
    generator = torch.Generator().manual_seed(seed)
    weights = toy_run.make_weights(generator, ())
    return generator, weights


def changing(generator, weights, name):
    new = {key: tensor.clone() for key, tensor in weights.items()}
    new[name].view(-1)[3:30] += 1
    return new


def follow(kind, versions=3, **options):
    generator, weights = setup(kind)
    with toy_run.Run(weights) as run:
        engine = loaded(kind, weights)
        held = bits_of(engine)
        target = ModuleTarget(engine, run.base, **options)
        assert bits_of(engine) == held, "making a target changes nothing"
        memory = {name: tensor.data_ptr() for name, tensor in engine.derived().items()}
        receiver = run.receiver(target)
        for _ in range(versions):
            before = bits_of(engine)
            weights = changing(generator, toy_run.step(generator, weights, 0.1), "layers.0.o.weight")
            run.publish(weights)
            for _ in range(2):
                assert receiver.stage(10)
                receiver.commit()
                assert bits_of(engine) == bits_of(loaded(kind, weights)), kind
                if _ == 0:
                    receiver.rollback()
                    assert bits_of(engine) == before, kind
        assert memory == {name: tensor.data_ptr() for name, tensor in engine.derived().items()}
        return target


def derived_tensors_follow_their_parameters():
    for kind in ("Posted", "PostedInLoader", "Assigned", "Processed"):
        target = follow(getattr(toy_derived, kind))
        way = target.ways["layers.0.o.weight"]
        assert way.way in ("plan", "direct") and "computed again" in way.reason, (kind, way)
        assert "derived  layers.0." in target.describe(), target.describe()
        assert not any(each.way == "refused" for each in target.ways.values())


def derived_tensors_follow_the_loaders_writes():
    """Also for masked and whole tensors; the loader may compute them itself."""
    for allow in (("masked", "whole"), ("whole",)):
        for kind in (toy_derived.Posted, toy_derived.PostedInLoader, toy_derived.Assigned):
            follow(kind, versions=2, allow=allow)


def a_loader_that_computes_derived_tensors_gets_the_whole_tensor():
    target = follow(toy_derived.OnlyInLoader)
    way = target.ways["layers.0.o.weight"]
    assert way.way == "whole" and "w_" in way.reason, way
    assert target.ways["layers.0.q.weight"].way == "plan"


def refused(kind, name, *words):
    """Versions that change the source parameter are refused; all others are taken."""
    generator, weights = setup(kind)
    with toy_run.Run(weights) as run:
        engine = loaded(kind, weights)
        if hasattr(engine, "make"):
            engine.make()
        target = ModuleTarget(engine, run.base)
        way = target.ways[name]
        assert way.way == "refused" and all(word in way.reason for word in words), way
        receiver = run.receiver(target)
        run.publish(changing(generator, weights, "layers.0.down.weight"))
        assert receiver.stage(10)
        receiver.commit()
        held = state_bits(engine)
        run.publish(changing(generator, weights, name))
        with raises(driftless.errors.UnsupportedError, *words):
            receiver.stage(10)
        assert state_bits(engine) == held


def copies_that_no_function_makes_are_refused():
    refused(toy_derived.Unknown, "layers.0.q.weight", "is a copy of 'layers.0.qkv'", "parts.")


def copies_of_several_parameters_are_refused():
    refused(toy_derived.Fused, "layers.0.k.weight", "'layers.0.both' is a copy of 'layers.0.qkv'")


def copies_of_a_part_are_refused():
    refused(toy_derived.Cut, "layers.0.q.weight", "'layers.0.queries' is a copy of 'layers.0.qkv'")


def functions_that_cannot_run_twice_are_refused():
    generator, weights = setup(toy_derived.NotTwice)
    with toy_run.Run(weights) as run:
        engine = toy_derived.NotTwice().to(DEVICE)
        engine.load_weights(weights.items())
        target = ModuleTarget(engine, run.base)
        way = target.ways["layers.1.o.weight"]
        assert way.way == "refused" and "post_load_weights() reads 'layers" in way.reason, way
        assert state_bits(engine) == state_bits(loaded(toy_derived.Derived, weights))


def ordinary_models_are_not_refused():
    generator, weights = setup(toy_derived.Derived)
    with toy_run.Run(weights) as run:
        engine = loaded(toy_derived.Derived, weights)
        target = ModuleTarget(engine, run.base)
        assert not any(way.way == "refused" for way in target.ways.values())
        assert "derived" not in target.describe()


def a_refresh_that_fails_takes_the_commit_back():
    generator, weights = setup(toy_derived.Failing)
    with toy_run.Run(weights) as run:
        engine = loaded(toy_derived.Failing, weights)
        target = ModuleTarget(engine, run.base)
        receiver = run.receiver(target)
        held = bits_of(engine)
        new = changing(generator, weights, "layers.0.o.weight")
        run.publish(new)
        assert receiver.stage(10)
        engine.failures = 1
        with raises(driftless.Error, "injected", "all was undone"):
            receiver.commit()
        assert bits_of(engine) == held and receiver.version == 0 and receiver.state.valid
        # If the undo fails, too, the weights are no version, and a full version is needed.
        assert receiver.stage(10)
        engine.failures = 2
        with raises(driftless.Error, "injected", "hold no version"):
            receiver.commit()
        assert not receiver.state.valid


def parts_that_the_loader_joins_go_by_maps():
    generator, weights = setup(toy_derived.Waiting)
    with toy_run.Run(weights) as run:
        engine = toy_derived.Waiting(odd=()).to(DEVICE)
        engine.load_weights(weights.items())
        target = ModuleTarget(engine, run.base)
        assert target.ways["layers.1.up.weight"].way == "plan", target.ways["layers.1.up.weight"]
        receiver = run.receiver(target)
        for name in ("layers.0.gate.weight", "layers.1.up.weight"):
            weights = changing(generator, weights, name)
            run.publish(weights)
            assert receiver.stage(10)
            receiver.commit()
            assert state_bits(engine) == state_bits(loaded(toy_derived.ToyEngine, weights))


if __name__ == "__main__":
    run_checks(globals())
