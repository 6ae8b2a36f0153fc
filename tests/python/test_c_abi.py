# SPDX-License-Identifier: Apache-2.0
"""libdriftless.so and the example programs that use it: its exports and links, and programs that
follow real trainers over files and over MPI into their own memory, bit for bit."""

import ctypes
import json
import os
import re
import subprocess

import pytest

import jobs
from support import COMMAND, REPOSITORY

BUILD = REPOSITORY / "build"
LIBRARY = BUILD / "lib/libdriftless.so"
HEADER = REPOSITORY / "plugin/c_abi/driftless.h"
PROGRAMS = {language: BUILD / f"bin/follow_{language}" for language in ("c", "cpp")}
STEPS = 4


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    jobs.stop_started()


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --- the library ---------------------------------------------------------------------------------


def test_exports_exactly_the_functions_of_the_header():
    exported = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", LIBRARY).splitlines()}
    declared = set(re.findall(r"^DRIFTLESS_EXPORT [^;(]*?\b(driftless_\w+)\(", HEADER.read_text(), re.M))
    assert len(declared) > 25 and exported == declared


def test_links_nothing_that_a_road_needs():
    dynamic = output_of("readelf", "-d", LIBRARY)
    needed = re.findall(r"NEEDED.*\[(lib\S+?)\.so", dynamic)
    system = {"libc", "libm", "libgcc_s", "libstdc++", "libdl", "libpthread", "ld-linux-aarch64"}
    assert set(needed) - system <= {"libyaml-cpp", "libzstd", "libz"}, needed
    number = re.search(r"#define DRIFTLESS_ABI (\d+)", HEADER.read_text()).group(1)
    assert f"[libdriftless.so.{number}]" in dynamic
    loaded = output_of("ldd", LIBRARY)
    for name in ("libmpi", "libnccl", "libcuda", "libhdf5", "libcurl", "libpython"):
        assert name not in loaded


