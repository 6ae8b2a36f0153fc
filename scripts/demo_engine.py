# SPDX-License-Identifier: Apache-2.0
"""The engine of scripts/demo_megatron.py: a transformers model that generates all the time, and
follows the run as its rollout.

    demo_engine.py JOB.json BASE     under mpirun beside the trainers

BASE provides names, shapes and dtypes only: its weights are random, so the run's first version is
whole. Writes WORK/engine.json, and WORK/engine.pickle with the model's weights at the end.
"""

import argparse
import json
import pickle
import sys
import time
from pathlib import Path

import torch

import driftless
import driftless.megatron
from driftless.engines import ModuleTarget
from driftless.engines import transformers as engines

PROMPTS = ([5, 17, 42], [77, 200, 12, 1999])
NEW_TOKENS = 32


class Watch:
    """Records (begin, end) in seconds: of each computed token, and of each staging."""

    def __init__(self, model):
        self.tokens, self.stagings, self.versions = [], [], []
        self._token_begins = 0.0
        self._staging_begins = None
        model.register_forward_pre_hook(self._before_token)
        model.register_forward_hook(self._after_token)

    def _before_token(self, *_):
        self._token_begins = time.monotonic()

    def _after_token(self, *_):
        self.tokens.append((self._token_begins, time.monotonic()))

    def before_read(self, _version):
        """The receiver calls it when a version is visible, before it reads any of it."""
        self._staging_begins = self._staging_begins or time.monotonic()

    def staged(self, something):
        if something:
            self.stagings.append((self._staging_begins, time.monotonic()))
        self._staging_begins = None

    def committed(self, report):
        self.versions.append(report.version)

    def tokens_while_staging(self):
        """The tokens that were computed during any part of a staging: none if the engine paused."""
        return sum(
            any(begin < end_staging and begin_staging < end
                for begin_staging, end_staging in self.stagings)
            for begin, end in self.tokens
        )  # fmt: skip


def follow(engine, receiver, watch):
    """Follows until the run ends. The engine generates, except during commits."""
    while True:
        staged = receiver.stage(0.1)
        watch.staged(staged)
        if staged:
            engines.update(engine, receiver, watch.committed)
            continue
        end = receiver.end()
        if end is not None and receiver.version >= end.version:
            return


def leave(work, engine, watch):
    made = engine.stop()
    tensors = {
        name: bytes(tensor.detach().contiguous().view(torch.uint8).numpy())
        for name, tensor in engine.model.state_dict().items()
    }
    (work / "engine.pickle").write_bytes(pickle.dumps(tensors))
    found = {
        "versions": watch.versions,
        "tokens": engine.steps,
        "tokens_while_staging": watch.tokens_while_staging(),
        "staging_ms": [(end - begin) * 1e3 for begin, end in watch.stagings],
        "pauses_ms": engine.pauses_ms,
        "texts": len(made),
        "mixed": sum(len(one.spans) > 1 for one in made),
    }
    (work / "engine.json").write_text(json.dumps(found))


def main():
    given, base = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
    torch.set_num_threads(1)
    engine = engines.Engine(engines.load_model(base))
    watch = Watch(engine.model)
    parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
    options = driftless.megatron.options_from(parser.parse_args(given["flags"]))
    with driftless.Job(driftless.megatron.load_config(options), "rollout") as job:
        target = ModuleTarget(engine.model, base=base, version=None)
        receiver = driftless.Receiver(job, target, id="engine", before_read=watch.before_read)
        engine.start(PROMPTS, NEW_TOKENS)
        follow(engine, receiver, watch)
        leave(Path(given["work"]), engine, watch)
        receiver.leave()
        receiver.close()


main()
