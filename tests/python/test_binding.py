# SPDX-License-Identifier: Apache-2.0
"""The package alone: import, errors, configuration, layouts, stubs."""

import builtins
import os
import shutil
import subprocess
import sys

import pytest

import binding
import jobs

driftless = binding.driftless()
PACKAGE = binding.PACKAGE / "driftless"

CODES = {
    "invalid_argument": ValueError,
    "not_found": FileNotFoundError,
    "already_exists": FileExistsError,
    "incomplete": RuntimeError,
    "corrupt": ValueError,
    "wrong_run": ValueError,
    "wrong_base": ValueError,
    "wrong_layout": ValueError,
    "mismatch": ValueError,
    "busy": RuntimeError,
    "unsupported": NotImplementedError,
    "no_space": OSError,
    "io": OSError,
    "deadline_exceeded": TimeoutError,
    "internal": RuntimeError,
}


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(binding.PACKAGE), **environment},
    )


def test_import_loads_no_other_library():
    code = """
import sys, driftless
found = [m for m in ("numpy", "torch", "mpi4py") if m in sys.modules]
maps = open("/proc/self/maps").read()
print(found, "libmpi" in maps, "libhdf5" in maps, "libcuda" in maps)
"""
    result = run_python(code)
    assert result.stdout.strip() == "[] False False False", result.stderr


def hide(library, part, folder):
    """Replaces each library that `library` links, and whose name contains `part`, by a file that is
    not a library."""
    needed = subprocess.run(["ldd", PACKAGE / library], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in needed.splitlines() if part in line]
    assert names, needed
    for name in names:
        (folder / name).write_text("not a library")
    return names


