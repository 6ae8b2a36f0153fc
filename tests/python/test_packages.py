# SPDX-License-Identifier: Apache-2.0
"""Deliverables: the exported C symbols against the committed list, the Containerfile, and the
Debian packages, installed in a minimal Debian in which C and C++ programs are compiled against
them. The Debian tests build the packages first and take minutes: `make test-long`."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import clean_root
from support import REPOSITORY
from test_binding_wheel import setting

BUILD = REPOSITORY / "build-package-test"
SYMBOLS = REPOSITORY / "plugin/c_abi/driftless.symbols"
VERSION = re.search(
    r"^project\(driftless VERSION ([0-9.]+) ", (REPOSITORY / "CMakeLists.txt").read_text(), re.M
).group(1)
ON_DEMAND = ("mpi", "hdf5", "nccl", "cuda", "object-store", "peer", "monitor")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exported(library):
    return sorted(line.split()[-1] for line in output_of("nm", "-D", "--defined-only", library).splitlines())


def test_exported_symbols_are_those_of_the_committed_list():
    """Removing a symbol breaks programs: first raise DRIFTLESS_ABI by one, then change the list."""
    assert exported(REPOSITORY / "build/lib/libdriftless.so") == SYMBOLS.read_text().split()


# --- the Containerfile ---------------------------------------------------------------------------


def container_tools():
    made = subprocess.run(
        [REPOSITORY / "scripts/python_env.sh", "container"], capture_output=True, text=True
    )
    if made.returncode == 3:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


def container_steps():
    """The instructions of each stage, with their values."""
    code = """
