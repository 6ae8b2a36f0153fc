# SPDX-License-Identifier: Apache-2.0
"""Publisher ranks that Python joins: the group= argument of a job under torchrun."""

import contextlib
import sys
import threading

import pytest

import binding
import jobs
from support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402

driftless = binding.driftless()


@pytest.fixture
def first(rng):
    return binding.weights(rng)


class ThreadGroup:
    """Publisher ranks as threads, with the interface of group=."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared = rank, size, shared
        self.epochs = []

    def begin_epoch(self, number):
        self.epochs.append(number)

    def gather(self, message, timeout_s):
        assert isinstance(message, bytes) and timeout_s > 0
        self.shared["sent"][self.rank] = message
        self.shared["barrier"].wait(timeout_s)
        sent = list(self.shared["sent"])
        self.shared["barrier"].wait(timeout_s)
        return sent if self.rank == 0 else []

    def broadcast(self, message, timeout_s):
        if self.rank == 0:
            self.shared["said"] = message
        self.shared["barrier"].wait(timeout_s)
        output = self.shared["said"]
        self.shared["barrier"].wait(timeout_s)
        return output


def share(weights, rank, size):
    return {name: weights[name] for name in sorted(weights)[rank::size]}


@pytest.fixture(params=["shared_fs", "object_store"])
def config(request, work, monkeypatch):
    if request.param == "shared_fs":
        yield binding.config(driftless, work / "road", "anchors.first=true")
        return
    jobs.need("object_store")
    for name, value in servers.client_environment().items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(servers.serve("moto"))
        except servers.Unavailable as reason:
            pytest.skip(f"moto: {reason}")
        store = f"url: s3://{servers.BUCKET}/{work.name}, endpoint: {endpoint}"
        road = f"road: {{ kind: object_store, object_store: {{ {store} }} }}\n"
        yield driftless.Config.parse(road, ["anchors.first=true"])


def test_group_of_python(config, rng, first):
    """Two ranks; one of them fails once, and both continue."""
    second = binding.step(rng, first)
    shared = {"sent": [b""] * 2, "said": b"", "barrier": threading.Barrier(2)}
    results = [None, None]

    def rank_main(rank):
        job = driftless.Job(config, "trainer", launched=False)
        group = ThreadGroup(rank, 2, shared)
        mine = [share(w, rank, 2) for w in (first, second)]
        publisher = driftless.Publisher(job, binding.Source(driftless, mine[0]), group=group)
        source = binding.Source(driftless, mine[1])
        if rank == 1:
            source = binding.Broken(driftless, mine[1], failure=KeyError("mine"), at=0)
        try:
            publisher.publish(source)
            failure = None
        except Exception as caught:
            failure = caught
        report = publisher.publish(binding.Source(driftless, mine[1]))
        results[rank] = (failure, report.version, publisher.digest, group.epochs)
        job.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (failed_0, version_0, digest_0, epochs_0), (failed_1, version_1, digest_1, epochs_1) = results
    assert isinstance(failed_1, KeyError) and isinstance(failed_0, driftless.Error)
    assert "rank 1" in str(failed_0)
    assert version_0 == version_1 == 1 and digest_0 == digest_1 and epochs_0 == epochs_1
    job = driftless.Job(config, "rollout", launched=False)
    target = driftless.OwnedTarget()
    receiver = driftless.Receiver(job, target, id="one")
    while receiver.stage(1.0):
        receiver.commit()
    assert receiver.version == 1 and receiver.digest == digest_0 and binding.same(target, second)


def test_ranks_at_different_steps_make_no_version(work, rng, first):
    """They continue at the next step that both publish."""
    config = binding.config(driftless, work / "road")
    second = binding.step(rng, first)
    shared = {"sent": [b""] * 2, "said": b"", "barrier": threading.Barrier(2)}
    results = [None, None]

    def rank_main(rank):
        job = driftless.Job(config, "trainer", launched=False)
        bases, news = (binding.Source(driftless, share(w, rank, 2)) for w in (first, second))
        publisher = driftless.Publisher(job, bases, group=ThreadGroup(rank, 2, shared))
        found = [publisher.publish(news, step=5).version]
        for step in (3 + rank, 6 + rank, 8):  # the trainer may go back to an earlier step
            try:
                found.append(publisher.publish(news, step=step).version)
            except driftless.Error as failure:
                found.append(str(failure))
        results[rank] = found
        job.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for found in results:
        assert "rank 1 publishes step 4, publisher rank 0 step 3: no version" in found[1], results
        assert "out of step" in found[2] and [found[0], found[3]] == [1, 2], results


def test_a_wrong_group_is_refused(work, first):
    config = binding.config(driftless, work / "road", "road.layout=frames")
    job = driftless.Job(config, "trainer", launched=False)
    bad = ThreadGroup(2, 2, {})
    with pytest.raises(driftless.errors.InvalidArgumentError, match="rank 2 of 2"):
        driftless.Publisher(job, binding.Source(driftless, first), group=bad)
    other = driftless.Config.parse(f"road: {{ kind: host_shm, host_shm: {{ name: {work.name} }} }}\n")
    job = driftless.Job(other, "trainer", launched=False)
    with pytest.raises(driftless.errors.InvalidArgumentError, match="joins its trainers itself"):
        driftless.Publisher(
            job, binding.Source(driftless, first), group=ThreadGroup(0, 2, {})
        )
