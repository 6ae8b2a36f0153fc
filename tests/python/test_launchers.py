# SPDX-License-Identifier: Apache-2.0
"""Jobs under every launcher that can be installed here, and the lines of the launchers' pages."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import binding
import jobs
import support
import test_launch_files
import test_samples
import test_sharded
from hub_keys import hub_keys, hub_yaml
from ports import free_port
from slurm import Slurm
from support import COMMAND, REPOSITORY

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

binding.driftless()  # skips if there is none
HERE = Path(__file__).resolve().parent
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def slurm():
    work = Path(tempfile.mkdtemp(prefix="driftless-slurm-"))
    made = Slurm(work)
    yield made
    made.stop()
    shutil.rmtree(work, ignore_errors=True)


def run(line, env, cwd, seconds=600):
    """Runs a process; ends it and all that it started. Returns its output."""
    process = subprocess.Popen(
        line, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        pytest.fail(f"did not end in {seconds} s: {out[-3000:]}")
    assert process.returncode == 0, out[-4000:]
    return out


def run_page(page, work, python, **more):
    """Runs every shell line of the page, with its files and those of the page on sharded
    trainers."""
    test_samples.write_samples("docs/start/sharded.md", work)
    (work / "configs").unlink()
    test_samples.write_samples(page, work)
    with (work / "driftless.yaml").open("a") as file:
        file.write("deadlines: { connect: 10min }\n")  # for the start of torch on a busy machine
    env = megatron_jobs.environment(OMPI_MCA_rmaps_base_oversubscribe="1", **more)
    places = [Path(python).parent, Path(COMMAND).parent, env["PATH"]]
    env["PATH"] = os.pathsep.join(map(str, places))
    for block in SHELL.findall((REPOSITORY / page).read_text()):
        shutil.rmtree(work / "weights", ignore_errors=True)
        yield run(["bash", "-euc", block], env, work)


def test_the_page_on_torchrun(work):
    first, second = run_page("docs/start/torchrun.md", work, megatron_jobs.venv_python())
    assert "version=10" in first and "version=10" in second


def test_the_page_on_mpirun(work):
    jobs.need_mpirun()
    first, second = run_page("docs/start/mpirun.md", work, megatron_jobs.venv_python())
    assert "All rollouts ended at version 3" in first and "version=10" in second


def test_the_page_on_srun(work, slurm):
    jobs.need("mpi_rma")
    page = run_page("docs/start/srun.md", work, megatron_jobs.venv_python(), **slurm.env)
    first, second, third = page
    assert "All rollouts ended at version 3" in first and "version=10" in second
    assert "All rollouts ended at version 3" in third


def configured(work, joined):
    """Trainers agree over torch.distributed, or in groups that the hub forms."""
    path = test_sharded.configured(work, "frames")
    if joined == "hub":
        jobs.need("peer")
        path.write_text(path.read_text() + hub_yaml(work))
    return path


@pytest.mark.parametrize(
    ("mpi", "joined"),
    [("none", "torch"), ("none", "hub"), pytest.param("pmix", "torch", marks=pytest.mark.long)],
)
def test_every_version_of_tasks_of_srun_is_the_full_tensors(work, slurm, mpi, joined):
    path = configured(work, joined)
    line = ["srun", f"--mpi={mpi}", "-n", "4", megatron_jobs.venv_python(),
            str(HERE / "sharded/fsdp_trainer.py"), "fsdp", str(path), str(work)]  # fmt: skip
    run(line, megatron_jobs.environment(**slurm.env), work)
    assert len(test_sharded.check_followed(work, path)) == 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "joined"),
    [("torchrun", "torch"), ("torchrun", "hub"), ("mpirun", "mpi"), ("srun", "torch"), ("srun", "hub")],
)
def test_megatron_of_the_example_to_a_rollout_over_files(work, launcher, joined, request):
    """TP 2 x PP 2 of real megatron-core: train.py of the launch files for Slurm."""
    example = REPOSITORY / "examples/slurm_megatron_sglang"
    shutil.copytree(example, work / "job")
    if joined == "hub":
        with (work / "job/driftless.yaml").open("a") as file:
            file.write(hub_yaml(work))
    python, port = megatron_jobs.venv_python(), str(free_port())
    model = test_launch_files.make_model(python, work / "model")
    train = [HERE / "megatron/on_cpu.py", "train.py", "--tp", "2", "--pp", "2", "--steps", "3",
             "--update-weight-mode", "delta", "--update-weight-transport", "disk",
             "--update-weight-config", "driftless.yaml",
             "--update-weight-hf-checkpoint", model]  # fmt: skip
    env, one_run = {}, ["-m", "torch.distributed.run", "--master-port", port]
    if launcher == "torchrun":
        line = [python, *one_run, "--nproc-per-node", "4", *train]
    elif launcher == "mpirun":
        jobs.need_mpirun()
        line = megatron_jobs.mpirun((4, python, *train))
    else:
        env = request.getfixturevalue("slurm").env
        line = ["srun", "--mpi=none", "-n", "4", python, *train]
    follow = [COMMAND, "rollout", "--config", "driftless.yaml", "--base", model, "--save", "saved"]
    rollout = jobs.start([*map(str, follow)], cwd=work / "job")
    try:
        run([*map(str, line)], megatron_jobs.environment(**env), work / "job")
        ended = jobs.finish(rollout)
    finally:
        jobs.stop_started()
    assert ended.returncode == 0 and "ended at version 3" in ended.stdout, ended.stderr
    (saved,) = (work / "job/saved").iterdir()
    manifest = work / "job/weights/weight_v000003/manifest.json"
    support.ok("verify", saved, "--manifest", manifest)


def test_tasks_of_srun_without_pmi_are_no_trainers_of_one_run(work, slurm):
    (work / "c.yaml").write_text(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }} }}\n")
    line = ["srun", "--mpi=none", "-n", "2", COMMAND, "trainer", "--config", str(work / "c.yaml")]
    ended = subprocess.run(
        line, env={**os.environ, **slurm.env}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode != 0 and "srun started 2 trainers" in ended.stderr
    assert not (work / "road").exists()


def test_tasks_of_srun_without_pmi_are_one_trainer_by_the_hub(work, slurm, rng):
    jobs.need("peer")
    history = jobs.make_run(work / "run", rng, 3)
    job = jobs.Files(work, **hub_keys(work))
    trainer = [COMMAND, *map(str, job.trainer("--replay", work / "run", "--rollouts", 1))]
    line = ["srun", "--mpi=none", "-n", "3", *trainer]
    trainers = jobs.start(line, env={**os.environ, **slurm.env})
    rollout = job.start_rollout("--base", work / "run/step_000000", "--save", work / "saved")
    try:
        ended = jobs.finish(trainers)
        assert ended.returncode == 0, ended.stderr
        assert jobs.ended(rollout)["version"] == 3
    finally:
        jobs.stop_started()
    assert support.read_checkpoint(work / "saved/rollout_00") == history[3]


RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_SCHEDULER_EVENTS": "0"}


@pytest.mark.long  # installs an environment of its own
@pytest.mark.parametrize("joined", ["torch", "hub"])
def test_every_version_of_actors_of_ray_is_the_full_tensors(work, joined):
    path = configured(work, joined)
    line = [megatron_jobs.environment_python("verl"), str(HERE / "ray_fsdp.py"), str(path),
            str(work), str(free_port())]  # fmt: skip
    run(line, megatron_jobs.environment(**RAY), work)
    assert len(test_sharded.check_followed(work, path)) == 5


@pytest.mark.long  # installs an environment of its own
def test_the_page_on_ray(work):
    shutil.rmtree("/tmp/driftless-ray", ignore_errors=True)
    Path("/tmp/driftless-ray").mkdir()
    try:
        python = megatron_jobs.environment_python("verl")
        (output,) = run_page("docs/start/ray.md", work, python, **RAY)
    finally:
        shutil.rmtree("/tmp/driftless-ray", ignore_errors=True)
    assert "version=3" in output


# --- waiting -------------------------------------------------------------------------------------


def test_a_wait_for_a_run_is_visible_and_ends_by_a_signal_or_its_timeout(work, rng):
    job = jobs.Files(work / "job")
    jobs.make_run(work / "run", rng, 0)
    base = ["--base", work / "run/step_000000"]
    rollout = job.start_rollout(*base)
    output = rollout.stderr.readline()
    assert ": still waiting after 5 s: waiting for a publisher to write" in output, output
    rollout.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert jobs.finish(rollout).returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began < 30
    late = jobs.finish(job.start_rollout("--timeout", "1s", *base))
    assert late.returncode == 6 and "--timeout" in late.stderr and "gave up after" in late.stderr
    assert time.monotonic() - began < 60


def catches(pid, number):
    """Whether the process handles this signal itself."""
    (line,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(line, 16) >> (number - 1) & 1


def test_an_agent_that_waits_for_its_run_ends_by_a_signal(work):
    job = jobs.Files(work)
    agent = jobs.start([COMMAND, *map(str, ["agent", *job.rollout()[1:]])])
    jobs.wait_for(lambda: catches(agent.pid, signal.SIGTERM), "the agent to handle signals")
    agent.send_signal(signal.SIGTERM)
    assert jobs.finish(agent).returncode == 128 + signal.SIGTERM


JOINS_ONLY = """
import sys, time, driftless
job = driftless.Job(driftless.Config.load(sys.argv[1], sys.argv[2:]), "rollout")
time.sleep(600)
"""


def test_a_process_that_does_not_come_is_named(work):
    """A rollout joins the MPI job, but does not take part in making the road. The deadline leaves
    time for the start of both on a busy machine, so the test takes longer than that."""
    jobs.need_mpirun()
    job = jobs.Files(work, **{"deadlines.connect": "15s"})
    trainer = [COMMAND, *map(str, job.trainer("--steps", "1"))]
    settings = [f"road.shared_fs.dir={job.dir}"]
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "1", *trainer, ":", "-n", "1",
            sys.executable, "-c", JOINS_ONLY, str(job.config), *settings]  # fmt: skip
    env = {**jobs.environment(), "PYTHONPATH": str(binding.PACKAGE)}
    result = jobs.finish(jobs.start(line, env=env))
    assert result.returncode != 0
    silent = "nothing from rollout 0; 0 of 1 others have answered"
    assert f"driftless trainer.0: still waiting after 5 s: {silent}" in result.stderr, result.stderr
    assert f"{silent}: gave up after 15000 ms" in result.stderr, result.stderr
