# SPDX-License-Identifier: Apache-2.0
"""The quick start with real vLLM: runs the page's lines one by one."""

import re
import sys
import time
import urllib.error
import urllib.request

import engines
from environments import REPOSITORY, environment, install_entry_points, python_of

sys.path.append(str(REPOSITORY / "tests/python"))

import page_lines  # noqa: E402
from ports import free_port  # noqa: E402

PAGE = "docs/start/quick_start.md"
# The tests' environments replace these installations.
INSTALLS = (
    "pip install vllm",
    '. "$(scripts/python_env.sh vllm)/bin/activate"',
    "pip install ./driftless-*.whl",
)


def wait_healthy(url, process, log, seconds=900):
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(0.3)


def test_vllm_follows_the_training_script(place):
    python = python_of("vllm")
    work = place / "quick_start"
    work.mkdir()
    page_lines.write_files(PAGE, work)
    lines = page_lines.shell_lines(PAGE)
    begin = lines.index(INSTALLS[0])
    assert tuple(lines[begin : begin + 3]) == INSTALLS
    port = free_port()
    # vLLM gets only the variables that the page exports, and the tests' number of threads.
    env = environment(install_entry_points(work / "entry_points"), VLLM_NO_USAGE_STATS=1)
    env["VLLM_CPU_OMP_THREADS_BIND"] = engines.VLLM["VLLM_CPU_OMP_THREADS_BIND"]
    shell = page_lines.Shell(work, python, **env)
    answers, followed = [], ""
    server = page_lines.Shell(work, python, **env)
    try:
        shell.run("python model.py")
        (work / "weights").mkdir()  # for the first run
        for line in lines[begin + 3 :]:
            line = line.replace("8000", str(port))
            if line.startswith("vllm serve"):
                server.env = shell.env
                wait_healthy(f"http://127.0.0.1:{port}", *server.start(line))
            elif line.startswith("curl "):
                answers.append(shell.run(line))
            else:
                output = shell.run(line)
                followed += output if "follow.py" in line else ""
        trained = shell.ended()
    finally:
        shell.stop()
        server.stop()
    assert len(re.findall(r"version \d+, ", trained)) == 12
    versions = re.findall(r"version (\d+) proven: (\w+)", followed)
    assert versions[-1] == ("12", "True") and {proven for _, proven in versions} == {"True"}
    texts = [re.search(r'"text":"([^"]*)"', answer)[1] for answer in answers]
    assert texts[0] != texts[1] == " 8 9 10 11 12", texts