import json, sys
from dockerfile_parse import DockerfileParser
parser = DockerfileParser(path=sys.argv[1], cache_content=True)
parser.content  # reads it
print(json.dumps([[one["instruction"], one["value"]] for one in parser.structure]))
"""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(REPOSITORY / "Containerfile", Path(folder) / "Dockerfile")
        lines = json.loads(output_of(container_tools() / "bin/python", "-c", code, folder))
    stages = []
    for instruction, value in lines:
        if instruction == "FROM":
            stages.append([])
        if instruction != "COMMENT":
            stages[-1].append((instruction, value))
    return stages


def test_the_containerfile_is_clean():
    lint = [container_tools() / "bin/hadolint", "--no-color", REPOSITORY / "Containerfile"]
    result = subprocess.run(lint, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    build, image = container_steps()
    assert [value for word, value in build if word == "RUN"][-1].startswith("make packages")
    copied = next(value for word, value in image if word == "COPY").split()
    assert copied == ["--from=build", "/src/build/packages", "/packages"]
    assert ("ENTRYPOINT", '["driftless"]') in image
    assert next(value for word, value in image if word == "USER") not in ("root", "0")


# --- the packages --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def packages():
    """The packages by name: those in DRIFTLESS_PACKAGES, or built as by `make packages`, with the
    settings of the build folder, so that ccache has its objects."""
    if made := os.environ.get("DRIFTLESS_PACKAGES"):
        return {file.name.split("_")[0]: file for file in Path(made).glob("*.deb")}
    configure = ["cmake", "--preset", "package", "-B", BUILD]
    for name in ("DRIFTLESS_CUDA_ARCHITECTURES", "CMAKE_CXX_COMPILER", "NCCL_ROOT", "DRIFTLESS_WERROR"):
        if value := setting(name):
            configure.append(f"-D{name}={value}")
    out = BUILD / "packages"
    shutil.rmtree(out, ignore_errors=True)
    build = ["cmake", "--build", BUILD, "-j2"]
    pack = ["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", out]
    for line in (configure, build, pack):
        ran = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, timeout=3000)
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return {file.name.split("_")[0]: file for file in out.glob("*.deb")}


@pytest.fixture
def root(packages):
    """A Debian that has the packages in /packages, with an index for apt."""
    with tempfile.TemporaryDirectory(dir=REPOSITORY / "build") as folder:
        root = clean_root.copied(Path(folder))
        repository = root.path / "packages"
        repository.mkdir()
        for file in packages.values():
            shutil.copy(file, repository)
        index = subprocess.run(
            ["dpkg-scanpackages", "-m", "."], cwd=repository, capture_output=True, text=True, check=True
        )
        (repository / "Packages").write_text(index.stdout)
        sources = root.path / "etc/apt/sources.list.d/driftless.list"
        sources.write_text("deb [trusted=yes] file:/packages ./\n")
        only = "Dir::Etc::SourceList=/dev/null"
        root.ok("apt-get", "update", "-qq", "-o", only, "-o", "APT::Get::List-Cleanup=0")
        yield root


def field(package, name):
    """The names in a dependency field, without versions."""
    text = output_of("dpkg-deb", "-f", package, name)
    return {word.split()[0] for choice in text.split(",") for word in choice.split("|") if word.strip()}


@pytest.mark.long
def test_packages_need_what_they_link_and_nothing_else(packages):
    optional = re.compile("mpi|hdf5|nccl|cuda|pugixml|prometheus|httplib|python")
    assert {"libdriftless1", "libdriftless-dev", "driftless"} <= set(packages)
    for name in ("libdriftless1", "driftless"):
        needed = field(packages[name], "Depends")
        assert needed and not [one for one in needed if optional.search(one)], needed
        recommended = field(packages[name], "Recommends")
        assert recommended == {one for one in packages if one[10:] in ON_DEMAND and one != "driftless-nccl"}
    assert "libcurl4" not in field(packages["libdriftless1"], "Depends")
    assert "libdriftless1" in field(packages["libdriftless-dev"], "Depends")
    for part in ON_DEMAND:
        if file := packages.get(f"driftless-{part}"):
            assert "libc6" in field(file, "Depends") and "libdriftless1" not in field(file, "Depends")
    for file in packages.values():
        assert output_of("dpkg-deb", "-f", file, "Version").strip() == VERSION


@pytest.mark.long
def test_no_package_names_the_build_folder_or_searches_the_current_directory(packages, tmp_path):
    for name, package in packages.items():
        folder = tmp_path / name
        output_of("dpkg-deb", "-x", package, folder)
        assert (folder / f"usr/share/doc/{name}/copyright").read_text().count("Apache License") > 0
        for file in folder.rglob("*"):
            if file.is_symlink():
                assert file.resolve().is_relative_to(folder), file
            if not file.is_file() or file.is_symlink():
                continue
            content = file.read_bytes()
            assert str(REPOSITORY).encode() not in content, file
            if not content.startswith(b"\x7fELF"):
                continue
            found = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", output_of("readelf", "-d", file))
            for path in ":".join(found).split(":") if found else ():
                assert re.match(r"\$ORIGIN(/|$)|/usr/lib(/|$)", path), f"{file}: {found}"
    library = next((tmp_path / "libdriftless1").rglob("libdriftless.so.1"))
    assert exported(library) == SYMBOLS.read_text().split()


@pytest.mark.long
def test_the_library_alone(root):
    root.install("libdriftless1")
    assert not root.installed() & {"libopenmpi3", "libcurl4", "driftless", "driftless-mpi"}
    library = next(root.path.glob("usr/lib/*/libdriftless.so.1"))
    linked = root.ok("ldd", f"/{library.relative_to(root.path)}")
    assert "not found" not in linked and "libmpi" not in linked
    root.ok("apt-get", "purge", "-y", "-qq", "libdriftless1")
    assert not list(root.path.glob("usr/**/*driftless*"))


@pytest.mark.long
def test_the_command_loads_what_is_installed(root, packages):
    root.install("driftless")
    assert not root.installed() & {"libopenmpi3", "driftless-mpi"}
    assert root.ok("driftless", "--version").split()[:2] == ["driftless", VERSION]

    def built():
        backends = json.loads(root.ok("driftless", "info", "--json"))["backends"]
        return {one["name"]: one["built"] or one["why_not"] for one in backends}

    before = built()
    assert before["shared_fs"] is True
    loaded = {"mpi_rma": "mpi", "object_store": "object-store", "peer": "peer", "nccl": "nccl"}
    for name, part in loaded.items():
        if f"driftless-{part}" in packages:
            assert f"driftless-{part}" in before[name], before
    # Publishes and applies a version with only these packages.
    work = "/tmp/work"
    root.ok("driftless", "synth", "--out", f"{work}/run", "--params", "200000", "--steps", "1")
    old, new = (f"{work}/run/step_00000{step}" for step in (0, 1))
    root.ok("driftless", "diff", old, new, "--out", f"{work}/published")
    root.ok("driftless", "apply", f"{work}/published", "--to", old)
    root.ok("driftless", "verify", old, "--like", new)
    root.ok("driftless", "config", "check", "/usr/share/driftless/configs/shared_fs_flush.yaml")
    assert (root.path / "usr/share/driftless/driftless.1").stat().st_size > 1000
    for link in ("man/man1/driftless.1", "bash-completion/completions/driftless"):
        root.ok("test", "-s", f"/usr/share/{link}")
    # Libraries in the current directory are not loaded.
    (root.path / "tmp/libdriftless_roads.so").write_text("no library")
    assert "no library" not in str(root.ok("sh", "-c", "cd /tmp && driftless info --json"))
    root.install("driftless", *field(packages["driftless"], "Recommends"))
    after = built()
    assert all(after[name] is True for name in ("mpi_rma", "object_store", "peer")), after
    root.ok("apt-get", "purge", "-y", "-qq", *(one for one in packages if one in root.installed()))
    assert not list(root.path.glob("usr/**/*driftless*"))


@pytest.mark.long
def test_programs_are_compiled_against_the_development_package(root):
    root.install("libdriftless-dev", "g++", "make", "cmake")
    assert "libopenmpi3" not in root.installed()
    shutil.copytree(REPOSITORY / "tests/install", root.path / "strangers")
    shutil.copytree(REPOSITORY / "examples", root.path / "examples")

    def by_cmake(folder, program, *flags):
        root.ok("cmake", "-S", folder, "-B", f"{folder}/build", *flags)
        root.ok("cmake", "--build", f"{folder}/build")
        return root.ok(f"{folder}/build/{program}", *(["OFF"] if program == "c_consumer" else []))

    assert "shared_fs" in by_cmake("/strangers/c", "c_consumer")
    assert "version 1" in by_cmake("/strangers", "consumer", "-DWITH_ROADS=OFF")
    strict = "-Wall -Wextra -Werror -pedantic"
    flags = "$(pkg-config --cflags --libs driftless)"
    for line in (f"cc -std=c99 {strict} /examples/c/follow.c -o /follow_c {flags}",
                 f"c++ -std=c++20 {strict} /examples/cpp/follow.cpp -o /follow_cpp {flags}"):  # fmt: skip
        root.ok("sh", "-c", line)
    for program in ("/follow_c", "/follow_cpp"):
        ran = root.run(program, "/none.yaml", "/none", "-", "/out")
        assert ran.returncode == 1 and ran.stderr, ran
    version = root.ok("pkg-config", "--modversion", "driftless").strip()
    assert version == VERSION


@pytest.mark.long
def test_the_steps_of_the_containerfile(root, packages):
    """The image's steps run unchanged, except for the copy. For the build's steps, what they
    install and make must exist."""
    build, image = container_steps()
    for word, value in build:
        if word == "RUN" and "apt-get" in value:
            root.ok("sh", "-c", value.replace("apt-get install", "apt-get install --dry-run"))
    (install,) = (value for word, value in image if word == "RUN")
    root.ok("sh", "-c", install, timeout=1200)
    assert not (root.path / "packages").exists()
    user = next(value for word, value in image if word == "USER")
    line = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "driftless"]
    ran = root.run(*line, "info", "--json")
    assert ran.returncode == 0, ran.stderr
    assert '"mpi_rma"' in ran.stdout
