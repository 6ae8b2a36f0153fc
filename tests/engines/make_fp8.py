# SPDX-License-Identifier: Apache-2.0
"""Writes the steps of a model in FP8 blocks, by the tests' own converter
(tests/python/quantize_reference.py): the weights that an engine must hold after each step of a
trainer in bfloat16."""

import json
import shutil
import sys
from pathlib import Path

from environments import REPOSITORY

sys.path.append(str(REPOSITORY / "tests/python"))
import quantize_reference  # noqa: E402
from support import COMMAND as COMMAND  # noqa: E402
from support import read_checkpoint, write_checkpoint  # noqa: E402

CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
KEPT = ("embed_tokens", "norm", "lm_head", "mlp.gate.")


def quantized_names(tensors):
    return {
        name
        for name, tensor in tensors.items()
        if name.endswith(".weight") and len(tensor.shape) == 2 and not any(k in name for k in KEPT)
    }


def convert(source, out, rule, also=None):
    """`also`: more tensors for the checkpoint."""
    tensors = read_checkpoint(source)
    names = quantized_names(tensors)
    made = quantize_reference.quantize_checkpoint(rule, tensors, names) | (also or {})
    write_checkpoint(out, made, 1)
    config = json.loads((Path(source) / "config.json").read_text())
    kept = [n.removesuffix(".weight") for n in tensors if n.endswith(".weight") and n not in names]
    config["quantization_config"] = CONFIG | {"modules_to_not_convert": sorted(kept)}
    if rule == "ue8m0":
        config["quantization_config"]["scale_fmt"] = "ue8m0"
    (Path(out) / "config.json").write_text(json.dumps(config))


def convert_steps(model, versions, rule):
    """model/v00 ... in bfloat16 -> model/RULE/v00 ..., and model/run/step_000000 ... for a replay."""
    out = Path(model) / rule
    for version in range(versions + 1):
        convert(Path(model) / f"v{version:02d}", out / f"v{version:02d}", rule)
    run = Path(model) / "run"
    if not run.exists():
        run.mkdir()
        for version in range(versions + 1):
            shutil.copytree(Path(model) / f"v{version:02d}", run / f"step_{version:06d}")
    return out
