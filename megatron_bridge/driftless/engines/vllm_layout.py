# SPDX-License-Identifier: Apache-2.0
"""Quantized layers in vLLM. vLLM records the parameters that its loader expects before it loads
them (model_loader/reload), and can load single modules again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from .load_layout import LoadLayout, Restored, StandIns, put_back, restore
from .tracing import LoadWeights

DEEP_GEMM = (
    "set VLLM_USE_DEEP_GEMM_E8M0=0, or publish by the rule ue8m0 from a base that driftless "
    "quantize --rule ue8m0 made"
)


def load_layout(
    vllm_config: Any,
    model: torch.nn.Module,
    drafters: dict[str, torch.nn.Module],
    place: Callable[[], Any],
    load_weights: LoadWeights | None,
) -> LoadLayout:
    """`place` wraps the loaders in use with the current placement of experts."""
    modules = [("", model), *drafters.items()]
    infos = layer_infos()
    return LoadLayout(
        loading=partial(loading, modules, infos, place),
        unwritable=partial(computed_with_copies, modules),
        reloads=Reloads(vllm_config, model, infos, load_weights) if infos else None,
        only_rule=partial(only_rule, modules),
        advice=partial(advice, modules),
    )


def layer_infos() -> Any:
    """vLLM's record of each layer; {} in releases that keep none."""
    try:
        from vllm.model_executor.model_loader.reload import layerwise, sanitize
    except ImportError:
        return {}
    return getattr(layerwise, "LAYERWISE_INFO", {}) if hasattr(sanitize, "restore_layer_refs") else {}


@contextmanager
def loading(
    modules: list[tuple[str, torch.nn.Module]],
    infos: Any,
    place: Callable[[], Any],
    stand_ins: StandIns,
) -> Iterator[None]:
    restored: list[Restored] = []
    with put_back(restored, stand_ins):
        for first, model in modules:
            for below, layer in model.named_modules():
                prefix = ".".join(filter(None, (first, below)))
                restored += restore_layer(prefix, layer, infos.get(layer), stand_ins)
        place()
        yield


def restore_layer(
    prefix: str, layer: torch.nn.Module, info: Any, stand_ins: StandIns
) -> Iterator[Restored]:
    parameters, _ = getattr(info, "restore_metadata", ({}, {}))
    bind = partial(bind_loaders, layer)
    for name, wanted in parameters.items():
        if layer.__dict__.get(name) is not None or layer._buffers.get(name) is not None:
            continue  # the name has another value now
        called = f"{prefix}.{name}" if prefix else name
        made = restore(layer._parameters, name, wanted, stand_ins, called, bind)
        if made is not None:
            yield made


def bind_loaders(layer: torch.nn.Module, parameter: torch.Tensor) -> None:
    """Binds the methods in vLLM's record to the layer; vLLM keeps them unbound, so that layers can
    be freed. A reload wraps the recorded loader in one that works only during a reload: this
    unwraps it."""
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

    restore_layer_refs(parameter, layer)
    load: Any = getattr(parameter, "weight_loader", None)
    while getattr(load, "__name__", "") == "online_process_loader":
        load = load.__wrapped__
        parameter.weight_loader = load


# --- parameters that must not be written in place -------------------------------------------------


def computed_with_copies(modules: list[tuple[str, torch.nn.Module]]) -> dict[str, str]:
    """Parameters of experts whose kernel uses other scales than the layer's, with the reason."""
    found: dict[str, str] = {}
    for prefix, layer in layers(modules):
        if scale := foreign_scale(layer):
            names = [name for name in layer._parameters if name.startswith(("w13_", "w2_"))]
            why = f"its kernel computes with another {scale} than the layer's"
            found |= {f"{prefix}.{name}" if prefix else name: why for name in names}
    return found


def foreign_scale(layer: torch.nn.Module) -> str | None:
    """A scale that the kernel reads from other memory than the layer's, as after a reload by vLLM;
    None: there is none."""
    config = getattr(getattr(layer, "quant_method", None), "moe_quant_config", None)
    tensors = [each for each in layer._parameters.values() if each is not None]
    ours = {each.untyped_storage().data_ptr() for each in tensors}
    for scale in ("w1_scale", "w2_scale"):
        kept = getattr(config, scale, None)
        if isinstance(kept, torch.Tensor) and kept.untyped_storage().data_ptr() not in ours:
            return scale
    return None


