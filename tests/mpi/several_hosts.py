#!/usr/bin/env python3
"""The mpi_rma road between several hosts, which are made of network namespaces on one machine.

    several_hosts.py ROAD_TEST CASE      ROAD_TEST: the binary mpi_road_test; CASE: see CASES
    several_hosts.py --list

Each host has a network namespace with one link to a bridge, and its own host name, processes, System V
objects and /dev/shm, so that MPI finds no way around the network. Needs root; exit status 77 says why
it was skipped.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
NET = "10.91.7"
UCX = ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "pml_ucx_tls", "any",
       "--mca", "pml_ucx_devices", "any"]
ENTER = """#!/bin/bash
# Enters a host and runs a command there: enter ADDRESS COMMAND...
host=${1##*.}; shift
exec ip netns exec @TAG@$host unshare --uts --ipc --pid --mount --fork --kill-child --mount-proc \\
  bash -c "hostname @TAG@$host; mount -t tmpfs tmpfs /dev/shm; $*"
"""


class Failed(Exception):
    pass


def call(*command, check=True):
    done = subprocess.run(command, text=True, capture_output=True)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done


class Hosts:
    """Hosts 1..count; mpirun runs on host 1."""

    def __init__(self, count, directory):
        self.count = count
        self.tag = f"dl{os.getpid() % 100000}h"
        self.directory = pathlib.Path(directory)
        self.enter = self.directory / "enter"
        self.enter.write_text(ENTER.replace("@TAG@", self.tag), encoding="utf-8")
        self.enter.chmod(0o755)

    def __enter__(self):
        try:
            call("ip", "link", "add", f"{self.tag}b", "type", "bridge")
            call("ip", "link", "set", f"{self.tag}b", "up")
            for i in range(1, self.count + 1):
                self.add(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def add(self, i):
        ns, link = f"{self.tag}{i}", f"{self.tag}v{i}"
        call("ip", "netns", "add", ns)
        call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", ns)
        call("ip", "link", "set", link, "master", f"{self.tag}b", "up")
        call("ip", "-n", ns, "addr", "add", f"{NET}.{i}/24", "dev", "eth0")
        call("ip", "-n", ns, "link", "set", "eth0", "up")
        call("ip", "-n", ns, "link", "set", "lo", "up")

    def __exit__(self, *_):
        for i in range(1, self.count + 1):
            call("ip", "netns", "del", f"{self.tag}{i}", check=False)
        call("ip", "link", "del", f"{self.tag}b", check=False)

    def cut(self, i):
        call("ip", "-n", f"{self.tag}{i}", "link", "set", "eth0", "down")

    def mend(self, i):
        call("ip", "-n", f"{self.tag}{i}", "link", "set", "eth0", "up")

    def slow(self, i, rate):
        call("ip", "netns", "exec", f"{self.tag}{i}", "tc", "qdisc", "add", "dev", "eth0", "root",
             "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")

    def received_bytes(self, i):
        done = call("ip", "-n", f"{self.tag}{i}", "-j", "-s", "link", "show", "eth0")
        return json.loads(done.stdout)[0]["stats64"]["rx"]["bytes"]

    def start(self, processes, flags, *command):
        """One process on each host in turn, started from host 1."""
        where = ",".join(f"{NET}.{i}" for i in range(1, self.count + 1))
        words = ["exec", "mpirun", "--allow-run-as-root", "--oversubscribe", "--host", where,
                 "--map-by", "node", "-n", str(processes), "--leave-session-attached",
                 "--mca", "plm_rsh_agent", str(self.enter), "--mca", "plm_rsh_no_tree_spawn", "1",
                 "--mca", "oob_tcp_if_include", f"{NET}.0/24", "--mca", "btl_tcp_if_include",
                 f"{NET}.0/24", "--mca", "mpi_yield_when_idle", "1", *flags, *map(str, command)]
        return Job([str(self.enter), f"{NET}.1", *words], self.directory)


class Job:
    """A running mpirun. Each of its processes writes a file, which needs no network."""

    def __init__(self, command, directory):
        self.directory = directory
        self.log = open(directory / "mpirun.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        start_new_session=True)

    def text(self):
        logs = sorted(self.directory.glob("rank*.log"))
        return "".join(path.read_text(encoding="utf-8") for path in logs)

    def mpirun_text(self):
        return (self.directory / "mpirun.log").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words, seconds):
        end = time.monotonic() + seconds
        while words not in self.text():
            if time.monotonic() > end or self.process.poll() is not None:
                raise Failed(f"no '{words}' within {seconds} s\n{self.text()}{self.mpirun_text()}")
            time.sleep(0.05)

    def wait(self, seconds):
        """The exit status, or None where it had to be killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def expect(condition, what, job):
    if not condition:
        raise Failed(f"{what}\n{job.text()}{job.mpirun_text()}")


def follow(hosts, road, processes, *more, flags=()):
    return hosts.start(processes, [*UCX, *flags], road, "follow", "--log-dir", hosts.directory, *more)


def case_full_speed(hosts, road):
    """The publisher computes and never enters MPI by itself: the progress thread serves."""
    job = follow(hosts, road, 3, "--versions", 10, "--part-bytes", 8_000_000, "--compute-ms", 300,
                 "--deadline-ms", 60_000)
    status = job.wait(100)
    expect(status == 0, f"mpirun ended with {status}", job)
    expect(hosts.received_bytes(2) > 150_000_000, "the bytes took another way", job)
    return job.text()


def case_single_thread(hosts, road):
    """Without MPI_THREAD_MULTIPLE: osc pt2pt, and the publisher's own calls serve."""
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
    """Every process ends by itself, with its deadline; mpirun may have to be killed."""
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
    """With MPI's own choice between hosts there is no window: the error names the flags."""
    job = hosts.start(2, [], road, "follow", "--log-dir", hosts.directory)
    status = job.wait(60)
    expect(status is not None, "it hangs", job)
    expect(job.text().count("--mca osc ucx") == 2, "the flags are not named", job)
    return job.text()


CASES = {name[5:]: function for name, function in globals().items() if name.startswith("case_")}


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "tc", "unshare", "mpirun"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    done = call("unshare", "--net", "--mount", "true", check=False)
    if done.returncode != 0:
        return f"no right to make namespaces: {done.stderr.strip()}"
    name = f"dl{os.getpid() % 100000}x"
    done = call("ip", "netns", "add", name, check=False)
    call("ip", "netns", "del", name, check=False)
    return None if done.returncode == 0 else f"no network namespaces: {done.stderr.strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("road_test", nargs="?")
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
            print(CASES[arguments.case](hosts, arguments.road_test))
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
