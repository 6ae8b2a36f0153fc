#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An example program follows a real trainer, and must end with the bytes of its last checkpoint.

    follow.py DRIFTLESS PROGRAM CONFIG [MPIRUN...]

With MPIRUN the trainer and the program are one MPI job; otherwise they use files. Needs the standard
library only. tests/python/test_c_abi.py has all other tests.
"""

import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 3


def read_tensors(folder):
    """name -> (dtype, shape, bytes) of a checkpoint directory."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + length + at for at in entry["data_offsets"])
            tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return dict(sorted(tensors.items()))


def all_bytes(tensors):
    return b"".join(data for _, _, data in tensors.values())


def main(work, driftless, program, config, *mpirun):
    run, out = work / "run", work / "out.bin"
    synth = [driftless, "synth", "--out", run, "--params", "100000", "--steps", str(STEPS)]
    subprocess.run(synth, check=True, stdout=subprocess.DEVNULL)
    base = read_tensors(run / "step_000000")
    lines = [f"{name} {dtype} {' '.join(map(str, shape))}\n" for name, (dtype, shape, _) in base.items()]
    (work / "tensors.txt").write_text("".join(lines))
    (work / "base.bin").write_bytes(all_bytes(base))
    settings = ["deadlines.connect=60s", "threads=1"]
    settings += [] if mpirun else [f"road.shared_fs.dir={work}/road"]
    trainer = [driftless, "trainer", "--config", config, "--replay", run]
    for setting in settings:
        trainer += ["--set", setting]
    follow = [program, config, work / "tensors.txt", work / "base.bin", out, *settings]
    if mpirun:
        jobs = [[*mpirun, "-n", "1", *trainer, ":", "-n", "1", *follow]]
    else:
        jobs = [[*trainer, "--rollouts", "1"], follow]
    started = [subprocess.Popen([str(word) for word in job]) for job in jobs]
    codes = [process.wait(timeout=100) for process in started]
    assert codes == [0] * len(codes), codes
    assert out.read_bytes() == all_bytes(read_tensors(run / f"step_{STEPS:06d}"))
    print("bit for bit")


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="driftless-example-"))
    try:
        main(folder, *sys.argv[1:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
