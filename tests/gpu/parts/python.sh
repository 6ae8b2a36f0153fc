#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CUDA tensors of torch in the Python package, and a toy engine's module on the GPU.
#   tests/gpu/parts/python.sh BUILD_DIRECTORY
# Needs torch, numpy and pytest in python3, and the Python module in the build.
set -u
build=$(realpath "${1:?usage: tests/gpu/parts/python.sh BUILD_DIRECTORY}")
cd "$(dirname "$0")/../../.."
skip() {
  echo "python: skipped: $*"
  exit 77
}
python=$(command -v python3)
ls "$build"/python/driftless/_native* >/dev/null 2>&1 || skip "this build has no Python module"
why=$("$python" -c 'import torch, numpy, pytest' 2>&1) || skip "${why##*$'\n'}"
[ -x "$build/bin/driftless" ] || skip "this build has no command (CLI11 is missing)"
export DRIFTLESS_COMMAND=$build/bin/driftless
status=0
DRIFTLESS_PYTHON_PACKAGE=$build/python \
  timeout 300 "$python" -m pytest -q -p no:cacheprovider tests/python/test_cuda_tensors.py \
  tests/python/test_quantize_cuda.py || status=1
DRIFTLESS_TOY_DEVICE=cuda PYTHONPATH=$build/python:${PYTHONPATH:-} \
  timeout 300 "$python" tests/python/engines_toy/checks.py || status=1
exit $status
