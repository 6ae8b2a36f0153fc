# SPDX-License-Identifier: Apache-2.0
"""Checks a model's settings against the map of its family. settings.toml lists the settings of
megatron-core that change a weight's name, shape or meaning.

A value that the map does not handle is refused, before the model is built if its configuration is
known by then. Needs neither torch nor Megatron.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import SimpleNamespace
from typing import Any

from .errors import MapError
from .maps import Family, family_of
from .model_config import hf_config_of, moe_pattern

_OF_ARGUMENTS = ("position_embedding_type", "rotary_base", "rotary_percent", "use_legacy_models",
                 "use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")  # fmt: skip
_OF_MODEL = ("share_embeddings_and_output_weights", "position_embedding_type", "rotary_base",
             "rotary_percent")  # fmt: skip
_ZERO_IF_ABSENT = ("experts", "shared_ffn")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Values by name, and the defaults of those that are fields of a configuration."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]


def of_config(config: Any, more: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a TransformerConfig, or of a model provider of Megatron-Bridge (a
    subclass)."""
    defaults: dict[str, Any] = {}
    for each in reversed(type(config).__mro__):  # defaults of megatron-core, not of a provider
        for name, field in getattr(each, "__dataclass_fields__", {}).items():
            made = field.default_factory
            value = field.default if made is dataclasses.MISSING else made()
            defaults.setdefault(name, value)
    values = {name: getattr(config, name) for name in defaults if hasattr(config, name)}
    return Settings(_filled({**(more or {}), **values}), defaults)


def of_model(model: Any) -> Settings:
    """The settings of a GPTModel (one model chunk, unwrapped)."""
    return of_config(model.config, {n: getattr(model, n) for n in _OF_MODEL if hasattr(model, n)})


def of_arguments(args: Any) -> Settings:
    """The settings in validated arguments of Megatron-LM, translated by Megatron-LM itself."""
    from megatron.training.arguments import core_transformer_config_from_args

    more = {name: getattr(args, name) for name in _OF_ARGUMENTS if hasattr(args, name)}
    untied = getattr(args, "untie_embeddings_and_output_weights", None)
    if untied is not None:
        more["share_embeddings_and_output_weights"] = not untied
    return of_config(core_transformer_config_from_args(args), more)


def check(settings: Settings, hf_config: Mapping[str, Any] | None = None) -> list[str]:
    """Raises if the map of the model's family does not handle a setting; returns notes. Without the
    contents of a config.json, the family follows from the settings."""
    values = settings.values
    if hf_config is None:
        tied = bool(values.get("share_embeddings_and_output_weights"))
        hf_config = hf_config_of(SimpleNamespace(**values), tied, 1)
    family = family_of(hf_config)
    _check_only("only", values, family)
    _check_only("config_only", hf_config, family)
    _check_rows(values, hf_config, family)
    _check_sizes(values, family)
    _check_compared(values, family, hf_config)
    return [
        *_computed_otherwise(values, hf_config),
        *_not_default(settings),
        *_untrained(values, family),
    ]


