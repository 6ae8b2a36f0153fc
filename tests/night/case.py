# SPDX-License-Identifier: Apache-2.0
"""One case with real processes, drawn from a seed: a run, a road, followers, a fault at a random
moment, a restart. All claims of a version are compared with the record: a rollout's exit and
closing line, a labelled checkpoint, a trainer's closing line, `apply` and `verify`."""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from record import REPOSITORY, Record, Run, check_checkpoint, difference, random_model, read_state

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
from jobs import environment, mpirun_line  # noqa: E402
from support import COMMAND, read_checkpoint  # noqa: E402

# A process that still runs this long after the last fault hangs: the limit exceeds the sum of all
# deadlines. It grows with the load of the machine.
LIMIT_S = 75 * min(4.0, max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1))))
PYTHON = os.environ.get("DRIFTLESS_NIGHT_PYTHON", "/usr/bin/python3")

# Further contracts, beside "every claim is true". False: the product does not keep the contract
# yet, and only `--contracts all` checks it.
CONTRACTS = {
    # `trainer --rollouts N` ends with 0 only if N rollouts that lived then hold its last version.
    "counted_followers_lived": True,
    # A trainer that ends with 0 published its own run, even if another run was in the same place.
    "own_run": True,
    # Without a fault, and after a stop shorter than the deadlines, every process succeeds.
    "smooth_succeeds": True,
}

# Roads without mpirun: (layout, configuration, encodings).
FILES = {
    "flush": ("shared_fs_flush.yaml", ("deltas_zstd", "deltas", "indices")),
    "frames": ("shared_fs_flush.yaml", ("auto", "deltas", "compact", "indices")),
    "hf_delta": ("shared_fs_sglang.yaml", ("xor", "overwrite")),
    "trl": ("shared_fs_flush.yaml", ("auto",)),
}
FAULTS = (
    "none", "none", "stop trainer", "stop follower", "kill trainer", "kill trainer", "kill follower",
    "kill follower", "kill all", "end trainer", "two trainers", "other run", "other run, same place",
)  # fmt: skip
SMOOTH = ("none", "stop trainer", "stop follower")
MPI_FAULTS = (*SMOOTH, "kill all", "kill follower", "other run")


class Wrong(Exception):
    """A false claim, a success without its condition, or a process that hangs."""


@dataclass
class Process:
    """One process of a trainer or a follower; after a restart there is another."""

    role: str  # trainer, rollout, agent, worker, python rollout, mpi job
    run: Run
    popen: subprocess.Popen
    out: Path
    name: str = ""  # of a follower; the same after a restart
    save: Path | None = None  # where a rollout saves its weights
    checkpoint: Path | None = None  # the checkpoint that it patches
    rollouts: int = 0  # the number that a trainer waits for
    place: int = 0  # index of the case's road
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None  # time of its kill, or when its end was noticed
    killed: bool = False

    def look(self):
        if self.ended is None and self.popen.poll() is not None:
            self.ended = time.monotonic()
        return self.ended is None

    def events(self):
        found = []
        for line in self.out.with_suffix(".out").read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def output(self):
        return (self.out.with_suffix(".err").read_text().strip() or "nothing").splitlines()[-1]


