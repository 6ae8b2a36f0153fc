#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Megatron on the GPU, with its weights over the nccl road.
#   tests/gpu/parts/megatron.sh BUILD_DIRECTORY
# Needs torch, megatron-core, numpy and pytest in python3, and the Python module in the build.
set -u
build=$(realpath "${1:?usage: tests/gpu/parts/megatron.sh BUILD_DIRECTORY}")
cd "$(dirname "$0")/../../.."
skip() {
  echo "megatron: skipped: $*"
  exit 77
}
python=$(command -v python3)
ls "$build"/python/driftless/_native* >/dev/null 2>&1 || skip "this build has no Python module"
why=$("$python" -c 'import torch, numpy, pytest, megatron.core' 2>&1) || skip "${why##*$'\n'}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
[ -x "$build/bin/driftless" ] || skip "this build has no command (CLI11 is missing)"
export DRIFTLESS_COMMAND=$build/bin/driftless
DRIFTLESS_TEST_GPU=1 DRIFTLESS_MEGATRON_PYTHON=$python DRIFTLESS_PYTHON_PACKAGE=$build/python \
  timeout 300 "$python" -m pytest -q -s -p no:cacheprovider tests/python/megatron/test_gpu.py
