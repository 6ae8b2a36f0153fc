# SPDX-License-Identifier: Apache-2.0
"""Codes and scales in engines that change parameters after loading: written in place if the
parameter has the loaded values, possibly with halves swapped; otherwise loaded again by the engine,
or refused. Only compared values count as proven. Run like checks.py."""

import torch

import driftless
import toy_run
from driftless.engines import ModuleTarget
from toy_blocks import HOW, BlockEngine, block_weights, fresh_blocks
from toy_checks import run_checks
from toy_engine import state_bits
from toy_group import raises


class Followed:
    """An engine whose layers are kept as in `how`, at the base of a run."""

    def __init__(self, *how, allow=("direct", "plan", "masked", "whole", "reload"), **layout):
        self.how = how
        self.generator = torch.Generator().manual_seed(17)
        self.weights = block_weights(self.generator, toy_run.random_values)
        self.run = toy_run.Run(self.weights)
        self.engine = fresh_blocks(how, self.weights)
        self.target = ModuleTarget(
            self.engine, self.run.base, load_layout=self.engine.layout(**layout), allow=allow
        )
        self.receiver = self.run.receiver(self.target)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run.__exit__(*error)

    def kinds(self, layer):
        return {way.way for name, way in self.target.ways.items() if name.startswith(f"{layer}.")}

    def publish(self):
        self.before = self.weights
        self.weights = toy_run.step(self.generator, self.weights, 0.3, self.weights)
        self.run.publish(self.weights)

    def step(self):
        self.publish()
        assert self.receiver.stage(10)
        self.receiver.commit()
        assert self.holds(self.weights)

    def holds(self, weights):
        other = fresh_blocks(self.how, weights)
        kernels = [
            torch.equal(each.kernel_scale, one.kernel_scale)
            for each, one in ((self.engine.a, other.a), (self.engine.b, other.b))
            if each.how == "copied"
        ]
        return state_bits(self.engine) == state_bits(other) and all(kernels)

    def addresses(self):
        return [each.data_ptr() for each in self.engine.parameters()]


def every_layout_ends_with_a_fresh_load():
    for how in HOW:
        with Followed("kept", how) as it:
            in_place = how in ("kept", "swapped")
            assert it.kinds("a") == {"plan"}
            assert it.kinds("b") == ({"plan"} if in_place else {"reload"}), how
            assert it.target.proven == in_place
            assert bool(it.target.tracked()[1]) != in_place, "reloaded tensors are unproven"
            places = it.addresses()
            for _ in range(4):
                it.step()
                it.receiver.rollback()
                assert it.holds(it.before)
                assert it.receiver.stage(10)
                it.receiver.commit()
                assert it.holds(it.weights)
            assert it.addresses() == places
            assert all(type(each) is torch.nn.Parameter for each in it.engine.parameters())


def codes_and_scales_of_a_module_go_one_way():
    """Codes are requantized, scales could be written: both are loaded again, with the reason."""
    with Followed("kept", "requantized") as it:
        reasons = {w.reason for n, w in it.target.ways.items() if n.startswith("b.")}
        assert all("set KEEP=b" in reason for reason in reasons), reasons
        assert any("does not hold the checkpoint's values" in reason for reason in reasons)
        unproven = {name for name, _ in it.target.tracked()[1]}
        assert unproven == {name for name in it.target.ways if name.startswith("b.")}


def halves_that_are_alike_are_swapped_with_the_codes():
    """All scales of the base are 1, so only the codes show the places of gate and up."""
    with Followed("swapped", "kept") as it:
        for name, way in it.target.ways.items():
            assert ("swapped" in way.reason) == name.startswith("a."), (name, way)
        it.step()
        # Traced again, while the values are not the base's.
        layer = it.engine.a
        layer.w13 = torch.nn.Parameter(layer.w13.data.clone(), requires_grad=False)
        assert it.target.follow() and it.target.state.valid
        it.step()
        assert it.target.proven


def a_reload_that_fails_leaves_the_version_before():
    with Followed("packed", "requantized") as it:
        it.step()
        it.publish()
        assert it.receiver.stage(10)
        it.engine.fails = True
        with raises(RuntimeError, "injected in a reload"):
            it.receiver.commit()
        assert it.target.state.version == 1 and it.target.state.valid
        assert it.holds(it.before)
        it.receiver.stage(10)
        it.receiver.commit()
        assert it.holds(it.weights)


def changed_parameters_are_refused_by_name_without_a_reload():
    for how in ("requantized", "packed", "copied"):
        for options in ({"reloads": False}, {"allow": ("direct", "plan", "masked", "whole")}):
            with Followed("kept", how, **options) as it:
                ways = it.target.ways
                wrong = {n for n, way in ways.items() if n.startswith("b.") and way.way != "refused"}
                # Scales with the loaded values may be written if the codes beside them may not.
                assert all(name.endswith("_scale_inv") for name in wrong), wrong
                held = state_bits(it.engine)
                it.publish()
                with raises(driftless.errors.UnsupportedError, "changes, but cannot be written"):
                    it.receiver.stage(10)
                assert state_bits(it.engine) == held and not it.target.proven


def a_version_by_another_rule_is_refused():
    with Followed("kept", "kept", rule="ue8m0") as it:
        held = state_bits(it.engine)
        it.publish()
        with raises(driftless.errors.UnsupportedError, "ue8m0 only", "quantize.rule: ue8m0"):
            it.receiver.stage(10)
        assert state_bits(it.engine) == held


def a_rule_does_not_matter_to_what_is_loaded_again():
    with Followed("requantized", "packed", rule="ue8m0") as it:
        it.step()


def a_loader_that_rebinds_is_detected():
    class Rebinds(BlockEngine):
        def load_weights(self, weights):
            weights = list(weights)
            super().load_weights(weights)
            if any(name.startswith("a.") for name, _ in weights):
                self.a.w13 = torch.nn.Parameter(self.a.w13.data.clone(), requires_grad=False)

    with Followed("kept", "kept") as it:
        engine = fresh_blocks(("kept", "kept"), it.weights)
        engine.__class__ = Rebinds
        target = ModuleTarget(engine, it.run.base, load_layout=engine.layout(reloads=False))
        assert {target.ways[n].way for n in target.ways if n.startswith("b.")} == {"plan"}
        assert not target.proven
        codes = {n for n in target.ways if n.startswith("a.") and n.endswith("weight")}
        assert {target.ways[name].way for name in codes} <= {"whole", "refused"}


if __name__ == "__main__":
    run_checks(globals())
