# SPDX-License-Identifier: Apache-2.0
"""Maps of model families, as tables: how Megatron's parameters become Hugging Face's tensors.

A family is a file `<family>.toml`. It names its model types and its parts (`parts/*.toml`); the
parts have the rows, and the sizes that the rows use (from the keys of config.json). See
docs/develop/adding_a_model.md. Needs neither torch nor Megatron.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..errors import MapError

# How a parameter is split over its tensor-parallel group.
SPLITS = ("whole", "rows", "columns", "vocab", "qkv", "gate_up")
# How often a row applies: once per model, per layer, per layer of one kind, per expert of a layer,
# per layer of multi-token prediction.
SCOPES = ("model", "layer", "dense_layer", "moe_layer", "expert", "mtp")
SPECS = ("te", "local")

_ROW_KEYS = {"megatron", "hf", "split", "shape", "scope", "when", "unless", "drop", "dtype"}
_FAMILY_KEYS = {"model_types", "parts", "optional", "moe"}
_PART_KEYS = {"sizes", "row"}


@dataclass(frozen=True)
class Row:
    """One row of a table. Names are relative to the layer, except in scope `model`."""

    megatron: Mapping[str, str]  # by spec
    hf: tuple[str, ...]
    split: Mapping[str, str]  # by spec
    shape: tuple[str, ...]  # of a whole HF tensor; for `qkv`, without the rows
    scope: str
    dtype: str | None  # None: that of the parameters
    drop: bool  # known, but not published


@dataclass(frozen=True)
class Family:
    """A table filled with one model's sizes."""

    name: str
    rows: tuple[Row, ...]
    sizes: Mapping[str, int]
    moe_layers: frozenset[int]

    def size(self, expression: str) -> int:
        return _evaluate(expression, self.sizes, f"a shape of family {self.name}")


def families() -> dict[str, str]:
    """model type -> family."""
    found = {}
    for entry in resources.files(__name__).iterdir():
        if entry.name.endswith(".toml"):
            name = entry.name.removesuffix(".toml")
            for model_type in _read(entry.name)["model_types"]:
                found[model_type] = name
    return found


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a model, from the contents of its config.json."""
    model_type = config.get("model_type")
    known = families()
    if model_type not in known:
        raise MapError(
            f"there is no map for model_type {model_type!r}; there are maps for "
            f"{', '.join(sorted(known))}; docs/develop/adding_a_model.md says how to add one"
        )
    name = known[model_type]
    table = _checked(_read(f"{name}.toml"), _FAMILY_KEYS, f"{name}.toml")
    numbers = {k: int(v) for k, v in config.items() if isinstance(v, int)}
    parts = list(table["parts"])
    parts += [part for key, part in table.get("optional", {}).items() if config.get(key)]
    sizes: dict[str, int] = {}
    rows = []
    for part in parts:
        file = f"parts/{part}.toml"
        held = _checked(_read(file), _PART_KEYS, file)
        for key, expressions in held.get("sizes", {}).items():
            sizes[key] = _first(key, expressions, numbers, name)
        for number, row in enumerate(held["row"]):
            where = f"{file}, row {number + 1}"
            if _holds(_checked(row, _ROW_KEYS, where), config):
                rows.append(_row(row, where))
    return Family(name, tuple(rows), sizes, _moe_layers(table.get("moe"), sizes, config))


def _read(path: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__name__).joinpath(path).read_text("utf-8"))


def _checked(table: dict[str, Any], keys: set[str], where: str) -> dict[str, Any]:
    for key in table:
        if key not in keys:
            raise MapError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(keys))}")
    return table


def _holds(row: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    if "when" in row and not config.get(row["when"]):
        return False
    return not ("unless" in row and config.get(row["unless"]))


def _row(row: Mapping[str, Any], where: str) -> Row:
    made = Row(
        megatron=_by_spec(row["megatron"]),
        hf=tuple(row.get("hf", ())),
        split=_by_spec(row.get("split", "whole")),
        shape=tuple(row.get("shape", ())),
        scope=row.get("scope", "model"),
        dtype=row.get("dtype"),
        drop=row.get("drop", False),
    )
    unknown = set(made.split.values()) - set(SPLITS)
    if unknown or made.scope not in SCOPES:
        raise MapError(f"{where}: split {sorted(unknown)} or scope {made.scope!r} is unknown")
    names = {"qkv": 3, "gate_up": 2}
    for split in made.split.values():
        if not made.drop and len(made.hf) != names.get(split, 1):
            raise MapError(
                f"{where}: {len(made.hf)} names under hf, split {split} needs {names.get(split, 1)}"
            )
    return made


def _by_spec(value: str | Mapping[str, str]) -> Mapping[str, str]:
    return dict.fromkeys(SPECS, value) if isinstance(value, str) else value


def _first(key: str, expressions: str | list[str], numbers: Mapping[str, int], family: str) -> int:
    """The value of the first expression whose names are all known."""
    several = [expressions] if isinstance(expressions, str) else expressions
    for expression in several:
        if all(name in numbers or name.isdigit() for name in _names(expression)):
            return _evaluate(expression, numbers, f"size {key!r} of family {family}")
    raise MapError(
        f"family {family} needs {' or '.join(several)} in the model's configuration (for {key!r})"
    )


def _names(expression: str) -> list[str]:
    return [word for word in expression.split() if word not in "+*/"]


def _evaluate(expression: str, numbers: Mapping[str, int], what: str) -> int:
    """Evaluates sums of products and quotients, written with spaces: `a * b + c / d`."""
    total = 0
    for term in expression.split(" + "):
        value, operation = 1, "*"
        for word in term.split():
            if word in ("*", "/"):
                operation = word
                continue
            if word not in numbers and not word.isdigit():
                raise MapError(f"{what}: {word!r} of {expression!r} is not known")
            number = numbers[word] if word in numbers else int(word)
            if operation == "/" and (number == 0 or value % number):
                raise MapError(f"{what}: {expression!r} is not a whole number")
            value = value // number if operation == "/" else value * number
        total += value
    return total


def _moe_layers(
    moe: Mapping[str, str] | None, sizes: Mapping[str, int], config: Mapping[str, Any]
) -> frozenset[int]:
    """The layers with experts, including layers of multi-token prediction."""
    if moe is None or not sizes.get("experts"):
        return frozenset()
    first = config.get(moe.get("first", ""), 0) or 0
    every = config.get(moe.get("every", ""), 1) or 1
    dense = set(config.get(moe.get("except", ""), ()) or ())
    layers = range(sizes["layers"] + sizes.get("mtp_layers", 0))
    return frozenset(n for n in layers if n >= first and (n + 1) % every == 0 and n not in dense)
