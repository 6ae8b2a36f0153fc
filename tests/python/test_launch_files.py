# SPDX-License-Identifier: Apache-2.0
"""The launch files of examples/: each folder is complete, its files pass the checks of their own
tools, and those without an engine run unchanged, with a small model.
tests/engines/test_launch_files.py has the others."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import binding
from ports import free_port
from support import REPOSITORY, ok, run

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

EXAMPLES = REPOSITORY / "examples"
LAUNCHERS = {  # folder -> the file that starts it
    "slurm_megatron_sglang": "job.sbatch",
    "torchrun_fsdp2_vllm": "launch.sh",
    "ray_fsdp2": "job.sh",
    "kubernetes_vllm": "workloads.yaml",
    "compose_laptop": "compose.yaml",
}
SHELL = [f"{name}/{file}" for name, file in LAUNCHERS.items() if not file.endswith("yaml")]
STEPS = 3
SMALL = """
import sys, torch
from transformers import AutoModelForCausalLM, Qwen3Config
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
model = AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **layers))
model.to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


def make_model(python, path):
    """A small Qwen3, as a Hugging Face checkpoint."""
    line, env = [python, "-c", SMALL, path], megatron_jobs.environment()
    made = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stderr
    return path


def test_every_folder_has_its_files_and_lists_what_was_not_run():
    index = (EXAMPLES / "README.md").read_text()
    for name, file in LAUNCHERS.items():
        folder = EXAMPLES / name
        there = {each.name for each in folder.iterdir()}
        assert {"README.md", "driftless.yaml", "train.py", file} <= there, name
        page = (folder / "README.md").read_text()
        assert "\nTo change:" in page and " was not run" in " ".join(page.split()), name
        assert all(f"`{each}`" in page for each in there - {"README.md"}), name
        assert f"({name}/README.md)" in index


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_configuration_is_right(name):
    ok("config", "check", EXAMPLES / name / "driftless.yaml")


@pytest.mark.parametrize("path", SHELL)
def test_the_shell_reads_it(path):
    subprocess.run(["bash", "-n", EXAMPLES / path], check=True)
    assert os.access(EXAMPLES / path, os.X_OK) or path.endswith("sbatch")


# --- Kubernetes ----------------------------------------------------------------------------------


def workloads():
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes_vllm/workloads.yaml").read_text()))


