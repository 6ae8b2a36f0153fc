# SPDX-License-Identifier: Apache-2.0
"""Version 0 as a Hugging Face checkpoint. Rollouts start from it, and a restarted trainer proves
its run by it.

A trainer that publishes files keeps one beside its versions, unless it was given the rollouts'
checkpoint. Each publishing rank writes its part of its stage's tensors into the stage's file; the
directory appears complete or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import driftless

from ..sharded import Boxes, CheckpointShards, OfferedBoxes, has_groups, is_quantized
from .errors import SyncError

if TYPE_CHECKING:  # torch is imported late: flags are checked without it
    import torch

INDEX = "model.safetensors.index.json"


def has_weights(directory: str | Path) -> bool:
    return any(Path(directory).glob("*.safetensors"))


def quantized(directory: str | None) -> bool:
    """Whether the directory is a checkpoint with quantized weights."""
    return directory is not None and has_weights(directory) and is_quantized(directory)


def needs_whole_tensors(directory: str | None) -> str | None:
    """The reason why a trainer that quantizes for this checkpoint must gather its tensors; None: it
    need not."""
    if directory is None or not has_weights(directory) or not has_groups(directory):
        return None
    return (
        f"{directory} has groups in INT4, which ranks divide: source ranks gather them "
        "(--update-weight-snapshot host)"
    )


def checkpoint_base(
    directory: str | Path, specs: list[driftless.TensorSpec], boxes: Boxes, quantizes: bool = False
) -> CheckpointShards | OfferedBoxes:
    """The boxes of the tensors of `specs`, read from a checkpoint, as a source. `quantizes`: the
    checkpoint is quantized, and the publisher either quantizes its tensors likewise or refuses
    it."""
    source = driftless.CheckpointSource(directory)
    if quantizes:
        return OfferedBoxes(source, specs, boxes)
    there = {spec.name: spec for spec in source.layout.tensors}
    for spec in specs:
        found = there.get(spec.name)
        if found is None:
            raise SyncError(
                f"{directory}: tensor {spec.name} of the model is not in this checkpoint"
            )
        if found != spec:
            raise SyncError(
                f"{directory}: {spec.name} is {found.dtype} {list(found.shape)}, the model has "
                f"{spec.dtype} {list(spec.shape)}"
            )
    return CheckpointShards(source, specs, boxes)


class StageFile:
    """One file with the tensors of a pipeline stage, in the order of `specs`."""

    def __init__(
        self, directory: Path, stage: int, stages: int, specs: list[driftless.TensorSpec]
    ) -> None:
        self.path = directory / f"model-{stage + 1:05d}-of-{stages:05d}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._size = 0
        for spec in specs:
            end = self._size + spec.size_bytes
            header[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [self._size, end],
            }
            self._size = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._head = struct.pack("<Q", len(text)) + text
        self._begin = {name: entry["data_offsets"][0] for name, entry in header.items()
                       if "data_offsets" in entry}  # fmt: skip

    def begin(self) -> None:
        """[one rank, before the others write] Writes the header."""
        with self.path.open("wb") as stream:
            stream.write(self._head)
            stream.truncate(len(self._head) + self._size)

    def write(self, source: Any) -> None:
        """[each rank that has weights of the stage] Writes the source's tensors at their places."""
        import torch

        specs = source.tensors()
        boxes = source.boxes() if hasattr(source, "boxes") else [None] * len(specs)
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            for batch in source.visit():
                for number, tensor in batch:
                    weights = tensor if torch.is_tensor(tensor) else tensor.torch()
                    self._write_box(descriptor, specs[number], weights, boxes[number])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write_box(
        self, descriptor: int, spec: driftless.TensorSpec, tensor: torch.Tensor, box: Any
    ) -> None:
        """Writes a box: at once if it is contiguous in the file, too, otherwise row by row."""
        import torch

        size = tensor.element_size()
        offset = box[0] if box else [0] * tensor.dim()
        first = sum(at * prod(spec.shape[n + 1 :]) for n, at in enumerate(offset))
        begin = len(self._head) + self._begin[spec.name] + first * size
        local = tensor.detach().cpu().contiguous()
        if tuple(local.shape[1:]) == tuple(spec.shape[1:]):
            local = local.view(1, -1)  # contiguous in the file, too
        for row in local:
            _write_all(descriptor, row.view(torch.uint8).numpy(), begin)
            begin += prod(spec.shape[1:]) * size


def _write_all(descriptor: int, data: Any, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        left, at = left[written:], at + written


def finish(partial: Path, directory: Path, config: dict[str, Any]) -> None:
    """[leader, after all have written] Writes the index, and renames the directory."""
    files = {file.name: driftless.CheckpointSource(file) for file in partial.glob("*.safetensors")}
    where = {spec.name: name for name, file in files.items() for spec in file.tensors()}
    total = sum(file.layout.total_bytes for file in files.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (partial / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    if not (partial / "config.json").exists():
        (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    os.replace(partial, directory)


def begin(directory: Path) -> Path:
    """[leader] Makes the empty, hidden directory that the ranks write into."""
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial
