# SPDX-License-Identifier: Apache-2.0
"""publish(): one call for a trainer. It composes the steps that docs/start/sharded.md shows: a Job,
a ShardedModel, a Publisher that starts from the base checkpoint, and the end of the run."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._native import CheckpointSource, Group, Job, Publisher, PublishReport
from .engines.target import checkpoint_directory
from .errors import IncompleteError, InvalidArgumentError, NotFoundError, WrongLayoutError
from .sharded import CheckpointShards, OfferedBoxes, Shard, is_quantized, trained_types
from .where import Where, config_of, in_mpi

if TYPE_CHECKING:
    import torch

    from .torch import ShardedModel
    from .torch_group import PublisherGroup

_logger = logging.getLogger(__name__)

# A cast between these types keeps the values' meaning. Narrower types need scales.
_CASTS = ("F64", "F32", "F16", "BF16")


def publish(
    model: torch.nn.Module,
    where: Where,
    base: str | os.PathLike[str] | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = None,
    export: Callable[[Shard], Iterable[Shard]] | None = None,
    overrides: Sequence[str] = (),
) -> Publishing:
    """Publishes a module's weights:

        with driftless.publish(model, "weights") as run:
            for batch in batches:
                ...
                optimizer.step()
                run.publish()

    Leaving the block ends the run, and receivers end with its last version. If the block exits with
    an exception, sys.exit(1) or Ctrl-C, the run stays open: receivers wait, and the next start of
    the trainer continues it.

    `model`: any module. With DTensors (FSDP2), every rank calls publish(). `where`: a directory
    that both sides can reach, s3://bucket/prefix, hf://user/bucket/prefix, or a configuration file.
    `base`: the checkpoint that rollouts start from, a directory or a name in the model hub's cache;
    the run publishes its names and dtypes. By default it is the checkpoint that a transformers
    model was loaded from; for any other module, its current weights, cast to `dtype` if it is
    given.

    `optimizer`: publishes a version after every optimizer.step(), without calls to run.publish().
    `export`: renames a shard, or leaves it out (ShardedModel). `overrides`: "key=value" over the
    configuration."""
    return Publishing(model, where, base, optimizer, dtype, export, overrides)


class Publishing:
    """A run that publish() has opened. Every rank makes the same calls. `run`: its id. `version`:
    the newest version. `last`: the report of the last version that this process published, or
    None."""

    def __init__(
        self,
        model: torch.nn.Module,
        where: Where,
        base: str | os.PathLike[str] | None,
        optimizer: torch.optim.Optimizer | None,
        dtype: torch.dtype | None,
        export: Callable[[Shard], Iterable[Shard]] | None,
        overrides: Sequence[str],
    ) -> None:
        from .torch import publisher_group

        config = config_of(where, overrides)
        snapshot = config.settings()["snapshot"]
        if snapshot == "none":
            raise InvalidArgumentError(
                "snapshot: none needs capture() before each write: use driftless.Publisher "
                "(docs/start/sharded.md), or another snapshot"
            )
        checkpoint = _checkpoint_of(model, base)
        quantizes = (
            checkpoint is not None
            and config.settings()["quantize.scheme"] != "none"
            and is_quantized(checkpoint.path)
        )
        on_gpu = snapshot in ("pinned", "device")
        source = _source_of(model, checkpoint, dtype, export, on_gpu, quantizes)
        self.last: PublishReport | None = None
        self._source, self._hook = source, None
        self._job = job = Job(config, "trainer", launched=in_mpi(config))
        self._wait_s = config.connect_s
        try:
            by_hub = not job.launched and config.settings()["hub.group"] == "true"
            self._group = Group(job) if by_hub else publisher_group()
            began = source if checkpoint is None else _of_base(source, checkpoint, quantizes)
            group = None if job.launched or by_hub else self._group  # None: the job's own group
            self._publisher = Publisher(job, began, group=group, checkpoint=checkpoint)
        except BaseException:
            job.leave()
            raise
        self.run, self.version = str(self._publisher.run), int(self._publisher.version)
        for note in self._publisher.notes if self._publisher.rank == 0 else ():
            _logger.warning("driftless: %s", note)
        self._left_open = weakref.finalize(self, _left_open, job, self.run, os.getpid())
        if optimizer is not None:
            self._hook = source.publish_after(optimizer, self._publisher, self._record)

    def publish(self, step: int | None = None) -> PublishReport:
        """Publishes the current weights as the next version; on all ranks, or on none. `step`: the
        training step, needed if a rank may leave out a call. Failures are raised, and the next
        version carries the changes."""
        report = self._publisher.publish(self._source, step=step)
        self._record(report)
        return report

    @property
    def publisher(self) -> Publisher:
        """The publisher, for calls that have no short form: receivers(), request_anchor(),
        notes."""
        return self._publisher

    def close(self) -> None:
        """Ends the run, once every rank has called this. If a rank left after a failure, or does
        not come, the first rank raises, and the run stays open."""
        if not self._stop():
            return
        try:
            self._agree_on_the_end()
            self._publisher.declare_end()
        except BaseException:
            self._job.leave()
            raise
        self._job.close()

    def leave(self) -> None:
        """Leaves the run open: its receivers wait for the trainer's next start."""
        if not self._stop():
            return
        if self._group.rank != 0:
            with contextlib.suppress(Exception):  # the first rank need not wait for this one
                self._gather_departures(b"left")
        self._job.leave()

    def __enter__(self) -> Publishing:
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, trace: Any) -> None:
        done = isinstance(failure, SystemExit) and failure.code in (None, 0)
        if failure is None or done:
            self.close()
        else:
            self.leave()

    def _stop(self) -> bool:
        """Returns False if it was closed before."""
        if self._hook is not None:
            self._hook.remove()
        return self._left_open.detach() is not None

    def _agree_on_the_end(self) -> None:
        """[collective] Raises on the leader unless every rank came here."""
        group, words = self._gather_departures(b"")
        left = [rank for rank, each in enumerate(words) if each]
        # every rank gets the list: MPI's leader may be another rank than torch's first
        if self._job.launched:
            left = [*group.broadcast(bytes(rank % 256 for rank in left[:8]), self._wait_s)]
        if left:
            raise IncompleteError(
                f"publisher ranks {left[:8]} left after a failure: the run stays open, and receivers "
                "wait; start the trainer again to continue it"
            )

    def _gather_departures(self, word: bytes) -> tuple[Group | PublisherGroup, list[bytes]]:
        group = self._group if isinstance(self._group, Group) else self._group.for_publisher()
        group.begin_epoch(0)
        return group, group.gather(word, self._wait_s)

    def _record(self, report: PublishReport) -> None:
        self.last, self.version = report, report.version
        for failure in self._publisher.tell_engines():
            _logger.warning("driftless: version %s: %s", report.version, failure)


