# SPDX-License-Identifier: Apache-2.0
"""INT4 groups in an engine that repacks them: followed by the engine's own reload, and never
reported as proven. Run like checks.py."""

import torch

import driftless
from driftless.engines import ModuleTarget
from toy_checks import run_checks
from toy_engine import state_bits
from toy_group import raises
from toy_int4 import Int4Run, fresh_int4, int4_weights, stepped


class Followed:
    def __init__(self, *how, **layout):
        self.how = how
        self.generator = torch.Generator().manual_seed(23)
        self.weights = int4_weights(self.generator)
        self.run = Int4Run(self.weights)
        self.engine = fresh_int4(how, self.weights)
        layout = self.engine.layout(**layout)
        allow = ("direct", "plan", "masked", "whole", "reload")
        self.target = ModuleTarget(self.engine, self.run.base, load_layout=layout, allow=allow)
        self.receiver = self.run.receiver(self.target)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run.__exit__(*error)

    def kinds(self, layer):
        return {way.way for name, way in self.target.ways.items() if name.startswith(f"{layer}.")}

    def publish(self):
        self.before = self.weights
        self.weights = stepped(self.generator, self.weights)
        self.run.publish(self.weights)

    def holds(self, weights):
        return state_bits(self.engine) == state_bits(fresh_int4(self.how, weights))


def groups_in_marlins_layout_end_with_a_fresh_load_and_are_unproven():
    with Followed("kept", "marlin") as it:
        assert it.kinds("a") <= {"plan", "direct"}
        assert it.kinds("b") == {"reload"}, it.target.ways
        places = [each.data_ptr() for each in it.engine.parameters()]
        for _ in range(4):
            it.publish()
            assert it.receiver.stage(10)
            it.receiver.commit()
            assert it.holds(it.weights)
            assert not it.target.proven
            unproven = {name for name, _ in it.target.tracked()[1]}
            assert unproven == {name for name in it.target.ways if name.startswith("b.")}
            it.receiver.rollback()
            assert it.holds(it.before)
            assert it.receiver.stage(10)
            it.receiver.commit()
            assert it.holds(it.weights)
        assert [each.data_ptr() for each in it.engine.parameters()] == places


def groups_that_stay_as_loaded_are_proven():
    with Followed("kept", "kept") as it:
        it.publish()
        assert it.receiver.stage(10)
        it.receiver.commit()
        assert it.holds(it.weights) and it.target.proven


def without_a_reload_they_are_refused_by_name():
    with Followed("marlin", "kept", reloads=False) as it:
        held = state_bits(it.engine)
        it.publish()
        with raises(driftless.errors.UnsupportedError, "a.weight_packed", "cannot be written"):
            it.receiver.stage(10)
        assert state_bits(it.engine) == held and not it.target.proven


if __name__ == "__main__":
    run_checks(globals())
