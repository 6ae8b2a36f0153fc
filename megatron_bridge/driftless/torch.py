# SPDX-License-Identifier: Apache-2.0
"""Publishing from torch: modules of DTensors (FSDP2, HSDP, FSDP x TP, EP), and process groups.

Every rank publishes what it holds: no `full_tensor()`, no gather. docs/start/sharded.md shows it.
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

# What wrappers put into the names of parameters.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def publisher_group() -> PublisherGroup:
    """Of all ranks of the default process group; if there is none, of this process. Collective."""
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    return PublisherGroup(None if alone else dist.new_group(backend="gloo"))


def shard_of(name: str, tensor: torch.Tensor) -> Shard:
    """This rank's part of a parameter: a DTensor's local shard, or a whole tensor. Of replicas that
    its placements name, the first is the owner. Of others (plain tensors, the slices of a mesh)
    every rank is: when a run is opened, the lowest that holds a box gets it."""
    if not isinstance(tensor, DTensor):
        return Shard(name, tensor, tuple(tensor.shape), (0,) * tensor.dim())
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise UnsupportedError(
            f"{name}: its placements {tensor.placements} hold sums that are not reduced yet"
        )
    place = tensor.device_mesh.get_coordinate()
    if place is None:  # of a mesh that this rank is not in
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
    """A stacked tensor (experts along the first dimension) as the tensors that checkpoints have:
    `name(number)` of each."""
    for row in range(shard.tensor.shape[0]):
        number = int(shard.offset[0]) + row
        yield Shard(
            name(number), shard.tensor[row], shard.shape[1:], shard.offset[1:], shard.owner
        )


class ShardedModel(ShardedSource):
    """A module's parameters and persistent buffers as a source: one object for all steps.

    `dtype`: what floating-point tensors are published as, which is what the engine's checkpoint
    has: a type, or a function of the published name; None: as they are. `export`: from one shard
    under the module's name to what is published of it (other names, unstack(), nothing); the
    module's names if it is None. Tied parameters are published once, under the first name.
    `on_gpu`: shards are compared where they lie, which needs `snapshot: pinned` or `device`."""

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
        """As they are now: FSDP may have put others in the module's place since the last step."""
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
        """Publishes a version after every `optimizer.step()`, and calls `then` with its report. A
        failure comes out of step(). Returns the hook's handle: `handle.remove()` ends it."""

        def publish(*_: Any) -> None:
            then(publisher.publish(self))

        return optimizer.register_step_post_hook(publish)

    def _torch_dtype(self, shard: Shard) -> torch.dtype:
        if not shard.tensor.is_floating_point():
            return shard.tensor.dtype
        wanted = self._dtype(shard.name) if callable(self._dtype) else self._dtype
        return wanted or shard.tensor.dtype

    def exported(self) -> Iterator[Shard]:
        """All that this rank holds, under the published names; shards() are those that it owns."""
        for name, tensor in unique_tensors(self._module):
            shard = shard_of(name, tensor)
            yield from (shard,) if self._export is None else self._export(shard)


def unique_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a module, ties once. FSDP's state_dict() shards what a forward pass left
    gathered."""
    state = module.state_dict()
    first: dict[int, str] = {}
    again = set()  # names of tied parameters but the first that the module saves
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
