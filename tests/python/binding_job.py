# SPDX-License-Identifier: Apache-2.0
"""One process of a job under mpirun, using the Python package: `binding_job.py ROLE CONFIG ...`.

A trainer publishes some steps of its share of the weights; a rollout follows, and compares every
version with weights that it computes itself; a bystander only joins. Prints one line at the end.
"""

import argparse
import sys

import numpy as np

import binding


def history(steps):
    rng = np.random.default_rng(7)
    made = [binding.weights(rng)]
    for _ in range(steps):
        made.append(binding.step(rng, made[-1]))
    return made


def share(weights, rank, size):
    names = sorted(weights)
    return {name: weights[name] for name in names[rank::size]}


def train(driftless, job, made):
    mine = [share(weights, job.rank, job.trainers) for weights in made]
    publisher = driftless.Publisher(job, binding.Source(driftless, mine[0]))
    for number, weights in enumerate(mine[1:], 1):
        report = publisher.publish(binding.Source(driftless, weights))
        assert report.version == number, report
    whole = driftless.digest((n, a) for n, (_, a) in made[-1].items())
    assert publisher.digest == whole
    publisher.declare_end()


def train_live(driftless, job, made):
    """Without a snapshot, publishing during the next step."""
    mine = [share(weights, job.rank, job.trainers) for weights in made]
    weights = {name: (dtype, array.copy()) for name, (dtype, array) in mine[0].items()}
    source = binding.Source(driftless, weights)
    publisher = driftless.Publisher(job, source, snapshot="none")
    for number, after in enumerate(mine[1:], 1):
        publisher.capture((i, after[name][1]) for i, name in enumerate(weights))
        for name, (_, array) in weights.items():
            array[...] = after[name][1]
        publisher.publish(source, wait=False)
        if number % 2 == 0:
            report = publisher.wait()
            assert report.version == number and not report.notes, report.notes
            assert report.encoding != "full", report
    publisher.wait()
    whole = driftless.digest((n, a) for n, (_, a) in made[-1].items())
    assert publisher.digest == whole
    publisher.declare_end()


def roll_out(driftless, job, made):
    target = driftless.OwnedTarget()
    receiver = driftless.Receiver(job, target)
    end = None
    while end is None or receiver.version < end.version:
        if receiver.stage(0.2):
            receiver.commit()
            assert binding.same(target, made[receiver.version])
        end = end or receiver.end()
    assert end.digest == receiver.digest
    assert receiver.end().version == end.version  # the end can be read more than once
    receiver.leave()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--live", action="store_true", help="trainers keep no snapshot")
    parser.add_argument("--mpi4py", action="store_true", help="initialize MPI by mpi4py first")
    arguments = parser.parse_args()
    if arguments.mpi4py:
        from mpi4py import MPI
    driftless = binding.driftless()
    config = driftless.Config.load(arguments.config, arguments.set)
    made = history(arguments.steps)
    with driftless.Job(config, arguments.role) as job:
        if job.role != "bystander":
            assert job.together
            trains = train_live if arguments.live else train
            (trains if job.role == "trainer" else roll_out)(driftless, job, made)
        place = f"{job.role} {job.rank} of {job.trainers}+{job.rollouts}"
    assert job.closed
    if arguments.mpi4py:
        assert not MPI.Is_finalized()
        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
    print(f"done {place}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
