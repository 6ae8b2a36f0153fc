# SPDX-License-Identifier: Apache-2.0
"""Whole tensors that a trainer sends one after another, as a source for `Publisher`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ._native import CheckpointSource, TensorSpec
from .errors import WrongLayoutError
from .torch_dtypes import TORCH_DTYPES


class Tensors:
    """A source of tensors under the base's names."""

    def __init__(self, base: CheckpointSource, tensors: dict[str, Any]) -> None:
        self._specs = [spec for spec in base.tensors() if spec.name in tensors]
        # Full versions carry the base's configuration and tokenizer.
        self.companions_dir = base.path if os.path.isdir(base.path) else ""
        self._tensors = tensors

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        for number, spec in enumerate(self._specs):
            yield [(number, self._tensors[spec.name])]


def taken(
    base: CheckpointSource, iterator: Iterable[tuple[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Receives all tensors into host memory, in the base's dtypes: the trainer sends them once, but
    a dense version is read twice. It drains the iterator even after a failure, because the other
    ranks take part in every tensor's gather."""
    specs = {spec.name: spec for spec in base.tensors()}
    found: dict[str, torch.Tensor] = {}
    wrong: WrongLayoutError | None = None
    for name, tensor in iterator:
        spec = specs.get(name)
        if spec is not None and name not in found and tuple(tensor.shape) == tuple(spec.shape):
            dtype = TORCH_DTYPES[spec.dtype]
            found[name] = tensor.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()
        elif wrong is None:
            there = "not there" if spec is None else f"of shape {tuple(spec.shape)}"
            wrong = WrongLayoutError(
                f"{base.path}: the trainer sends '{name}' of shape {tuple(tensor.shape)}"
                f"{' twice' if name in found else ''}; in the checkpoint it is {there}. Give base= "
                "the checkpoint that the trainer was started from"
            )
    if wrong is not None:
        raise wrong
    return found
