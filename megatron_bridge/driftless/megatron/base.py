# SPDX-License-Identifier: Apache-2.0
"""Version 0 as a Hugging Face checkpoint: what rollouts start from, and what a restarted trainer
proves its run by.

A trainer on files keeps one beside its versions, unless it was given the checkpoint that the
rollouts have. Each publishing rank writes the tensors of its stage; the directory appears whole or
not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import SyncError
from .export import DTYPES

INDEX = "model.safetensors.index.json"
_TORCH = {name: dtype for dtype, name in DTYPES.items()}
_MOST_HEADER_BYTES = 100_000_000


def has_weights(directory: str | Path) -> bool:
    return any(Path(directory).glob("*.safetensors"))


class CheckpointBase:
    """The tensors of `specs` out of a checkpoint: a source of weights."""

    def __init__(self, directory: str | Path, specs: list[Any], batch_bytes: int) -> None:
        self._specs, self._batch_bytes = specs, batch_bytes
        self._where = _tensors_in(Path(directory))
        for spec in specs:
            if spec.name not in self._where:
                raise SyncError(
                    f"{directory}: tensor {spec.name} of the model is not in this checkpoint"
                )
            _, found, _, _ = self._where[spec.name]
            dtype, shape = found["dtype"], found["shape"]
            if dtype != spec.dtype or list(shape) != list(spec.shape):
                raise SyncError(
                    f"{directory}: {spec.name} is {dtype} {shape}, the model has {spec.dtype} "
                    f"{list(spec.shape)}"
                )

    def tensors(self) -> list[Any]:
        return self._specs

    def visit(self) -> Iterator[list[tuple[int, torch.Tensor]]]:
        batch: list[tuple[int, torch.Tensor]] = []
        size = 0
        for index, spec in enumerate(self._specs):
            file, _, begin, end = self._where[spec.name]
            data = np.fromfile(file, dtype=np.uint8, count=end - begin, offset=begin)
            batch.append((index, torch.from_numpy(data).view(_TORCH[spec.dtype]).view(*spec.shape)))
            size += end - begin
            if size >= self._batch_bytes:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _tensors_in(directory: Path) -> dict[str, tuple[Path, dict[str, Any], int, int]]:
    found = {}
    for file in sorted(directory.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\xff"))
            if length > min(size - 8, _MOST_HEADER_BYTES):
                raise SyncError(f"{file}: a header of {length} bytes in a file of {size}")
            header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            if not 8 + length <= begin <= end <= size:
                raise SyncError(f"{file}: {name} lies outside of the file")
            found[name] = (file, entry, begin, end)
    return found


def write_stage(export: Any, directory: Path, stage: int, stages: int) -> None:
    """[each publishing rank] One file with the tensors of its stage."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in export.tensors():
        size = _TORCH[spec.dtype].itemsize * int(np.prod(spec.shape, dtype=np.int64))
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with _file_of(directory, stage, stages).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for batch in export.visit():
            for _, tensor in batch:
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                stream.write(flat.view(torch.uint8).numpy().tobytes())
        stream.flush()
        os.fsync(stream.fileno())


def finish(partial: Path, directory: Path, config: dict[str, Any]) -> None:
    """[leader, when all have written] The index, and the directory's name."""
    where = _tensors_in(partial)
    total = sum(end - begin for _, _, begin, end in where.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: file.name for name, (file, _, _, _) in sorted(where.items())},
    }
    (partial / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    if not (partial / "config.json").exists():
        (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    os.replace(partial, directory)


def begin(directory: Path) -> Path:
    """[leader] The hidden sibling to write into, empty."""
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _file_of(directory: Path, stage: int, stages: int) -> Path:
    return directory / f"model-{stage + 1:05d}-of-{stages:05d}.safetensors"
