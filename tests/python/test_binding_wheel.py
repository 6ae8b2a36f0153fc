# SPDX-License-Identifier: Apache-2.0
"""`pip install` of a wheel into a fresh environment.

The environment that builds it stays in build/venvs, and the wheel's build folder stays beside
build/, so only the first run takes minutes.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import binding
from support import REPOSITORY

# pybind11 is the system's, as in the build folder, so that ccache has the module's objects, too.
TOOLS = ["scikit-build-core==1.1.1", "pybind11-stubgen==3.0.0"]


def build_environment():
    """A Python that can build the wheel; skips the test with pip's reason if it cannot be made."""
    path = REPOSITORY / "build/venvs/wheel"
    python = path / "bin/python"
    probe = [python, "-c", "import scikit_build_core, pybind11_stubgen"]
    if python.exists() and subprocess.run(probe, capture_output=True).returncode == 0:
        return python
    shutil.rmtree(path, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", path], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no virtual environment: {(made.stdout + made.stderr).strip()[-200:]}")
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS]
    found = subprocess.run(install, capture_output=True, text=True, timeout=300)
    if found.returncode != 0:
        shutil.rmtree(path, ignore_errors=True)
        pytest.skip(f"pip cannot install {' '.join(TOOLS)}: {found.stderr.strip()[-200:]}")
    return python


def setting(name):
    """A setting of the build folder, or None."""
    cache = (REPOSITORY / "build/CMakeCache.txt").read_text()
    found = re.search(rf"^{name}:\w+=(.*)$", cache, re.M)
    return found and found.group(1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    binding.driftless()  # skips for the same reason as all tests of the package
    python = build_environment()
    out = tmp_path_factory.mktemp("wheel")
    line = [python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    line += ["--disable-pip-version-check", "-w", out]
    line += ["--config-settings", "build-dir=build-wheel-test"]
    # The settings and the compiler of the build folder, so that ccache has its objects.
    for name in ("DRIFTLESS_CUDA_ARCHITECTURES", "DRIFTLESS_WERROR"):
        if value := setting(name):
            line += ["--config-settings", f"cmake.define.{name}={value}"]
    line += [REPOSITORY]
    environment = {**os.environ, "CXX": setting("CMAKE_CXX_COMPILER")}
    built = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=1800)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (made,) = out.glob("*.whl")
    return made


def test_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("__init__.py", "_native.pyi", "py.typed", "errors.py", "bin/driftless"):
        assert f"driftless/{needed}" in names
    assert any(re.fullmatch(r"driftless/_native\..*\.so", name) for name in names)
    top = {name.split("/")[0] for name in names}
    assert all(name.startswith("driftless") for name in top), top
    assert not [name for name in names if "__pycache__" in name]


def test_no_library_is_searched_in_the_current_or_the_build_directory(wheel, work):
    """An empty element of a RUNPATH means the current directory."""
    zipfile.ZipFile(wheel).extractall(work / "wheel")
    files = [file for file in (work / "wheel").rglob("*") if file.is_file()]
    elf = [file for file in files if file.read_bytes().startswith(b"\x7fELF")]
    assert len(elf) >= 2
    for file in elf:
        output = subprocess.run(["readelf", "-d", file], capture_output=True, text=True).stdout
        for paths in re.findall(r"(?:RUNPATH|RPATH)\).*\[(.*)\]", output):
            for path in paths.split(":"):
                assert path.startswith(("/", "$ORIGIN")), f"{file.name}: {paths!r}"
                assert str(REPOSITORY) not in path, f"{file.name}: {paths!r}"


def test_installed(wheel, work):
    """In an environment with nothing else: it imports, moves a version, and is on the PATH."""
    subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    python = work / "venv/bin/python"
    install = [python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*install, wheel], check=True)
    code = f"""
import driftless
def source(number):
    class Source:
        def tensors(self): return [driftless.TensorSpec("w", "U8", [4000])]
        def visit(self): yield [(0, bytes([number]) + bytes(3999))]
    return Source()
config = driftless.Config.parse("road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}")
job = driftless.Job(config, "trainer", launched=False)
publisher = driftless.Publisher(job, source(0))
publisher.publish(source(7))
held = bytearray(4000)
other = driftless.Job(config, "rollout", launched=False)
receiver = driftless.Receiver(other, driftless.MemoryTarget({{"w": held}}, version=0))
assert receiver.stage(60) and receiver.commit().digest == publisher.digest and held[0] == 7
print(driftless.__file__)
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environment, cwd=work
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(work / "venv"))
    command = subprocess.run(
        [work / "venv/bin/driftless", "--version"], capture_output=True, text=True, cwd=work
    )
    assert command.returncode == 0 and command.stdout.startswith("driftless "), command.stderr
