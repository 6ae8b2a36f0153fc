# SPDX-License-Identifier: Apache-2.0
"""`driftless doctor`: each check fails, with a next action, for something that is really broken; a
hung part costs only its own row and its deadline."""

import contextlib
import email.utils
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jobs
from doctor_rows import LONGEST, assert_row, closed_port, config, doctor, served
from support import COMMAND, REPOSITORY, run
from test_peer import nixl_library

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402


def shared_fs(work, directory):
    return config(work, f"road: {{ kind: shared_fs, shared_fs: {{ dir: {directory} }} }}\n")


# --- the table -----------------------------------------------------------------------------------


def test_a_table_of_all_groups_and_its_time(work):
    path = os.pathsep.join(["/usr/bin", "/bin"])
    result = run("doctor", *shared_fs(work, work), env={**os.environ, "PATH": path})
    for word in ("group", "configuration", "mpi", "cuda", "nixl", "road", "host", "python", "fsync"):
        assert word in result.stdout, result.stdout
    last = result.stdout.splitlines()[-1]
    assert " failed, " in last and float(last.split("; ")[1].removesuffix(" s")) < LONGEST
    assert result.returncode == (0 if last.startswith("0 failed") else 1)


def test_a_configuration_that_is_wrong(work):
    rows = doctor(*config(work, "road: { kind: shared_fs, dirr: x }\n"), "--only", "configuration")
    assert_row(rows, "configuration", "configuration", "fail", "dirr")
    rows = doctor("--only", "configuration", code=0)
    assert_row(rows, "configuration", "configuration", "skip", "--config")


def test_a_wrong_configuration_is_named_whatever_else_is_asked(work):
    for arguments in (config(work, "rod: 3\n"), ["--config", work / "nowhere"]):
        rows = doctor(*arguments, "--only", "host", code=1)
        assert rows["configuration", "configuration"]["state"] == "fail"
        assert ("host", "cores") in rows


def test_launchers_that_contradict_each_other():
    rows = doctor("--only", "configuration", env={**os.environ, "RANK": "x", "WORLD_SIZE": "2"})
    assert_row(rows, "configuration", "launcher", "fail", "RANK")


