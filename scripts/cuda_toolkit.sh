#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Downloads the CUDA compiler and NCCL's header from PyPI into ROOT, for building wheels:
#
#   scripts/cuda_toolkit.sh ARCH ROOT     ARCH: the processor of the wheels, x86_64 or aarch64
#
# A second call does nothing.
set -euo pipefail
arch=${1:?usage: scripts/cuda_toolkit.sh ARCH ROOT}
root=${2:?}
wanted="$(cat "$0") $arch"
[ "$(cat "$root/.built" 2> /dev/null)" = "$wanted" ] && exit 0

rm -rf "$root"
mkdir -p "$root/wheels"
get() {  # MACHINE PACKAGE...
  local machine=$1
  shift
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$root/wheels" \
    --platform "manylinux_2_27_$machine" --platform "manylinux_2_18_$machine" --platform "manylinux2014_$machine" \
    --platform "manylinux_2_17_$machine" --platform "manylinux2010_$machine" "$@" 2> "$root/log" ||
    { cat "$root/log" >&2; exit 1; }
}
get "$(uname -m)" nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
get "$arch" nvidia-cuda-runtime==13.0.96 nvidia-cuda-culibos==13.0.85 nvidia-nccl-cu13==2.28.9
for wheel in "$root"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$root/wheels/all"; done
mv "$root"/wheels/all/nvidia/cu13/* "$root"
mkdir -p "$root/nccl" "$root/licences"
mv "$root/wheels/all/nvidia/nccl/include" "$root/nccl/"
for package in cuda_runtime cuda_culibos; do
  find "$root/wheels/all/nvidia_$package"-*.dist-info -type f -iname 'license*' -exec cp {} "$root/licences/$package.txt" \;
done
rm -rf "$root/wheels"
chmod +x "$root"/bin/* "$root"/nvvm/bin/*
ln -s libcudart.so.13 "$root/lib/libcudart.so"  # the name that CMake searches
ln -s lib "$root/lib64"
for target in x86_64-linux sbsa-linux; do
  mkdir -p "$root/targets/$target"
  ln -s ../../include ../../lib "$root/targets/$target/"
done
echo "$wanted" > "$root/.built"
