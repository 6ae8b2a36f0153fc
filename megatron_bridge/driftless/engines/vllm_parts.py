# SPDX-License-Identifier: Apache-2.0
"""What a target has to know of vLLM beside the model: its drafter, what it computes from weights
after loading, and where its experts are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .. import errors
from .derived import Refresh, find_refreshes


def drafters(model: torch.nn.Module, runner: Any) -> dict[str, torch.nn.Module]:
    """The model that drafts for it in this worker, if it loads weights of its own."""
    find = getattr(runner, "get_draft_model", None)
    found = find() if callable(find) else getattr(getattr(runner, "drafter", None), "model", None)
    usable = isinstance(found, torch.nn.Module) and hasattr(found, "load_weights")
    return {"drafter": found} if usable and found is not model else {}


def refreshes(
    vllm_config: Any, model: torch.nn.Module, drafting: dict[str, torch.nn.Module]
) -> list[Refresh]:
    """Attention layers compute MLA's W_UV and W_UK_T, as vLLM's own reload has them do it."""
    dtype = getattr(vllm_config.model_config, "dtype", None)
    found = find_refreshes([("", model), *drafting.items()], dtype)
    return [Refresh(each.name, partial(_configured, vllm_config, each.run)) for each in found]


def _configured(vllm_config: Any, run: Callable[[], Any]) -> None:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(vllm_config):
        run()


def experts(runner: Any) -> None:
    """Asked before each staging and commit. Once vLLM has rearranged its experts (EPLB), its
    load_weights still puts them where they were at first: neither a plan nor a reload gets them
    right."""
    for state in getattr(getattr(runner, "eplb_state", None), "model_states", {}).values():
        for row in state.physical_to_logical_map.tolist():
            count = max(row) + 1
            if row != [slot % count for slot in range(len(row))]:
                raise errors.UnsupportedError(
                    "vLLM has rearranged its experts (EPLB), and its load_weights knows only where "
                    "they were at first: restart it, with rearranging off"
                )