@contextlib.contextmanager
def small_file_system(work):
    place = work / "small"
    place.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place]
    if os.getuid() != 0 or subprocess.run(line, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def file_system_of(path):
    line = ["stat", "--file-system", "--format=%T", path]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


# --- MPI -----------------------------------------------------------------------------------------

MPI = "road: { kind: mpi_rma }\n"


def script(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_two_ranks_make_windows_and_the_flags_are_named(work):
    jobs.need_mpirun()
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    backing = {k: v for k, v in jobs.environment().items() if "backing" in k}
    rows = doctor(*config(work, MPI), "--only", "mpi", env=plain | backing, code=0)
    flags = ["--allow-run-as-root"] if os.getuid() == 0 else []
    assert_row(rows, "mpi", "windows", "ok", "read the other's", *flags)


def test_no_mpirun_and_one_that_fails(work):
    jobs.need("mpi_rma")
    tools = work / "bin"
    tools.mkdir()
    named = [*config(work, MPI), "--only", "mpi"]
    rows = doctor(*named, env={**os.environ, "PATH": str(tools)}, code=1)
    assert_row(rows, "mpi", "mpirun", "fail", "PATH", "openmpi-bin")
    rows = doctor("--only", "mpi", env={**os.environ, "PATH": str(tools)}, code=0)
    assert_row(rows, "mpi", "mpirun", "warn", "PATH")

    path = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin"}
    script(tools, "mpirun", "echo 'driftless: io: MPI_ERR_WIN: run mpirun with --mca pml ucx' >&2; exit 1")
    rows = doctor(*named, env=path, code=1)
    assert_row(rows, "mpi", "windows", "fail", "MPI_ERR_WIN", "--mca osc ucx")
    assert_row(rows, "mpi", "mpirun", "fail", "install it again")  # --version fails, too
    # It accepts a flag, and then starts processes as the mpirun of another MPI does.
    script(tools, "mpirun", 'case "$*" in *isolated*) shift 5; exec "$@";; esac\n'
           "echo plm_rsh_agent: ssh : rsh; exit 1")  # fmt: skip
    rows = doctor(*named, env=path, code=1)
    assert_row(rows, "mpi", "windows", "fail", "another MPI", "first on PATH")


def test_flags_that_this_host_needs_are_found_by_trying(work):
    """A host without ssh, without room for windows, and with an osc component that cannot make
    them."""
    jobs.need_mpirun()
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    tools = work / "tools"
    tools.mkdir()
    for tool in ("mpirun", "sh", "orted"):
        (tools / tool).symlink_to(shutil.which(tool))
    rows = doctor("--only", "mpi", env=plain | {"PATH": str(tools)}, code=0)
    assert_row(rows, "mpi", "windows", "ok", "--mca plm isolated")
    rows = doctor("--only", "mpi", env=plain | {"OMPI_MCA_osc": "pt2pt"}, code=0)
    assert_row(rows, "mpi", "windows", "ok", "--mca osc ucx --mca pml_ucx_tls any")
    assert_row(rows, "mpi", "environment", "ok", "OMPI_MCA_osc=pt2pt")
    rows = doctor(*config(work, MPI), "--only", "mpi", env=plain | {"OMPI_MCA_btl": "self"}, code=1)
    assert_row(rows, "mpi", "windows", "fail", "two ranks made none")
    with small_file_system(work) as place:
        rows = doctor("--only", "mpi", env=plain | {"OMPI_MCA_osc_sm_backing_directory": str(place)})
        assert_row(rows, "mpi", "windows", "ok", "--mca osc_sm_backing_directory")


def test_an_mpirun_that_hangs(work):
    jobs.need("mpi_rma")
    script(work / "bin", "mpirun", '[ "$1" = --version ] && echo Open MPI 4 && exit; sleep 60')
    path = {**os.environ, "PATH": f"{work / 'bin'}:/usr/bin:/bin"}
    rows = doctor(*config(work, MPI), "--only", "mpi", env=path, code=1)
    assert_row(rows, "mpi", "windows", "fail", "did not end within")


def test_inside_a_job_of_mpirun():
    jobs.need("mpi_rma")
    inside = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}
    rows = doctor("--only", "mpi", env={**os.environ, **inside}, code=0)
    assert_row(rows, "mpi", "windows", "skip", "by itself")


# --- GPUs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a stand-in for CUDA's driver."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = REPOSITORY / "tests/support/cuda_driver_stand_in.cpp"
    line = [compiler, "-std=c++20", "-shared", "-fPIC", source, "-o", folder / "libcuda.so.1"]
    subprocess.run([*line, "-Wl,-soname,libcuda.so.1"], check=True)
    return folder


def with_driver(folder, **variables):
    library = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".strip(":")
    return {**os.environ, "LD_LIBRARY_PATH": library, **variables}


def test_no_driver_matters_only_if_a_gpu_is_needed(work, driver):
    if "GPU 0" in str(doctor("--only", "cuda")):
        pytest.skip("there is a real driver")
    rows = doctor("--only", "cuda,nccl", code=0)
    assert_row(rows, "cuda", "driver", "skip", "no driver")
    needs = config(work, "snapshot: pinned\n" + MPI)
    assert_row(doctor(*needs, "--only", "cuda", code=1), "cuda", "driver", "fail", "snapshot: host")


def test_a_driver_that_is_too_old_and_gpus_that_do_not_fit(work, driver):
    jobs.need("cuda")
    needs = config(work, f"snapshot: pinned\ngpu: {{ device: 2 }}\n{MPI}")
    variables = {"CUDA_STAND_IN_VERSION": "11040", "CUDA_STAND_IN_CAPABILITY": "70"}
    rows = doctor(*needs, "--only", "cuda", env=with_driver(driver, **variables), code=1)
    assert_row(rows, "cuda", "driver", "fail", "11.4", "install a driver")
    assert_row(rows, "cuda", "GPU 0", "fail", "7.0", "-DDRIFTLESS_CUDA_ARCHITECTURES=70-real")
    assert_row(rows, "cuda", "gpu.device", "fail", "there is no GPU 2, only GPU 0 to 1")
    assert_row(rows, "cuda", "peers", "warn", "0 of 2 pairs")
    variables = {"CUDA_STAND_IN_VERSION": "99000", "CUDA_STAND_IN_CAPABILITY": "90"}
    rows = doctor("--only", "cuda", env=with_driver(driver, **variables, CUDA_STAND_IN_PEERS="1"), code=0)
    assert_row(rows, "cuda", "driver", "ok", "99.0")
    assert_row(rows, "cuda", "GPU 1", "ok", "Stand-in")
    assert_row(rows, "cuda", "peers", "ok", "2 of 2")
    rows = doctor("--only", "cuda", env=with_driver(driver, CUDA_STAND_IN_CRASH="1"), code=0)
    assert_row(rows, "cuda", "check", "warn", "signal")


def test_a_driver_without_gpus_names_the_cause(work, driver):
    """What the driver returns for hidden GPUs, for the toolkit's stub, for a missing fabric manager
    and after an update."""
    jobs.need("cuda")
    needs = [*config(work, "snapshot: pinned\n" + MPI), "--only", "cuda"]
    for code, words in {
        "100": ("CUDA_ERROR_NO_DEVICE (100)", "--gpus all"),
        "34": ("error 34", str(driver), "stub"),
        "802": ("802", "nvidia-fabricmanager"),
        "803": ("803", str(driver), "the same release"),
        "999": ("999", "nvidia-smi"),
    }.items():
        env = with_driver(driver, CUDA_STAND_IN_INIT=code)
        env.pop("CUDA_VISIBLE_DEVICES", None)
        assert_row(doctor(*needs, env=env, code=1), "cuda", "GPUs", "fail", *words)
    hidden = with_driver(driver, CUDA_STAND_IN_COUNT="0", CUDA_VISIBLE_DEVICES="7")
    rows = doctor(*needs, env=hidden, code=1)
    assert_row(rows, "cuda", "GPUs", "fail", "CUDA_VISIBLE_DEVICES is '7'", "unset it")
    rows = doctor("--only", "cuda", env=hidden, code=0)
    assert_row(rows, "cuda", "GPUs", "warn", "none")
    silent = with_driver(driver, CUDA_STAND_IN_VERSION="0", CUDA_STAND_IN_INIT="34")
    rows = doctor(*needs, env=silent, code=1)
    assert_row(rows, "cuda", "driver", "fail", "does not report its release", str(driver), "stub")
    assert ("cuda", "GPUs") not in rows
    rows = doctor(*needs, env=with_driver(driver, CUDA_STAND_IN_DEVICE="1"), code=1)
    assert_row(rows, "cuda", "GPU 0", "fail", "does not describe it", "nvidia-smi")


def test_the_gpus_of_this_host():
    """Real ones: those that nvidia-smi lists, and none if they are hidden."""
    jobs.need("cuda")
    line = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if shutil.which(line[0]) is None:
        pytest.skip("there is no nvidia-smi")
    listed = subprocess.run(line, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("there is no GPU")
    shown = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    rows = doctor("--only", "cuda", env=shown)
    assert "supports CUDA" in rows["cuda", "driver"]["finding"]
    for number, name in enumerate(listed.stdout.splitlines()):
        assert_row(rows, "cuda", f"GPU {number}", rows["cuda", f"GPU {number}"]["state"], name.strip(),
                   "GiB", "compute capability")  # fmt: skip
    rows = doctor("--only", "cuda", env=shown | {"CUDA_VISIBLE_DEVICES": ""}, code=0)
    assert_row(rows, "cuda", "GPUs", "warn", "CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES is ''")
    assert ("cuda", "GPU 0") not in rows


def shared_library(folder, name, source=None):
    """A library of this name in a folder: built from `source`, or a file that is none."""
    folder.mkdir()
    if source is None:
        (folder / name).write_text("not a library")
        return folder
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no compiler")
    line = [compiler, "-x", "c++", "-", "-shared", "-fPIC", "-o", folder / name, f"-Wl,-soname,{name}"]
    subprocess.run(line, input=source, text=True, check=True)
    return folder


def test_libraries_of_the_driver_that_are_none(work):
    jobs.need("cuda")
    needs = [*config(work, "snapshot: pinned\n" + MPI), "--only", "cuda"]
    broken = with_driver(shared_library(work / "broken", "libcuda.so.1"))
    rows = doctor(*needs, env=broken, code=1)
    assert_row(rows, "cuda", "driver", "fail", str(work / "broken"), "LD_LIBRARY_PATH")
    assert_row(doctor("--only", "cuda", env=broken, code=0), "cuda", "driver", "warn", "LD_LIBRARY_PATH")
    empty = with_driver(shared_library(work / "empty", "libcuda.so.1", "int nothing;"))
    rows = doctor(*needs, env=empty, code=1)
    assert_row(rows, "cuda", "driver", "fail", "lacks calls", "newer driver")


def test_libraries_of_nccl(work):
    """None, a file that is none, one that does not answer, an old one, and one that fits."""
    jobs.need("nccl")
    token = work / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    text = f"hub: {{ address: '127.0.0.1:1', token_file: {token} }}\nroad: {{ kind: nccl, nccl: {{ rendezvous: hub }} }}\n"
    needs = [*config(work, text), "--only", "nccl"]
    says = 'extern "C" int ncclGetVersion(int* number) {{ *number = {}; return {}; }}'
    calls = [
        "GetUniqueId", "GetErrorString", "GetLastError", "CommInitRankConfig", "CommGetAsyncError", "CommFinalize",
        "CommAbort", "GroupStart", "GroupEnd", "Broadcast",
    ]  # fmt: skip
    whole = says.format(22803, 0) + "".join(f'extern "C" void nccl{each}() {{}}' for each in calls)
    for name, source, state, words in (
        ("broken", None, "fail", (str(work / "broken"), "nvidia-nccl-cu13")),
        ("silent", says.format(22803, 1), "fail", ("does not report", "nvidia-nccl-cu13")),
        ("old", says.format(21200, 0), "fail", ("2.12.0", "older than 2.14", "nvidia-nccl-cu13")),
        ("right", whole, "ok", (str(work / "right"), "2.28.3")),
    ):
        env = with_driver(shared_library(work / name, "libnccl.so.2", source))
        rows = doctor(*needs, env=env, code=0 if state == "ok" else 1)
        assert_row(rows, "nccl", "library", state, *words)
        assert ("nccl", "built") not in rows, "it was built, and lacks a library"
        state = "warn" if state == "fail" else state
        assert_row(doctor("--only", "nccl", env=env, code=0), "nccl", "library", state, *words)
    rows = doctor("--only", "nccl", code=0)
    if rows["nccl", "library"]["state"] == "skip":
        assert_row(doctor(*needs, code=1), "nccl", "library", "fail", "is not there", "libnccl2")


# --- the road's directory ------------------------------------------------------------------------


def test_a_directory_that_holds_all_promises(work):
    rows = doctor(*shared_fs(work, work / "road"), "--only", "road")
    for check in ("directory", "fsync", "clock", "exclusive create", "rename", "lock"):
        assert_row(rows, "road", check, "ok")
    assert sorted(path.name for path in work.iterdir()) == ["job.yaml"], "it leaves no file"


def test_a_directory_that_is_missing_or_closed(work):
    rows = doctor(*shared_fs(work, "/nowhere/at/all"), "--only", "road", code=1)
    assert_row(rows, "road", "directory", "fail", "mount the file system")
    if os.getuid() == 0:  # root ignores permissions
        rows = doctor(*shared_fs(work, "/proc/self"), "--only", "road", code=1)
        assert_row(rows, "road", "write", "fail", "another road.shared_fs.dir")
        return
    closed = work / "closed"
    closed.mkdir(mode=0o500)
    rows = doctor(*shared_fs(work, closed), "--only", "road", code=1)
    assert_row(rows, "road", "write", "fail", "another road.shared_fs.dir")


def test_a_file_system_that_is_full(work):
    with small_file_system(work) as place:
        (place / "all").write_bytes(bytes(60 << 10))
        rows = doctor(*shared_fs(work, place), "--only", "road", code=1)
        assert_row(rows, "road", "space", "warn", "delete files")
        assert_row(rows, "road", "file system", "warn", "tmpfs")
        assert_row(rows, "road", "write", "fail", "no_space", "delete files")
        assert [path.name for path in place.iterdir()] == ["all"]


def test_shared_memory_that_is_too_small_and_segments_of_the_dead(work):
    shm = work / "shm"
    shm.mkdir()
    road = f"road: {{ kind: host_shm, host_shm: {{ dir: {shm}, size: 15TiB, name: left }} }}\n"
    left = shm / f"driftless-{os.getuid()}-left"
    left.mkdir(mode=0o700)
    (left / "s000001.x.0").write_bytes(bytes(1 << 20))
    (left / "lock").write_text("1")
    for path in left.iterdir():
        path.chmod(0o600)
    rows = doctor(*config(work, road), "--only", "road", code=1)
    assert_row(rows, "road", "memory", "fail", "15TiB", "road.host_shm.size")
    assert_row(rows, "road", "segments", "warn", "1MiB", "dead process")


def test_shared_memory_that_is_on_a_disk(tmp_path):
    road = f"road: {{ kind: host_shm, host_shm: {{ dir: {tmp_path}, size: 1MiB }} }}\n"
    if file_system_of(tmp_path) == "tmpfs":
        pytest.skip("pytest's folder is a tmpfs here; --basetemp names another one")
    rows = doctor(*config(tmp_path, road), "--only", "road", code=0)
    assert_row(rows, "road", "memory", "warn", "not memory", "road.host_shm.dir")


def test_weights_that_fit_nowhere(work):
    """A checkpoint of 8 TiB, of which no byte is written: neither memory nor the directory has room
    for it."""
    base = work / "base"
    base.mkdir()
    with open(base / "model.safetensors", "wb") as file:
        file.truncate(8 << 40)
    road = f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work} }} }}\n"
    road += f"receiver: {{ target: checkpoint, checkpoint_dir: {base} }}\n"
    rows = doctor(*config(work, road), "--only", "road,host", code=1)
    assert_row(rows, "road", "space", "fail", "needed", "keep_versions")
    assert_row(rows, "host", "memory", "warn", "the weights take 8TiB", "snapshot: none")


