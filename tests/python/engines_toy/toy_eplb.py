# SPDX-License-Identifier: Apache-2.0
"""A toy engine that rearranges its experts as vLLM does (EPLB): the runner keeps the table, and the
loader is called once per initial slot of an expert."""

from types import SimpleNamespace

import torch

from toy_engine import EXPERTS, FFN, HIDDEN, LAYERS, ToyEngine, parameter
from toy_moving import SLOTS

RANKS = 2
OWN = SLOTS // RANKS  # slots of a rank


class Slotted(ToyEngine):
    """One of the ranks: its slots' experts, and all other weights."""

    def __init__(self, rank):
        super().__init__(odd=())
        self.first = rank * OWN
        self.moe_layers = list(self.layers)
        for layer in self.layers:
            layer.experts_up = parameter(OWN, FFN, HIDDEN)
            layer.experts_down = parameter(OWN, HIDDEN, FFN)
            for each in (layer.experts_up, layer.experts_down):
                each.weight_loader = self.load_expert

    def load_layer(self, layer, name, tensor):
        if not name.startswith("experts."):
            return super().load_layer(layer, name, tensor)
        into = layer.experts_up if name.endswith("up.weight") else layer.experts_down
        for slot in range(int(name.split(".")[1]), SLOTS, EXPERTS):
            into.weight_loader(
                param=into, loaded_weight=tensor, weight_name=name, shard_id="w", expert_id=slot,
                return_success=True,
            )  # fmt: skip

    def load_expert(
        self, param, loaded_weight, weight_name, shard_id, expert_id, return_success=False
    ):
        if not 0 <= expert_id - self.first < OWN:
            return False if return_success else None
        param.data[expert_id - self.first].copy_(loaded_weight)
        return True if return_success else None


def runner_of(engine):
    """A runner with the table; `model_states` as in vLLM."""
    table = (torch.arange(SLOTS) % EXPERTS).repeat(LAYERS, 1)
    state = SimpleNamespace(model=engine, physical_to_logical_map=table)
    return SimpleNamespace(eplb_state=SimpleNamespace(model_states={"toy": state}), drafter=None)


def rearrange(engines, runners, rows):
    """Moves the experts of all ranks in place, without a loader, and then writes the tables."""
    table = runners[0].eplb_state.model_states["toy"].physical_to_logical_map
    for number, row in enumerate(rows):
        old = table[number].tolist()
        for name in ("experts_up", "experts_down"):
            held = torch.cat([getattr(engine.layers[number], name).data for engine in engines])
            held = held[[old.index(expert) for expert in row]]
            for engine in engines:
                part = held[engine.first : engine.first + OWN]
                getattr(engine.layers[number], name).data.copy_(part)
    for runner in runners:
        state = runner.eplb_state.model_states["toy"]
        state.physical_to_logical_map.copy_(torch.tensor(rows))


def expected(rank, weights, rows):
    """A rank loaded into these slots, using only the checkpoint's names."""
    engine = Slotted(rank)
    engine.load_weights((n, t) for n, t in weights.items() if ".experts." not in n)
    for number, row in enumerate(rows):
        for slot, expert in enumerate(row[engine.first : engine.first + OWN]):
            at = f"layers.{number}.experts.{expert}."
            engine.layers[number].experts_up.data[slot].copy_(weights[at + "up.weight"])
            engine.layers[number].experts_down.data[slot].copy_(weights[at + "down.weight"])
    return engine
