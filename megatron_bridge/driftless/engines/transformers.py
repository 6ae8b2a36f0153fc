# SPDX-License-Identifier: Apache-2.0
"""A small engine: a transformers model that generates on a thread and follows a run meanwhile.

    python -m driftless.engines.transformers --config job.yaml --model CHECKPOINT [--versions N]

It is a reference for your own engine; tests and the demo use it. The model generates all the time,
a receiver stages the next version beside it, and the weights change between two tokens. Every
generated text records which version made which of its tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import driftless

from .rank_receiver import no_grad


@dataclass
class Span:
    """Consecutive tokens that one version made."""

    version: int
    tokens: list[int] = field(default_factory=list)


@dataclass
class Generation:
    prompt: list[int]
    spans: list[Span] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for span in self.spans for token in span.tokens]

    def add(self, token: int, version: int) -> None:
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(Span(version))
        self.spans[-1].tokens.append(token)


class Engine:
    """Generates greedily, prompt after prompt, on a thread. `version` is the version of the
    weights; it changes only while the thread is paused."""

    def __init__(self, model: Any, version: int = 0, fresh_cache: bool = True) -> None:
        self.model = model.eval()
        self.version = version
        self.fresh_cache = fresh_cache  # recomputes a text's cache after the weights change
        self.done: list[Generation] = []
        self.steps = 0
        self.pauses_ms: list[float] = []  # from each call of pause() to resume()
        self.error: BaseException | None = None
        self._turn = threading.Condition()
        self._wanted = 0  # number of pause() calls without their resume()
        self._asked_at = 0.0
        self._paused = False
        self._ending = False
        self._thread: threading.Thread | None = None

    # --- pausing: a receiver pauses the engine around its commit ----------------------------------

    def pause(self, timeout_s: float = 60.0) -> None:
        """Returns once the thread waits between two tokens."""
        with self._turn:
            self._asked_at = time.monotonic()
            self._wanted += 1
            alive = self._thread is not None and self._thread.is_alive()
            if alive and not self._turn.wait_for(lambda: self._paused or self._ending, timeout_s):
                self._wanted -= 1
                raise TimeoutError(f"the engine did not pause within {timeout_s} s")

    def resume(self) -> None:
        with self._turn:
            self._wanted = max(0, self._wanted - 1)
            self.pauses_ms.append((time.monotonic() - self._asked_at) * 1e3)
            self._turn.notify_all()

    def _between_tokens(self) -> bool:
        """Returns False if stop() was called."""
        with self._turn:
            while self._wanted and not self._ending:
                self._paused = True
                self._turn.notify_all()
                self._turn.wait(1.0)
            self._paused = False
            return not self._ending

    # --- generating ---------------------------------------------------------------------------

    def generate(self, prompt: Sequence[int], new_tokens: int) -> Generation:
        """Generates one text on the calling thread."""
        import torch

        made = Generation(list(prompt))
        cache, at = None, -1
        with torch.no_grad():
            for _ in range(new_tokens):
                if self._thread is threading.current_thread() and not self._between_tokens():
                    break
                if cache is None or (self.fresh_cache and at != self.version):
                    cache, given = None, [*prompt, *made.tokens]
                else:
                    given = made.tokens[-1:]
                at = self.version
                out = self.model(
                    torch.tensor([given], device=self.model.device), past_key_values=cache,
                    use_cache=True,
                )  # fmt: skip
                cache = out.past_key_values
                made.add(int(out.logits[0, -1].argmax()), at)
                self.steps += 1
        return made

    def start(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """Generates from the prompts in turn until stop()."""

        def work() -> None:
            number = 0
            try:
                while self._between_tokens():
                    made = self.generate(prompts[number % len(prompts)], new_tokens)
                    if made.spans:
                        self.done.append(made)
                    number += 1
            except BaseException as problem:  # noqa: BLE001  raised by stop()
                self.error = problem
            finally:
                with self._turn:
                    self._ending = True
                    self._turn.notify_all()

        self._thread = threading.Thread(target=work, name="driftless-generate", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 60.0) -> list[Generation]:
        with self._turn:
            self._ending = True
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self.error is not None:
            raise self.error
        return self.done


def make_target(model: Any, base: str) -> Any:
    """After an unmodified load by transformers every tensor is written directly (ways.py)."""
    from . import ModuleTarget

    return ModuleTarget(model, base=base)


def follow(
    engine: Engine,
    job: driftless.Job,
    base: str,
    until: Callable[[int], bool] = lambda version: False,
    on_update: Callable[[driftless.UpdateReport], None] | None = None,
    wait_s: float = 0.5,
) -> int:
    """Keeps the engine at the newest version until the run ends or `until` returns true. Returns
    the version."""
    receiver = driftless.Receiver(job, make_target(engine.model, base))
    while not until(receiver.version):
        with no_grad():
            staged = receiver.stage(wait_s)  # the engine generates meanwhile
        if staged:
            update(engine, receiver, on_update)
            continue
        end = receiver.end()
        if end is not None and receiver.version >= end.version:
            break
    version = receiver.version
    receiver.leave()
    return version


def update(
    engine: Engine,
    receiver: driftless.Receiver,
    on_update: Callable[[driftless.UpdateReport], None] | None = None,
) -> driftless.UpdateReport:
    """Commits the staged version. The weights and their number change in one pause: no token is
    made by new weights under the old number."""
    engine.pause()
    try:
        with no_grad():
            report = receiver.commit()
        engine.version = report.version
    finally:
        engine.resume()
    if on_update is not None:
        on_update(report)
    return report


def load_model(path: str, dtype: str | None = None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    wanted = getattr(torch, dtype) if dtype else "auto"
    return AutoModelForCausalLM.from_pretrained(path, dtype=wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="driftless.engines.transformers", description=__doc__)
    parser.add_argument("--config", required=True, help="the job's YAML file")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE overrides the file")
    parser.add_argument("--model", required=True, help="the base checkpoint")
    parser.add_argument("--versions", type=int, default=None, help="end at this version")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    given = parser.parse_args(arguments)
    config = driftless.Config.read(given.config, given.set)
    engine = Engine(load_model(given.model))

    def show(report: driftless.UpdateReport) -> None:
        line = {"version": report.version, "changed": report.changed_units, "steps": engine.steps,
                "pause_ms": engine.pauses_ms[-1], "apply_ms": report.apply_ms}
        print(json.dumps(line) if given.json else
              f"version {report.version}: {report.changed_units} changed, paused for "
              f"{engine.pauses_ms[-1]:.1f} ms after {engine.steps} tokens", flush=True)

    with driftless.Job(config, "rollout") as job:
        engine.start([[1, 2, 3], [5, 8]], given.new_tokens)
        began = time.monotonic()
        last = given.versions
        version = follow(engine, job, given.model, lambda v: last is not None and v >= last, show)
        spans = sum(len(made.spans) > 1 for made in engine.stop())
        seconds = time.monotonic() - began
    end = {"version": version, "tokens": engine.steps, "seconds": round(seconds, 2), "mixed": spans}
    print(json.dumps(end) if given.json else
          f"at version {version}: {engine.steps} tokens in {seconds:.1f} s, {spans} texts over "
          "more than one version", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
