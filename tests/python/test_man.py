# SPDX-License-Identifier: Apache-2.0
"""The man page and shell completions, which the command generates from its own options."""

import re
import shutil
import subprocess

import pytest

from support import COMMAND, REPOSITORY, assert_refusal, ok


def commands():
    """All commands, as words, from `--help`."""
    found = []
    for line in ok("--help").split("Subcommands:")[1].splitlines():
        match = re.match(r"  ([a-z]+) ", line)
        if match and match[1] == "config":
            found += [["config", "check"], ["config", "init"]]
        elif match:
            found.append([match[1]])
    return found


def long_options(text):
    """Options that begin a line of help, without those that a description mentions."""
    return set(re.findall(r"^ +(?:-[a-z], ?)?(--[a-z][a-z-]*)", text, flags=re.M))


def test_exit_codes_stand_once():
    assert "Exit codes:" in ok("--help")
    for command in commands():
        assert "Exit codes" not in ok(*command, "--help"), command


def rendered(work):
    page = work / "driftless.1"
    page.write_text(ok("man"))
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    line = ["groff", "-man", "-Tascii", "-ww", "-P-c", "-P-b", "-P-u", "-rLL=200n", str(page)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout


def test_the_man_page_has_every_command_option_and_exit_code(work):
    text = rendered(work)
    for command in commands():
        assert f"driftless {' '.join(command)}" in text
        missing = [name for name in long_options(ok(*command, "--help")) - {"--help"} if name not in text]
        assert not missing, (command, missing)
    codes = text.split("EXIT STATUS")[1]
    table = (REPOSITORY / "docs/operate/command.md").read_text().split("## Exit codes")[1]
    documented = re.findall(r"^\| (\d+) \|", table, flags=re.M)
    assert documented == re.findall(r"^ +(\d+) ", codes, flags=re.M), codes
    helped = re.findall(r"^  (\d+) ", ok("--help").split("Exit codes:")[1], flags=re.M)
    assert helped == documented


def test_mandoc_finds_nothing_wrong(work):
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed")
    page = work / "driftless.1"
    page.write_text(ok("man"))
    result = subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True)
    assert not [s for s in result.stdout.splitlines() if "missing date" not in s], result.stdout


class Bash:
    """A real bash that completes a line."""

    def __init__(self, work):
        self.directory = work / "here"
        self.directory.mkdir()
        self.script = work / "driftless.bash"
        self.script.write_text(ok("completion", "bash"))

    def complete(self, *words):
        line = """
        source "$1"; shift
        complete -p driftless >/dev/null || exit 3
        COMP_WORDS=(driftless "$@"); COMP_CWORD=$#
        _driftless; printf '%s\\n' "${COMPREPLY[@]}"
        """
        result = subprocess.run(
            ["bash", "-uc", line, "bash", str(self.script), *words],
            capture_output=True, text=True, timeout=300, cwd=self.directory,
        )  # fmt: skip
        assert result.returncode == 0 and result.stderr == "", result.stderr
        return set(result.stdout.split("\n")) - {""}


@pytest.fixture
def bash(work):
    return Bash(work)


def test_bash_completes_commands(bash):
    first = {command[0] for command in commands()}
    assert first <= bash.complete("")
    assert bash.complete("sy") == {"synth"}
    assert bash.complete("config", "") >= {"check", "init"}


def test_bash_completes_options_and_values(bash):
    for command in commands():
        expected = long_options(ok(*command, "--help"))
        assert bash.complete(*command, "--") == expected, command
    assert bash.complete("apply", "--verify", "") == {"touched", "full"}
    assert bash.complete("config", "init", "--role", "t") == {"trainer"}


def listed_options(text):
    """{option: its words}, as help prints them: --layout TEXT:{flush,frames}=flush."""
    found = re.findall(r"^ +(--[a-z-]+) TEXT:\{([^}]*)\}", text, flags=re.M)
    return {name: set(words.split(",")) for name, words in found}


def test_bash_completes_the_words_that_an_option_takes(bash):
    (bash.directory / "file").touch()
    for command in commands():
        for option, words in listed_options(ok(*command, "--help")).items():
            assert bash.complete(*command, option, "") == words, (command, option)
    roads = {"mpi_rma", "nccl", "shared_fs", "object_store", "host_shm", "peer"}
    assert bash.complete("config", "init", "--road", "") == roads
    assert bash.complete("config", "init", "--road", "n") == {"nccl"}
    assert bash.complete("diff", "--layout", "f") == {"flush", "frames"}
    encodings = {"indices", "deltas", "deltas_zstd", "xor", "overwrite", "compact", "full"}
    for command in ("diff", "plan"):
        assert bash.complete(command, "--encoding", "") == encodings
    assert bash.complete("diff", "--checksum", "b") == {"blake3"}
    assert bash.complete("plan", "--road", "s") == {"shared_fs"}
    assert bash.complete("doctor", "--only", "m") == {"mpi"}
    assert bash.complete("completion", "") >= {"bash", "zsh", "fish"}
    assert "file" not in bash.complete("completion", "") | bash.complete("info", "")


def test_bash_completes_file_names(bash):
    for name in ("job.yaml", "with blank.yaml", "other"):
        (bash.directory / name).touch()
    assert bash.complete("inspect", "") == {"job.yaml", "with blank.yaml", "other"}
    assert bash.complete("inspect", "w") == {"with blank.yaml"}
    assert bash.complete("trainer", "--config", "j") == {"job.yaml"}
    assert bash.complete("config", "check", "j") == {"job.yaml"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(work, shell):
    script = work / shell
    script.write_text(ok("completion", shell))
    assert all(word in script.read_text() for word in ("object_store", "deltas_zstd", "hf_delta"))
    for command in commands():
        assert command[-1] in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    result = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and result.stderr == "", result.stderr


def test_another_shell_is_refused():
    result = subprocess.run([COMMAND, "completion", "tcsh"], capture_output=True, text=True)
    assert_refusal(result, 2, "bash,zsh,fish")
