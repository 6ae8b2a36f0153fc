# SPDX-License-Identifier: Apache-2.0
"""Jobs of Python processes, some of them bystanders, under a real mpirun; and how processes end."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import binding
import jobs

driftless = binding.driftless()
PROGRAM = Path(__file__).with_name("binding_job.py")


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    jobs.stop_started()


def mpirun(parts, timeout=jobs.PATIENCE_S):
    """mpirun for (count, role, command or arguments)."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for number, (count, command) in enumerate(parts):
        line += [":"] if number else []
        line += ["-n", str(count), *map(str, command)]
    return jobs.finish(jobs.start(line), timeout)


def process(role, road, work, *options):
    config = jobs.CONFIGS / jobs.ROADS[road]
    settings = ["threads=1", f"road.shared_fs.dir={work}/road"]
    chosen = [f"--set={setting}" for setting in settings]
    return [sys.executable, PROGRAM, role, config, *chosen, *options]


@pytest.mark.parametrize("road", jobs.ROADS)
def test_trainers_bystander_and_rollouts(work, road):
    jobs.need_mpirun()
    jobs.need(*jobs.NEEDS.get(road, []))
    roles = [(1, "bystander"), (2, "trainer"), (1, "bystander"), (2, "rollout")]
    result = mpirun([(count, process(role, road, work)) for count, role in roles])
    assert result.returncode == 0, result.stderr
    # mpirun may join what several processes print.
    done = sorted(re.findall(r"done \w+ \d of \d\+\d", result.stdout))
    expected = [f"done {role} {rank} of 2+2" for role in ("bystander", "rollout", "trainer")
                for rank in (0, 1)]  # fmt: skip
    assert done == expected, result.stdout + result.stderr


@pytest.mark.parametrize("road", jobs.ROADS)
def test_trainers_without_a_snapshot(work, road):
    jobs.need_mpirun()
    jobs.need(*jobs.NEEDS.get(road, []))
    roles = [(3, "trainer"), (1, "rollout")]
    result = mpirun([(count, process(role, road, work, "--live")) for count, role in roles])
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"done \w+ \d of 3\+1", result.stdout)) == 4, result.stdout


def test_mpi_that_mpi4py_has_initialized(work):
    """MPI that another library initialized is used, and not finalized."""
    jobs.need_mpirun()
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    parts = [(1, process(role, "mpi_rma", work, "--mpi4py")) for role in ("trainer", "rollout")]
    result = mpirun(parts)
    assert result.returncode == 0 and result.stdout.count("done") == 2, result.stderr


def test_native_rollouts_follow_a_python_trainer(work):
    """The command and the package are processes of one job, and see the same end of the run."""
    jobs.need_mpirun()
    config = jobs.CONFIGS / jobs.ROADS["mpi_rma"]
    command = [jobs.COMMAND, "rollout", "--config", config, "--set", "threads=1"]
    parts = [(1, process("trainer", "mpi_rma", work)), (1, [*command, "--verbose"])]
    result = mpirun(parts)
    assert result.returncode == 0 and "version 5" in result.stdout, result.stdout + result.stderr


FAILING = """
import sys, driftless
config = driftless.Config.load(sys.argv[2])
with driftless.Job(config, sys.argv[1]) as job:
    if job.role == "trainer":
        raise LookupError("training failed")
    driftless.Receiver(job, driftless.OwnedTarget())
"""


def test_an_exception_ends_the_job(work):
    """No process waits for the failed one: mpirun ends them."""
    jobs.need_mpirun()
    program = work / "failing.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(binding.PACKAGE)!r})\n{FAILING}")
    config = jobs.CONFIGS / jobs.ROADS["mpi_rma"]
    parts = [(1, [sys.executable, program, role, config]) for role in ("trainer", "rollout")]
    result = mpirun(parts)
    assert result.returncode != 0 and "training failed" in result.stderr


AGAIN = """
import sys, driftless
config = driftless.Config.load(sys.argv[1])
driftless.Job(config, "bystander").close()
try:
    driftless.Job(config, "bystander")
except driftless.errors.UnsupportedError as refused:
    print(refused)
"""


def test_a_second_job_is_refused_not_fatal(work):
    jobs.need_mpirun()
    program = work / "again.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(binding.PACKAGE)!r})\n{AGAIN}")
    config = work / "job.yaml"
    config.write_text(f"road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}\n")
    result = mpirun([(2, [sys.executable, program, config])])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("cannot begin again: a process joins one job") == 2


ENDS = """
import os, sys, threading, time
sys.path[:0] = {path!r}
import numpy, binding
driftless = binding.driftless()
config = driftless.Config.parse({config!r})
first = binding.weights(numpy.random.default_rng(1))
trainer = driftless.Job(config, "trainer", launched=False)
rollout = driftless.Job(config, "rollout", launched=False)
publisher = driftless.Publisher(trainer, binding.Source(driftless, first))
pause = lambda sleep=time.sleep: sleep(0.5)
receiver = driftless.Receiver(rollout, driftless.OwnedTarget(), id="x", pause=pause)
"""
STAGES_ON = """
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1)
sys.slow = Slow()  # makes Python's exit slow
threading.Thread(target=receiver.stage, args=(60,), daemon=True).start()
time.sleep(0.3)
"""
CALLS_BACK = STAGES_ON.partition("threading")[0] + """
publisher.publish_anchor()
assert receiver.stage(60)
threading.Thread(target=receiver.commit, daemon=True).start()
time.sleep(0.2)
"""
FORKS = """
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    late = driftless.Receiver(rollout, driftless.OwnedTarget(), id="late", timeout_s=60)
    publisher.publish(binding.Source(driftless, first))
    publisher.close()
else:
    for call in (lambda: publisher.publish(None), lambda: receiver.stage(0)):
        try:
            call()
        except driftless.errors.InvalidArgumentError as refused:
            assert "forked" in str(refused)
        else:
            os._exit(1)
"""


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        ("shared_fs", STAGES_ON),
        ("shared_fs", CALLS_BACK),
        ("shared_fs", FORKS),
        ("host_shm", FORKS),
    ],
    ids=["stages_on", "calls_back", "forks", "forks_host_shm"],
)
def test_a_process_ends_well(work, kind, then):
    """With a daemon thread that Python does not wait for, or after a fork."""
    place = {"shared_fs": f"dir: {work}/road", "host_shm": f"dir: {work}, name: x"}
    config = f"road: {{kind: {kind}, {kind}: {{{place[kind]}}}}}"
    script = (ENDS + then).replace("{path!r}", repr(sys.path)).replace("{config!r}", repr(config))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
