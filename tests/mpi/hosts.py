# SPDX-License-Identifier: Apache-2.0
"""Several hosts made of network namespaces on one machine, and mpirun jobs over them.

Each host has a network namespace with one link to a bridge, and its own host name, processes, System V
objects and /dev/shm, so that MPI cannot bypass the network. Needs root: why_not() returns the reason.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

SKIPPED = 77
NET = "10.91.7"
UCX = ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "pml_ucx_tls", "any",
       "--mca", "pml_ucx_devices", "any"]
# By default UCX sends 8 KB at a time over TCP. More than the other side's UCX_TCP_RX_SEG_SIZE (64k)
# would end the processes there.
LARGE_SEGMENTS = ["-x", "UCX_TCP_TX_SEG_SIZE=64k"]
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
            # Daemons of mpirun leave its process group.
            for number in self.pids(i):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            # The namespace may outlive its name, and would keep the link until its processes end.
            call("ip", "link", "del", f"{self.tag}v{i}", check=False)
            call("ip", "netns", "del", f"{self.tag}{i}", check=False)
        call("ip", "link", "del", f"{self.tag}b", check=False)

    def cut(self, i):
        call("ip", "-n", f"{self.tag}{i}", "link", "set", "eth0", "down")

    def mend(self, i):
        call("ip", "-n", f"{self.tag}{i}", "link", "set", "eth0", "up")

    def slow(self, i, rate, burst="256kb"):
        """Limits the rate at which host i sends; the burst must be some milliseconds of the rate."""
        call("ip", "netns", "exec", f"{self.tag}{i}", "tc", "qdisc", "add", "dev", "eth0", "root",
             "tbf", "rate", rate, "burst", burst, "latency", "50ms")

    def received_bytes(self, i):
        done = call("ip", "-n", f"{self.tag}{i}", "-j", "-s", "link", "show", "eth0")
        return json.loads(done.stdout)[0]["stats64"]["rx"]["bytes"]

    def pids(self, i):
        """The processes on host i, by their ids on this machine."""
        return [int(number) for number in
                call("ip", "netns", "pids", f"{self.tag}{i}", check=False).stdout.split()]

    def runs(self, i, name):
        """Whether host i has a live process of that name."""
        for number in self.pids(i):
            with contextlib.suppress(OSError):
                state = pathlib.Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
                command, rest = state.split("(", 1)[1].rsplit(")", 1)
                if command == name and rest.split()[0] != "Z":
                    return True
        return False

    def start(self, processes, flags, *command):
        """Starts processes from host 1, one on each host in turn."""
        everywhere = range(1, self.count + 1)
        return self.start_apps(flags, (everywhere, processes, command))

    def start_apps(self, flags, *apps, yields=False):
        """Starts an MPMD job from host 1. An app: its hosts, its number of processes, its command.

        yields: waiting processes yield their core to others, for machines with too few cores.
        """
        # Not bound: every host would bind its first process to the machine's first core.
        words = ["exec", "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                 "--leave-session-attached", "--mca", "plm_rsh_agent", str(self.enter),
                 "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", f"{NET}.0/24",
                 "--mca", "btl_tcp_if_include", f"{NET}.0/24",
                 "--mca", "mpi_yield_when_idle", str(int(yields)), *flags]
        for number, (hosts, processes, command) in enumerate(apps):
            where = ",".join(f"{NET}.{i}" for i in hosts)
            words += [] if number == 0 else [":"]
            words += ["--host", where, "--map-by", "node", "-n", str(processes), *map(str, command)]
        return Job([str(self.enter), f"{NET}.1", *words], self.directory)

    def run_on(self, i, *command):
        """The command line that runs a command on host i."""
        return [str(self.enter), f"{NET}.{i}", "exec", *map(str, command)]


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
        """Returns the exit status, or None if the job had to be killed."""
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
