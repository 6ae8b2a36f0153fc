# SPDX-License-Identifier: Apache-2.0
"""Reports of weight updates in a training run's log: one line per version, and every failure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import driftless

from .export import Times


@dataclass(frozen=True)
class VersionReport:
    """One published version, and the milliseconds that it added to this rank's step (total_ms), by
    phase. Work that continued during the next step is not counted."""

    published: driftless.PublishReport
    sync_ms: float  # waiting for an overlapped parameter gather
    gather_ms: float  # waiting for shards of other ranks
    convert_ms: float  # assembling tensors
    diff_ms: float  # comparing; encoding and writing overlap with it
    encode_ms: float  # encoding and writing, beyond that overlap
    send_ms: float  # agreement among ranks, and making the version visible
    total_ms: float
    visible_ms: float  # from the end of the optimizer's step until receivers can read it
    captured: bool = False  # no snapshot: changes were captured at the optimizer's writes

    @staticmethod
    def of_captured(
        report: driftless.PublishReport, added_s: float, visible_s: float
    ) -> VersionReport:
        live = report.live
        return VersionReport(
            published=report,
            sync_ms=0.0,
            gather_ms=0.0,
            convert_ms=0.0,
            diff_ms=live.capture_ms + live.sweep_ms,
            encode_ms=max(0.0, report.process_ms - live.sweep_ms),
            send_ms=report.manifest_publish_ms,
            total_ms=added_s * 1e3,
            visible_ms=visible_s * 1e3,
            captured=True,
        )

    @staticmethod
    def of(
        report: driftless.PublishReport, times: Times, sync_s: float, total_s: float
    ) -> VersionReport:
        spent = (times.gather + times.convert + times.use) * 1e3
        return VersionReport(
            published=report,
            sync_ms=sync_s * 1e3,
            gather_ms=times.gather * 1e3,
            convert_ms=times.convert * 1e3,
            diff_ms=times.use * 1e3,
            encode_ms=max(0.0, report.process_ms - spent),
            send_ms=report.manifest_publish_ms,
            total_ms=total_s * 1e3,
            visible_ms=total_s * 1e3,
        )

    def split(self) -> str:
        """The times by phase, as text."""
        live = self.published.live
        if self.captured:
            return (
                f"{self.total_ms:.1f} ms added to the step, visible after {self.visible_ms:.1f} ms "
                f"(capture {live.capture_ms:.1f}, sweep {live.sweep_ms:.1f}, encode "
                f"{self.encode_ms:.1f}, send {self.send_ms:.1f})"
            )
        return (
            f"{self.total_ms:.1f} ms (gather {self.sync_ms + self.gather_ms:.1f}, convert "
            f"{self.convert_ms:.1f}, diff {self.diff_ms:.1f}, encode {self.encode_ms:.1f}, send "
            f"{self.send_ms:.1f})"
        )


class Reporter:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.failures = 0
        self.engines_failed = False

    def _line(self, text: str, warning: bool = False) -> None:
        """Prints a log line in the format of the driftless command: UTC time and a name."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = f"{time} driftless trainer.{self._rank}: {text}"
        print(line, file=sys.stderr if warning else sys.stdout, flush=True)

    def version(self, step: VersionReport) -> None:
        made = step.published
        density = made.changed_units / made.total_units if made.total_units else 0.0
        self._line(
            f"version {made.version}, density {density:.6f}, wire_bytes {made.wire_bytes}, "
            f"full_bytes {made.full_bytes}, encoding {made.encoding}, {step.split()}"
        )
        for note in made.notes:
            self.note(note)

    def note(self, text: str) -> None:
        self._line(text)

    def failure(self, failure: BaseException) -> None:
        self.failures += 1
        text = str(failure) or repr(failure)
        self._line(
            f"a weight update failed ({self.failures} so far), training goes on: "
            f"{type(failure).__name__}: {text}",
            warning=True,
        )

    def engine_failure(self, text: str) -> None:
        self._line(text, warning=True)

    def end(self, version: int, engines: list[Any]) -> bool:
        """Logs the closing line; returns whether every engine took every version."""
        failed = [
            f"{e.url} failed to take {e.failures} of {e.versions} versions ({e.error})"
            for e in engines
            if e.failures
        ]
        self.engines_failed = bool(failed)
        updates = f", {self.failures} weight updates failed" if self.failures else ""
        outcome = ""
        if engines:
            outcome = "; NOT all" if failed else "; all"
            outcome += f" engines took every version{': ' if failed else ''}{'; '.join(failed)}"
        self._line(f"the run ended at version {version}{updates}{outcome}")
        return not failed
