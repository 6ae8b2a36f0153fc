# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import support
from support import changed, random_tensor, write_checkpoint


NEED_NO_BUILD = {"test_wheels.py", "test_release.py"}


def pytest_configure(config):
    asked = {Path(word.partition("::")[0]).name for word in config.args}
    if not asked <= NEED_NO_BUILD and not os.access(support.COMMAND, os.X_OK):
        pytest.exit(f"{support.COMMAND} is missing: run `make build`, or set DRIFTLESS_COMMAND", 2)


# The slowest files; those that compute and those that wait alternate. One worker takes all tests of
# a file, and then the next file of this list.
SLOW_FILES = (
    "test_every_rank_faults.py", "test_object_store_faults.py",
    "test_every_rank.py", "test_foreign.py",
    "test_demo.py", "test_object_store_fencing.py",
    "test_binding_wheel.py", "test_foreign_trl.py",
    "test_module_target.py", "test_object_store_bounds.py",
    "test_training.py", "test_object_store_links.py",
    "test_sharded.py", "test_faults.py",
    "test_peer.py", "test_agent.py",
    "test_hub_group.py", "test_monitor.py",
    "test_peer_fallback.py", "test_foreign_damage.py",
    "test_training_faults.py", "test_damage.py",
    "test_launchers.py", "test_one_call.py", "test_quick_pages.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Puts slow files first, so that none of them runs alone at the end."""
    place = {name: number for number, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOW_FILES)))


@pytest.fixture
def work():
    """An empty directory, in memory if the system has such a directory, because tests sync
    often."""
    memory = "/dev/shm"
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
    parent = memory if roomy else None
    path = Path(tempfile.mkdtemp(prefix="driftless-test-", dir=parent))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def rng():
    return np.random.default_rng(20240607)


class Pair:
    """Two checkpoints of a small model, old and new, as tensors and as directories. Some tensors
    change and some do not."""

    def __init__(self, work, rng, shards=2):
        self.work, self.rng, self.shards = work, rng, shards
        self.old = {
            "embed.weight": random_tensor(rng, "BF16", (96, 32)),
            "norm.weight": random_tensor(rng, "F32", (33,)),
            "layers.q.weight": random_tensor(rng, "BF16", (32, 48)),
            "layers.untouched.weight": random_tensor(rng, "BF16", (16, 16)),
            "layers.mlp.weight": random_tensor(rng, "BF16", (48, 32)),
        }
        self.new = self.step(self.old)
        self.old_path = write_checkpoint(work / "old", self.old, shards)
        self.new_path = write_checkpoint(work / "new", self.new, shards)
        self.published = work / "published"

    def step(self, tensors):
        """The next training step: all tensors change a little, except the untouched one."""
        return {
            name: tensor if "untouched" in name else changed(self.rng, tensor)
            for name, tensor in tensors.items()
        }

    def checkpoint(self, name="checkpoint", tensors=None):
        """A new directory with the old weights, or with others."""
        return write_checkpoint(self.work / name, tensors or self.old, self.shards)


@pytest.fixture
def pair(work, rng):
    return Pair(work, rng)
