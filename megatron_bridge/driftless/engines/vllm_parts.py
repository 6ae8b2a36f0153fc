# SPDX-License-Identifier: Apache-2.0
"""Parts of vLLM that a target needs beside the model: its drafter, functions that compute tensors
after loading, and the placement of experts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from .. import errors
from .derived import Refresh, find_refreshes


def drafters(model: torch.nn.Module, runner: Any) -> dict[str, torch.nn.Module]:
    """The model that drafts in this worker, if it loads weights of its own."""
    find = getattr(runner, "get_draft_model", None)
    found = find() if callable(find) else getattr(getattr(runner, "drafter", None), "model", None)
    usable = isinstance(found, torch.nn.Module) and hasattr(found, "load_weights")
    return {"drafter": found} if usable and found is not model else {}


def refreshes(
    vllm_config: Any, model: torch.nn.Module, drafting: dict[str, torch.nn.Module]
) -> list[Refresh]:
    """The layers' functions that compute MLA's W_UV and W_UK_T, called as in vLLM's own reload."""
    dtype = getattr(vllm_config.model_config, "dtype", None)
    found = find_refreshes([("", model), *drafting.items()], dtype)
    return [Refresh(each.name, partial(_configured, vllm_config, each.run)) for each in found]


def _configured(vllm_config: Any, run: Callable[[], Any]) -> None:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(vllm_config):
        run()


def experts(runner: Any) -> torch.Tensor | None:
    """The expert in each slot, per layer, of every model that vLLM balances (EPLB). Read before
    each staging, commit and trace: from the first read on, the models' loaders put experts into
    their current slots. vLLM's own loaders know only the initial slots."""
    tables = []
    for model, state in _balanced(runner).items():
        for number, layer in enumerate(state.model.moe_layers):
            check_balanced(layer, number)
            for name, parameter in layer.named_parameters():
                place_experts(parameter, name, partial(_slots, runner, model, number))
        tables.append(state.physical_to_logical_map)
    if len(tables) < 2:
        return tables[0] if tables else None
    return torch.cat([table.flatten() for table in tables])


def check_balanced(layer: torch.nn.Module, number: int) -> None:
    """Refuses a layer that keeps shared experts in slots: they are numbered after all other
    experts, like replicas, and cannot be distinguished from them."""
    for part in layer.modules():
        manager = getattr(part, "expert_map_manager", None)
        if getattr(manager, "num_fused_shared_experts", 0):
            raise errors.UnsupportedError(
                f"MoE layer {number} keeps shared experts in slots among those that vLLM rearranges "
                "(EPLB): their places are not known; restart it with rearranging off"
            )


def _balanced(runner: Any) -> dict[str, Any]:
    return getattr(getattr(runner, "eplb_state", None), "model_states", {})


def _slots(runner: Any, model: str, layer: int) -> list[int] | None:
    """The expert in each slot of a layer, over all ranks."""
    state = _balanced(runner).get(model)
    return None if state is None else state.physical_to_logical_map[layer].tolist()


def place_experts(parameter: Any, name: str, slots: Callable[[], list[int] | None]) -> None:
    """Makes the loader put an expert into all its current slots. Idempotent. vLLM calls the loader
    once per initial slot: first for the experts in order, then for replicas."""
    load = getattr(parameter, "weight_loader", None)
    if load is None or hasattr(load, "placed"):
        return
    signature = inspect.signature(load)
    if "expert_id" not in signature.parameters:  # a loader of shared experts, or of a gate
        return

    @wraps(load)
    def placed(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named)
        if (table := slots()) is None:
            return load(*arguments, **named)
        expert = call.arguments["expert_id"]
        if expert >= len(table):
            raise errors.UnsupportedError(
                f"'{name}': expert {expert}, and EPLB's table has {len(table)} slots"
            )
        if expert > max(table):  # a replica: its expert was already placed in every slot
            return False
        loaded: Any = False
        for slot in (slot for slot, held in enumerate(table) if held == expert):
            call.arguments["expert_id"] = slot
            loaded = load(*call.args, **call.kwargs) or loaded
        return loaded

    placed.placed = True  # type: ignore[attr-defined]
    parameter.weight_loader = placed
