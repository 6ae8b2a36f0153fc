# SPDX-License-Identifier: Apache-2.0
"""Runs the quick start and the quick look line by line. tests/engines/test_quick_start.py runs the
lines of vLLM."""

import os
import re
import sys
from pathlib import Path

import binding
import jobs
import page_lines
from support import COMMAND, REPOSITORY

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

START, LOOK = "docs/start/quick_start.md", "docs/start/quick_look.md"
INSTALLS = ("python3 -m venv venv", ". venv/bin/activate", "pip install ./driftless-*.whl torch transformers")


def test_the_quick_look(work):
    shell = page_lines.Shell(work, COMMAND, **os.environ)
    output = {line: shell.run(line) for line in page_lines.shell_lines(LOOK)}
    assert "51278 of 2999872 weights changed" in output["driftless compare old new"]
    assert "identical: 124 tensors" in output["driftless verify replica --like new"]
    assert output["driftless apply published --to other || echo refused"].startswith("refused\n")
    assert "<html" in (work / "changes.html").read_text()
    for line in ("bytes", "51981", "52.0 kB"):  # the page shows them
        assert line in output["driftless compare old new"]


def test_the_quick_start_up_to_its_first_rollout(work):
    binding.driftless()
    lines = page_lines.shell_lines(START)
    assert tuple(lines[:3]) == INSTALLS  # test_binding_wheel.py installs a wheel
    mine = lines[3 : lines.index("pip install vllm")]
    assert mine[0] == "python model.py" and "python follow.py replica" in mine
    assert page_lines.write_files(START, work) == {"model.py", "train.py", "follow.py"}
    assert len((work / "train.py").read_text().splitlines()) <= 30
    env = megatron_jobs.environment() | {"HF_HUB_OFFLINE": "1", "USE_TF": "0"}
    shell = page_lines.Shell(work, megatron_jobs.venv_python(), **env)
    try:
        output = {}
        for line in mine:
            if line == "python follow.py replica":  # it waits for two minutes, which may be too short
                jobs.wait_for((work / "weights/run.json").exists, "the run", page_lines.SECONDS)
            output[line] = shell.run(line)
        trained = shell.ended()
    finally:
        shell.stop()
    assert re.findall(r"version (\d+), ", trained) == [str(n) for n in range(1, 13)], trained
    followed = re.findall(r"version (\d+) proven: (\w+)", output["python follow.py replica"])
    assert followed[-1] == ("12", "True") and {proven for _, proven in followed} == {"True"}
    assert "12" in output["driftless status weights"]


def test_the_lines_of_readme_that_replay_checkpoints(work):
    """Unchanged, also as root and on two cores."""
    jobs.need_mpirun()
    (work / "configs").symlink_to(REPOSITORY / "configs")
    shell = page_lines.Shell(work, COMMAND, **os.environ)
    lines = page_lines.shell_lines("README.md")
    lines = lines[next(n for n, line in enumerate(lines) if line.startswith("driftless synth")) :]
    output = [shell.run(line.replace("--params 20000000", "--params 2000000")) for line in lines]
    assert lines[1].startswith("mpirun ") and len(lines) == 2
    assert "version" in output[1] and "2" in output[1]


def test_the_calls_of_the_page_are_those_of_its_shell_lines():
    """No test would run a file that no shell line starts."""
    text = "\n".join(page_lines.shell_lines(START))
    for name in ("model.py", "train.py", "follow.py"):
        assert f"python {name}" in text
