#!/usr/bin/env bash
# clang-tidy over the rooms' sources, in parallel. Fails where it finds something.
#
#   scripts/lint.sh BUILD_DIRECTORY JOBS
set -euo pipefail
build=$1
jobs=$2

mapfile -t sources < <(git ls-files 'core/*.cpp' 'formats/*.cpp' 'kernels/*.cpp' \
  'collectives/*.cpp' 'plugin/*.cpp' 'megatron_bridge/*.cpp')
printf '%s\n' "${sources[@]}" |
  xargs -r -P "$jobs" -n 1 clang-tidy-19 --quiet --use-color -p "$build" 2>&1 |
  { grep --line-buffered -v 'warnings generated\.$\|warning generated\.$' || true; }
echo "lint: ${#sources[@]} files clean"
