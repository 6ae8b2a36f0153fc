# SPDX-License-Identifier: Apache-2.0
"""Binds a plan to a model: finds the parameters of this rank that the plan names, and refuses a
model with any others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .errors import MapError
from ..torch_dtypes import TORCH_DTYPES, dtype_name
from .export import Bound
from .maps import Family
from .plan import ChunkLayers, Item, Parallel, StagePlan, plan_stage
from .topology import Sizes, Stage


def unwrap(module: Any) -> Any:
    """The model inside DistributedDataParallel, Float16Module and similar wrappers."""
    while hasattr(module, "module"):
        module = module.module
    return module


def chunks_of(model: Sequence[Any]) -> list[ChunkLayers]:
    """The layers of each of this rank's model chunks, according to the model itself."""
    found = []
    for wrapped in model:
        module = unwrap(wrapped)
        layers = tuple(layer.layer_number - 1 for layer in module.decoder.layers)
        mtp = getattr(module, "mtp", None)
        numbers = tuple(layer.layer_number - 1 for layer in mtp.layers) if mtp is not None else ()
        found.append(
            ChunkLayers(layers, bool(module.pre_process), bool(module.post_process), numbers)
        )
    return found


def tensors_of(module: Any) -> dict[str, torch.Tensor]:
    """Parameters, and buffers that belong to the model's state."""
    found: dict[str, torch.Tensor] = dict(module.named_parameters())
    for prefix, inner in module.named_modules():
        for name, buffer in inner.named_buffers(recurse=False):
            if name not in inner._non_persistent_buffers_set and buffer is not None:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def parallel_of(model: Sequence[Any], sizes: Sizes, vpp: int) -> Parallel:
    """How this model is split, from the sizes of its groups and its parameters' names and
    shapes."""
    spec, padded = "local", None
    for wrapped in model:
        for name, tensor in tensors_of(unwrap(wrapped)).items():
            if name.endswith("layer_norm_weight"):
                spec = "te"
            if name.endswith("linear_kv_down_proj.weight"):
                spec = "local" if getattr(tensor, "tensor_model_parallel", False) else "te"
            if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
                padded = tensor.shape[0] * sizes.tp
    return Parallel(sizes.tp, sizes.pp, sizes.ep, sizes.etp, vpp, spec, padded_vocab=padded)


def plan_of(family: Family, model: Sequence[Any], sizes: Sizes, stage: int) -> StagePlan:
    parallel = parallel_of(model, sizes, len(model))
    return plan_stage(family, parallel, stage, chunks_of(model))


def keep_types(model: Sequence[Any]) -> None:
    """Float16Module casts the router's bias with everything else. The router's first forward pass
    casts it back, into other memory. This does it now, so that dtype and address stay fixed."""
    for wrapped in model:
        for module in unwrap(wrapped).modules():
            getattr(module, "_maintain_float32_expert_bias", lambda: None)()


def bind(plan: StagePlan, model: Sequence[Any], stage: Stage, rank: int) -> list[Bound]:
    """The plan's items with this rank's shards. Every parameter of this rank must be in the plan
    (or dropped by it), and every shard that the plan gives this rank must exist."""
    keep_types(model)
    local = [tensors_of(unwrap(wrapped)) for wrapped in model]
    dtype = _parameter_dtype(model)
    known = [{name for c, name in plan.dropped if c == chunk} for chunk in range(len(local))]
    bound = []
    for item in plan.items:
        known[item.chunk].update(item.names)
        shards: list[torch.Tensor | None] = []
        holders = tuple(stage.holder[place] for place in item.places)
        for holder in holders:
            shards.append(_shard(item, local[item.chunk], rank) if holder == rank else None)
        wanted = TORCH_DTYPES[item.dtype] if item.dtype else dtype
        for shard in shards:
            if shard is not None and shard.dtype != wanted:
                raise MapError(
                    f"rank {rank}: {item.names[0]} is {dtype_name(shard.dtype)}, "
                    f"expected {dtype_name(wanted)} like the other parameters; mixed types are not "
                    "supported"
                )
        bound.append(Bound(item, wanted, holders, tuple(shards)))
    for chunk, names in enumerate(local):
        _refuse_unknown(names, known[chunk], chunk, rank)
    return bound


def _parameter_dtype(model: Sequence[Any]) -> torch.dtype:
    for wrapped in model:
        for parameter in unwrap(wrapped).parameters():
            if parameter.dtype not in TORCH_DTYPES.values():
                raise MapError(f"parameters of type {parameter.dtype} cannot be published")
            return parameter.dtype
    raise MapError("the model of this rank has no parameters")


def _shard(item: Item, local: dict[str, torch.Tensor], rank: int) -> torch.Tensor:
    for name in item.names:
        if name in local:
            found = tuple(local[name].shape)
            if found != item.local_shape:
                raise MapError(
                    f"rank {rank}: {name} has shape {found}, the map says {item.local_shape} "
                    f"({item.split} of {len(item.places)}, for {item.tensors[0].name})"
                )
            return local[name]
    raise MapError(
        f"rank {rank}: the model has no {' or '.join(item.names)}, which the map needs for "
        f"{item.tensors[0].name}"
    )


def _refuse_unknown(names: dict[str, Any], known: set[str], chunk: int, rank: int) -> None:
    unknown = [name for name in _plain(names) if name not in known]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise MapError(
            f"rank {rank}, model chunk {chunk}: parameter {unknown[0]}{more} is in no map; "
            "docs/develop/adding_a_model.md says how to add it"
        )


def _plain(names: dict[str, Any]) -> Iterator[str]:
    return (name for name in names if not name.endswith("_extra_state"))
