# SPDX-License-Identifier: Apache-2.0
"""Driftless: ships exactly the changed weights from trainers to rollout engines.

Importing this needs neither torch nor MPI nor CUDA. docs/start/python.md shows how to use it.
"""

from . import errors, kernels
from ._native import (
    Agent,
    Backend,
    CheckpointSource,
    CheckpointTarget,
    Config,
    EndOfRun,
    Group,
    Job,
    Launch,
    Layout,
    MemoryTarget,
    OwnedTarget,
    Publisher,
    PublishReport,
    Receiver,
    ReceiverReport,
    Target,
    TargetState,
    TensorRef,
    TensorSpec,
    UpdateReport,
    __version__,
    backends,
    digest,
    launch,
    launched_by_mpi,
)
from .errors import Error
from .following import Follower, follow
from .publishing import Publishing, publish
from .sharded import Shard, ShardedSource

__all__ = [
    "Agent",
    "Backend",
    "CheckpointSource",
    "CheckpointTarget",
    "Config",
    "EndOfRun",
    "Error",
    "Follower",
    "Group",
    "Job",
    "Launch",
    "Layout",
    "MemoryTarget",
    "OwnedTarget",
    "PublishReport",
    "Publisher",
    "Publishing",
    "Receiver",
    "ReceiverReport",
    "Shard",
    "ShardedSource",
    "Target",
    "TargetState",
    "TensorRef",
    "TensorSpec",
    "UpdateReport",
    "__version__",
    "backends",
    "digest",
    "errors",
    "follow",
    "kernels",
    "launch",
    "launched_by_mpi",
    "publish",
]
