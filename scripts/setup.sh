#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing Debian packages of the named groups.
#
#   scripts/setup.sh GROUP...      groups: build test lint fuzz wheels package
#
# Prints nothing if none is missing. DRIFTLESS_SKIP_SETUP=1: does nothing.
set -euo pipefail

packages_of() {
  case "$1" in
    build) echo g++ cmake ninja-build pkg-config libzstd-dev libxxhash-dev nlohmann-json3-dev \
                libcli11-dev zlib1g-dev libyaml-cpp-dev libopenmpi-dev openmpi-bin \
                libhdf5-openmpi-dev libcurl4-openssl-dev libssl-dev libpugixml-dev python3-dev \
                python3-venv pybind11-dev ccache libcpp-httplib-dev prometheus-cpp-dev ;;
    test) echo libgtest-dev python3 python3-numpy python3-zstandard python3-xxhash python3-pytest python3-pytest-xdist \
               python3-h5py hdf5-tools iproute2 faketime slurm-wlm munge \
               chromium chromium-driver python3-selenium prometheus groff-base \
               dpkg-dev file debootstrap docker-compose python3-yaml curl ;;
    lint) echo clang-format-19 clang-tidy-19 python3 python3-venv ;;
    wheels) echo dpkg-dev python3-pip "g++-$(uname -m | sed 's/x86_64/aarch64/; t; s/aarch64/x86-64/')-linux-gnu" ;;
    fuzz) echo clang-19 libclang-rt-19-dev ;;
    package) echo dpkg-dev file ;;
    *) echo "scripts/setup.sh: unknown group '$1'; known: build test lint fuzz wheels package" >&2; return 2 ;;
  esac
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "scripts/setup.sh: not root and no sudo; run as root: $*" >&2
    return 1
  fi
}

if [ "${DRIFTLESS_SKIP_SETUP:-0}" = 1 ]; then exit 0; fi

wanted=()
for group in "$@"; do
  list=$(packages_of "$group")
  read -ra names <<<"$list"
  wanted+=("${names[@]}")
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: apt-get is missing; install the contents of these Debian packages: ${wanted[*]}" >&2
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  if ! installed "$package"; then missing+=("$package"); fi
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

echo "setup: installing ${missing[*]}"
# The package lists may be usable even if this update fails: the install below decides.
as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
  echo "setup: apt-get update reported problems; continuing" >&2
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}"