def pids_in(work: Path) -> list[int]:
    """Processes whose command line has the case's directory: ours, and those that mpirun
    started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if str(work).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


@functools.cache
def not_built() -> frozenset[str]:
    """Roads that this build lacks, according to the command."""
    output = subprocess.run([COMMAND, "info", "--json"], capture_output=True, check=True).stdout
    missing = (each["name"] for each in json.loads(output)["backends"] if not each["built"])
    return frozenset(name.removeprefix("shared_fs/") for name in missing)


class Case:
    def __init__(self, seed: int, work: Path, endpoint: str | None, contracts: dict[str, bool]):
        self.seed, self.work, self.endpoint, self.contracts = seed, work, endpoint, contracts
        self.draw = draw = random.Random(seed)
        self.until = time.monotonic() + LIMIT_S
        self.processes: list[Process] = []
        self.compared = 0  # number of compared claims
        self.took = 0.0  # seconds
        self.road = draw.choice(
            (*FILES, "flush", "frames", "hf_delta", "mpi_rma", "hdf5", "object_store")
        )
        if (self.road == "object_store" and not endpoint) or self.road in not_built():
            self.road = "flush"
        self.mpi = self.road in ("mpi_rma", "hdf5")
        self.faults = [draw.choice(MPI_FAULTS if self.mpi else FAULTS)]
        if not self.mpi:
            self.faults += draw.choices(FAULTS, k=draw.choice((0, 0, 1, 2)))
        self.places = 0
        self.config, encodings = FILES.get(
            self.road, (f"{self.road}.yaml", ("auto", "deltas", "deltas_zstd", "indices"))
        )
        self.config = {"mpi_rma": "single_node.yaml", "hdf5": "parallel_hdf5.yaml"}.get(
            self.road, self.config
        )
        self.settings = {
            "encoding": draw.choice(encodings), "deadlines.connect": "8s", "deadlines.fetch": "5s",
            "deadlines.publish": "10s", "anchors.first": "true", "anchors.every": str(draw.choice((0, 2, 3))),
            "buffer_size": draw.choice(("64KiB", "1MiB", "64MiB")), "keep_versions": str(draw.choice((0, 2, 200))),
        }  # fmt: skip
        if self.smooth():  # long deadlines: a busy machine is no failure
            self.settings |= {
                f"deadlines.{wait}": "50s" for wait in ("connect", "fetch", "publish")
            }
        self.place(work / "road")
        model = random_model(draw)
        self.first = Run(work / "run0", model, seed, draw.randint(2, 6))
        self.other = self.make_other(model)
        self.record = Record([self.first, self.other])
        self.interval = draw.choice((20, 60, 120))
        self.followers = self.draw_followers()
        self.same_ids = draw.random() < 0.5

    def place(self, road: Path):
        if self.road == "object_store":
            self.settings |= {
                "road.object_store.url": f"s3://road/{self.work.name}-{road.name}",
                "road.object_store.endpoint": self.endpoint,
            }
        elif self.road != "mpi_rma":
            self.settings["road.shared_fs.dir"] = str(road)
        if self.road in FILES:
            self.settings["road.layout"] = self.road
        if not self.mpi:
            self.settings |= {"road.poll_longest": "50ms"}

    def make_other(self, model) -> Run:
        """Another run: with the same base, another base, or another model."""
        kind = self.draw.randrange(4)
        base = self.first.history[0] if kind < 2 else None
        shape = random_model(self.draw) if kind == 3 else model
        return Run(self.work / "run1", shape, self.seed + 1_000_000, self.draw.randint(1, 6), base)

    def smooth(self) -> bool:
        return set(SMOOTH).issuperset(self.faults)

    def draw_followers(self) -> list[str]:
        kinds = ["memory", "memory", "checkpoint", "checkpoint", "agent", "python"]
        if self.mpi:
            kinds = ["memory"]
        if self.road == "trl":
            kinds = ["memory", "checkpoint"]
        return [self.draw.choice(kinds) for _ in range(self.draw.randint(1, 2))]

    def __str__(self):
        return f"{self.road}/{self.settings['encoding']}, {'+'.join(self.followers)}, {'; '.join(self.faults)}"

    # --- processes -------------------------------------------------------------------------------

    def line(self, role: str, *arguments, **settings) -> list[str]:
        line = [
            role,
            "--config",
            str(REPOSITORY / "configs" / self.config),
            "--threads",
            "1",
            "--json",
        ]
        for key, value in (self.settings | settings).items():
            line += ["--set", f"{key}={value}"]
        return [*line, *map(str, arguments)]

    def start(self, role: str, run: Run, line: list[str], **more) -> Process:
        out = self.work / f"process{len(self.processes)}"
        env = environment() | {
            "PYTHONPATH": str(REPOSITORY / "build/python"),
            "TMPDIR": str(self.work),
        }
        if self.endpoint:
            import servers

            env |= servers.client_environment()
        with (
            open(out.with_suffix(".out"), "w") as stdout,
            open(out.with_suffix(".err"), "w") as stderr,
        ):
            popen = subprocess.Popen(
                line, stdout=stdout, stderr=stderr, env=env, cwd=self.work, start_new_session=True
            )
        process = Process(role, run, popen, out, place=self.places, **more)
        self.processes.append(process)
        return process

    def start_trainer(self, run: Run) -> Process:
        if "python" in self.followers and self.draw.random() < 0.4:
            line = [PYTHON, str(REPOSITORY / "tests/night/python_roles.py"), "publish"]
            line += [str(REPOSITORY / "configs" / self.config), str(run.path)]
            return self.start(
                "python trainer", run, [*line, *(f"{k}={v}" for k, v in self.settings.items())]
            )
        arguments = ["--replay", run.path, "--interval-ms", self.interval]
        if self.rollouts:
            arguments += ["--rollouts", self.rollouts]
        line = [COMMAND, *self.line("trainer", *arguments)]
        return self.start("trainer", run, line, rollouts=self.rollouts)

    def start_follower(self, number: int) -> Process:
        kind, life, run = self.followers[number], len(self.processes), self.current
        name = f"follower{number}"
        settings = {"receiver.id": name if self.same_ids else f"{name}-{life}"}
        checkpoint = self.work / f"checkpoint{number}"
        arguments: list = ["--timeout", "60s" if self.smooth() else "25s"]
        if kind == "checkpoint" or self.draw.random() < 0.8:
            arguments += ["--base", run.step(0)]
        if kind == "agent":
            shm = {
                "road.host_shm.name": f"night-{self.work.name}-{life}",
                "road.host_shm.dir": str(self.work),
            }
            settings = {
                "agent.hand_over": "checkpoint",
                "agent.checkpoint_dir": str(checkpoint),
                **shm,
            }
            line = [COMMAND, *self.line("agent", "--base", run.step(0), **settings)]
            return self.start("agent", run, line, name=name, checkpoint=checkpoint)
        if kind == "python":
            save = self.work / f"save{life}"
            line = [PYTHON, str(REPOSITORY / "tests/night/python_roles.py"), "receive"]
            line += [str(REPOSITORY / "configs" / self.config), str(run.step(0)), str(save)]
            line += [f"{k}={v}" for k, v in (self.settings | settings).items()]
            return self.start("python rollout", run, line, name=name, save=save)
        if kind == "checkpoint":
            settings |= {
                "receiver.target": "checkpoint",
                "receiver.checkpoint_dir": str(checkpoint),
            }
            line = [COMMAND, *self.line("rollout", *arguments, **settings)]
            return self.start("rollout", run, line, name=name, checkpoint=checkpoint)
        save = self.work / f"save{life}"
        line = [COMMAND, *self.line("rollout", *arguments, "--save", save, **settings)]
        return self.start("rollout", run, line, name=name, save=save / "rollout_00")

    def start_mpi(self, run: Run) -> Process:
        save = self.work / f"save{len(self.processes)}"
        trainers = self.draw.randint(1, 2)
        line = mpirun_line(
            (trainers, self.line("trainer", "--replay", run.path, "--interval-ms", self.interval)),
            (len(self.followers), self.line("rollout", "--base", run.step(0), "--save", save)),
        )
        return self.start("mpi job", run, line, save=save, rollouts=len(self.followers))

    def kill(self, process: Process):
        process.look()
        if process.ended is not None:
            return
        if process.role == "mpi job":
            for pid in pids_in(self.work):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(process.popen.pid, signal.SIGKILL)
        process.popen.wait()
        process.killed, process.ended = True, time.monotonic()

    def stop_for(self, process: Process, seconds: float):
        """Sends SIGSTOP, and SIGCONT later."""
        targets = [process.popen.pid]
        if process.role == "mpi job":
            ranks = [pid for pid in pids_in(self.work) if pid != process.popen.pid]
            targets = [self.draw.choice(ranks)] if ranks else []
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in targets:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(seconds)

    def wait(self, processes: list[Process]):
        for process in processes:
            while process.look():
                if time.monotonic() > self.until:
                    raise Wrong(
                        f"HANGS: {process.role} {process.name} did not end in {LIMIT_S:.0f} s: {process.output()}"
                    )
                time.sleep(0.01)

    # --- events ----------------------------------------------------------------------------------

    def run(self):
        if self.mpi:
            self.run_mpi()
        else:
            self.run_plain()
        self.until = time.monotonic() + LIMIT_S
        self.wait([process for process in self.processes if process.role != "agent"])
        self.end_agents()
        self.learn()
        self.check()

    def end_agents(self):
        """Ends agents that have lost their trainer, as an operator would: they wait for the next
        one."""
        agents = [process for process in self.processes if process.role == "agent"]
        until = time.monotonic() + 12
        self.until = max(self.until, until + 20)
        while any(process.look() for process in agents) and time.monotonic() < until:
            time.sleep(0.02)
        for process in agents:
            if process.look():
                process.popen.send_signal(signal.SIGTERM)
        self.wait(agents)

    def run_mpi(self):
        job = self.start_mpi(self.first)
        time.sleep(self.draw.uniform(0.3, 1.5))
        fault = self.faults[0]
        if fault.startswith("stop"):
            self.stop_for(job, self.draw.uniform(0.05, 1.0))
        elif fault == "kill follower":
            ranks = [pid for pid in pids_in(self.work) if pid != job.popen.pid]
            if ranks and job.look():
                with contextlib.suppress(OSError):
                    os.kill(self.draw.choice(ranks), signal.SIGKILL)
                job.killed = True
        elif fault != "none":
            self.kill(job)
        if fault in SMOOTH:
            return
        self.wait([job])
        if fault == "other run" and self.road == "hdf5":
            self.place(self.work / "road1")
        self.start_mpi(self.other if fault == "other run" else self.first)

    def run_plain(self):
        # A follower that no trainer waits for may start late, and miss versions.
        self.rollouts = len(self.followers) if self.draw.random() < 0.8 else 0
        self.current = self.first
        Path(self.work / "road").mkdir()
        self.trainer = self.start_trainer(self.first)
        self.lives = [self.start_follower(number) for number in range(len(self.followers))]
        for fault in self.faults:
            time.sleep(self.draw.uniform(0.05, 1.0))
            self.strike(fault, self.draw.randrange(len(self.lives)))

    def strike(self, fault: str, number: int):
        if fault == "stop trainer":
            self.stop_for(self.trainer, self.draw.uniform(0.05, 1.5))
        elif fault == "stop follower":
            self.stop_for(self.lives[number], self.draw.uniform(0.05, 1.5))
        elif fault == "kill follower":
            self.kill(self.lives[number])
            if self.draw.random() < 0.7:
                self.lives[number] = self.start_follower(number)
        elif fault == "two trainers":
            self.start_trainer(self.current)
        elif fault != "none":
            self.end_and_go_on(fault)

    def end_and_go_on(self, fault: str):
        if fault == "end trainer":
            self.trainer.popen.send_signal(signal.SIGTERM)
            self.wait([self.trainer])
        else:
            self.kill(self.trainer)
        dead = []
        if fault == "kill all" or (fault.startswith("other") and self.draw.random() < 0.7):
            dead = [number for number, process in enumerate(self.lives) if process.look()]
            for number in dead:
                self.kill(self.lives[number])
        if self.draw.random() < 0.15:
            return  # there is no restart
        if fault.startswith("other"):
            self.current = self.other if self.current is self.first else self.first
        if fault == "other run":
            self.places += 1
            self.place(self.work / f"road{self.places}")
            Path(self.work / f"road{self.places}").mkdir()
        self.trainer = self.start_trainer(self.current)
        for number in dead:
            self.lives[number] = self.start_follower(number)

    # --- claims ----------------------------------------------------------------------------------

    def learn(self):
        """Records run ids (if a place had one run only) and the digests that trainers printed."""
        if any(fault.startswith("other") for fault in self.faults):
            return  # then only bits are compared
        file = self.work / "road/run.json"
        if file.exists():
            self.record.ids[json.loads(file.read_text())["run"]] = self.first
        for process in self.processes:
            for event in process.events():
                if event.get("event") == "version" and event["version"] <= process.run.last:
                    known = self.record.digests.setdefault(event["digest"], [])
                    known.append((process.run, event["version"]))

    def check(self):
        for process in self.processes:
            self.check_claims(process)
        for number in range(len(self.followers)):
            checkpoint = self.work / f"checkpoint{number}"
            if checkpoint.exists():
                self.compare(check_checkpoint(self.record, checkpoint))
        self.check_tools()
        if self.smooth() and self.contracts["smooth_succeeds"]:
            for process in self.processes:
                if process.popen.returncode != 0:
                    raise Wrong(
                        f"REFUSED without a fault: {process.role}, exit {process.popen.returncode}: {process.output()}"
                    )

    def compare(self, wrong: str | None):
        """Counts a compared claim; a false claim ends the case."""
        self.compared += 1
        if wrong:
            raise Wrong(wrong)

    def check_claims(self, process: Process):
        events = {event.get("event"): event for event in process.events()}
        claims = [event for event in process.events() if event.get("event") == "rollout"]
        for claim in claims:
            save = (
                process.save / f"rollout_{claim['rank']:02d}"
                if process.role == "mpi job"
                else process.save
            )
            if save is None or not save.exists():
                continue
            wrong = self.record.wrong(
                read_checkpoint(save), claim["version"], claim.get("run"), claim["digest"]
            )
            self.compare(
                wrong
                and f"{process.role} {process.name} claims version {claim['version']}: {wrong}"
            )
        if process.popen.returncode != 0 or process.killed:
            return
        if process.role in ("rollout", "python rollout") and not claims:
            raise Wrong(f"{process.role} ended with 0 and claims no version")
        if process.role == "agent":
            self.check_agent(process)
        if process.role in ("trainer", "mpi job"):
            self.check_trainer(process, events.get("summary"))

    def check_agent(self, process: Process):
        """Its closing line and the checkpoint's label name one version; no label means version
        0."""
        state, output = read_state(process.checkpoint), process.events()[-1]["version"]
        if int(state["version"] if state else 0) != output:
            raise Wrong(
                f"an agent ended with 0 at version {output}, and its checkpoint is labelled {state}"
            )
        if state is None:
            wrong = self.record.wrong(read_checkpoint(process.checkpoint), 0)
            self.compare(wrong and f"an agent ended with 0 at version 0: {wrong}")

    def is_last_step(self, process: Process, summary) -> bool:
        """A version number that another trainer, or a killed one, used is skipped, so the number
        alone does not show the last step: its digest does."""
        last = process.run.last
        if summary["version"] <= last:
            return summary["version"] == last
        out = self.work / f"last_step{self.processes.index(process)}"
        made = self.tool("diff", process.run.step(0), process.run.step(last), "--out", out)
        return f"digest {summary['digest']}" in made.stdout

    def check_trainer(self, process: Process, summary):
        if summary is None:
            raise Wrong(f"{process.role} ended with 0 and without a summary")
        last = process.run.last
        if self.contracts["own_run"] and not self.is_last_step(process, summary):
            raise Wrong(
                f"a trainer of {last} versions ended with 0 at version {summary['version']}"
            )
        there = [
            one
            for one in summary["rollouts"]
            if one["version"] == summary["version"] and one["same"]
        ]
        if len(there) < process.rollouts:
            raise Wrong(
                f"a trainer that waits for {process.rollouts} rollouts ended with 0: {summary['rollouts']}"
            )
        if not self.contracts["counted_followers_lived"] or process.role == "mpi job":
            return
        # A trainer prints a version's line once the rollouts have it. So rollouts that hold the
        # last version were alive after the line of the version before.
        times = [e["monotonic_ms"] / 1e3 for p in self.processes for e in p.events()
                 if e.get("event") == "version" and e["version"] == last - 1 and "monotonic_ms" in e]  # fmt: skip
        # A killed trainer may have published that version without printing its line.
        times += [p.ended for p in self.processes if p.killed and p.rollouts and p.ended is not None
                  and p.run is process.run and p.place == process.place]  # fmt: skip
        since = min(times, default=process.began)
        lived = {
            p.name
            for p in self.processes
            if p.name and p.place == process.place and (p.ended or 1e18) >= since
        }
        if len(lived) < process.rollouts:
            raise Wrong(
                f"a trainer waited for {process.rollouts} rollouts and ended with 0; {sorted(lived)} lived at its last version"
            )

    def check_tools(self):
        """Runs a new rollout, `apply` and `verify` on the road, after all processes have ended."""
        trainers = [p for p in self.processes if p.role in ("trainer", "mpi job", "python trainer")]
        last = trainers[-1]
        if self.road == "mpi_rma" or "two trainers" in self.faults:
            return
        if self.road != "hdf5" and last.popen.returncode == 0 and not last.killed:
            self.check_new_rollout(last)
        if self.road in ("flush", "frames", "hf_delta"):
            self.check_apply(last)

    def check_new_rollout(self, trainer: Process):
        save, self.until = self.work / "probe", time.monotonic() + LIMIT_S
        settings = {"receiver.id": "probe"}
        line = [
            COMMAND,
            *self.line(
                "rollout",
                "--base",
                trainer.run.step(0),
                "--save",
                save,
                "--timeout",
                "15s",
                **settings,
            ),
        ]
        probe = self.start("rollout", trainer.run, line, name="probe", save=save / "rollout_00")
        self.wait([probe])
        self.check_claims(probe)
        if not self.contracts["own_run"]:
            return
        if probe.popen.returncode != 0:
            raise Wrong(
                f"a trainer ended with 0, and a new rollout of its run cannot follow: {probe.output()}"
            )
        wrong = difference(read_checkpoint(probe.save), trainer.run.history[trainer.run.last])
        self.compare(
            wrong and f"a trainer ended with 0, and its road leads to other weights: {wrong}"
        )

    def check_apply(self, trainer: Process):
        road, copy = Path(self.settings["road.shared_fs.dir"]), self.work / "applied"
        versions = sorted(road.glob("weight_v*"))
        if not versions:
            return
        shutil.copytree(trainer.run.step(0), copy)
        applied = self.tool("apply", road, "--to", copy)
        wrong = check_checkpoint(self.record, copy)
        self.compare(wrong and f"apply (exit {applied.returncode}): {wrong}")
        if applied.returncode != 0:
            if (
                difference(read_checkpoint(copy), trainer.run.history[0])
                and read_state(copy) is None
            ):
                raise Wrong("apply failed, and its checkpoint without a label is not what it was")
            return
        state = read_state(copy)
        if state is None:
            raise Wrong("apply ended with 0 and its checkpoint has no label")
        for step in {0, int(state["version"]), self.draw.randint(0, trainer.run.last)}:
            if step > trainer.run.last:
                continue
            found = self.tool("verify", copy, "--like", trainer.run.step(step))
            same = difference(read_checkpoint(copy), trainer.run.history[step]) is None
            if (found.returncode == 0) != same:
                raise Wrong(
                    f"verify --like step {step} ends with {found.returncode}; the same: {same}"
                )

    def tool(self, *arguments):
        try:
            return subprocess.run(
                [COMMAND, *map(str, arguments)],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                cwd=self.work,
            )
        except subprocess.TimeoutExpired:
            raise Wrong(f"HANGS: driftless {arguments[0]} did not end in {LIMIT_S:.0f} s") from None

    def clean_up(self):
        for process in self.processes:
            self.kill(process)
        for pid in pids_in(self.work):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
