# SPDX-License-Identifier: Apache-2.0
"""Wheels that `make wheels` built: their contents, what they need of a host, and the time from
installation to a rollout's first version. Skipped if there are none; DRIFTLESS_WHEELS names another
directory."""

import json
import os
import platform
import re
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

import clean_root
from support import REPOSITORY

FOLDER = Path(os.environ.get("DRIFTLESS_WHEELS", REPOSITORY / "build/wheels/out"))
WHEELS = sorted(FOLDER.glob("driftless-*.whl"))
pytestmark = pytest.mark.skipif(not WHEELS, reason=f"make wheels built none in {FOLDER}")
BYTES = 25_000_000
NEWEST_GLIBC = (2, 34)
EVERYWHERE = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# The code that the other files share; {} is the version.
SHARED = "libdriftless_shared-{}.so"
LOADED = {
    "libdriftless_roads.so": {"libmpi.so.40"},
    "libdriftless_hdf5_roads.so": {"libmpi.so.40", "libhdf5_openmpi.so.103"},
    "libdriftless_nccl_roads.so": set(),
    "libdriftless_device.so": set(),
}


@pytest.fixture(scope="module", params=WHEELS, ids=lambda path: path.name.split("-", 2)[-1])
def wheel(request):
    return request.param


@pytest.fixture(scope="module")
def files(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def programs(files):
    """The wheel's libraries and programs."""
    for path in sorted(files.rglob("*")):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            yield path


def shared(wheel):
    return SHARED.format(wheel.name.split("-")[1])


def dynamic(path):
    return subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout


def test_contents(wheel, files):
    assert re.fullmatch(
        r"driftless-[0-9.]+-cp3(11|12|13)-cp3\1-manylinux_2_34_(x86_64|aarch64)\.whl", wheel.name
    ), wheel.name
    package = files / "driftless"
    for name in ["__init__.py", "_native.pyi", "py.typed", "bin/driftless", shared(wheel), *LOADED]:
        assert (package / name).is_file(), name
    assert len(list(package.glob("_native.*.so"))) == 1
    configs = {path.name for path in (REPOSITORY / "configs").glob("*.yaml")}
    assert {path.name for path in (package / "configs").glob("*.yaml")} == configs
    licences = {path.stem for path in (package / "licences").iterdir()}
    for name in ("curl", "openssl", "zstd", "zlib", "yaml-cpp", "pugixml", "prometheus-cpp", "cpp-httplib",
                 "nlohmann-json", "cli11", "xxhash", "libstdc++", "cuda_runtime"):  # fmt: skip
        assert name in licences, name
    assert list(files.glob("*.dist-info/**/LICENSE"))
    assert not list(files.rglob("__pycache__"))


def test_size(wheel):
    parts = sorted(zipfile.ZipFile(wheel).infolist(), key=lambda part: -part.compress_size)
    weights = ", ".join(f"{part.filename} {part.compress_size / 1e6:.1f} MB" for part in parts[:9])
    assert wheel.stat().st_size <= BYTES, weights


def test_needs_nothing_but_glibc(wheel, files):
    """The older host has glibc 2.34; no host needs our libraries, or a new libstdc++."""
    for path in programs(files):
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic(path)))
        own = set() if path.name == shared(wheel) else {shared(wheel)}
        assert needed - EVERYWHERE == LOADED.get(path.name, set()) | own, path.name
        symbols = subprocess.run(["readelf", "-VW", path], capture_output=True, text=True, check=True).stdout
        assert "GLIBCXX_" not in symbols, path.name
        for version in re.findall(r"Name: GLIBC_([0-9.]+)", symbols):
            assert tuple(map(int, version.split("."))) <= (*NEWEST_GLIBC, 99), f"{path.name}: {version}"


def test_searches_libraries_only_in_its_own_folder(files):
    """An empty element of a RUNPATH means the current directory; one of the build belongs to
    another host."""
    seen = 0
    for path in programs(files):
        seen += 1
        for paths in re.findall(r"(?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic(path)):
            for element in paths.split(":"):
                assert re.fullmatch(r"\$ORIGIN(/[\w.]+)*", element), f"{path.name}: {paths!r}"
        assert str(REPOSITORY).encode() not in path.read_bytes(), f"{path.name} names the build folder"
        # LD_LIBRARY_PATH comes before RUNPATH and after RPATH: it chooses NCCL, not our own library.
        assert ("(RPATH)" in dynamic(path)) == path.name.startswith("_native."), path.name
    assert seen == 3 + len(LOADED)


def test_exports_only_names_of_driftless(wheel, files):
    """A process has other copies of libstdc++ and libcrypto, and each library its own table of roads."""
    for path in programs(files):
        lines = subprocess.run(
            ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        names = {line.split()[-1] for line in lines}
        if path.name == shared(wheel):
            assert all(re.match(r"_Z(N[KRO]*|T.N)9driftless", name) for name in names), names
            assert not [name for name in names if "10road_table" in name or "device_table" in name]
        elif path.suffix == ".so":
            assert len(names) == 1, (path.name, names)


def test_has_the_code_for_gpus_once(files):
    holders = set()
    for path in programs(files):
        sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True, check=True).stdout
        size = re.search(r"\.nv_fatbin\s+PROGBITS\s+\w+\s+\w+\s+(\w+)", sections)
        if size and int(size[1], 16) > 100_000:  # CUDA's runtime has a little GPU code of its own
            holders.add(path.name)
    assert holders == {"libdriftless_device.so"}


# --- installed ------------------------------------------------------------------------------------

TRAINER = """
import driftless
class Weights:
    def tensors(self): return [driftless.TensorSpec("w", "U8", [4000])]
    def visit(self): yield [(0, bytes([number]) + bytes(3999))]
config = driftless.Config.parse("road: {kind: shared_fs, shared_fs: {dir: road}}")
with driftless.Job(config, "trainer") as job:
    number = 0
    publisher = driftless.Publisher(job, Weights())
    number = 7
    publisher.publish(Weights())
    publisher.declare_end()
"""
ROLLOUT = """
import driftless
config = driftless.Config.parse("road: {kind: shared_fs, shared_fs: {dir: road}}")
held = bytearray(4000)
with driftless.Job(config, "rollout") as job:
    receiver = driftless.Receiver(job, driftless.MemoryTarget({"w": held}, version=0))
    assert receiver.stage(timeout_s=60)
    print(receiver.commit().version, held[0])
"""


def interpreter(wheel):
    """A Python for which the wheel was made; skips the test if there is none."""
    version, machine = re.search(r"cp3(\d+)-manylinux_2_34_(\w+)\.whl", wheel.name).groups()
    if machine != platform.machine():
        pytest.skip(f"this machine is {platform.machine()}")
    name = f"python3.{version}"
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in [shutil.which(name), *sorted(homes.glob(f"3.{version}.*/bin/{name}"))]:
        if python and subprocess.run([python, "--version"], capture_output=True).returncode == 0:
            return python
    return pytest.skip(f"no {name}")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of an environment with the wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([interpreter(wheel), "-m", "venv", folder / "venv"], check=True, capture_output=True)
    line = [folder / "venv/bin/pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run(line, check=True, capture_output=True)
    return folder / "venv"


LOADS = """
import driftless
for each in driftless.backends():
    print(each.name, each.built, each.why_not)
"""


@pytest.mark.long
def test_libraries_of_the_same_name_do_not_replace_its_own(wheel, installed, tmp_path):
    """LD_LIBRARY_PATH names a folder with an empty library for each of ours, MPI and HDF5: ours are
    loaded, and errors name a foreign MPI."""
    (tmp_path / "empty.c").write_text("int nothing_of_ours;\n")
    for name in (shared(wheel), *LOADED, "libmpi.so.40", "libhdf5_openmpi.so.103"):
        line = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", tmp_path / name, tmp_path / "empty.c"]
        subprocess.run(line, check=True)
    environment = {"PATH": str(installed / "bin"), "HOME": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [installed / "bin/python", "-c", LOADS], env=environment, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: line for line in done.stdout.splitlines()}
    for name in ("shared_fs", "object_store", "peer"):
        assert found[name].split()[1] == "True", found[name]
    for word in ("mpi_rma False", "undefined symbol", "Open MPI", "LD_LIBRARY_PATH"):
        assert word in found["mpi_rma"], found["mpi_rma"]
    (tmp_path / shared(wheel)).unlink()
    command = [installed / "bin/driftless", "info"]
    assert subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode == 0


def move_a_version(run, binaries):
    """By the module, from a trainer to a rollout."""
    run(binaries / "python", "-c", TRAINER)
    assert run(binaries / "python", "-c", ROLLOUT) == "1 7\n"


def name_what_is_missing(run, binaries):
    """On a host without MPI, HDF5 and NCCL: what to install for each."""
    listed = json.loads(run(binaries / "driftless", "info", "--json"))["backends"]
    reasons = {each["name"]: "" if each["built"] else each["why_not"] for each in listed}
    for name, package in (("mpi_rma", "libopenmpi3"), ("shared_fs/hdf5", "libhdf5-openmpi-103|libopenmpi3"),
                          ("nccl", "nvidia-nccl-cu13")):  # fmt: skip
        assert re.search(package, reasons.pop(name)), listed
    assert not [name for name, reason in reasons.items() if reason and not name.startswith("nccl/")], listed


def use_the_command(run, binaries):
    command = binaries / "driftless"
    assert run(command, "--version").startswith("driftless ")
    run(command, "synth", "--out", "run", "--params", "100000", "--steps", "1")
    run(command, "diff", "run/step_000000", "run/step_000001", "--out", "published")
    run("cp", "-r", "run/step_000000", "replica")
    run(command, "apply", "published", "--to", "replica")
    run(command, "verify", "replica", "--like", "run/step_000001")
    code = "import driftless; print(driftless.__path__[0])"
    package = Path(run(binaries / "python", "-c", code).strip())
    run(command, "config", "check", package / "configs/shared_fs_flush.yaml")


@pytest.mark.long
def test_a_first_version_within_a_minute_without_a_compiler(wheel, tmp_path):
    made = [interpreter(wheel), "-m", "venv", tmp_path / "venv"]
    subprocess.run(made, check=True, capture_output=True)
    binaries = tmp_path / "venv/bin"
    # No compiler, and no mpirun.
    environment = {"PATH": str(binaries), "HOME": str(tmp_path)}
    (binaries / "cp").symlink_to(shutil.which("cp"))

    def run(*command):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    begun = time.monotonic()
    run(binaries / "pip", "install", "--no-index", "--disable-pip-version-check", wheel)
    move_a_version(run, binaries)
    took = time.monotonic() - begun
    print(f"{wheel.name}: {took:.1f} s from pip install to a rollout's first version")
    assert took < 60
    use_the_command(run, binaries)


@pytest.mark.long
def test_in_a_debian_that_has_nothing_else(wheel, tmp_path):
    """The Debian that has the wheel's Python; by qemu if the wheel is for another processor."""
    version, machine = re.search(r"cp3(\d+)-manylinux_2_34_(\w+)\.whl", wheel.name).groups()
    root = clean_root.of_processor(machine, f"3.{version}", tmp_path)
    shutil.copy(wheel, root.path)
    root.ok("python3", "-m", "venv", "/venv")
    root.ok("/venv/bin/pip", "install", "--no-index", "--disable-pip-version-check", f"/{wheel.name}")

    def run(*command):
        return root.ok("env", "-C", "/tmp", *command)

    move_a_version(run, Path("/venv/bin"))
    use_the_command(run, Path("/venv/bin"))
    name_what_is_missing(run, Path("/venv/bin"))
