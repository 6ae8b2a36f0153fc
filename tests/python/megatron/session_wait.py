# SPDX-License-Identifier: Apache-2.0
"""How a Megatron session waits for its job's rollouts, over a real road: test_settings.py.

    session_wait.py WORK         one process; prints "WAITED ..." for each wait

The session has no model: only the wait at its end is tested.
"""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import driftless
import numpy as np
from driftless.megatron.report import Reporter
from driftless.megatron.session import Session


def session_of(publisher, patience_s):
    made = object.__new__(Session)
    made._publisher, made._job = publisher, SimpleNamespace(rollouts=1)
    made.config = SimpleNamespace(connect_s=patience_s)
    made.report = Reporter(0)
    return made


def leave(road, name, version, proof):
    """Writes the report of a receiver that no longer runs."""
    report = {"id": name, "version": version, "proof": proof, "needs": "", "beat": 1}
    (road / ".receivers").mkdir(exist_ok=True)
    (road / ".receivers" / f"{name}.json").write_text(json.dumps(report))


class Weights:
    """A source of one tensor."""

    def __init__(self, array):
        self.array = array

    def tensors(self):
        return [driftless.TensorSpec("w", "F32", self.array.shape)]

    def visit(self):
        yield [(0, self.array)]


def main():
    road = Path(sys.argv[1]) / "road"
    text = f"road: {{ kind: shared_fs, shared_fs: {{ dir: {road} }} }}\nanchors: {{ first: true }}\n"
    config = driftless.Config.parse(text)
    trainer = driftless.Job(config, "trainer", launched=False)
    rollout = driftless.Job(config, "rollout", launched=False)
    weights = np.arange(64, dtype=np.float32)
    publisher = driftless.Publisher(trainer, Weights(weights))
    receiver = driftless.Receiver(rollout, driftless.OwnedTarget(), id="one")
    weights[3] = -1.0
    assert publisher.publish(Weights(weights)).version == 1

    # Reports of the same number, of a later one, and none: none holds version 1 of this run.
    leave(road, "same", 1, "0" * 32)
    leave(road, "later", 7, "1" * 32)
    leave(road, "nothing", 1, "")
    leave(road, "anchor", 1, "anchor wanted")
    session_of(publisher, 0.5)._wait_for_rollouts()
    print("WAITED in vain", flush=True)

    def follow():
        while receiver.version != 1:
            assert receiver.stage(60)
            receiver.commit()

    follower = threading.Thread(target=follow)
    follower.start()
    session_of(publisher, 60.0)._wait_for_rollouts()
    print(f"WAITED until {[r.id for r in publisher.receivers() if r.digest == publisher.digest]}")
    follower.join()


main()
