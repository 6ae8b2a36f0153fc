# SPDX-License-Identifier: Apache-2.0
"""A publisher and a receiver of the Python package, as separate processes:

python_roles.py publish CONFIG RUN SETTING...         replays a run
python_roles.py receive CONFIG BASE OUT SETTING...    follows it to its end; writes OUT.json,
OUT/"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from support import Tensor, read_checkpoint, write_checkpoint  # noqa: E402

import driftless  # noqa: E402


class Source:
    def __init__(self, path):
        self.weights = dict(sorted(read_checkpoint(path).items()))

    def tensors(self):
        return [driftless.TensorSpec(n, t.dtype, list(t.shape)) for n, t in self.weights.items()]

    def visit(self):
        for number, tensor in enumerate(self.weights.values()):
            memory = np.frombuffer(tensor.data or b"\0", np.uint8)
            at = memory.ctypes.data
            yield [(number, driftless.TensorRef.from_pointer(at, tensor.dtype, list(tensor.shape)))]


def publish(config, run):
    steps = sorted(Path(run).glob("step_*"))
    with driftless.Job(config, "trainer", launched=False) as job:
        publisher = driftless.Publisher(job, Source(steps[0]))
        while publisher.version < len(steps) - 1:
            report = publisher.publish(Source(steps[publisher.version + 1]))
            print(
                json.dumps(
                    {"event": "version", "version": report.version, "digest": report.digest}
                ),
                flush=True,
            )
            time.sleep(0.05)
        publisher.declare_end()
        print(
            json.dumps({"event": "end", "version": publisher.version, "run": publisher.run}),
            flush=True,
        )


def receive(config, base, out):
    target = driftless.OwnedTarget(base)
    with driftless.Job(config, "rollout", launched=False) as job:
        receiver = driftless.Receiver(job, target)
        end, until = None, time.monotonic() + 20
        while (end is None or receiver.version < end.version) and time.monotonic() < until:
            if receiver.stage(0.2):
                receiver.commit()
            end = end or receiver.end()
        state = target.state
        if not state.valid or end is None or state.version != end.version:
            raise SystemExit(f"at version {state.version}, the end is {end}")
        weights = {
            spec.name: Tensor(
                spec.dtype, tuple(spec.shape), np.asarray(target.tensor(spec.name)).tobytes()
            )
            for spec in target.layout
        }
        write_checkpoint(out, weights)
        claim = {
            "event": "rollout",
            "version": state.version,
            "digest": state.digest,
            "run": state.run,
        }
        print(json.dumps(claim), flush=True)


if __name__ == "__main__":
    role, path, first, *rest = sys.argv[1:]
    if role == "publish":
        publish(driftless.Config.load(path, rest), first)
    else:
        receive(driftless.Config.load(path, rest[1:]), first, rest[0])
