# SPDX-License-Identifier: Apache-2.0
"""`driftless map MODEL_CONFIG`: prints and checks a model's map, without the model.

Exit codes are those of `driftless`: 0; 2 for wrong arguments or an unsupported model; 3 for a
missing file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from .errors import MapError
from .maps import SPECS, family_of
from .plan import Item, Parallel, StagePlan, plan_model


def read_config(path: str) -> dict[str, Any]:
    """Reads config.json, given its path or that of its directory."""
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    if not isinstance(config, dict):
        raise MapError(f"{path}: expected an object, found {type(config).__name__}")
    return config.get("text_config", config) if "model_type" not in config else config


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="driftless map",
        description="Shows how the parameters of a Megatron model become Hugging Face tensors.",
    )
    parser.add_argument("model_config", help="config.json of the model, or its directory")
    for flag, what in (
        ("tp", "ranks of tensor parallelism"),
        ("pp", "pipeline stages"),
        ("ep", "ranks of expert parallelism"),
        ("vpp", "model chunks of a pipeline stage"),
    ):
        parser.add_argument(f"--{flag}", type=int, default=1, metavar="N", help=what)
    parser.add_argument(
        "--etp", type=int, metavar="N", help="ranks of tensor parallelism of experts (default: --tp)"
    )
    parser.add_argument(
        "--spec", choices=SPECS, default="te", help="names of parameters (te: TransformerEngine)"
    )
    parser.add_argument("--vocab-divisor", type=int, default=128, metavar="N",
                        help="--make-vocab-size-divisible-by")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    return parser


def as_json(family: str, plans: Sequence[StagePlan]) -> dict[str, Any]:
    def item(one: Item) -> dict[str, Any]:
        return {
            "chunk": one.chunk,
            "megatron": one.names[0],
            "split": one.split,
            "shard_shape": list(one.local_shape),
            "places": [list(place) for place in one.places],
            "hf": [
                {"name": t.name, "shape": list(t.shape), "dtype": one.dtype,
                 "regions": [[r.piece, r.shape, r.src_offset, r.src_strides, r.dst_offset,
                              r.dst_strides] for r in t.regions]}
                for t in one.tensors
            ],
        }  # fmt: skip

    stages = [
        {"stage": p.stage, "layers": p.chunks, "items": list(map(item, p.items))} for p in plans
    ]
    return {"family": family, "stages": stages}


def _print(family: str, plans: Sequence[StagePlan], parallel: Parallel) -> None:
    tensors = sum(len(plan.tensors()) for plan in plans)
    elements = sum(region.count for p in plans for t in p.tensors() for region in t.regions)
    for plan in plans:
        layers = " | ".join(",".join(map(str, chunk)) or "-" for chunk in plan.chunks)
        print(f"stage {plan.stage}: layers {layers}")
        for item in plan.items:
            kind, _, ep_rank = item.places[0]
            where = f"ep {ep_rank}" if kind == "expert" else ""
            chunk = f"chunk {item.chunk} " if parallel.vpp > 1 else ""
            shard = "x".join(map(str, item.local_shape))
            line = f"  {chunk}{item.names[0]}  {shard} {item.split} of {len(item.places)} {where}"
            print(line.rstrip())
            for tensor in item.tensors:
                print(f"      {tensor.name}  {'x'.join(map(str, tensor.shape))}")
    print(
        f"{family}: {tensors} tensors, {elements} parameters; every tensor has one stage, and "
        "every element one place"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    parallel = Parallel(
        given.tp, given.pp, given.ep, given.etp, given.vpp, given.spec, given.vocab_divisor
    )
    numbers = (parallel.tp, parallel.pp, parallel.ep, parallel.expert_tp, parallel.vpp)
    try:
        if min(*numbers, parallel.vocab_divisor) < 1:
            raise MapError("--tp, --pp, --ep, --etp, --vpp and --vocab-divisor are at least 1")
        config = read_config(given.model_config)
        plans = plan_model(config, parallel)
        family = family_of(config).name
    except OSError as failure:
        print(f"driftless: {failure.filename}: {failure.strerror}", file=sys.stderr)
        return 3
    except (MapError, json.JSONDecodeError) as failure:
        print(f"driftless: {given.model_config}: {failure}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(as_json(family, plans), separators=(",", ":")))
    else:
        _print(family, plans, parallel)
    return 0