def only_rule(modules: list[tuple[str, torch.nn.Module]], parameter: str) -> str:
    """DeepGEMM requantizes weights to scales that are powers of two, so it keeps only the codes and
    scales of the rule ue8m0 unchanged. Comparing the loaded values does not show this if the base
    has that rule."""
    layer = layer_of(modules, parameter)
    return "ue8m0" if layer is not None and requantizes(layer) else ""


def requantizes(layer: torch.nn.Module) -> bool:
    method = getattr(layer, "quant_method", None)
    kernel = getattr(method, "fp8_linear", None)
    kernels = [kernel, getattr(kernel, "base", None), getattr(kernel, "fallback", None)]
    if any(getattr(each, "use_deep_gemm_e8m0", False) for each in kernels):
        return True
    if "DEEPGEMM" not in str(getattr(method, "fp8_backend", "")).upper():
        return False
    from vllm.utils.deep_gemm import is_deep_gemm_e8m0_used

    return bool(is_deep_gemm_e8m0_used())


def advice(modules: list[tuple[str, torch.nn.Module]], parameter: str) -> str:
    """The setting that keeps the parameter as loaded, if one is known."""
    layer = layer_of(modules, parameter)
    if layer is None:
        return ""
    if requantizes(layer):
        return DEEP_GEMM
    if foreign_scale(layer):
        return "restart vLLM, and let nobody else reload its weights"
    method = getattr(layer, "quant_method", None)
    if any(kind.__name__.startswith("Online") for kind in type(method).__mro__):
        return "start vLLM with a base that driftless quantize made, and without --quantization"
    if hasattr(method, "fp8_backend"):
        return "start vLLM with moe_backend=triton"
    kernel = getattr(method, "fp8_linear", None)
    if kernel is not None:
        return f"choose another kernel than {type(kernel).__name__} (--linear-backend)"
    return ""


def layers(modules: list[tuple[str, torch.nn.Module]]) -> Iterator[tuple[str, torch.nn.Module]]:
    for first, model in modules:
        for below, layer in model.named_modules():
            yield ".".join(filter(None, (first, below))), layer


def layer_of(
    modules: list[tuple[str, torch.nn.Module]], parameter: str
) -> torch.nn.Module | None:
    """The layer of a parameter, by the parameter's name among all modules."""
    owner = parameter.rpartition(".")[0]
    for first, model in reversed(modules):  # names of drafters have a prefix
        if not first or owner == first or owner.startswith(f"{first}."):
            try:
                return model.get_submodule(owner[len(first) :].lstrip(".") if first else owner)
            except AttributeError:
                return None
    return None


# --- modules that vLLM loads again ----------------------------------------------------------------


class Reloads:
    """vLLM's layerwise reload, for some modules of the model."""

    def __init__(
        self,
        vllm_config: Any,
        model: torch.nn.Module,
        infos: Any,
        load_weights: LoadWeights | None,
    ) -> None:
        self._vllm_config, self._model = vllm_config, model
        self._infos, self._load = infos, load_weights

    def module_of(self, parameter: str) -> str | None:
        layer = layer_of([("", self._model)], parameter)
        if layer is None or self._load is None or layer not in self._infos:
            return None
        below = any(True for child in layer.children() for _ in child.parameters())
        return None if below else parameter.rpartition(".")[0]

    def reload(self, modules: Iterable[str], weights: list[tuple[str, torch.Tensor]]) -> None:
        from vllm.model_executor.model_loader import reload

        layers = [self._model.get_submodule(name) for name in modules]
        config = self._vllm_config.model_config
        assert self._load is not None
        with configured(self._vllm_config):
            try:
                for layer in layers:
                    reload.initialize_layerwise_reload(layer)
                self._load(iter(weights))
            finally:  # after this, a half-loaded module can be loaded again
                for layer in layers:
                    reload.finalize_layerwise_reload(layer, config)


def configured(vllm_config: Any) -> AbstractContextManager[Any]:
    from vllm.config import set_current_vllm_config

    return set_current_vllm_config(vllm_config)
