# SPDX-License-Identifier: Apache-2.0
"""A Slurm for tests: its own munged and slurmctld, and one slurmd per node, all on this host, with
all files in one directory."""

import os
import pwd
import shutil
import socket
import subprocess
import time

import pytest

from ports import free_port

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={dir}/munge.sock
SlurmctldPort={control_port}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN\n"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")


class Slurm:
    def __init__(self, work, nodes=1):
        path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
        programs = {name: shutil.which(name, path=path) for name in PROGRAMS}
        missing = [name for name, found in programs.items() if found is None]
        if missing:
            pytest.skip(f"Slurm is not installed (slurm-wlm, munge): no {', '.join(missing)}")
        self.work, self.started = work, []
        (work / "state").mkdir()
        (work / "munge.key").write_bytes(os.urandom(1024))
        (work / "munge.key").chmod(0o600)
        work.chmod(0o755)
        self.conf = work / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        self.nodes = [host] if nodes == 1 else [f"node{number}" for number in range(nodes)]
        listed = [NODE.format(name=name, host=host, port=free_port()) for name in self.nodes]
        user = pwd.getpwuid(os.getuid()).pw_name
        common = CONF.format(host=host, user=user, dir=work, control_port=free_port())
        self.conf.write_text("".join(listed) + common)
        self.env = {"SLURM_CONF": str(self.conf)}
        files = (("key", "key"), ("pid", "pid"), ("log", "log"), ("seed", "seed"))
        munge = [f"--{option}-file={work}/munge.{ending}" for option, ending in files]
        self._start(programs["munged"], "-F", "--force", f"--socket={work}/munge.sock", *munge)
        self._wait(lambda: (work / "munge.sock").exists(), "munged")
        self._start(programs["slurmctld"], "-D", "-c")
        for name in self.nodes:
            (work / f"spool-{name}").mkdir()
            self._start(programs["slurmd"], "-D", "-c", *(["-N", name] if nodes > 1 else []))
        self._wait(self._idle, "the nodes")

    def _start(self, *line):
        log = open(self.work / f"{os.path.basename(line[0])}-{len(self.started)}.log", "w")
        env = {**os.environ, **self.env}
        self.started.append(subprocess.Popen(line, env=env, stdout=log, stderr=subprocess.STDOUT))

    def _idle(self):
        line = ["sinfo", "--noheader", "--Node", "--format=%T"]
        return self._ask(*line).split() == ["idle"] * len(self.nodes)

    def _wait(self, there, what):
        until = time.monotonic() + 300
        while not there():
            if time.monotonic() > until or any(p.poll() is not None for p in self.started):
                output = "\n".join(p.read_text()[-1000:] for p in self.work.glob("*.log"))
                self.stop()
                pytest.fail(f"{what} did not appear: {output}")
            time.sleep(0.05)

    def _ask(self, *line):
        env = {**os.environ, **self.env}
        return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120).stdout

    def stop(self):
        """Also ends the jobs that a failed test left running."""
        until = time.monotonic() + 20
        try:
            while self._ask("squeue", "--noheader") and time.monotonic() < until:
                self._ask("scancel", "--partition=all")
                self._ask("scancel", "--signal=KILL", "--full", "--partition=all")
                time.sleep(0.5)
        except (OSError, subprocess.TimeoutExpired):
            pass  # no controller: no job
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
