# SPDX-License-Identifier: Apache-2.0
"""A trainer or a rollout over a bucket of the stand-in: `hub_job.py ROLE ENDPOINT URL STEPS`.
Contents go to the stand-in instead of Xet's store. A trainer continues where the previous one
ended; a rollout prints its last version."""

import sys
from pathlib import Path

import huggingface_hub.utils._xet

import binding
from binding_job import history

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "object_store"))
from hub_stand_in import XetSession  # noqa: E402


def train(driftless, job, made):
    publisher = driftless.Publisher(job, binding.Source(driftless, made[0]))
    for weights in made[publisher.version + 1 :]:
        publisher.publish(binding.Source(driftless, weights))
    assert publisher.digest == driftless.digest((n, a) for n, (_, a) in made[-1].items())
    publisher.declare_end()
    return publisher.version


def roll_out(driftless, job, made):
    target = driftless.OwnedTarget()
    receiver = driftless.Receiver(job, target)
    while receiver.version < len(made) - 1:
        if receiver.stage(0.5):
            receiver.commit()
            assert binding.same(target, made[receiver.version])
    receiver.leave()
    return receiver.version


def main():
    role, endpoint, url, steps, *settings = sys.argv[1:]
    huggingface_hub.utils._xet.get_xet_session = lambda: XetSession(endpoint)
    driftless = binding.driftless()
    text = f"road: {{ kind: object_store, object_store: {{ url: '{url}' }}, poll_first: 5ms, poll_longest: 50ms }}"
    config = driftless.Config.parse(text, ["threads=2", "anchors.first=true", "deadlines.connect=60s", *settings])
    with driftless.Job(config, role, launched=False) as job:
        print((train if role == "trainer" else roll_out)(driftless, job, history(int(steps))))


if __name__ == "__main__":
    main()