@pytest.mark.parametrize(
    "compiler", [["cc", "-std=c99", "-xc"], ["cc", "-std=c11", "-xc"], ["c++", "-std=c++11", "-xc++"],
                 ["c++", "-std=c++20", "-xc++"]]
)  # fmt: skip
def test_the_header_is_clean(compiler, tmp_path):
    source = tmp_path / "use.c"
    source.write_text('#include "driftless.h"\nint main(void) { return (int)driftless_abi() - 1; }\n')
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-fsyntax-only"]
    line = [compiler[0], *compiler[1:], *flags, f"-I{HEADER.parent}", source]
    result = subprocess.run(line, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_from_another_language():
    """The functions without structs suffice to read the reason of a failure."""
    library = ctypes.CDLL(str(LIBRARY))
    library.driftless_version.restype = ctypes.c_char_p
    library.driftless_error_message.restype = ctypes.c_char_p
    library.driftless_error_message.argtypes = [ctypes.c_void_p]
    library.driftless_error_free.argtypes = [ctypes.c_void_p]
    receiver, error = ctypes.c_void_p(), ctypes.c_void_p()
    code = library.driftless_open(
        b"/nowhere.yaml", None, ctypes.c_size_t(0), None, ctypes.byref(receiver), ctypes.byref(error)
    )
    assert code == 2 and b"/nowhere.yaml" in library.driftless_error_message(error)
    library.driftless_error_free(error)
    project = (REPOSITORY / "CMakeLists.txt").read_text()
    assert library.driftless_version().decode() in re.search(r"VERSION ([0-9.]+) LANG", project).group(1)


# --- the examples --------------------------------------------------------------------------------


class Followed:
    """A run on disk, and the input and output of the example programs."""

    def __init__(self, work, rng, road):
        self.job = jobs.Job(work, road)
        self.work = work
        self.history = jobs.make_run(work / "run", rng, STEPS)
        self.tensors = work / "tensors.txt"
        lines = [
            f"{name} {tensor.dtype} {' '.join(map(str, tensor.shape))}\n"
            for name, tensor in self.history[0].items()
        ]
        self.tensors.write_text("".join(lines))
        self.base = work / "base.bin"
        self.base.write_bytes(self.bytes_of(0))
        self.out = work / "out.bin"

    def bytes_of(self, step):
        return b"".join(tensor.data for tensor in self.history[step].values())

    def command(self, language, base=True, *settings):
        chosen = [word for word in self.job.settings if word != "--set"]
        start = self.base if base else "-"
        line = [PROGRAMS[language], self.job.config, self.tensors, start, self.out, *chosen]
        return [*map(str, line), "threads=1", *settings]

    def trainer(self, *options):
        return [COMMAND, *map(str, self.job.trainer("--json", "--replay", self.work / "run", *options))]

    def check(self, result, trainer):
        """Asserts success, with the trainer's last bytes, and the digests that the trainer
        printed."""
        assert result.returncode == 0, result.stderr + result.stdout
        assert self.out.read_bytes() == self.bytes_of(STEPS)
        (printed,) = re.findall(rf'"version":{STEPS},.*?"digest":"(\w{{32}})"', trainer.stdout)[:1]
        output = re.findall(r"^version (\d+) digest (\w{32})", result.stdout, re.M)
        assert output[-1] == (str(STEPS), printed)
        assert f"the run ended at version {STEPS}" in result.stdout


def played(followed):
    """A trainer that has published its run and ended."""
    trainer = jobs.finish(jobs.start(followed.trainer("--rollouts", 0)))
    assert trainer.returncode == 0, trainer.stderr
    return trainer


@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.parametrize("base", (True, False), ids=("from_the_base", "from_nothing"))
def test_follows_a_trainer_over_files(work, rng, language, base):
    followed = Followed(work, rng, "flush")
    rollout = jobs.start(followed.command(language, base))
    trainer = jobs.start(followed.trainer("--rollouts", 1))
    ended = jobs.finish(trainer)
    assert ended.returncode == 0, ended.stderr
    followed.check(jobs.finish(rollout), ended)


@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.parametrize("road", ("mpi_rma", "hdf5"))
def test_follows_trainers_in_an_mpi_job(work, rng, language, road):
    """The library loads MPI because mpirun started it; two trainers, and one native rollout."""
    jobs.need_mpirun()
    followed = Followed(work, rng, road)
    other = [COMMAND, *map(str, followed.job.rollout("--base", followed.work / "run/step_000000"))]
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", *followed.trainer()]
    line += [":", "-n", "1", *followed.command(language), ":", "-n", "1", *other]
    result = jobs.finish(jobs.start(line))
    followed.check(result, result)


def test_metrics_of_the_example(work, rng):
    followed = Followed(work, rng, "flush")
    trainer = played(followed)
    file = work / "metrics_{role}_{rank}.jsonl"
    result = jobs.finish(jobs.start(followed.command("c", True, f"metrics.file={file}")))
    followed.check(result, trainer)
    metrics = json.loads(re.search(r"^metrics (.*)$", result.stdout, re.M).group(1))
    commits = result.stdout.count("digest")
    assert metrics["version"] == STEPS and metrics["versions"] == STEPS
    assert metrics["commits"] == commits and metrics["wire_bytes"] > metrics["delta_bytes"] > 0
    assert f"paused {commits} times, resumed {commits} times" in result.stdout
    lines = (work / "metrics_rollout_0.jsonl").read_text().splitlines()
    assert len(lines) == commits and json.loads(lines[-1])["version"] == STEPS


def refused(followed, *settings, language="c", **options):
    result = jobs.finish(jobs.start(followed.command(language, True, *settings), **options))
    assert result.returncode == 1 and not followed.out.exists(), result.stdout
    return result.stderr


@pytest.mark.parametrize("language", PROGRAMS)
def test_refusals_say_what_is_wrong(work, rng, language):
    followed = Followed(work, rng, "flush")
    assert "road.dirr" in refused(followed, "road.dirr=x", language=language)
    played(followed)
    text = followed.tensors.read_text()
    followed.tensors.write_text(text.replace("norm.weight F16 33", "norm.weight BF16 33"))
    output = refused(followed, language=language)
    assert "wrong_layout" in output and "norm.weight" in output and "BF16" in output
    followed.tensors.write_text(text.replace("norm.weight F16 33", "norm.weight F16 11 3"))
    assert "wrong_layout" in refused(followed, language=language)
    followed.tensors.write_text(text)
    followed.base.write_bytes(followed.bytes_of(1))
    assert "wrong_base" in refused(followed, language=language)


def test_without_mpi_files_work_and_mpi_is_refused(work, rng):
    """The loader finds no MPI, as on a machine without it."""
    jobs.need("mpi_rma")
    needed = output_of("ldd", BUILD / "lib/driftless/libdriftless_roads.so")
    names = [line.split()[0] for line in needed.splitlines() if "libmpi" in line]
    assert names, needed
    hidden = work / "hidden"
    hidden.mkdir()
    for name in names:
        (hidden / name).write_text("not a library")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(hidden)}
    files, mpi = work / "files", work / "mpi"
    files.mkdir(), mpi.mkdir()
    output = refused(Followed(mpi, rng, "mpi_rma"), env=environment)
    assert "unsupported" in output and "MPI is needed and cannot be loaded" in output and names[0] in output
    followed = Followed(files, rng, "flush")
    trainer = played(followed)
    followed.check(jobs.finish(jobs.start(followed.command("c"), env=environment)), trainer)
