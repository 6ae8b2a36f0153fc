# SPDX-License-Identifier: Apache-2.0
"""Publishing from torch: modules of DTensors (FSDP2, HSDP, FSDP x TP, EP), and process groups.

Every rank publishes the shards that it holds: no `full_tensor()`, no gather. docs/start/sharded.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ._native import Publisher, PublishReport
from .errors import InvalidArgumentError, UnsupportedError
from .sharded import BUCKET_BYTES, Shard, ShardedSource, parted
from .torch_dtypes import dtype_name
from .torch_group import PublisherGroup, torch_environment

__all__ = [
    "PublisherGroup",
    "ShardedModel",
    "publisher_group",
    "shard_of",
    "torch_environment",
    "unstack",
]

# Prefixes that wrappers add to the names of parameters.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def publisher_group() -> PublisherGroup:
    """All ranks of the default process group; this process alone if there is none. Collective."""
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    return PublisherGroup(None if alone else dist.new_group(backend="gloo"))


def shard_of(name: str, tensor: torch.Tensor) -> Shard:
    """This rank's box of a parameter: the local shard of a DTensor, or a whole tensor. If the
    placements show which ranks hold replicas, only the first of them is the owner. Otherwise (plain
    tensors, slices of a mesh) every rank is an owner, and when a run opens, the lowest rank that
    holds a box publishes it."""
    if not isinstance(tensor, DTensor):
        return Shard(name, tensor, tuple(tensor.shape), (0,) * tensor.dim())
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise UnsupportedError(
            f"{name}: its placements {tensor.placements} hold sums that are not reduced yet"
        )
    place = tensor.device_mesh.get_coordinate()
    if place is None:  # this rank is not in the mesh
        nothing = torch.empty((0,) * max(tensor.dim(), 1), dtype=tensor.dtype)
        return Shard(name, nothing, tuple(tensor.shape) or (1,), (0,) * nothing.dim(), False)
    sizes, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    local = tensor.to_local()
    if tuple(local.shape) != tuple(sizes):
        raise UnsupportedError(
            f"{name}: its local shard has shape {tuple(local.shape)}, and its placements "
            f"{tensor.placements} say {tuple(sizes)}"
        )
    first = all(
        at == 0 or not placement.is_replicate()
        for at, placement in zip(place, tensor.placements, strict=True)
    )
    return Shard(name, local, tuple(tensor.shape), tuple(offset), first)


def unstack(shard: Shard, name: Callable[[int], str]) -> Iterator[Shard]:
    """Splits a stacked tensor (experts along the first dimension) into the tensors that checkpoints
    have: `name(number)` is the name of each."""
    for row in range(shard.tensor.shape[0]):
        number = int(shard.offset[0]) + row
        yield Shard(
            name(number), shard.tensor[row], shard.shape[1:], shard.offset[1:], shard.owner
        )


class ShardedModel(ShardedSource):
    """A module's parameters and persistent buffers as a source: one object for all steps.

    `dtype`: the dtype in which floating-point tensors are published, which is that of the engine's
    checkpoint: a dtype, or a function of the published name; None: unchanged. `export`: maps a
    shard under the module's name to the shards that are published (renamed, unstack(), none); None:
    unchanged. Tied parameters are published once, under the first name. `on_gpu`: shards are
    compared on the GPU, which needs `snapshot: pinned` or `device`."""

    def __init__(
        self,
        module: torch.nn.Module,
        dtype: torch.dtype | Callable[[str], torch.dtype | None] | None = torch.bfloat16,
        export: Callable[[Shard], Iterable[Shard]] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        on_gpu: bool = False,
    ) -> None:
        super().__init__((), bucket_bytes)
        self._module = module
        self._on_gpu = on_gpu
        self._dtype = dtype
        self._export = export

    def shards(self) -> Sequence[Shard]:
        """The current shards: FSDP may have replaced the module's tensors since the last step."""
        shards, self._others = parted(self.exported())
        return shards

    def dtype(self, shard: Shard) -> str:
        return dtype_name(self._torch_dtype(shard))

    def ready(self, shard: Shard) -> torch.Tensor:
        wanted = self._torch_dtype(shard)
        if shard.tensor.is_meta:
            raise InvalidArgumentError(
                f"{shard.name} is on the meta device and has no values: publish once it is loaded"
            )
        device = shard.tensor.device if self._on_gpu else "cpu"
        return shard.tensor.detach().to(device=device, dtype=wanted).contiguous()

    def publish_after(
        self,
        optimizer: torch.optim.Optimizer,
        publisher: Publisher,
        then: Callable[[PublishReport], None] = lambda report: None,
    ) -> Any:
        """Publishes a version after every `optimizer.step()`, and calls `then` with its report.
        Failures are raised by step(). Returns the hook's handle: `handle.remove()` stops it."""

        def publish(*_: Any) -> None:
            then(publisher.publish(self))

        return optimizer.register_step_post_hook(publish)

    def _torch_dtype(self, shard: Shard) -> torch.dtype:
        if not shard.tensor.is_floating_point():
            return shard.tensor.dtype
        wanted = self._dtype(shard.name) if callable(self._dtype) else self._dtype
        return wanted or shard.tensor.dtype

    def exported(self) -> Iterator[Shard]:
        """All shards that this rank holds, under the published names; shards() has those it
        owns."""
        for name, tensor in unique_tensors(self._module):
            shard = shard_of(name, tensor)
            yield from (shard,) if self._export is None else self._export(shard)


def unique_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's tensors, tied ones once. They come from its state_dict(): a forward pass may leave
    parameters gathered, and FSDP's state_dict() has their shards."""
    state = module.state_dict()
    first: dict[int, str] = {}
    again = set()  # names of tied parameters, except the first that the module saves
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in state and first.setdefault(id(parameter), name) != name:
            again.add(name)
    seen = set()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or name in again:
            continue
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        memory = (local.data_ptr(), tuple(tensor.shape), local.stride(), local.dtype)
        if local.numel() > 0 and memory in seen:
            continue
        seen.add(memory)
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        yield name, tensor
