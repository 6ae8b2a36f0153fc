#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/operate/plan.md, as predicted by `driftless plan`:

    scripts/plan_tables.py [build/bin/driftless]

A test compares them, so the page cannot disagree with the command."""

import json
import subprocess
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parents[1] / "tests/python/models"
# Name, config.json, options of the trainer, of the engines.
LAYOUTS = (
    ("8B", "qwen3_8b", "--tp 2 --dp 4", "--engines 8 --engine-tp 1"),
    ("30B-A3B", "qwen3_30b_a3b", "--tp 2 --ep 8 --dp 8", "--engines 4 --engine-tp 4"),
    ("235B, 8 + 8", "qwen3_235b_a22b", "--tp 8", "--engines 1 --engine-tp 8"),
    ("235B", "qwen3_235b_a22b", "--tp 4 --pp 4 --ep 8 --dp 4", "--engines 8 --engine-tp 8"),
    ("1T", "kimi_k2", "--tp 8 --pp 8 --ep 32 --dp 4",
     "--engines 4 --engine-tp 32 --engines-per-host 0.25"),
)  # fmt: skip
# The encoding `compact`, for slow links, needs a snapshot.
LINKS = (("400Gbit", "none"), ("100Gbit", "none"), ("1Gbit", "device"))
FP8_LINKS = (("400Gbit", "device"), ("1Gbit", "device"))


def ask(command, model, *options):
    line = [command, "plan", "--model", MODELS / f"{model}.json", *options, "--json"]
    done = subprocess.run(list(map(str, line)), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def seconds(value):
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def size(value):
    return f"{value / 1e9:.3g} GB"


def best_of(plans, road, encodings=None):
    rows = [
        plan
        for plan in plans
        if plan["road"] == road
        and "why_not" not in plan
        and (plan["encoding"] in encodings if encodings else plan["encoding"] != "full")
    ]
    return min(rows, key=lambda plan: plan["seconds"])


def cells(plan):
    phases = plan["phases"]
    groups = ("compare", "encode", "send"), ("wait", "fetch"), ("hand_over", "stage"), ("pause",)
    times = [seconds(sum(phases[name] for name in group)) for group in groups]
    return [f"`{plan['encoding']}`", *times, f"**{seconds(plan['seconds'])}**",
            size(plan["bytes"]["version"])]  # fmt: skip


def layouts():
    yield "| name | `--model` | trainer | engines |"
    yield "|---|---|---|---|"
    for name, model, trainer, engines in LAYOUTS:
        yield f"| {name} | `tests/python/models/{model}.json` | `{trainer}` | `{engines}` |"


def table(command, links, roads, *options):
    yield ("| model | link | road | encoding | publish | fetch | hand over, stage | pause | all "
           "| version | `full`, all |")  # fmt: skip
    yield "|---" * 11 + "|"
    for name, model, trainer, engines in LAYOUTS:
        for link, snapshot in links:
            found = ask(command, model, *trainer.split(), *engines.split(), "--link", link,
                        "--snapshot", snapshot, *options)  # fmt: skip
            for road in roads:
                plan = best_of(found["plans"], road)
                full = best_of(found["plans"], road, ["full"])
                yield " | ".join(
                    [f"| {name}", link, f"`{road}`", *cells(plan),
                     seconds(full["seconds"]) + " |"]
                )  # fmt: skip


def tables(command):
    links = table(command, LINKS, ("mpi_rma", "nccl", "peer"))
    files = table(command, LINKS[1:2], ("shared_fs", "object_store"))
    fp8 = table(command, FP8_LINKS, ("mpi_rma", "peer"), "--precision", "fp8")
    return tuple("\n".join(lines) + "\n" for lines in (layouts(), links, files, fp8))


if __name__ == "__main__":
    driftless = sys.argv[1] if len(sys.argv) > 1 else "build/bin/driftless"
    sys.stdout.write("\n".join(tables(driftless)))
