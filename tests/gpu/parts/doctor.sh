#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `driftless doctor` finds on a machine with a GPU: the driver, its GPUs, NCCL, and each of them
# broken. Builds nothing.
#   tests/gpu/parts/doctor.sh BUILD_DIRECTORY
set -u
build=$(realpath "${1:?usage: tests/gpu/parts/doctor.sh BUILD_DIRECTORY}")
cd "$(dirname "$0")/../../.." || exit 1
if [ ! -x "$build/bin/driftless" ]; then
  echo "doctor: skipped: this build has no command (CLI11 was not found)"
  exit 77
fi
if ! python3 -c 'import pytest, numpy' 2>/dev/null; then
  echo "doctor: skipped: python3 has no pytest or numpy"
  exit 77
fi
"$build/bin/driftless" doctor --only cuda,nccl || exit 1
DRIFTLESS_COMMAND=$build/bin/driftless timeout 120 python3 -m pytest -q -p no:cacheprovider \
  tests/python/test_doctor.py -k 'driver or gpu or nccl'
