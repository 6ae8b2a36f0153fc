#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel in an environment of its own and moves versions of a torch module with it, on a GPU:
#
#   tests/gpu/wheel.sh WHEEL [DEVICE]      DEVICE: cuda (default), or cpu
#
# Needs the wheel's Python with torch, named by PYTHON (default: python3); no network, no compiler.
# Exit status 0 only if the rollout ended with the trainer's bits.
set -euo pipefail
wheel=$(realpath "${1:?usage: tests/gpu/wheel.sh WHEEL [DEVICE]}")
device=${2:-cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python=${PYTHON:-python3}
"$python" -m venv --without-pip venv
"$python" -m pip --python venv install -q --no-index --no-deps --disable-pip-version-check "$wheel"
# torch, after what is installed here.
"$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
  > "$(echo venv/lib/python3.*/site-packages)/torch.pth"
export PATH=$work/venv/bin:/usr/bin:/bin
unset PYTHONPATH
driftless --version

cat > common.py << 'END'
import sys, time, torch, driftless
assert sys.prefix in driftless.__file__, driftless.__file__
device = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device, torch.bfloat16)
def bits():
    return {name: tensor.detach().view(torch.int16).cpu() for name, tensor in model.state_dict().items()}
END
cat > train.py << 'END'
from common import *
settings = ["snapshot=device"] if device == "cuda" else []
with driftless.publish(model, "weights", overrides=settings) as run:
    for step in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter[torch.rand_like(parameter, dtype=torch.float32) < 0.01] += 0.5
        report = run.publish()
        print(f"published {report.version}: {report.changed_units} of {report.total_units} weights, "
              f"{report.wire_bytes} bytes", flush=True)
torch.save(bits(), "trained.pt")
END
cat > follow.py << 'END'
from common import *
with driftless.follow(model, "weights", timeout_s=60) as follower:
    for update in follower:
        print("holds", follower.version, "proven:", follower.held.proven, flush=True)
torch.save(bits(), "held.pt")
if device == "cuda":
    loaded = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if "libdriftless" in line}
    assert "libdriftless_device.so" in loaded, loaded
END
begun=$SECONDS
python follow.py "$device" > followed &
follower=$!
python train.py "$device"
wait $follower || { cat followed; exit 1; }
cat followed
python - << 'END'
import torch
trained, held = torch.load("trained.pt"), torch.load("held.pt")
assert trained.keys() == held.keys()
assert all(torch.equal(trained[name], held[name]) for name in trained)
print("the rollout holds the trainer's bits:", len(trained), "tensors")
END
grep -q '^holds 5 proven: True' followed
echo "$(basename "$wheel") on $device: $((SECONDS - begun)) s"
