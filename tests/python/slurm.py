# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node for tests: its own munged, slurmctld and slurmd, with all files in a directory."""

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
SlurmdPort={node_port}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
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
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")


class Slurm:
    def __init__(self, work):
        path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
        programs = {name: shutil.which(name, path=path) for name in PROGRAMS}
        missing = [name for name, found in programs.items() if found is None]
        if missing:
            pytest.skip(f"Slurm is not installed (slurm-wlm, munge): no {', '.join(missing)}")
        self.work, self.started = work, []
        (work / "state").mkdir()
        (work / "spool").mkdir()
        (work / "munge.key").write_bytes(os.urandom(1024))
        (work / "munge.key").chmod(0o600)
        work.chmod(0o755)
        self.conf = work / "slurm.conf"
        self.conf.write_text(
            CONF.format(
                host=socket.gethostname().split(".")[0], user=pwd.getpwuid(os.getuid()).pw_name,
                dir=work, control_port=free_port(), node_port=free_port(),
            )  # fmt: skip
        )
        self.env = {"SLURM_CONF": str(self.conf)}
        files = (("key", "key"), ("pid", "pid"), ("log", "log"), ("seed", "seed"))
        munge = [f"--{option}-file={work}/munge.{ending}" for option, ending in files]
        self._start(programs["munged"], "-F", "--force", f"--socket={work}/munge.sock", *munge)
        self._wait(lambda: (work / "munge.sock").exists(), "munged")
        self._start(programs["slurmctld"], "-D", "-c")
        self._start(programs["slurmd"], "-D", "-c")
        self._wait(self._idle, "the node")

    def _start(self, *line):
        log = open(self.work / f"{os.path.basename(line[0])}.log", "w")
        env = {**os.environ, **self.env}
        self.started.append(subprocess.Popen(line, env=env, stdout=log, stderr=subprocess.STDOUT))

    def _idle(self):
        line = ["sinfo", "--noheader", "--format=%T"]
        found = subprocess.run(line, env={**os.environ, **self.env}, capture_output=True, text=True)
        return found.stdout.strip() == "idle"

    def _wait(self, there, what):
        until = time.monotonic() + 30
        while not there():
            if time.monotonic() > until or any(p.poll() is not None for p in self.started):
                said = "\n".join(p.read_text()[-1000:] for p in self.work.glob("*.log"))
                self.stop()
                pytest.fail(f"{what} did not come: {said}")
            time.sleep(0.05)

    def stop(self):
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
