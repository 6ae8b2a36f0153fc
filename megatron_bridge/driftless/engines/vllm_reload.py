# SPDX-License-Identifier: Apache-2.0
"""For vLLM weights that cannot be written in place: the rank keeps the checkpoint's tensors in host
memory, and every commit runs vLLM's own reload (its loader, then its post-load processing).

This covers layouts that vLLM has packed: stock CPU linears, shuffled experts. It costs the model's
size in host memory per rank, and a reload in every pause. `vllm.make_target` uses it if a tensor
cannot be written otherwise.
"""

from __future__ import annotations

import os
from typing import Any

import driftless

from .target import HeldTarget
from .ways import Way


class ReloadTarget(HeldTarget):
    """A receiver writes into `native`; written() then loads the engine from it."""

    def __init__(
        self, model: Any, vllm_config: Any, base: str | os.PathLike[str], why: str
    ) -> None:
        require_reload(why)
        native = driftless.OwnedTarget(base)
        self._model, self._vllm_config = model, vllm_config
        assert native.layout is not None  # it has a base
        self.unread = f"vLLM's own reload: {why}"  # the engine converts it
        way = Way("whole", self.unread, "")
        super().__init__(native, {tensor.name: way for tensor in native.layout.tensors})

    def written(self) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import reload

        weights = ((name, self.native.ref(name).torch()) for name in self.ways)
        with set_current_vllm_config(self._vllm_config):
            reload.initialize_layerwise_reload(self._model)
            try:
                self._model.load_weights(weights)
            finally:  # after this, a half-loaded model can be loaded again
                reload.finalize_layerwise_reload(self._model, self._vllm_config.model_config)


def require_reload(why: str) -> None:
    """Must run before any write: a release without reload would end with half of a version."""
    try:
        from vllm.model_executor.model_loader import reload  # noqa: F401
    except ImportError:
        raise driftless.errors.UnsupportedError(
            f"{why}, and this vLLM cannot reload a running model (0.16 and later can); keep the "
            "load layout, or take a newer release"
        ) from None


def packed_copies(model: Any) -> list[str]:
    """Layers that compute with a packed copy of their parameter: a write would leave the copy
    stale."""
    found = []
    for name, layer in model.named_modules():
        gemm = getattr(layer, "cpu_linear", None)
        code: Any = getattr(gemm, "__code__", None)
        if getattr(code, "co_freevars", ()):
            found.append(name)
    return found


def why_not_in_place(model: Any, target: Any) -> str | None:
    """Why this model's weights cannot be written in place; None: they can."""
    packed = packed_copies(model)
    if packed:
        return f"{len(packed)} layers compute with packed copies, the first is {packed[0]}"
    refused = [(name, way.reason) for name, way in target.ways.items() if way.way == "refused"]
    if refused:
        first, reason = refused[0]
        return f"{len(refused)} tensors cannot be written, the first is {first} ({reason})"
    return None