# --- object stores -------------------------------------------------------------------------------


def bucket(work, endpoint, name=servers.BUCKET):
    return config(work, f"""
road:
  kind: object_store
  object_store: {{ url: "s3://{name}/doctor", endpoint: "{endpoint}" }}
""")


@pytest.fixture(scope="module")
def store():
    jobs.need("object_store")
    try:
        with servers.serve("rclone") as endpoint:
            yield endpoint
    except servers.Unavailable as reason:
        pytest.skip(str(reason))


def test_a_bucket_and_what_can_be_wrong_with_it(work, store):
    right = servers.client_environment()
    only = ["--only", "road"]
    rows = doctor(*bucket(work, store), *only, env=right, code=0)
    for check in ("reachable", "clock", "list", "conditional PUT"):
        assert_row(rows, "road", check, "ok")
    rows = doctor(*bucket(work, store.unguarded), *only, env=right, code=1)
    assert_row(rows, "road", "conditional PUT", "fail", "If-None-Match", "another store")
    wrong = servers.client_environment(AWS_SECRET_ACCESS_KEY="wrong")
    rows = doctor(*bucket(work, store), *only, env=wrong, code=1)
    assert_row(rows, "road", "list", "fail", "AWS_ACCESS_KEY_ID")
    rows = doctor(*bucket(work, store, "nobucket"), *only, env=right, code=1)
    assert_row(rows, "road", "list", "fail", "bucket")
    left = [path for path in store.directory.rglob("*") if path.is_file()]
    assert left == [], "the bucket stays clean"


def test_a_store_that_is_not_there_and_a_clock_that_is_wrong(work):
    jobs.need("object_store")
    environment = servers.client_environment()
    rows = doctor(*bucket(work, closed_port()), "--only", "road", env=environment, code=1)
    assert_row(rows, "road", "reachable", "fail", "road.object_store.endpoint")
    with served({}, date="Mon, 01 Jan 2024 00:00:00 GMT") as url:
        rows = doctor(*bucket(work, url), "--only", "road", env=environment, code=1)
    assert_row(rows, "road", "clock", "fail", "NTP")
    some_minutes_ago = email.utils.formatdate(time.time() - 300, usegmt=True)
    with served({}, date=some_minutes_ago) as url:
        rows = doctor(*bucket(work, url), "--only", "road", env=environment)
    assert_row(rows, "road", "clock", "warn", "NTP")


# --- the host ------------------------------------------------------------------------------------


def test_limits_temporary_space_and_secrets(work):
    token = work / "token"
    token.write_text("secret-of-an-engine")
    token.chmod(0o644)
    engine = f"engines: [{{ url: 'http://127.0.0.1:1', kind: vllm, token_file: {token} }}]\n"

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        os.umask(0)

    rows = doctor(*config(work, MPI + engine), "--only", "host", preexec_fn=few, code=1,
                  env={**os.environ, "TMPDIR": str(work / "nowhere")})  # fmt: skip
    assert_row(rows, "host", "open files", "fail", "64", "ulimit -n")
    assert_row(rows, "host", "engines[0].token_file", "fail", "644", "chmod 600")
    assert_row(rows, "host", "temporary", "fail", "TMPDIR")
    assert_row(rows, "host", "umask", "warn", "umask 022")
    assert "secret-of-an-engine" not in str(rows)
    assert_row(rows, "host", "cores", rows["host", "cores"]["state"], "for this process")


def test_a_temporary_file_system_that_is_almost_full(work):
    with small_file_system(work) as place:
        rows = doctor("--only", "host", env={**os.environ, "TMPDIR": str(place)}, code=0)
        assert_row(rows, "host", "temporary", "warn", str(place), "TMPDIR")


def test_the_address_of_the_status_server(work):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        rows = doctor(*config(work, MPI + f"monitor: {{ address: '{at}' }}\n"), "--only", "host", code=1)
        assert_row(rows, "host", "monitor.address", "fail", at, "another monitor.address")
    rows = doctor(*config(work, MPI + f"monitor: {{ address: '{at}' }}\n"), "--only", "host", code=0)
    assert_row(rows, "host", "monitor.address", "ok", "is free")


def test_locked_memory_is_scarce_for_rdma_hardware():
    """The hardware is a folder of the name that the kernel gives it."""
    inside = "mount -t tmpfs none /sys/class && mkdir /sys/class/infiniband && ulimit -l 64 && exec \"$@\""
    isolated = ["unshare", "--mount", "sh", "-c", inside, "sh"]
    if os.getuid() != 0 or subprocess.run([*isolated, "true"], capture_output=True).returncode != 0:
        pytest.skip("not root, or no mount namespaces: /sys/class cannot be replaced")
    line = [*isolated, COMMAND, "doctor", "--json", "--only", "host"]
    rows = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)["checks"]
    assert_row({(row["group"], row["check"]): row for row in rows}, "host", "locked memory", "warn",
               "RDMA", "ulimit -l unlimited")  # fmt: skip


def test_the_hub_of_a_road_without_mpi(work):
    """Free on this host, in use, on another host, and a name that does not resolve."""
    token = work / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)

    def rows_of(address, code):
        text = f"hub: {{ address: '{address}', token_file: {token} }}\nroad: {{ kind: peer }}\n"
        return doctor(*config(work, text), "--only", "host,road", code=code)

    jobs.need("peer")
    rows = rows_of(closed_port().removeprefix("http://"), 0)
    assert_row(rows, "host", "hub.address", "ok", "is free on this host")
    assert_row(rows, "host", "hub.token_file", "ok")
    assert_row(rows, "road", "tcp", "ok", "can be served on 127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        rows = rows_of(f"127.0.0.1:{taken.getsockname()[1]}", 0)
        assert_row(rows, "host", "hub.address", "ok", "a process listens there", "another program")
    with socket.socket() as bound:  # in use, but no process accepts connections
        bound.bind(("127.0.0.1", 0))
        rows = rows_of(f"127.0.0.1:{bound.getsockname()[1]}", 1)
        assert_row(rows, "host", "hub.address", "fail", "hub.address")
    rows = rows_of("192.0.2.1:27315", 0)  # a reserved address
    assert_row(rows, "host", "hub.address", "warn", "another host's", "start the leading trainer")
    rows = rows_of("127.0.0.1:no-port", 1)
    assert_row(rows, "host", "hub.address", "fail", "correct hub.address")
    token.chmod(0o644)
    assert_row(rows_of("127.0.0.1:0", 1), "host", "hub.token_file", "fail", "chmod 600")


def peer(work, text="", address=""):
    address = address or closed_port().removeprefix("http://")
    token = work / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    return config(work, f"""
hub: {{ address: '{address}', token_file: {token} }}
road: {{ kind: peer, {text} }}
""")


def test_the_carriers_of_the_peer_road(work):
    jobs.need("peer")
    only = ["--only", "road"]
    rows = doctor(*peer(work), *only, code=0)
    assert_row(rows, "road", "tcp", "ok", "127.0.0.1")
    assert_row(rows, "road", "shm", "ok", "map each other's parts")
    rows = doctor(*peer(work, "peer: { carrier: tcp }"), *only, code=0)
    for carrier in ("shm", "nixl"):
        assert_row(rows, "road", carrier, "skip", "road.peer.carrier")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        rows = doctor(*peer(work, f"peer: {{ address: '{at}' }}"), *only, code=1)
        assert_row(rows, "road", "tcp", "fail", at, "another road.peer.address")
    rows = doctor(*peer(work, "peer: { address: '192.0.2.1:27316' }"), *only, code=0)
    assert_row(rows, "road", "tcp", "warn", "not an address of this host")
    rows = doctor(*peer(work, address="127.0.0.1:no-port"), *only, code=1)
    assert_row(rows, "road", "tcp", "fail", "correct hub.address")


def test_shared_memory_of_the_peer_road_that_is_not_to_be_had(work):
    jobs.need("peer")

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    only = ["--only", "road"]
    for carrier, state, code in (("shm", "fail", 1), ("auto", "warn", 0)):
        rows = doctor(
            *peer(work, f"peer: {{ carrier: {carrier} }}"), *only, preexec_fn=small, code=code
        )
        assert_row(rows, "road", "shm", state, "ulimit -f", "road.peer.carrier: tcp")
    # The leading trainer is on another host.
    away = peer(work, "peer: { carrier: shm }", address="192.0.2.1:27315")
    assert_row(doctor(*away, *only, code=1), "road", "shm", "fail", "192.0.2.1", "road.peer.carrier: auto")
    away = peer(work, address="192.0.2.1:27315")
    assert_row(doctor(*away, *only, code=0), "road", "shm", "ok", "this host alone")


def test_nixl_of_the_peer_road(work):
    jobs.need("peer")
    only = ["--only", "road"]
    absent = peer(work, "peer: { carrier: nixl, library: /nowhere/libnixl_capi.so }")
    assert_row(doctor(*absent, *only, code=1), "road", "nixl", "fail", "/nowhere", "pip install nixl")
    (work / "libnixl_capi.so").write_text("no library")
    broken = peer(work, f"peer: {{ carrier: nixl, library: {work}/libnixl_capi.so }}")
    assert_row(doctor(*broken, *only, code=1), "road", "nixl", "fail", "road.peer.library")
    if not Path("/sys/class/infiniband").exists():
        rows = doctor(*peer(work), *only, code=0)
        assert_row(rows, "road", "nixl", "skip", "no active InfiniBand")


def test_nixl_that_is_there(work):
    library = nixl_library()
    there = peer(work, f"peer: {{ carrier: nixl, library: {library} }}")
    rows = doctor(*there, "--only", "road", code=0)
    assert_row(rows, "road", "nixl", "ok", str(library), "has started UCX")
    # A NIXL whose plugins are gone. It writes to standard error itself.
    without = {**os.environ, "NIXL_PLUGIN_DIR": str(work)}
    result = run("doctor", "--json", *there, "--only", "road", env=without)
    rows = {(row["group"], row["check"]): row for row in json.loads(result.stdout)["checks"]}
    assert result.returncode == 1
    assert_row(rows, "road", "nixl", "fail", "UCX", "pip install nixl")


def test_the_fallback_is_tried_as_a_road_of_its_own(work):
    jobs.need("peer")
    only = ["--only", "road"]
    files = f"peer: {{ fallback: shared_fs }}, shared_fs: {{ dir: {work}/road }}"
    rows = doctor(*peer(work, files), *only)
    assert_row(rows, "road", "fallback", "ok", "road.peer.fallback", "shared_fs")
    for check in ("fsync", "rename", "lock"):
        assert_row(rows, "road", f"fallback {check}", "ok")
    assert_row(rows, "road", "tcp", "ok")
    files = "peer: { fallback: shared_fs }, shared_fs: { dir: /nowhere/at/all }"
    rows = doctor(*peer(work, files), *only, code=1)
    assert_row(rows, "road", "fallback directory", "fail", "mount the file system")
    assert_row(rows, "road", "tcp", "ok")


def test_a_fallback_that_is_a_store_which_is_not_there(work):
    jobs.need("peer")
    jobs.need("object_store")
    store = f"object_store: {{ url: 's3://nobucket/run', endpoint: '{closed_port()}' }}"
    rows = doctor(*peer(work, f"peer: {{ fallback: object_store }}, {store}"), "--only", "road",
                  env=servers.client_environment(), code=1)  # fmt: skip
    assert_row(rows, "road", "fallback reachable", "fail", "road.object_store.endpoint")


def test_one_core_is_few():
    mine = sorted(os.sched_getaffinity(0))[:1]
    rows = doctor("--only", "host", preexec_fn=lambda: os.sched_setaffinity(0, mine), code=0)
    assert_row(rows, "host", "cores", "warn", "1 of", "affinity")


# --- Python --------------------------------------------------------------------------------------


def package(folder, name, release):
    made = folder / f"{name.replace('-', '_')}-{release}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")


