# SPDX-License-Identifier: Apache-2.0
"""The weight updates of one training run: `attach()` makes it, each optimizer step calls it.

Every trainer rank has one. If the optimizer is known, every rank publishes what it owns
(every_rank.py); otherwise the source rank of each pipeline stage publishes what the others send it
(source_ranks.py). Only the training thread uses it. Every failure is reported; it ends training
only if `strict` is set.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import driftless

from .._native import Waiting
from ..torch import PublisherGroup
from . import base as base_checkpoint
from . import binding, optimizers, settings, topology
from .arguments import Options, load_config
from .checks import check_options, hf_config_of, notified_engines, whole_tensors
from .errors import MapError, SyncError
from .every_rank import EveryRank
from .maps import family_of
from .model_config import config_of
from .plan import StagePlan
from .report import Reporter, VersionReport
from .source_ranks import SourceRanks

T = TypeVar("T")


class Session:
    """See the module's text. `version`: the newest published; `last`: the newest report."""

    def __init__(
        self,
        model: Any,
        options: Options,
        args: Any = None,
        hf_config: dict[str, Any] | None = None,
        optimizer: Any = None,
        earlier: Sequence[Session] = (),
        on_record: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """`earlier`: sessions of this training run; the one with the same road is closed first.
        `on_record`: as for driftless.Job, called on the leader."""
        self.options, self._args, self._on_record = options, args, on_record
        self._optimizer = optimizer
        self.model: Sequence[Any] = model if isinstance(model, (list, tuple)) else [model]
        self.rank = dist.get_rank()
        self.report = Reporter(self.rank)
        self.last: VersionReport | None = None
        self._step = 0  # optimizer steps, including skipped ones
        self._since = 0  # successful steps since the last version
        self.closed = False
        # each removes one of our hooks from the optimizer
        self.hooks: list[Callable[[], None]] = []
        self._added_s = 0.0  # seconds added to steps since the last report
        self._publisher: Any = None
        self._job: Any = None
        self.config = self._all_ranks("reading the configuration", self._read_config)
        self.settings = self.config.settings()
        for session in earlier:
            if session.road == self.road:
                session.make_way()
        self._find_places(hf_config)
        self._all_ranks("joining the job", self._join)
        self._open()
        atexit.register(self._at_exit)

    # --- construction ----------------------------------------------------------------------------

    def _read_config(self) -> Any:
        """Sets this rank's GPU for comparing weights, and the default place of the snapshot."""
        check_options(self.options)
        config = load_config(self.options)
        self._asked = config.settings()["snapshot"]
        scheme = config.settings()["quantize.scheme"]
        self._quantizes = scheme != "none" and base_checkpoint.quantized(self.options.hf_checkpoint)
        needs_whole = base_checkpoint.needs_whole_tensors(self.options.hf_checkpoint)
        self._needs_whole = needs_whole if self._quantizes else None
        device = next(binding.unwrap(self.model[0]).parameters()).device
        if device.type != "cuda":
            return config
        number = device.index or 0
        more = [f"gpu.device={number}"]
        if self._asked == "host":
            more.append("snapshot=pinned")
        return load_config(self.options, more)

    def _find_places(self, hf_config: dict[str, Any] | None) -> None:
        facts, sizes = topology.my_facts()
        everyone = topology.gather_objects(facts)
        stages = self._all_ranks(
            "finding the source ranks", lambda: topology.stages_of(everyone, sizes)
        )
        self.stage, self._stages = stages[facts.pp], stages
        every_rank = self._every_rank_publishes()
        self.leads = self.rank == (0 if every_rank else stages[0].source)

        def bind() -> EveryRank | SourceRanks:
            plan = self._plan(hf_config, sizes)
            if every_rank:
                return EveryRank(plan, self.model, self.stage, facts, sizes, self._optimizer)
            return SourceRanks(plan, self.model, self.stage, facts)

        self.way = self._all_ranks("reading the model", bind)
        self.publishes = self.way.publishes
        timeout_s = 2 * max(self.config.publish_s, self.config.connect_s)
        self.groups = topology.Groups(stages, timeout_s, every_rank)
        # Each read takes as many weights as fit into one of the publisher's buckets.
        self.way.start(self.groups, self.config.buffer_bytes)

    def _every_rank_publishes(self) -> bool:
        """Whether every rank can publish, and the options allow it."""
        reasons = topology.gather_objects(self._why_gather())
        reason = next((text for text in reasons if text), None)
        if reason is None:
            return True
        if self._asked == "none":
            raise MapError(f"snapshot: none is not possible: {reason}")
        if self.rank == 0:
            self.report.note(
                f"the source rank of each stage gathers its tensors and compares them with a "
                f"snapshot ({self.settings['snapshot']}): {reason}"
            )
        return False

    def _why_gather(self) -> str | None:
        if self._asked in ("pinned", "device") or self.options.snapshot == "host":
            return "that snapshot was requested"
        if self._needs_whole:
            return self._needs_whole
        return whole_tensors(self.config) or optimizers.unknown(self._optimizer)

    def _plan(self, hf_config: dict[str, Any] | None, sizes: topology.Sizes) -> StagePlan:
        first = binding.unwrap(self.model[0])
        self.hf_config = hf_config_of(self.options, hf_config) or config_of(first, self._args)
        family = family_of(self.hf_config)
        notes = settings.check(settings.of_model(first), self.hf_config)
        for note in notes if self.leads else ():
            self.report.note(note)
        if getattr(first.config, "qk_clip", False):
            self.report.note(
                "qk_clip edits weights after the optimizer's step: a version may lack the edits, "
                "and the next one has them"
            )
        plan = binding.plan_of(family, self.model, sizes, self.stage.number)
        self.layers = sorted(layer for chunk in plan.chunks for layer in chunk)
        return plan

    def _join(self) -> None:
        on_record = (self._on_record or self.options.on_record) if self.leads else None
        role = "trainer" if self.publishes else "bystander"
        place = driftless.launch()
        self._by_hub = not place.mpi and self.settings["hub.group"] == "true"
        if self._by_hub:
            joined = self.groups.publishers
            rank = 0 if joined is None else dist.get_rank(joined)
            world = 1 if joined is None else dist.get_world_size(joined)
            place = driftless.launch(rank=rank, world=world)
        self._job = driftless.Job(self.config, role, launched=place, on_record=on_record)

    def _open(self) -> None:
        """Opens the run. Version 0 is the rollouts' checkpoint, or the model's current weights."""
        is_source = self.rank == self.stage.source
        seen = topology.gather_objects(self.layers if is_source else [])
        self._all_ranks("checking the stages", lambda: self._check_layers(seen))
        directory = self._base_directory()
        self.way.sync()
        if directory is not None and not self.options.hf_checkpoint:
            self._keep_base(directory)
        has_job_group = self._job.launched or self._by_hub
        group = None if has_job_group else PublisherGroup(self.groups.publishers)

        def open_publisher(source: Any) -> Any:
            if directory is not None:
                source = base_checkpoint.checkpoint_base(
                    directory, source.tensors(), self.way.boxes, self._quantizes
                )
            return driftless.Publisher(
                self._job, source, group=group, before_visible=self._before_visible(),
                live=self.way.live, snapshot=None if self.way.live is None else "none",
                checkpoint=directory,
            )  # fmt: skip

        self._publisher = self._all_ranks(
            "opening the publisher", lambda: self.way.run(open_publisher)
        )
        if self.publishes:
            for note in self._publisher.notes if self.leads else ():
                self.report.note(note)
        # Notified engines need the version to be visible, and a failure that ends training must be
        # raised within the step.
        waits = self.options.wait or self.options.strict or bool(notified_engines(self.settings))
        way = self.way
        self.in_background = isinstance(way, EveryRank) and not waits
        if isinstance(way, EveryRank):
            capture = functools.partial(self._capture, way)
            self.hooks.append(optimizers.before_copies(self._optimizer, capture))
        if self._agree_any(bool(self._publisher and self._publisher.resumed)):
            # Receivers may hold an older or a newer version than the restored one.
            self._guarded(self.publish)
            self._report_failure_of(self.finish)

    def _check_layers(self, seen: list[list[int]]) -> None:
        found = sorted(layer for layers in seen for layer in layers)
        wanted = list(range(self.hf_config["num_hidden_layers"]))
        if found != wanted:
            raise MapError(
                f"the stages hold layers {found}, the model's configuration says {wanted}"
            )

    def _base_directory(self) -> Path | None:
        """The directory of version 0's checkpoint; None: version 0 is the model's weights."""
        given = self.options.hf_checkpoint
        if given:
            return Path(given) if base_checkpoint.has_weights(given) else None
        directory = self.config.directory
        return None if directory is None else Path(directory) / "base"

    def _keep_base(self, directory: Path) -> None:
        """Writes version 0's checkpoint, by all publishers together, unless it exists."""
        there = self._agree_any(self.leads and directory.exists())
        if there:
            return
        partial = directory.with_name(f".{directory.name}.partial")
        self._all_ranks(
            f"making {partial}", lambda: base_checkpoint.begin(directory) if self.leads else None
        )
        file: base_checkpoint.StageFile | None = None
        if self.publishes:
            number, count = self.stage.number, len(self._stages)
            file = base_checkpoint.StageFile(partial, number, count, self.way.specs)
        first = self.rank == self.stage.source
        self._all_ranks(f"beginning {partial}", lambda: file.begin() if file and first else None)
        self._all_ranks(
            f"writing {partial}",
            lambda: self.way.run(lambda source: file.write(source) if file else None),
        )
        self._all_ranks(
            f"naming {directory}",
            lambda: (
                base_checkpoint.finish(partial, directory, self.hf_config) if self.leads else None
            ),
        )

    # --- after a step ----------------------------------------------------------------------------

    def after_step(self, successful: bool) -> None:
        """The hook calls it. A skipped step changed nothing."""
        self._step += 1  # counts failed publish() calls, too: all ranks must agree on it
        if not successful:
            return
        self._since += 1
        if self._since < self.options.interval:
            return
        self._since = 0
        self._guarded(self.publish)

    def _capture(self, way: EveryRank, child: int) -> None:
        """Runs before an optimizer writes parameters: a version in progress may still read the old
        values. If it fails, the next version compares all weights to find the changes."""
        self._report_failure_of(self.finish)
        begin = time.perf_counter()
        if way.others_wrote():
            self._report_failure_of(self._publisher.doubt)
        self._report_failure_of(lambda: self._publisher.capture(way.new_values(child)))
        self._added_s += time.perf_counter() - begin

    def publish(self) -> None:
        """Publishes the current weights as the next version. Collective."""
        if isinstance(self.way, EveryRank):
            self._publish_captured()
            return
        begin = time.perf_counter()
        self.way.times()
        self.way.sync()
        synced = time.perf_counter()
        report = self.way.run(self._publish_step if self._publisher else _nothing)
        if report is None:
            return
        times = self.way.times()
        self._report_version(VersionReport.of(report, times, synced - begin, time.perf_counter() - begin))

    def _publish_step(self, source: Any) -> driftless.PublishReport:
        return self._publisher.publish(source, step=self._step)

    def _publish_captured(self) -> None:
        """Publishes the captured changes. The rest of the work overlaps with the next step, unless
        the options say to wait."""
        self._report_failure_of(self.finish)
        begin = time.perf_counter()
        try:
            report = self._publisher.publish(self.way.live, wait=not self.in_background, step=self._step)
            self.way.count_writes()
        finally:
            took = time.perf_counter() - begin
            self._added_s += took
        if report is not None:
            self._report_captured(report, took)

    def finish(self) -> None:
        """Waits for the version that is published during this step, and raises its failure."""
        if not self.in_background:
            return
        begin = time.perf_counter()
        try:
            report = self._publisher.wait()
        finally:
            self._added_s += time.perf_counter() - begin
        if report is not None:
            self._report_captured(report, report.total_ms / 1e3)

    def _report_captured(self, report: driftless.PublishReport, visible_s: float) -> None:
        added_s, self._added_s = self._added_s, 0.0
        self._report_version(VersionReport.of_captured(report, added_s, visible_s))

    def _report_version(self, made: VersionReport) -> None:
        self.last = made
        if not self.leads:
            return
        self.report.version(made)
        for text in self._publisher.tell_engines():
            self.report.engine_failure(text)

    def _before_visible(self) -> Callable[[str], None] | None:
        """The hook of --custom-delta-pre-push-path. It runs on every publishing rank, before the
        version is visible. It may return a future, which is waited for."""
        hook = self.options.pre_push
        if hook is None:
            return None

        def call(directory: str) -> None:
            pending = hook(self._args, directory, notified_engines(self.settings))
            if hasattr(pending, "result"):
                pending.result()

        return call

    @property
    def version(self) -> int:
        """[publishing ranks]"""
        return self._publisher.version

    @property
    def road(self) -> tuple[Any, Any]:
        return self.config.road, self.config.directory

    def make_way(self) -> None:
        """Closes this session but leaves the run open: another session continues it."""
        if self._job.launched and not self.closed:
            raise SyncError(
                "weight updates are attached, and an MPI launcher started this job: it cannot be "
                "joined twice. Start it again, or by torchrun with --update-weight-transport disk"
            )
        if self._begin_end():
            self._report_failure_of(self._job.leave)

    def _begin_end(self) -> bool:
        """Returns False if the session was closed before; training continues without updates."""
        if self.closed:
            return False
        self.closed = True
        atexit.unregister(self._at_exit)
        self._report_failure_of(self.finish)
        for unhook in self.hooks:
            unhook()
        return True

    def close(self) -> None:
        """Ends the run; without that end, rollouts keep waiting. Collective over the job."""
        if not self._begin_end():
            return
        try:
            if self.leads and self._job.together:
                self._wait_for_rollouts()
            # Receivers may still read this rank's memory: no rank leaves before the leader.
            if dist.is_initialized():
                dist.barrier(group=self.groups.everyone)
            if self.leads:
                self._publisher.declare_end()
                version, engines = self.version, self._publisher.engines
        finally:
            self._job.close()
        if not self.leads or self.report.end(version, engines):
            return
        if self.options.strict:
            raise SyncError(
                "not every engine took every version, and --update-weight-strict is set"
            )
        atexit.register(exit_with_failure)

    def _wait_for_rollouts(self) -> None:
        """[leader] Waits until all rollouts of this job hold the last version, or none makes
        progress."""
        patience = self.config.connect_s
        best: list[int] = []
        now: list[driftless.ReceiverReport] = []
        until = time.monotonic() + patience
        waiting = Waiting()
        while time.monotonic() < until:
            now = self._publisher.receivers()
            if sum(map(self._holds_last, now)) >= self._job.rollouts:
                return
            # Only a new maximum is progress, not a rollout that leaves, returns or starts over.
            versions = sorted((r.version for r in now), reverse=True)[: self._job.rollouts]
            if versions > best:
                best, until = versions, time.monotonic() + patience
                waiting.restart()
            waiting.look(functools.partial(self._describe_missing, now))
            time.sleep(0.01)
        self.report.note(self._describe_missing(now))

    def _describe_missing(self, now: list[driftless.ReceiverReport]) -> str:
        reports = ", ".join(
            f"{r.id}: version {r.version}, digest {r.digest or '-'}"
            for r in sorted(now, key=lambda r: r.id)
        )
        return (
            f"not every rollout holds version {self.version} of this run, digest "
            f"{self._publisher.digest}: {reports or 'none has reported'}"
        )

    def _holds_last(self, report: driftless.ReceiverReport) -> bool:
        """Compares digests: a receiver of an earlier run may have the same version number. A
        receiver of only some tensors has another digest."""
        if report.version != self.version:
            return False
        return report.digest == self._publisher.digest or (report.partial and bool(report.digest))

    # --- collective helpers ----------------------------------------------------------------------

    def _all_ranks(self, what: str, work: Callable[[], T]) -> T:
        """Runs `work` on every rank; if it fails on one rank, all ranks raise."""
        failure, result = None, None
        try:
            result = work()
        except Exception as caught:
            failure = caught
        failures = topology.gather_objects(str(failure) or repr(failure) if failure else None)
        if failure is not None:
            raise failure
        for rank, text in enumerate(failures):
            if text is not None:
                raise SyncError(f"{what}: rank {rank}: {text}")
        return result  # type: ignore[return-value]

    def _agree_any(self, mine: bool) -> bool:
        return any(topology.gather_objects(mine))

    def _report_failure_of(self, work: Callable[[], Any]) -> None:
        """Runs `work`, and only reports its failure."""
        try:
            work()
        except Exception as caught:
            self.report.failure(caught)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Reports a failure of weight updates; raises it only with --update-weight-strict."""
        failure = None
        try:
            work()
        except Exception as caught:
            failure = caught
            self.report.failure(caught)
        if not self.options.strict:
            return
        flag = torch.tensor([0 if failure is None else 1])
        dist.all_reduce(flag, group=self.groups.everyone)
        if failure is not None:
            raise failure
        if int(flag):
            raise SyncError(
                "a weight update failed on another rank, and --update-weight-strict is set"
            )

    def _at_exit(self) -> None:
        # After a crash the other ranks may be gone: do not wait for anything.
        if getattr(sys, "last_value", None) is not None:
            with contextlib.suppress(Exception):
                self._job.leave()
            return
        try:
            self.close()
        except Exception as failure:
            self.report.failure(failure)
        if self.report.engines_failed:
            exit_with_failure()


def _nothing(_: Any) -> None:
    """Publishes nothing, on ranks without a publisher."""


def exit_with_failure() -> None:
    """Ends the process with exit code 1, if training ended well but an engine lacks its last
    weights. In an atexit handler only os._exit() can set the exit code, so this first runs the
    handlers that are still registered."""
    atexit.unregister(exit_with_failure)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
