#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# If nvcc is installed and NCCL is not: downloads NCCL's header and library from PyPI into build/nccl, and
# prints -DNCCL_ROOT=... . If that fails, prints nothing, and the reason on standard error.
set -uo pipefail
cd "$(dirname "$0")/.."
version=2.28.9
command -v nvcc >/dev/null || exit 0
for header in /usr/include/nccl.h /usr/local/cuda/include/nccl.h; do
  [ -e "$header" ] && exit 0
done
root=$PWD/build/nccl
if [ ! -e "$root/nvidia/nccl/include/nccl.h" ]; then
  mkdir -p "$root"
  python=$(command -v python3)
  if ! "$python" -m pip download --quiet --no-deps --disable-pip-version-check -d "$root" \
    "nvidia-nccl-cu13==$version" >"$root/log" 2>&1 ||
    ! "$python" -m zipfile -e "$root"/*.whl "$root" >>"$root/log" 2>&1; then
    echo "NCCL's header could not be downloaded from PyPI: the nccl road is not compiled ($root/log)" >&2
    exit 0
  fi
fi
echo "-DNCCL_ROOT=$root/nvidia/nccl"
