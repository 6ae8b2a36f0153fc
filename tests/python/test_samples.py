# SPDX-License-Identifier: Apache-2.0
"""Runs the samples of README.md and docs/start unchanged. A sample is a block whose first line is a
comment with its file's name; shell lines that start one of these files are run, too."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import binding
from support import REPOSITORY

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

binding.driftless()  # skips if there is none

BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w.]+\.(?:py|yaml))\n")
PAGES = ["README.md", "docs/start/python.md", "docs/start/sharded.md"]

# Runs a sample, then saves the bits of its whole `model`.
KEPT = """
import runpy, sys, torch
model = runpy.run_path(sys.argv[1])["model"]
torch.save({name: tensor.clone() for name, tensor in model.state_dict().items()}, sys.argv[2])
"""
SAME = """
import sys, torch
one, other = (torch.load(path) for path in sys.argv[1:])
assert one.keys() == other.keys()
for name in one: assert torch.equal(one[name].to(other[name].dtype), other[name]), name
print(len(one), "tensors")
"""


def blocks(page):
    return BLOCK.findall((REPOSITORY / page).read_text())


def write_samples(page, work):
    """Writes a page's files to `work`; a sample that occurs twice must be the same."""
    written = {}
    for block in blocks(page):
        named = FILE.match(block)
        if named:
            assert written.setdefault(named[1], block) == block
            (work / named[1]).write_text(block)
    (work / "configs").symlink_to(REPOSITORY / "configs")
    return set(written)


def shell_lines(page, names):
    """The shell lines that start a sample of the page, by the sample's name."""
    found = {}
    for line in "\n".join(blocks(page)).splitlines():
        if line.startswith(("torchrun ", "python ")):
            words = shlex.split(line, comments=True)
            if words[-1] in names:
                found[words[-1]] = words
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_trainer_and_a_rollout_as_the_page_has_them(page, work):
    names = write_samples(page, work)
    assert {"train.py", "rollout.py"} <= names
    python = megatron_jobs.venv_python()
    lines = {name: [python, name] for name in ("train.py", "rollout.py")} | shell_lines(page, names)
    env = megatron_jobs.environment()
    env["PATH"] = os.pathsep.join([str(Path(python).parent), env["PATH"]])
    env.pop("MASTER_PORT", None)
    alone = "torchrun" not in lines["train.py"][0]
    if alone:
        lines["train.py"] = [python, "-c", KEPT, "train.py", "trained.pt"]
    lines["rollout.py"] = [python, "-c", KEPT, "rollout.py", "followed.pt"]
    logs = {name: open(work / f"{name}.log", "w") for name in lines}
    started = {
        name: subprocess.Popen(line, cwd=work, env=env, stdout=logs[name], stderr=logs[name])
        for name, line in lines.items()
    }
    try:
        for name, process in started.items():
            ended = process.wait(600)
            assert ended == 0, f"{name}: {(work / f'{name}.log').read_text()[-3000:]}"
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    assert "version=10" in (work / "train.py.log").read_text()
    if alone:
        line = [python, "-c", SAME, work / "trained.pt", work / "followed.pt"]
        subprocess.run(line, env=env, check=True)
