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

import torch

import driftless

from .errors import SyncError

INDEX = "model.safetensors.index.json"


def has_weights(directory: str | Path) -> bool:
    return any(Path(directory).glob("*.safetensors"))


class CheckpointBase:
    """The tensors of `specs` out of a checkpoint: a source of weights."""

    def __init__(self, directory: str | Path, specs: list[driftless.TensorSpec]) -> None:
        self._specs, self._source = specs, driftless.CheckpointSource(directory)
        there = {spec.name: spec for spec in self._source.layout.tensors}
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

    def tensors(self) -> list[driftless.TensorSpec]:
        return self._specs

    def visit(self) -> Iterator[list[tuple[int, driftless.TensorRef]]]:
        """The files are mapped, so all of it at once takes no memory."""
        yield [(index, self._source.tensor(spec.name)) for index, spec in enumerate(self._specs)]


def write_stage(export: Any, directory: Path, stage: int, stages: int) -> None:
    """[each publishing rank] One file with the tensors of its stage."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in export.tensors():
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.size_bytes],
        }
        offset += spec.size_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file = directory / f"model-{stage + 1:05d}-of-{stages:05d}.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for batch in export.visit():
            for _, tensor in batch:
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                stream.write(flat.view(torch.uint8).numpy().tobytes())
        stream.flush()
        os.fsync(stream.fileno())


def finish(partial: Path, directory: Path, config: dict[str, Any]) -> None:
    """[leader, when all have written] The index, and the directory's name."""
    files = {file.name: driftless.CheckpointSource(file) for file in partial.glob("*.safetensors")}
    where = {spec.name: name for name, file in files.items() for spec in file.tensors()}
    total = sum(file.layout.total_bytes for file in files.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
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
