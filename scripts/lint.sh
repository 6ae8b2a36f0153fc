#!/usr/bin/env bash
# clang-tidy over the rooms' sources, in parallel.
#
#   scripts/lint.sh BUILD_DIRECTORY JOBS
set -euo pipefail
build=$1
jobs=$2

git ls-files 'core/*.cpp' 'formats/*.cpp' 'kernels/*.cpp' 'collectives/*.cpp' 'plugin/*.cpp' \
    'megatron_bridge/*.cpp' |
  xargs -r -P "$jobs" -n 1 clang-tidy-19 --quiet --use-color -p "$build" 2>&1 |
  { grep -v 'warnings generated\.$\|warning generated\.$' || true; }