def _left_open(job: Job, run: str, process: int) -> None:
    """Runs for a Publishing that was not closed, when it is dropped or the process exits. A normal
    end of training and sys.exit(1) look the same here, so the run stays open."""
    if os.getpid() != process:
        return
    with contextlib.suppress(Exception):
        job.leave()
    print(
        f"driftless: run {run} was left without an end, and receivers wait for its next version: "
        "use `with driftless.publish(...)`, or close()",
        file=sys.stderr,
    )


def _checkpoint_of(
    model: Any, base: str | os.PathLike[str] | None
) -> CheckpointSource | None:
    """Returns None if the module's own weights are the base."""
    name = base_of(model, base)
    return None if name is None else CheckpointSource(name)


def base_of(model: Any, base: str | os.PathLike[str] | None) -> str | None:
    """The directory of `base`, or of the checkpoint that a transformers model was loaded from."""
    name, revision = base, None
    if name is None:
        name = getattr(model, "name_or_path", None)
        revision = getattr(getattr(model, "config", None), "_commit_hash", None)
        if not isinstance(name, str) or not name:
            return None
    try:
        return checkpoint_directory(os.fspath(name), revision)
    except (ImportError, OSError, ValueError) as problem:
        raise NotFoundError(
            f"base checkpoint '{name}': neither a directory nor in the model hub's cache "
            f"({type(problem).__name__}); download it, or give base= its directory"
        ) from problem


def unwrapped(model: Any) -> Any:
    """The module without DistributedDataParallel, which puts `module.` before every name."""
    parallel = type(model).__name__ in ("DistributedDataParallel", "DataParallel")
    return model.module if parallel else model


def _source_of(
    model: Any,
    checkpoint: CheckpointSource | None,
    dtype: torch.dtype | None,
    export: Callable[[Shard], Iterable[Shard]] | None,
    on_gpu: bool,
    quantizes: bool,
) -> ShardedModel:
    """`quantizes`: the checkpoint is quantized, and the publisher either makes its tensors from
    bfloat16 or refuses it."""
    from .torch import ShardedModel
    from .torch_dtypes import TORCH_DTYPES

    model = unwrapped(model)
    if checkpoint is None:
        return ShardedModel(model, dtype=dtype, export=export, on_gpu=on_gpu)
    if dtype is not None:
        raise InvalidArgumentError(
            f"dtype= is for a module without a base checkpoint; {checkpoint.path} has the types"
        )
    there = {spec.name: spec for spec in checkpoint.tensors()}
    types = trained_types(checkpoint) if quantizes else {n: s.dtype for n, s in there.items()}

    def of_base(name: str) -> torch.dtype | None:
        return TORCH_DTYPES.get(types[name]) if name in types else None

    source = ShardedModel(model, dtype=of_base, export=export, on_gpu=on_gpu)
    for shard in () if quantizes else source.exported():
        _check(shard, there.get(shard.name), checkpoint.path)
    return source


def _check(shard: Shard, spec: Any, path: str) -> None:
    from .torch_dtypes import dtype_name

    has = dtype_name(shard.tensor.dtype)
    what = f"the module's tensor '{shard.name}' is {has} {list(shard.shape)}; {path} has "
    if spec is None:
        raise WrongLayoutError(
            f"{what}none of that name: give base= the checkpoint that the model was loaded from, "
            "or export= a function that gives the tensor its name there, or leaves it out"
        )
    there = f"{spec.dtype} {list(spec.shape)}"
    if list(spec.shape) != list(shard.shape):
        raise WrongLayoutError(
            f"{what}{there}: give base= the checkpoint that the model was loaded from"
        )
    if spec.dtype != has and not {spec.dtype, has} <= set(_CASTS):
        raise WrongLayoutError(
            f"{what}{there}, which no cast gives: give base= the checkpoint in the types that the "
            "model trains, or use export= to convert it"
        )


def _of_base(
    source: ShardedModel, checkpoint: CheckpointSource, quantizes: bool
) -> CheckpointShards | OfferedBoxes:
    """The shards that this rank publishes, with the base's bits."""
    specs, boxes = source.tensors(), source.boxes()
    offered = OfferedBoxes if quantizes else CheckpointShards
    return offered(checkpoint, specs, boxes, source.left_to_others())
