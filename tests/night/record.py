# SPDX-License-Identifier: Apache-2.0
"""The independent record: random models and runs made from a seed, and the bytes of every version.
It shares no code with the product; it reads and writes safetensors by a few lines of
tests/python/support.py."""

import json
import random
import sys
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/python"))
from support import Tensor, changed, random_tensor, read_checkpoint, write_checkpoint  # noqa: E402

DTYPES = ("BF16", "BF16", "BF16", "F16", "F32", "F64", "I64", "I32", "U8", "I8", "F8_E4M3", "BOOL")
TIED = ("embed.weight", "lm_head.weight")


def random_shape(draw: random.Random) -> tuple[int, ...]:
    kind = draw.randrange(8)
    if kind == 0:
        return ()
    if kind == 1:
        return (0, draw.randint(1, 4))
    if kind == 2:
        return (draw.randint(1, 700),)
    if kind == 3:
        return (draw.randint(1, 5), draw.randint(1, 9), draw.randint(1, 13))
    return (draw.randint(1, 65), draw.randint(1, 67))


def random_model(draw: random.Random) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, dtypes and shapes; the first tensor is not empty. Tied weights are stored twice."""
    model = {TIED[0]: ("BF16", (draw.randint(2, 90), draw.randint(1, 33)))}
    for number in range(draw.randint(1, 9)):
        model[f"layers.{number}.weight"] = (draw.choice(DTYPES), random_shape(draw))
    if draw.random() < 0.3:
        model[TIED[1]] = model[TIED[0]]
    return model


def tie(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    if TIED[1] in weights:
        weights[TIED[1]] = weights[TIED[0]]
    return weights


class Run:
    """The input of a trainer: `path`/step_000000 (the base), step_000001, ... and their weights."""

    def __init__(self, path: Path, model, seed: int, steps: int, base=None):
        rng, draw = np.random.default_rng(seed), random.Random(seed)
        self.path, self.last = path, steps
        if base is None:
            base = {n: random_tensor(rng, dtype, shape) for n, (dtype, shape) in model.items()}
        self.history = [tie(dict(base))]
        for _ in range(steps):
            share = draw.choice((0.01, 0.02, 0.3, 1.0))
            self.history.append(tie({
                name: tensor if draw.random() < 0.3 else changed(rng, tensor, share)
                for name, tensor in self.history[-1].items()
            }))  # fmt: skip
        for step, weights in enumerate(self.history):
            write_checkpoint(self.step(step), weights, draw.choice((1, 1, 2)))

    def step(self, number: int) -> Path:
        return self.path / f"step_{number:06d}"


class Record:
    """All runs of a case, and their known ids and digests."""

    def __init__(self, runs: list[Run]):
        self.runs = runs
        self.ids: dict[str, Run] = {}  # run ids, where only one run can have made the announcement
        # Digests that a trainer printed; several versions share one if a step changes nothing.
        self.digests: dict[str, list[tuple[Run, int]]] = {}

    def versions(self, number: int, run_id=None, digest=None) -> list[dict[str, Tensor]]:
        """All contents that version `number` may have."""
        if digest in self.digests:
            known = [run.history[at] for run, at in self.digests[digest]]
            numbered = [run.history[number] for run in self.runs if number <= run.last]
            return [weights for weights in numbered if weights in known]
        runs = [self.ids[run_id]] if run_id in self.ids else self.runs
        return [run.history[number] for run in runs if number <= run.last]

    def wrong(self, held: dict[str, Tensor], number: int, run_id=None, digest=None) -> str | None:
        """Why these weights are not the version; None: they are."""
        known = self.versions(number, run_id, digest)
        if not known:
            return f"there is no version {number} of run {run_id} with digest {digest}"
        differences = [difference(held, weights) for weights in known]
        return None if None in differences else differences[0]


def difference(held, expected) -> str | None:
    # A stored copy of a tied tensor may be missing, or be written as well.
    if set(held) != set(expected):
        return f"tensors {sorted(set(held) ^ set(expected))} are there on one side only"
    for name, tensor in expected.items():
        if held[name] != tensor:
            return f"tensor {name} ({tensor.dtype} {list(tensor.shape)}) holds other bits"
    return None


def read_state(checkpoint: Path) -> dict | None:
    """The label of a checkpoint; None: it has none, or a write is in progress."""
    state = checkpoint / ".weight_sync/state.json"
    if (checkpoint / ".weight_sync/journal").exists() or not state.exists():
        return None
    return json.loads(state.read_text())


def check_checkpoint(record: Record, checkpoint: Path) -> str | None:
    state = read_state(checkpoint)
    if state is None or "version" not in state:
        return None
    wrong = record.wrong(
        read_checkpoint(checkpoint), int(state["version"]), state.get("run"), state.get("digest")
    )
    return wrong and f"{checkpoint.name} is labelled version {state['version']}: {wrong}"