def test_kubernetes_accepts_the_workloads():
    python = megatron_jobs.environment_python("kubernetes")
    line = [python, "-m", "kubernetes_validate", "--strict", "workloads.yaml"]
    checked = subprocess.run(
        line, cwd=EXAMPLES / "kubernetes_vllm", capture_output=True, text=True, timeout=600
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    output = checked.stdout + checked.stderr
    assert output.count(" passed for ") == len(workloads()), output


def test_objects_that_the_workloads_name_exist():
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    folder = EXAMPLES / "kubernetes_vllm"
    made = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert made["resources"] == ["workloads.yaml"]
    (job,) = made["configMapGenerator"]
    assert all((folder / file).is_file() for file in job["files"])
    claims = {each["metadata"]["name"] for each in workloads() if each["kind"].endswith("Claim")}
    pods = [each["spec"]["template"] for each in workloads() if "template" in each.get("spec", {})]
    assert len(pods) == 2
    labels = [pod["metadata"]["labels"] for pod in pods]
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["job"]["configMap"]["name"] == job["name"]
        assert volumes["weights"]["persistentVolumeClaim"]["claimName"] in claims
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
            for word in container["command"]:
                if word.startswith("/job/"):
                    assert Path(word).name in job["files"]
    for each in workloads():
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            assert spec["selector"] in labels
        if each["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"] in labels
    if shutil.which("kubectl"):
        subprocess.run(["kubectl", "kustomize", folder], check=True, capture_output=True)


# --- Compose -------------------------------------------------------------------------------------


def services():
    """The services, as Compose itself parses them."""
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    line = [program, "-f", EXAMPLES / "compose_laptop/compose.yaml", "config"]
    read = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert read.returncode == 0, read.stderr
    return yaml.safe_load(read.stdout)["services"]


def test_compose_reads_its_services():
    found = services()
    assert set(found) == {"model", "trainer", "rollout"}
    for service in found.values():
        (mounted,) = service["volumes"]
        assert mounted.startswith(f"{EXAMPLES / 'compose_laptop'}:{service['working_dir']}")


@pytest.fixture
def copied(work):
    def copy(name):
        shutil.copytree(EXAMPLES / name, work / name)
        return work / name

    return copy


@pytest.mark.long  # three processes with torch and transformers
def test_the_services_run_without_containers(copied):
    binding.driftless()
    folder, python = copied("compose_laptop"), megatron_jobs.venv_python()
    env = megatron_jobs.environment()
    commands = {name: service["command"] for name, service in services().items()}
    commands["trainer"][-1] = str(STEPS)
    running = {}

    def start(name):
        assert commands[name][0] == "python"
        log = open(folder / f"{name}.log", "w")
        line = [python, *commands[name][1:]]
        running[name] = subprocess.Popen(line, cwd=folder, env=env, stdout=log, stderr=log)

    def end(name):
        code = running[name].wait(240)
        assert code == 0, f"{name}: {(folder / f'{name}.log').read_text()[-3000:]}"

    try:
        start("model")
        end("model")
        start("trainer")
        start("rollout")
        end("trainer")
        end("rollout")
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert f"at version {STEPS}: " in (folder / "rollout.log").read_text()


# --- Ray -----------------------------------------------------------------------------------------


@pytest.fixture
def ray():
    """A cluster of one node with its dashboard; returns the environment of a client."""
    binding.driftless()
    python = Path(megatron_jobs.environment_python("verl"))
    place = tempfile.mkdtemp(prefix="drl-ray-")  # short, because socket paths are limited
    port = free_port()
    env = megatron_jobs.environment(
        RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_SCHEDULER_EVENTS="0",
        RAY_ADDRESS=f"http://127.0.0.1:{port}",
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    head = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
    line = ["ray", "start", "--head", "--block", "--port=0", "--num-cpus=2", f"--temp-dir={place}",
            "--include-dashboard=true", f"--dashboard-port={port}", "--min-worker-port=0",
            "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}",
            f"--ray-client-server-port={free_port()}", "--object-store-memory=100000000"]  # fmt: skip
    log = Path(place) / "head.log"
    with log.open("w") as out:
        node = subprocess.Popen(line, env=head, stdout=out, stderr=out, start_new_session=True)
    env["RAY_NODE_LOG"] = str(log)
    yield env
    node.terminate()  # with --block it also ends its children
    try:
        node.wait(60)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
    shutil.rmtree(place, ignore_errors=True)


def wait_until_ray_answers(env, seconds=180):
    code = "import sys, ray.job_submission as j; j.JobSubmissionClient(sys.argv[1]).list_jobs()"
    line = ["python", "-c", f"import time\nfor _ in range({seconds}):\n try:\n  {code}\n  break\n"
            " except Exception: time.sleep(1)\nelse: sys.exit('no answer')", env["RAY_ADDRESS"]]  # fmt: skip
    found = subprocess.run(line, env=env, capture_output=True, text=True, timeout=2 * seconds)
    output = Path(env["RAY_NODE_LOG"]).read_text()
    assert found.returncode == 0, found.stderr + output[-3000:]


@pytest.mark.long  # installs an environment of its own
def test_a_job_of_ray(copied, work, ray):
    folder = copied("ray_fsdp2")
    model = make_model(megatron_jobs.environment_python("verl"), work / "model")
    wait_until_ray_answers(ray)
    sizes = {"MODEL": str(model), "STEPS": str(STEPS), "TRAINERS": "2", "ROLLOUTS": "2"}
    line = ["./job.sh", f"road.shared_fs.dir={work}/weights"]
    ended = subprocess.run(
        line, env=ray | sizes, cwd=folder, capture_output=True, text=True, timeout=600
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output[-6000:]
    for number in range(2):
        assert f"rollout {number} at version {STEPS} of {STEPS}, " in output, output[-6000:]
    found = run("status", work / "weights", "--json")
    assert json.loads(found.stdout)["version"] == STEPS, found.stdout