def test_without_nccl_mpi_works_and_nccl_is_refused(tmp_path):
    jobs.need("mpi_rma")
    jobs.need("nccl")
    library = tmp_path / "libnccl.so.2"
    library.write_text("not a library")
    code = """
import driftless
from driftless import Config, Job
print({b.name: b.built or b.why_not for b in driftless.backends() if b.name in ("mpi_rma", "nccl")})
try:
    Job(Config.parse("road: {kind: nccl}"), "rollout", launched=False)
except driftless.errors.UnsupportedError as refused:
    print(refused)
"""
    result = run_python(code, LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    backends, refused = result.stdout.splitlines()
    assert "'mpi_rma': True" in backends and "'nccl': 'NCCL is needed and cannot be" in backends
    assert refused.startswith("road.kind: nccl: NCCL is needed") and str(library) in refused
    assert "pip install nvidia-nccl-cu13" in refused


def test_without_hdf5_mpi_works_and_the_package_is_named(tmp_path):
    jobs.need("shared_fs/hdf5")
    names = hide("libdriftless_hdf5_roads.so", "libhdf5", tmp_path)
    code = """
import driftless
for backend in driftless.backends():
    if backend.name in ("mpi_rma", "shared_fs/hdf5"):
        print(backend.built or backend.why_not)
"""
    result = run_python(code, LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    mpi, hdf5 = result.stdout.splitlines()
    assert mpi == "True" and names[0] in hdf5
    assert hdf5.startswith("HDF5 with MPI is needed and cannot be loaded: ")
    assert hdf5.endswith("libhdf5-openmpi-103)")


def test_without_mpi_files_work_and_mpi_is_refused(tmp_path):
    jobs.need("mpi_rma")
    names = hide("libdriftless_roads.so", "libmpi", tmp_path)
    code = f"""
import driftless
from driftless import Config, Job
text = "road:\\n  kind: {{}}\\n  shared_fs:\\n    dir: {tmp_path}/road\\n"
Job(Config.parse(text.format("shared_fs")), "rollout", launched=False).close()
for ask in (lambda: Job(Config.parse("road: {{kind: mpi_rma}}"), "rollout", launched=False),
            lambda: Job(Config.parse(text.format("shared_fs")), "rollout", launched=True)):
    try:
        ask()
        raise SystemExit("was not refused")
    except driftless.errors.UnsupportedError as refused:
        print(refused)
print([(b.built, b.why_not) for b in driftless.backends() if b.name == "mpi_rma"])
"""
    result = run_python(code, LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    first, second, backend = result.stdout.splitlines()
    assert first.startswith("road.kind: mpi_rma: MPI is needed and cannot be loaded: ")
    assert second.startswith("this process was started by an MPI launcher: MPI is needed")
    assert names[0] in first and backend.startswith("[(False, 'MPI is needed")
    assert "libopenmpi3" in first and "libopenmpi3" in second
    # A road that needs no MPI is in a library without it; under mpirun the process reports what is
    # missing.
    code = """
import driftless
try:
    driftless.Job(driftless.Config.parse("road: {kind: object_store, object_store: {url: 's3://b/p'}}"),
                  "rollout", launched=True)
except driftless.errors.UnsupportedError as refused:
    print(refused)
"""
    if any(backend.name == "object_store" and backend.built for backend in driftless.backends()):
        result = run_python(code, LD_LIBRARY_PATH=str(tmp_path))
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("this process was started by an MPI launcher: MPI is needed")


@pytest.mark.parametrize("code", CODES)
def test_every_error_is_an_error_of_ours_and_a_builtin(code):
    raised = driftless.errors.error_of(code, "what happened")
    assert isinstance(raised, driftless.Error) and isinstance(raised, CODES[code])
    assert raised.code == code and str(raised) == "what happened"


def test_every_code_of_the_library_has_a_class():
    header = (binding.REPOSITORY / "core/status.cpp").read_text()
    names = {line.split('"')[1] for line in header.splitlines() if "case StatusCode::" in line}
    assert names - {"ok"} == set(CODES)


def test_configuration(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("road:\n  kind: shared_fs\n  shared_fs:\n    dir: /nowhere\n")
    settings = driftless.Config.load(path, ["encoding=indices"]).settings()
    assert settings["road.shared_fs.dir"] == "/nowhere" and settings["encoding"] == "indices"
    with pytest.raises(driftless.Error, match="road.dirr") as refused:
        driftless.Config.parse("road:\n  dirr: x\n")
    assert refused.value.code == "invalid_argument"
    with pytest.raises(FileNotFoundError) as missing:
        driftless.Config.load(tmp_path / "missing.yaml")
    assert missing.value.code == "not_found"


def test_backends_are_those_of_the_command():
    ours = {b.name: (b.built, b.why_not) for b in driftless.backends()}
    theirs = {name: (b["built"], b.get("why_not", "")) for name, b in jobs.backends().items()}
    assert ours == theirs


def test_layout():
    specs = [driftless.TensorSpec("b", "BF16", [2, 3]), driftless.TensorSpec("a", "F32", [])]
    layout = driftless.Layout(specs)
    assert [t.name for t in layout.tensors] == ["a", "b"] and len(layout) == 2
    assert layout.total_bytes == 16 and layout.find("b") == 1 and layout.find("c") is None
    assert layout[1] == specs[0] and specs[0].shape == (2, 3) and specs[0].units == 6
    assert layout == driftless.Layout(specs[::-1]) and len({*specs, layout[0]}) == 2
    other = driftless.Layout(specs[:1])
    with pytest.raises(driftless.errors.WrongLayoutError, match="'a'"):
        layout.check_same(other)
    with pytest.raises(driftless.errors.UnsupportedError, match="F3"):
        driftless.TensorSpec("a", "F3", [1])
    with pytest.raises(IndexError):
        layout[2]


def test_signatures_are_of_python():
    """The wheel's stubs are made from signatures. A class that is bound after the first function
    that takes it would have its C++ name there."""
    native = sys.modules["driftless._native"]
    found = [value for name, value in vars(native).items() if not name.startswith("_")]
    for kind in [value for value in found if isinstance(value, type)]:
        found += [getattr(value, "fget", value) for value in vars(kind).values()]
    documented = [value for value in found if getattr(value, "__doc__", None)]
    assert len(documented) > 100
    assert not [value.__doc__ for value in documented if "::" in value.__doc__]
    assert (PACKAGE / "py.typed").exists()


def test_everything_exported_is_there():
    assert all(hasattr(driftless, name) for name in driftless.__all__)
    assert not set(driftless.__all__) & set(dir(builtins))


def test_command_of_the_package():
    line = [sys.executable, "-m", "driftless", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(binding.PACKAGE)}
    result = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert result.returncode == 0 and result.stdout.startswith("driftless "), result.stderr


def test_the_module_exports_only_its_init_function():
    """If it exported templates of the standard library or of CUDA's, they would replace torch's
    own, and torch would crash when imported after it."""
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    (module,) = PACKAGE.glob("_native*.so")
    line = ["nm", "--dynamic", "--defined-only", "--format=posix", str(module)]
    listed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert [entry.split()[0] for entry in listed.splitlines()] == ["PyInit__native"]
