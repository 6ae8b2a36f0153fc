# SPDX-License-Identifier: Apache-2.0
"""Jobs of Python processes under a real mpirun, bystanders among them."""

import importlib.util
import re
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


def mpirun(parts, timeout=120):
    """mpirun for (count, role, command or arguments)."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for number, (count, command) in enumerate(parts):
        line += [":"] if number else []
        line += ["-n", str(count), *map(str, command)]
    return jobs.finish(jobs.start(line), timeout)


def process(role, road, work, *options):
    config = jobs.CONFIGS / jobs.ROADS[road]
    settings = ["threads=1", f"road.dir={work}/road"]
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


def test_mpi_of_somebody_else(work):
    """MPI initialized by another is used, and left running."""
    jobs.need_mpirun()
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    parts = [(1, process(role, "mpi_rma", work, "--mpi4py")) for role in ("trainer", "rollout")]
    result = mpirun(parts)
    assert result.returncode == 0 and result.stdout.count("done") == 2, result.stderr


def test_native_rollouts_follow_a_python_trainer(work):
    """The command and the package are processes of one job, and hear the same end."""
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
    """Nobody waits for the process that failed: mpirun ends the others."""
    jobs.need_mpirun()
    program = work / "failing.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(binding.PACKAGE)!r})\n{FAILING}")
    config = jobs.CONFIGS / jobs.ROADS["mpi_rma"]
    parts = [(1, [sys.executable, program, role, config]) for role in ("trainer", "rollout")]
    result = mpirun(parts, timeout=50)
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
    config.write_text(f"road: {{kind: shared_fs, dir: {work}/road}}\n")
    result = mpirun([(2, [sys.executable, program, config])])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("cannot begin again: a process joins one job") == 2
