#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs libFuzzer on every decoder for some seconds each, from its corpus. New inputs stay in BUILD/fuzz;
# decoders that crashed are named at the end.
#
#   scripts/fuzz.sh BUILD_DIRECTORY SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
seconds=$2
failed=()
for program in "$build"/bin/*_fuzz; do
  name=$(basename "$program" _fuzz)
  found=$build/fuzz/$name
  mkdir -p "$found"
  echo "== $name"
  "$program" -max_total_time="$seconds" -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="$found/crash-" "$found" "tests/fuzz/corpus/$name" || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: failed: ${failed[*]} (inputs in $build/fuzz)" >&2; exit 1; }
echo "fuzz: all clean"
