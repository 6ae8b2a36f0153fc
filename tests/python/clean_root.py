# SPDX-License-Identifier: Apache-2.0
"""A minimal Debian in a directory, made once by debootstrap and copied for each test. Commands in it
see no process and no file of this machine."""

import fcntl
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY

SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
# Packages that tests install: downloaded in advance, so that tests need no network.
DOWNLOADED = """g++ make cmake pkg-config openmpi-bin libopenmpi3 libhdf5-openmpi-103-1 libcurl4 libpugixml1v5
  libprometheus-cpp-core1.0 libcpp-httplib0.11 libyaml-cpp0.7 libcurl4-openssl-dev libyaml-cpp-dev
  libzstd-dev zlib1g-dev nlohmann-json3-dev ca-certificates""".split()
PYTHONS = {"3.11": "bookworm", "3.13": "trixie"}  # of each Debian
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
PLACES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
ENVIRONMENT = {**PLACES, "DEBIAN_FRONTEND": "noninteractive"}


class CleanRoot:
    def __init__(self, path):
        self.path = path

    def run(self, *command, timeout=600, **options):
        """Runs a command in the root, with its own processes and /proc; returns subprocess.run()'s
        result."""
        inside = f'mount -t proc proc "{self.path}/proc" && exec chroot "{self.path}" "$@"'
        line = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside, "sh"]
        return subprocess.run(
            [*line, *map(str, command)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=timeout,
            **options,
        )

    def ok(self, *command, **options):
        result = self.run(*command, **options)
        assert result.returncode == 0, f"{command}: {result.stdout[-3000:]}{result.stderr[-3000:]}"
        return result.stdout

    def install(self, *packages, recommends=False):
        choice = "--install-recommends" if recommends else "--no-install-recommends"
        return self.ok("apt-get", "install", "-y", "-qq", choice, *packages, timeout=1200)

    def installed(self):
        lines = self.ok("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n").splitlines()
        return {line.split()[0] for line in lines if line.endswith(" installed")}


def made_once():
    """The directory to copy; skips the test with the reason if it cannot be made."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a root of its own needs root and debootstrap")
    venvs = Path(os.environ.get("DRIFTLESS_VENVS", REPOSITORY / "build/venvs"))
    path = venvs / f"root-{SUITE}"
    venvs.mkdir(parents=True, exist_ok=True)
    with open(venvs / f".root-{SUITE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / "made").exists() and (path / "made").read_text().split() == DOWNLOADED:
            return path
        shutil.rmtree(path, ignore_errors=True)
        line = ["debootstrap", "--variant=minbase", SUITE, path, MIRROR]
        made = subprocess.run(line, capture_output=True, text=True, timeout=1200)
        if made.returncode != 0:
            pytest.skip(f"debootstrap: {made.stdout.strip()[-300:]}")
        root = CleanRoot(path)
        for words in (["update", "-qq"], ["install", "-y", "-qq", "-d", *DOWNLOADED]):
            ran = root.run("apt-get", *words, timeout=1200)
            if ran.returncode != 0:
                pytest.skip(f"apt-get {words[0]} in a root of its own: {ran.stderr.strip()[-300:]}")
        (path / "made").write_text("\n".join(DOWNLOADED))
    return path


def of_processor(machine, python, work):
    """A root for one test, of this or another processor, with this Python; skips the test if the
    kernel does not start qemu for another processor's programs."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a root of its own needs root and debootstrap")
    runs_here = machine == platform.machine()
    if not runs_here and not Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}").exists():
        pytest.skip(f"programs for {machine} do not run here: install qemu-user-static")
    if python not in PYTHONS:
        pytest.skip(f"no Debian has Python {python}")
    venvs = Path(os.environ.get("DRIFTLESS_VENVS", REPOSITORY / "build/venvs"))
    name = f"root-{PYTHONS[python]}-{machine}"
    venvs.mkdir(parents=True, exist_ok=True)
    with open(venvs / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = venvs / name
        if not (kept / "made").exists():
            shutil.rmtree(kept, ignore_errors=True)
            line = ["debootstrap", "--variant=minbase", f"--arch={PROCESSORS[machine]}",
                    "--include=python3-venv", PYTHONS[python], kept, MIRROR]  # fmt: skip
            made = subprocess.run(line, capture_output=True, text=True, timeout=3000)
            if made.returncode != 0:
                pytest.skip(f"debootstrap: {made.stdout.strip()[-300:]}")
            (kept / "made").touch()
    subprocess.run(["cp", "-a", "--reflink=auto", kept, work / "root"], check=True)
    return CleanRoot(work / "root")


def copied(work):
    """A root for one test, in `work`."""
    path = work / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", made_once(), path], check=True)
    return CleanRoot(path)
