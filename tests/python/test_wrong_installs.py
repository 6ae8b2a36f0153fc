# SPDX-License-Identifier: Apache-2.0
"""Installations with a missing or damaged library, one of another build or processor, or a foreign
library in the way: the error says what to install, and everything else works."""

import os
import subprocess
import sys

import pytest

import binding

binding.driftless()  # skips if there is none

ROADS = "libdriftless_roads.so"
SAYS = """
import driftless
for each in driftless.backends():
    print(each.name, each.built, each.why_not)
"""


@pytest.fixture
def package(work):
    """A copy that shares the files of the build."""
    made = work / "driftless"
    made.mkdir()
    for file in (binding.PACKAGE / "driftless").iterdir():
        (made / file.name).symlink_to(file.resolve())
    if not (made / ROADS).exists():
        pytest.skip("MPI is not in this build")
    return made


def why_not(work, **more):
    """{backend: why it does not work, or nothing}"""
    env = {**os.environ, "PYTHONPATH": str(work), **more}
    done = subprocess.run([sys.executable, "-c", SAYS], env=env, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    found = {name: "" if built == "True" else reason for name, built, reason in lines}
    assert found["shared_fs"] == found["host_shm"] == ""
    return found


def replaced(path, content):
    path.unlink()
    path.write_bytes(content)


def test_a_library_that_is_missing(package, work):
    for file in package.glob("libdriftless_*.so"):
        file.unlink()
    found = why_not(work)
    assert "install the package driftless-mpi" in found["mpi_rma"], found
    for road, part in (("object_store", "object-store"), ("peer", "peer"), ("shared_fs/hdf5", "hdf5")):
        assert f"driftless-{part}" in found[road] or "not in this build" in found[road], found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[: len(data) // 2], "was cut short"),
        (lambda data: data[:18] + b"\x03\x00" + data[20:], "another processor"),
        (lambda data: b"no library", "cannot be loaded"),
        (lambda data: b"", "cannot be loaded"),
    ],
)
def test_a_library_that_is_damaged(package, work, change, words):
    replaced(package / ROADS, change((package / ROADS).read_bytes()))
    output = why_not(work)["mpi_rma"]
    assert words in output and ROADS in output and "install" in output, output


def test_a_library_of_another_build(package, work):
    source = work / "other.c"
    source.write_text(
        'static const char* const build[] = {"driftless 0.0.1"};\n'
        "const void* driftless_road_table(void) { return build; }\n"
    )
    (package / ROADS).unlink()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", package / ROADS, source], check=True)
    output = why_not(work)["mpi_rma"]
    assert "another build" in output and "driftless 0.0.1" in output and "install driftless again" in output


def test_a_foreign_mpi_is_named(package, work):
    """For example from a module whose folder is in LD_LIBRARY_PATH."""
    foreign = work / "foreign"
    foreign.mkdir()
    (foreign / "empty.c").write_text("int nothing;\n")
    for name in ("libmpi.so.40", "libhdf5_openmpi.so.103"):
        line = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", foreign / name, foreign / "empty.c"]
        subprocess.run(line, check=True)
    output = why_not(work, LD_LIBRARY_PATH=str(foreign))["mpi_rma"]
    if not output:
        pytest.skip("the build found its MPI at a place that it remembers")
    assert "undefined symbol" in output and "LD_LIBRARY_PATH" in output and "Open MPI" in output, output
