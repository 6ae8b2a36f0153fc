# SPDX-License-Identifier: Apache-2.0
"""An engine's worker that reads the road itself, as its operator configured it (DRIFTLESS_ENGINE):
pull_worker.py RANK TP RUN VERSION. Holds half of each matrix, split as by tensor parallelism."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from driftless.engines import ModuleTarget, allowed
from driftless.engines.rank_receiver import RankReceiver

ROWS, COLUMNS = 1024, 4096


def parameter(*shape):
    return torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)


class Half(torch.nn.Module):
    def __init__(self, rank, tp):
        super().__init__()
        self.rank, self.tp = rank, tp
        self.up = parameter(ROWS // tp, COLUMNS)
        self.down = parameter(ROWS, COLUMNS // tp)
        self.norm = parameter(COLUMNS)

    def load_weights(self, weights):
        for name, tensor in weights:
            own = getattr(self, name.removesuffix(".weight"))
            cut = next((d for d in range(tensor.dim()) if tensor.shape[d] != own.shape[d]), None)
            if cut is not None:
                tensor = tensor.narrow(cut, self.rank * own.shape[cut], own.shape[cut])
            own.data.copy_(tensor)


def half_of(checkpoint, rank, tp):
    engine = Half(rank, tp)
    engine.load_weights(load_file(checkpoint / "model.safetensors").items())
    return engine


def bits(engine):
    return [each.data.view(torch.int16) for each in engine.parameters()]


def follow(rank, tp, run, version):
    base = run / "step_000000"
    engine = half_of(base, rank, tp)
    worker = RankReceiver(rank, lambda chunk_bytes: ModuleTarget(engine, base), allowed.settings())
    reply = worker.open_allowed("own")
    while reply["error"] is None and reply["version"] < version:
        worker.stage(timeout_s=60)
        reply = worker.wait(90)
        if reply["staged_version"] is not None:
            reply = worker.commit(reply["staged_version"])
    held = sum(each.numel() * each.element_size() for each in engine.parameters())
    expected = half_of(run / f"step_{version:06d}", rank, tp)
    same = all(map(torch.equal, bits(engine), bits(expected)))
    print(json.dumps({"reply": reply, "held_bytes": held, "same": same}), flush=True)
    sys.stdin.read()  # keeps running until the trainer has read its report
    worker.close()


if __name__ == "__main__":
    follow(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