def listed() -> set[str]:
    """All names in settings.toml."""
    table = _table()
    found = {name for key in ("only", "rows", "sizes", "computed_as") for name in table[key]}
    return found.union(*(table[key]["names"] for key in ("compared", "computed", "harmless")))


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("settings.toml").read_text("utf-8"))


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """The values, with megatron-core's defaults for sizes that are left out."""
    heads = values.get("num_attention_heads") or 1
    for name, value in (
        ("num_query_groups", heads),
        ("kv_channels", (values.get("hidden_size") or 0) // heads),
        ("ffn_hidden_size", 4 * (values.get("hidden_size") or 0)),
    ):
        values[name] = values.get(name) or value
    values["moe_ffn_hidden_size"] = values.get("moe_ffn_hidden_size") or values["ffn_hidden_size"]
    return values


def _refuse(name: str, value: Any, family: Family, handled: str) -> None:
    flag = _table()["flags"].get(name)
    if name in ("fp8_param", "fp4_param"):
        raise MapError(
            f"{name} ({flag}) is {value!r}: quantized parameters of {family.name} are not "
            "published. Train without it: bfloat16 parameters become those of a base with FP8 "
            "blocks (driftless quantize; docs/operate/quantized.md)"
        )
    raise MapError(
        f"{name}{f' ({flag})' if flag else ''} is {value!r}, and the map of {family.name} is for "
        f"{handled}: names, shapes or meanings of published weights would differ from the Hugging "
        "Face model's. docs/start/megatron.md lists what is handled"
    )


def _check_only(section: str, values: Mapping[str, Any], family: Family) -> None:
    for name, handled in _table()[section].items():
        if name not in values:
            continue
        value = values[name]
        unset = value is None and (section == "config_only" or {False, "None"} & {*handled})
        if not unset and value not in handled:
            _refuse(name, value, family, " or ".join(map(str, handled)))


def _has_row(family: Family, endings: list[str]) -> bool:
    names = [name for row in family.rows for name in row.megatron.values()]
    return any(name.endswith(f".{ending}") for name in names for ending in endings)


def _check_rows(values: Mapping[str, Any], hf_config: Mapping[str, Any], family: Family) -> None:
    for name, endings in _table()["rows"].items():
        there = _has_row(family, endings)
        if name in values and bool(values[name]) != there:
            _refuse(name, values[name], family, str(there))
    for name, endings in _table()["config_rows"].items():
        if hf_config.get(name) and not _has_row(family, endings):
            _refuse(name, hf_config[name], family, "False")


def _check_sizes(values: Mapping[str, Any], family: Family) -> None:
    experts, layers = family.sizes.get("experts", 0), family.sizes["layers"]
    dense = len([n for n in family.moe_layers if n < layers]) < layers
    unused = {"ffn": not dense, "expert_ffn": not experts}
    for name, size in _table()["sizes"].items():
        wanted = family.sizes.get(size, 0 if size in _ZERO_IF_ABSENT else None)
        if name not in values or wanted is None or unused.get(size, False):
            continue
        if (values[name] or 0) != wanted:
            _refuse(name, values[name], family, f"a model whose config.json makes it {wanted}")


def _mtp_layers(values: Mapping[str, Any]) -> int:
    layers = int(values.get("mtp_num_layers") or 0)
    return min(layers, 1) if values.get("mtp_use_repeated_layer") else layers


def _check_compared(
    values: Mapping[str, Any], family: Family, hf_config: Mapping[str, Any]
) -> None:
    """Checks that need more than one value: see [compared]."""
    layers, mtp = family.sizes["layers"], family.sizes.get("mtp_layers", 0)
    if family.sizes.get("experts") and "moe_layer_freq" in values:
        found = [n for n, moe in enumerate(moe_pattern(SimpleNamespace(**values))) if moe]
        wanted = sorted(n for n in family.moe_layers if n < layers)
        if found != wanted:
            _refuse("moe_layer_freq", values["moe_layer_freq"], family, f"experts in {wanted}")
    if _mtp_layers(values) > mtp:
        _refuse("mtp_num_layers", values["mtp_num_layers"], family, f"{mtp} at most")
    tied = values.get("share_embeddings_and_output_weights")
    if tied is not None and not tied and hf_config.get("tie_word_embeddings"):
        # The output layer would be mistaken for a copy of the embedding, and left out.
        _refuse("share_embeddings_and_output_weights", tied, family, "tie_word_embeddings")


def _hf_value(hf_config: Mapping[str, Any], key: str) -> Any:
    """The value in config.json, at its top level or among its rotary embedding's parameters."""
    places = (hf_config, hf_config.get("rope_parameters"), hf_config.get("rope_scaling"))
    for place in places:
        if isinstance(place, Mapping) and place.get(key) is not None:
            return place[key]
    return None


def _computed_otherwise(values: Mapping[str, Any], hf_config: Mapping[str, Any]) -> list[str]:
    notes = []
    scores = values.get("moe_router_score_function") == "softmax"
    yarn = values.get("rope_type") == "yarn"
    for name, key in _table()["computed_as"].items():
        wanted = _hf_value(hf_config, key)
        if name.startswith("moe_") and not values.get("num_moe_experts"):
            continue
        if key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                   "original_max_position_embeddings") and not yarn:  # fmt: skip
            continue
        if wanted is None or name not in values or (name == "moe_router_pre_softmax" and not scores):
            continue
        value = values[name]
        if name == "activation_func":
            value = getattr(value, "__name__", str(value))
        elif name == "moe_router_pre_softmax":
            wanted = not wanted
        elif name == "rope_type":
            wanted = "rope" if wanted == "default" else wanted
        elif value is None:
            value = 1  # no groups, no factor
        if value != wanted:
            notes.append(
                f"{name} is {value!r}, and config.json says {wanted!r} ({key}): rollouts compute "
                "something else from the same weights"
            )
    return notes


def _same(value: Any, default: Any) -> bool:
    """Equality that tolerates objects of unknown types, whose == may not return a bool."""
    plain = isinstance(value, (int, float, str))
    return bool(value == default) if plain else repr(value) == repr(default)


def _not_default(settings: Settings) -> list[str]:
    known = listed()
    notes, others = [], []
    for name, default in settings.defaults.items():
        value = settings.values.get(name, default)
        if _same(value, default) or name.startswith("_"):
            continue
        if name in _table()["computed"]["names"]:
            notes.append(
                f"{name} is {value!r}: it changes what the model computes but no weight; make sure "
                "that the rollouts do the same"
            )
        elif name not in known:
            others.append(f"{name}={value!r:.60}")
    if others:
        notes.append(
            f"{', '.join(others)}: it is not known whether these settings change weights "
            "(settings.toml does not list them); make sure that the Hugging Face model agrees"
        )
    return notes


def _untrained(values: Mapping[str, Any], family: Family) -> list[str]:
    mtp, found = family.sizes.get("mtp_layers", 0), _mtp_layers(values)
    if found == mtp or "mtp_num_layers" not in values:
        return []
    return [
        f"config.json has {mtp} layers of multi-token prediction, and {found} are trained: the "
        "others are not published"
    ]