def test_packages_of_a_python(work):
    folder = work / "packages"
    package(folder, "megatron-core", "0.9.0")
    package(folder, "driftless", "0.0.1")
    package(folder, "torch", "2.13.0")
    package(folder, "vllm", "0.32.0")
    core = folder / "megatron/core/transformer"
    core.mkdir(parents=True)
    (core.parent / "__init__.py").write_text("raise ImportError('nothing is imported')\n")
    (core / "transformer_config.py").write_text("class TransformerConfig:\n    num_layers: int = 0\n")
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text("raise ImportError('nothing is imported')\n")
    (folder / "torch/version.py").write_text("cuda: str = '13.0'\nhip = None\n")
    nixl = folder / ".nixl_cu13.mesonpy.libs"
    (nixl / "plugins").mkdir(parents=True)
    for file in ("libnixl_capi.so", "plugins/libplugin_UCX.so", "plugins/libplugin_POSIX.so"):
        (nixl / file).write_text("")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    rows = doctor("--only", "python,nixl", "--python", sys.executable, env=environment, code=0)
    assert_row(rows, "python", "megatron-core", "warn", "0.9.0", "0.12 to 0.19")
    assert_row(rows, "python", "megatron flags", "warn", "hidden_size")
    assert_row(rows, "python", "torch", "ok", "2.13.0, for CUDA 13.0")
    assert_row(rows, "python", "driftless", "warn", "0.0.1", "one release")
    assert_row(rows, "python", "vllm", "ok", "0.32.0")
    assert_row(rows, "python", "sglang", "skip")
    assert_row(rows, "nixl", "carriers", "ok", "POSIX, UCX")
    shutil.rmtree(nixl / "plugins")
    rows = doctor("--only", "nixl", "--python", sys.executable, env=environment, code=0)
    assert_row(rows, "nixl", "carriers", "warn", "no plugins", "NIXL_PLUGIN_DIR")


def test_a_python_that_is_missing_or_broken(work):
    rows = doctor("--only", "python,nixl", "--python", "/nowhere/python3", code=0)
    assert_row(rows, "python", "python", "skip", "--python")
    assert_row(rows, "nixl", "library", "skip", "pip install nixl")
    script(work / "bin", "python", "echo broken >&2; exit 3")
    rows = doctor("--only", "python", "--python", work / "bin/python", code=0)
    assert_row(rows, "python", "python", "warn", "3")


def test_an_unknown_group_is_refused():
    result = subprocess.run([COMMAND, "doctor", "--only", "x"], capture_output=True, text=True)
    assert result.returncode == 2 and "usage" in result.stderr
