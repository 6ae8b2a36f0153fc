#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The last part of the demo: megatron-core trains a small model on the CPU, TP 2 x PP 2, and two rollouts
# of the same mpirun follow every step. It prints what that added to each step. Then a transformers
# model follows such a run, TP 2, while it generates. All weights are compared.
#
#   scripts/demo_megatron.sh [STEPS]
#
# Needs torch, megatron-core and transformers, and installs them once (build/venvs). If that fails, it
# prints the reason and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() {
  echo "Megatron part left out: $1"
  exit 0
}
ls build/python/driftless/_native* > /dev/null 2>&1 || skip "the Python module is not built (pybind11-dev?)"
command -v mpirun > /dev/null || skip "mpirun is missing"
echo "Python environment: torch, megatron-core, transformers (made once, a minute or two) ..."
venv=$(scripts/python_env.sh megatron 2>&1) || skip "${venv##*$'\n'}"
exec "${venv##*$'\n'}/bin/python" scripts/demo_megatron.py "${1:-4}"
