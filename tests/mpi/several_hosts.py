#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The mpi_rma road and the main job between several hosts, which are network namespaces (hosts.py).

    several_hosts.py PROGRAM CASE      PROGRAM: mpi_road_test; for the cases job_*: driftless
    several_hosts.py --list

Needs root; if it is skipped, prints the reason, exit status 77.
"""
import argparse
import pathlib
import sys
import tempfile
import time

from hosts import LARGE_SEGMENTS, SKIPPED, UCX, Failed, Hosts, expect, why_not


def follow(hosts, road, processes, *more, flags=()):
    return hosts.start(processes, [*UCX, *flags], road, "follow", "--log-dir", hosts.directory, *more)


def case_full_speed(hosts, road):
    """The publisher computes and does not enter MPI: the progress thread serves receivers."""
    job = follow(hosts, road, 3, "--versions", 10, "--part-bytes", 8_000_000, "--compute-ms", 300,
                 "--deadline-ms", 60_000)
    status = job.wait(100)
    expect(status == 0, f"mpirun ended with {status}", job)
    expect(hosts.received_bytes(2) > 150_000_000, "the bytes did not use the link", job)
    return job.text()


def case_single_thread(hosts, road):
    """Without MPI_THREAD_MULTIPLE: osc pt2pt; the publisher's own calls serve receivers."""
    job = hosts.start(2, ["--mca", "pml", "ob1", "--mca", "osc", "pt2pt"], road, "level", "--level",
                      "single", "--log-dir", hosts.directory, "--deadline-ms", 60_000)
    status = job.wait(100)
    expect(status == 0, f"mpirun ended with {status}", job)
    return job.text()


def case_slow_link(hosts, road):
    hosts.slow(1, "100mbit")
    job = follow(hosts, road, 3, "--versions", 4, "--part-bytes", 2_000_000, "--deadline-ms", 60_000)
    status = job.wait(100)
    expect(status == 0, f"mpirun ended with {status}", job)
    return job.text()


def case_cut_for_a_while(hosts, road):
    job = follow(hosts, road, 3, "--versions", 30, "--part-bytes", 2_000_000, "--compute-ms", 200,
                 "--deadline-ms", 80_000)
    job.wait_for("published 5", 60)
    hosts.cut(2)
    time.sleep(4)
    hosts.mend(2)
    status = job.wait(100)
    expect(status == 0, f"mpirun ended with {status}", job)
    return job.text()


def case_cut_for_good(hosts, road):
    """Every process ends by itself at its deadline; mpirun may have to be killed."""
    job = follow(hosts, road, 2, "--versions", 30, "--part-bytes", 2_000_000, "--compute-ms", 200,
                 "--deadline-ms", 6_000, "--expect-deadline")
    job.wait_for("published 5", 60)
    hosts.cut(2)
    end = time.monotonic() + 60
    while job.text().count("ended with") < 2 and time.monotonic() < end:
        time.sleep(0.1)
    job.wait(5)
    expect(job.text().count("ended with 0 failures") == 2, "not all ended well", job)
    return job.text()


def case_wrong_flags(hosts, road):
    """With MPI's default choice between hosts there is no window: the error names the flags."""
    job = hosts.start(2, [], road, "follow", "--log-dir", hosts.directory)
    status = job.wait(60)
    expect(status is not None, "it hangs", job)
    expect(job.text().count("--mca osc ucx") == 2, "the flags are not named", job)
    return job.text()


CONFIG = """
mode: delta
encoding: deltas
road: { kind: mpi_rma, ring_size: 64MiB, ring_versions: 64 }
anchors: { first: true, every: 32 }
deadlines: { publish: 20s, fetch: 20s, connect: 20s }
threads: 1
"""
# The output of a process behind a cut link must not need the network.
LOGGED = """#!/bin/bash
exec "$@" > @DIR@/rank$OMPI_COMM_WORLD_RANK.log 2>&1
"""
STEPS = 40


class MainJob:
    """Two trainers on host 1, and one rollout each on hosts 2 and 3."""

    def __init__(self, hosts, driftless, *settings):
        self.directory = hosts.directory
        config = self.directory / "job.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        logged = self.directory / "logged"
        logged.write_text(LOGGED.replace("@DIR@", str(self.directory)), encoding="utf-8")
        logged.chmod(0o755)
        common = ["--config", config]
        for setting in settings:
            common += ["--set", setting]
        self.job = hosts.start_apps(
            [*UCX, *LARGE_SEGMENTS],
            ([1], 2, [logged, driftless, "trainer", *common, "--params", 2_000_000, "--steps", STEPS,
                      "--interval-ms", 150]),
            ([2, 3], 2, [logged, driftless, "rollout", *common, "--verbose", "--save",
                         self.directory / "saved"]))

    def log(self, rank):
        path = self.directory / f"rank{rank}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def expect_same(self):
        """Expects that both rollouts ended at the last version, with the same bytes."""
        status = self.job.wait(60)
        expect(status == 0, f"mpirun ended with {status}", self.job)
        expect(f"All rollouts ended at version {STEPS}" in self.log(0), "no summary", self.job)
        saved = [pathlib.Path(self.directory, "saved", f"rollout_{r:02d}", "model.safetensors")
                 .read_bytes() for r in (0, 1)]
        expect(len(saved[0]) > 4_000_000 and saved[0] == saved[1], "weights differ", self.job)
        return self.job.text()


def case_job_same_bits(hosts, driftless):
    job = MainJob(hosts, driftless)
    text = job.expect_same()
    expect(hosts.received_bytes(2) > 4_000_000, "the bytes did not use the link", job.job)
    return text


def case_job_cut_for_a_while(hosts, driftless):
    """The other rollout follows meanwhile; the one behind the link folds the versions that it missed."""
    job = MainJob(hosts, driftless)
    job.job.wait_for("rollout_01: version 5,", 40)
    hosts.cut(3)
    job.job.wait_for("rollout_00: version 30,", 20)
    hosts.mend(3)
    return job.expect_same()


def case_job_cut_for_good(hosts, driftless):
    """Every process ends within its deadlines, with one error line; mpirun may have to be killed."""
    job = MainJob(hosts, driftless, "deadlines.connect=4s", "deadlines.fetch=3s",
                  "deadlines.publish=3s")
    job.job.wait_for("rollout_01: version 5,", 40)
    hosts.cut(3)
    end = time.monotonic() + 35
    while any(hosts.runs(i, "driftless") for i in (1, 2, 3)):
        expect(time.monotonic() < end, "a process hangs", job.job)
        time.sleep(0.1)
    job.job.wait(1)
    lines = [[line for line in job.log(rank).splitlines() if line.startswith("driftless: ")]
             for rank in range(4)]
    expect("rollout_01" in "".join(lines[0]), "the trainer does not name who is missing", job.job)
    for rank in range(4):
        expect(any("deadline_exceeded" in line for line in lines[rank]), f"rank {rank} is silent",
               job.job)
    expect(f"rollout_00: version {STEPS}," in job.log(2), "the other rollout stopped", job.job)
    return job.job.text()


CASES = {name[5:]: function for name, function in globals().items() if name.startswith("case_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("program", nargs="?")
    parser.add_argument("case", nargs="?", choices=sorted(CASES))
    arguments = parser.parse_args()
    if arguments.list or arguments.case is None:
        print("\n".join(CASES))
        return 0
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return SKIPPED
    with tempfile.TemporaryDirectory() as directory, Hosts(3, directory) as hosts:
        try:
            print(CASES[arguments.case](hosts, arguments.program))
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
