# SPDX-License-Identifier: Apache-2.0
"""Checks settings of the installed megatron-core with the package, and prints the results as one
line of JSON: test_settings.py.

    settings_job.py CASES.json       {"models": [[job, settings, hf]], "lines": [arguments]}

`job` as in tiny_model; `settings` override its TransformerConfig, `hf` its config.json. A line goes
to Megatron-LM's own parser, as modified by `python -m driftless.megatron`. No model is built.
"""

import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

warnings.simplefilter("ignore")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")

import cpu_shim  # noqa: E402  before megatron
import tiny_config  # noqa: E402
import tiny_model  # noqa: E402
import torch  # noqa: E402
from megatron.core.transformer import MLATransformerConfig, TransformerConfig  # noqa: E402

import driftless.megatron  # noqa: E402
from driftless.megatron import launch, settings  # noqa: E402


def configured(job, changed):
    made = tiny_model.transformer_config({"tp": 1, "pp": 1, "ep": 1, **job}, torch.bfloat16)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def of_model(job, changed, hf):
    """The result of the check with a model's configuration: [error, notes]."""
    config = tiny_config.hf_config(job) | hf
    try:
        return [None, settings.check(settings.of_config(configured(job, changed)), config)]
    except driftless.Error as failure:
        return [str(failure), []]


@dataclasses.dataclass
class Later(TransformerConfig):
    """A later release with a setting that the list lacks."""

    rows_reversed: bool = False


def of_later(reversed_rows):
    made = configured({"family": "qwen3"}, {})
    same = {f.name: getattr(made, f.name) for f in dataclasses.fields(TransformerConfig)}
    later = settings.of_config(Later(**same, rows_reversed=reversed_rows))
    return settings.check(later, tiny_config.hf_config({"family": "qwen3"}))


def of_bridge(job, changed, hf, work):
    """The same through Megatron-Bridge's callback, with its configuration."""
    flags = SimpleNamespace(update_weight_mode="delta", update_weight_transport="disk",
                            update_weight_disk_dir=f"{work}/road")  # fmt: skip
    config = SimpleNamespace(model=configured(job, changed))
    try:
        driftless.megatron.WeightUpdates(flags, tiny_config.hf_config(job) | hf, config)
    except driftless.Error as failure:
        return str(failure)
    return None


def parse(line):
    """What Megatron-LM's initialize_megatron() does: returns the arguments, or the exception."""
    from megatron.training import arguments, initialize

    sys.argv = ["script", *line]
    try:
        args = initialize.parse_args()
    except driftless.Error as failure:
        return f"parsing: {failure}"
    try:
        initialize.validate_args(args)
    except driftless.Error as failure:
        return f"validation: {failure}"
    assert arguments.parse_args is initialize.parse_args
    return None


def main():
    given = json.loads(Path(sys.argv[1]).read_text())
    fields = {
        f.name for c in (TransformerConfig, MLATransformerConfig) for f in dataclasses.fields(c)
    }
    found = {
        "unlisted": sorted(fields - settings.listed()),
        "later": [of_later(False), of_later(True)],
        "models": [of_model(*case) for case in given["models"]],
        "bridge": [of_bridge(*case, given["work"]) for case in given["models"]],
    }
    cpu_shim.stub_triton()
    import megatron.training.training  # noqa: F401

    launch.install()
    sys.stdout, out = sys.stderr, sys.stdout  # Megatron prints its arguments
    found["lines"] = [parse(line) for line in given["lines"]]
    print("ANSWERS " + json.dumps(found), file=out, flush=True)


main()
