# SPDX-License-Identifier: Apache-2.0
"""Jobs that follow the directory of a foreign trainer."""

from jobs import Files
from support import changed, copy_checkpoint, random_tensor, write_checkpoint

STEPS = 10


class Trainer:
    """A foreign trainer: a model of BF16 and F32, trained step by step."""

    def __init__(self, work, rng):
        self.rng, self.dir, self.base = rng, work / "road", work / "base"
        self.history = [
            {
                "embed.weight": random_tensor(rng, "BF16", (96, 32)),
                "norm.weight": random_tensor(rng, "F32", (33,)),
                "layers.q.weight": random_tensor(rng, "BF16", (32, 48)),
                "layers.frozen.weight": random_tensor(rng, "BF16", (16, 16)),
            }
        ]
        write_checkpoint(self.base, self.history[0], 2)

    def step(self, same=False):
        """(version, weights before, weights after)."""
        old = self.history[-1]
        new = {n: t if same or "frozen" in n else changed(self.rng, t) for n, t in old.items()}
        self.history.append(new)
        return len(self.history) - 1, old, new


def following(work, trainer, **settings):
    return Files(
        work, "hf_delta", **{"road.shared_fs.foreign_base": trainer.base, "deadlines.fetch": "3s"} | settings
    )


def follow(job, trainer, version, save, *arguments):
    """A rollout from the base to a version."""
    line = ["--target-version", version, "--timeout", "240s", "--save", save, *arguments]
    return job.start_rollout("--base", trainer.base, *line)


def patching(work, trainer):
    """A job whose rollouts patch a local copy of the base; and that copy."""
    local = copy_checkpoint(trainer.base, work / "local")
    target = {"receiver.target": "checkpoint", "receiver.checkpoint_dir": local}
    return following(work, trainer, **target), local
