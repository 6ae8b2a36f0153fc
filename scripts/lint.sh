#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the sources that changed, in parallel. Fails if it finds something.
#
#   scripts/lint.sh BUILD_DIRECTORY JOBS
#
# "Changed": differs from the merge base with $LINT_BASE (default origin/main), committed or not. A
# changed header selects the source of its name, and the sources that include it directly. LINT_ALL=1,
# or a missing base, selects the whole tree. BUILD_DIRECTORY is configured without unity builds, so that
# its compile database names every file.
set -euo pipefail
build=$1
jobs=$2
folders=(core formats kernels collectives plugin tools megatron_bridge)

mapfile -t sources < <(git ls-files "${folders[@]/%//*.cpp}")
base=${LINT_BASE:-origin/main}
if [ "${LINT_ALL:-0}" != 1 ] && base=$(git merge-base HEAD "$base" 2> /dev/null); then
  mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- "${folders[@]}")
  chosen=()
  for source in "${sources[@]}"; do
    for file in "${changed[@]}"; do
      if [ "$file" = "$source" ] ||
        { [[ $file == *.h ]] && grep -q "#include \"$file\"" "$source"; }; then
        chosen+=("$source")
        break
      fi
    done
  done
  sources=("${chosen[@]}")
fi
# Sources that this machine cannot build (no MPI, no NCCL) are not in the database.
known=()
for source in "${sources[@]}"; do
  if grep -q "\"file\": \"$PWD/$source\"" "$build/compile_commands.json"; then
    known+=("$source")
  else
    echo "lint: $source is not built here: left out"
  fi
done
[ ${#known[@]} -gt 0 ] || { echo "lint: no source changed"; exit 0; }
printf '%s\n' "${known[@]}" |
  xargs -r -P "$jobs" -n 1 clang-tidy-19 --quiet --use-color -p "$build" 2>&1 |
  { grep --line-buffered -v 'warnings generated\.$\|warning generated\.$' || true; }
echo "lint: clang-tidy: ${#known[@]} files clean"
