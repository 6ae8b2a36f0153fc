#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs ruff and mypy, pinned, in an environment of their own; pyproject.toml has their settings.
#
#   scripts/lint_python.sh check|format
#
# The environment is build/venvs/lint, or $DRIFTLESS_VENVS/lint.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/python_env.sh lint)
case "${1:?usage: scripts/lint_python.sh check|format}" in
  check)
    "$venv/bin/ruff" check --quiet .
    # Types of the native module, generated from the module itself, as in a wheel.
    if [ -e "$(echo build/python/driftless/_native*.so)" ]; then
      PYTHONPATH=build/python "$venv/bin/python" -m pybind11_stubgen driftless._native -o build/python
      MYPYPATH=build/python "$venv/bin/mypy" --no-error-summary
    else
      echo "lint: the native module is not built: mypy treats its types as Any"
      "$venv/bin/mypy" --no-error-summary
    fi
    echo "lint: ruff and mypy: clean"
    ;;
  format) "$venv/bin/ruff" check --quiet --fix . ;;
  *) echo "scripts/lint_python.sh: unknown '$1'; known: check format" >&2; exit 2 ;;
esac
