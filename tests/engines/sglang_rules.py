# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang's own DeepGEMM functions on a checkpoint in FP8 blocks. Prints a JSON object:
tensor -> [codes that change, scales that change, values that change].

    python sglang_rules.py CHECKPOINT          SGLang's environment runs it
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
from record_converters import sglang_ue8m0  # noqa: E402

BLOCK = [128, 128]


def dequantized(codes, scales):
    whole = scales.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    return codes.float() * whole[: codes.shape[0], : codes.shape[1]]


def main(checkpoint):
    requantize, found = sglang_ue8m0(None), {}
    tensors = load_file(f"{checkpoint}/model.safetensors")
    for name, codes in tensors.items():
        scales = tensors.get(f"{name}_scale_inv")
        if scales is None:
            continue
        values = dequantized(codes, scales)
        theirs, their_scales = requantize(values.bfloat16())
        found[name] = [
            int((theirs.view(torch.uint8) != codes.view(torch.uint8)).sum()),
            int((their_scales.float() != scales).sum()),
            int((dequantized(theirs, their_scales.float()) != values).sum()),
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
