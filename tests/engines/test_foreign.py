# SPDX-License-Identifier: Apache-2.0
"""Real engines follow foreign trainers: TRL, slime and miles. Each worker reads the versions
itself, and proves them by a copy of the weights that follows the trainer."""

import sys
import tempfile
from pathlib import Path

import pytest
from engines import Spec
from follows import follow_versions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import foreign  # noqa: E402
from support import read_checkpoint  # noqa: E402

VERSIONS = 10
SPECS = [Spec("vllm", "qwen3_tied", 1), Spec("vllm", "qwen3", 2)]
# slime's encodings change bits, so the engine must hold the trainer's dtype, which vLLM does not
# support on every CPU.
SLIME_SPECS = [Spec("sglang", "qwen3", 2, "bfloat16")]


class Trainer:
    """Writes versions of the model in a foreign format."""

    def __init__(self, directory, model):
        self.directory, self.model, self.version = Path(directory), model, 0
        base = model.checkpoint(0)
        self.config = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {directory}\n    foreign_base: {base}\n"

    def publish(self):
        self.version += 1
        old, new = (read_checkpoint(self.model.checkpoint(self.version - n)) for n in (1, 0))
        self.write(old, new)
        return self.version


class TrlTrainer(Trainer):
    """Every fourth step is an anchor, all others are deltas, as TRL's rank 0 uploads them."""

    def write(self, old, new):
        if self.version % 4 == 0:
            foreign.write_trl_anchor(self.directory, self.version, new)
        else:
            spelling = ("idx", "val")
            foreign.write_trl_delta(self.directory, self.version, old, new, spelling, "gap_delta")


class SlimeTrainer(Trainer):
    """Deltas, and a full version without an index at every fourth step."""

    def write(self, old, new):
        if self.version % 4 == 0:
            foreign.write_full_without_index(self.directory, self.version, new)
        else:
            foreign.write_hf_delta(self.directory, self.version, old, new)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_workers_follow_a_trl_trainer(started, models, place, spec):
    directory = tempfile.mkdtemp(dir=place, prefix="trl-")
    follow_versions(started.get(spec), TrlTrainer(directory, models[spec.kind]), VERSIONS)


@pytest.mark.parametrize("spec", SLIME_SPECS, ids=str)
def test_workers_follow_a_slime_trainer(started, models, place, spec):
    directory = tempfile.mkdtemp(dir=place, prefix="slime-")
    follow_versions(started.get(spec), SlimeTrainer(directory, models[spec.kind]), VERSIONS)
