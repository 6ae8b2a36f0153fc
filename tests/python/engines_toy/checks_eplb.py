# SPDX-License-Identifier: Apache-2.0
"""Experts that vLLM rearranges are followed, or refused by name. Also what a target reads from
vLLM's runner. Run like checks.py."""

from functools import partial
from types import SimpleNamespace

import torch

import driftless
import toy_run
from driftless.engines import ModuleTarget, vllm_parts
from toy_checks import run_checks
from toy_engine import DEVICE, state_bits
from toy_eplb import RANKS, Slotted, expected, rearrange, runner_of
from toy_group import raises
from toy_moving import Head

FIRST = [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1]]
# Between ranks, within a rank, and with another expert in two slots.
LATER = [[3, 1, 0, 2, 2, 1], [1, 0, 2, 0, 3, 3]]
LAST = [[0, 1, 2, 3, 3, 3], [2, 2, 3, 1, 0, 1]]


class Ranks:
    """Two ranks of one engine, each with a runner."""

    def __init__(self, *overrides):
        self.generator = torch.Generator().manual_seed(51)
        self.weights = toy_run.make_weights(self.generator, ())
        self.run = toy_run.Run(self.weights, *overrides)
        self.engines = [Slotted(rank).to(DEVICE) for rank in range(RANKS)]
        for engine in self.engines:
            engine.load_weights(self.weights.items())
        self.runners = [runner_of(engine) for engine in self.engines]
        for runner in self.runners:
            vllm_parts.experts(runner)
        self.targets = [
            ModuleTarget(
                engine, self.run.base, placement=partial(vllm_parts.experts, runner), rank=rank
            )
            for rank, (engine, runner) in enumerate(zip(self.engines, self.runners, strict=True))
        ]
        self.receivers = [
            self.run.receiver(target, id=f"rank{rank}") for rank, target in enumerate(self.targets)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.run.__exit__(*error)

    def publish(self):
        self.weights = toy_run.step(self.generator, self.weights, 0.2)
        self.run.publish(self.weights)

    def take(self):
        for receiver in self.receivers:
            assert receiver.stage(10)
            receiver.commit()

    def follow(self):
        pairs = zip(self.targets, self.receivers, strict=True)
        return [target.follow(receiver.tensor_digests) for target, receiver in pairs]

    def holds(self, rows):
        return all(
            state_bits(engine) == state_bits(expected(rank, self.weights, rows).to(DEVICE))
            for rank, engine in enumerate(self.engines)
        )


def rearranged_experts_are_followed():
    """At the base and later, without a full version: the manifest's digest of its tensor proves
    every expert that came from another rank."""
    with Ranks() as it:
        assert it.holds(FIRST)
        for version, rows in ((0, LATER), (2, FIRST), (4, LAST)):
            rearrange(it.engines, it.runners, rows)
            assert it.holds(rows)
            it.publish()
            for receiver in it.receivers:
                with raises(driftless.errors.BusyError, "experts were rearranged", "stage again"):
                    receiver.stage(10)
            for said in it.follow():
                assert "experts were rearranged" in said[0], said
            for target in it.targets:
                assert (target.state.version, target.state.valid) == (version, True)
            it.take()
            assert it.holds(rows), rows
            it.publish()
            it.take()
            assert it.holds(rows) and it.follow() == [[], []]
            for target in it.targets:
                target.sweep()


def a_bit_that_flipped_meanwhile_is_not_followed():
    with Ranks("anchors.every=1") as it:
        it.publish()
        it.take()
        rearrange(it.engines, it.runners, LATER)
        it.engines[1].layers[0].experts_up.data.view(torch.int16)[0, 3, 3] ^= 1
        it.follow()
        assert [target.state.valid for target in it.targets] == [True, False]
        it.publish()
        it.take()
        assert it.holds(LATER)


def rearranged_between_staging_and_commit():
    with Ranks() as it:
        it.publish()
        for receiver in it.receivers:
            assert receiver.stage(10)
        rearrange(it.engines, it.runners, LATER)
        for receiver in it.receivers:
            with raises(driftless.errors.BusyError, "experts were rearranged"):
                receiver.commit()
        it.follow()
        it.take()
        assert it.holds(LATER)


def rearranged_while_the_weights_are_read():
    """After the check and before the sweep: other values than expected, and no false alarm."""
    with Ranks() as it:
        it.publish()
        moves = it.targets[0]._moves
        look = moves.check

        def once(paused):
            look(paused)
            moves.check = look
            rearrange(it.engines, it.runners, LATER)

        moves.check = once
        with raises(driftless.errors.BusyError, "experts were rearranged"):
            it.receivers[0].stage(10)
        assert it.targets[0].state.valid
        it.follow()
        assert [target.state.valid for target in it.targets] == [True, True]
        it.take()
        assert it.holds(LATER)


def foreign_loads_write_into_the_current_slots():
    """As in vLLM's reload_weights, whose own loader would use the initial slots."""
    with Ranks() as it:
        rearrange(it.engines, it.runners, LATER)
        for engine in it.engines:
            engine.load_weights(it.weights.items())
        assert it.holds(LATER)
        it.follow()
        assert [target.state.valid for target in it.targets] == [True, True]


def shared_experts_among_the_slots_are_refused():
    with Ranks() as it:
        for engine in it.engines:
            manager = SimpleNamespace(num_fused_shared_experts=1)
            engine.layers[1].expert_map_manager = manager
        it.publish()
        with raises(driftless.errors.UnsupportedError, "MoE layer 1", "shared experts", "EPLB"):
            it.receivers[0].stage(10)
        assert it.targets[0].state.valid and it.targets[0].state.version == 0


def an_expert_without_a_slot_is_refused():
    engine = Slotted(0)
    runner = runner_of(engine)
    vllm_parts.experts(runner)
    into = engine.layers[0].experts_up
    with raises(driftless.errors.UnsupportedError, "'experts_up'", "expert 6", "6 slots"):
        into.weight_loader(into, into.data[0], "experts.6.up.weight", "w", 6)


def the_drafter_of_a_runner_is_found():
    model, head = Slotted(0), Head()
    without = torch.nn.Linear(2, 2)
    cases = [
        (None, {}),
        (SimpleNamespace(), {}),
        (SimpleNamespace(drafter=None), {}),
        (SimpleNamespace(drafter=SimpleNamespace(model=head)), {"drafter": head}),
        (SimpleNamespace(get_draft_model=lambda: head), {"drafter": head}),
        (SimpleNamespace(get_draft_model=lambda: None), {}),
        # the model drafts with its own layers
        (SimpleNamespace(get_draft_model=lambda: model), {}),
        (SimpleNamespace(drafter=SimpleNamespace(model=without)), {}),  # nothing to load
        (SimpleNamespace(drafter=SimpleNamespace(model="ngram")), {}),
    ]
    for runner, found in cases:
        assert vllm_parts.drafters(model, runner) == found, runner


def a_runner_that_balances_nothing_has_no_table():
    for runner in (None, SimpleNamespace(), SimpleNamespace(eplb_state=None)):
        assert vllm_parts.experts(runner) is None


if __name__ == "__main__":
    run_checks(globals())
