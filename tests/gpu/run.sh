#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the GPU parts and runs their tests and benchmarks: one call on a machine with a GPU.
#
#   tests/gpu/run.sh [--build DIR] [--deps PREFIX] [--only build|tests|sanitizer|bench]...
#                    [--part PART]
#
# --part: run only this part of gpu_bench (diff, quantize, ...).
# --deps: a prefix (include/, share/cmake/) with libraries that the system does not have. Parts whose
# libraries are missing are skipped and named. Ends with one table; exit status 0 only if every test
# passed. The figures in docs/operate/numbers.md come from here.
set -uo pipefail
cd "$(dirname "$0")/../.."

build=$PWD/build-gpu
deps=
part=
only=()
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$(realpath -m "$2"); shift 2 ;;
    --deps) deps=$(realpath "$2"); shift 2 ;;
    --only) only+=("$2"); shift 2 ;;
    --part) part=$2; shift 2 ;;
    --help | -h) sed -n '3,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/gpu/run.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
  esac
done
wanted() { [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
failed=0
# step NAME COMMAND...: runs the command and records its verdict for the table.
step() {
  local name=$1 begin=$SECONDS verdict
  shift
  echo "== $name"
  "$@"
  local status=$?
  case $status in
    0) verdict=passed ;;
    77) verdict=skipped ;;
    *) verdict="FAILED ($status)"; failed=1 ;;
  esac
  printf '%-34s %s, %d s\n' "$name" "$verdict" $((SECONDS - begin)) >>"$results/steps"
}

if ! nvidia-smi -L; then
  echo "tests/gpu/run.sh: no GPU here" >&2
  exit 77
fi

configure() {
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DDRIFTLESS_WITH_CUDA=ON \
    -DDRIFTLESS_CUDA_ARCHITECTURES=native -DPython_EXECUTABLE="$(command -v python3)" \
    ${deps:+-DCMAKE_PREFIX_PATH=$deps -DXXHASH_INCLUDE_DIR=$deps/include} >"$results/configure" ||
    { cat "$results/configure"; return 1; }
  grep -A20 '^-- driftless' "$results/configure"
}
build_all() { cmake --build "$build" --target gpu_all 2>&1 | tail -n 30; return "${PIPESTATUS[0]}"; }

if wanted build; then
  step configure configure
  step build build_all
  [ $failed -eq 0 ] || { cat "$results/steps"; exit 1; }
fi
if wanted tests; then
  step "kernels, contract suite" "$build/bin/gpu_contract" --gtest_brief=1
  step "kernels, streams and patches" "$build/bin/gpu_kernels" --gtest_brief=1
  step "publisher with a GPU" "$build/bin/gpu_publisher" --gtest_brief=1
  step "receiver with a GPU" "$build/bin/gpu_device_target" --gtest_brief=1
  [ -x "$build/bin/gpu_peer" ] && step "peer road into a GPU" "$build/bin/gpu_peer" --gtest_brief=1
  step "the C library with a GPU" "$build/bin/gpu_c_abi" --gtest_brief=1
  step "a module on a GPU" "$build/bin/gpu_module" --gtest_brief=1
  for part in tests/gpu/parts/*.sh; do
    [ -e "$part" ] && step "$(basename "$part" .sh)" bash "$part" "$build"
  done
fi
# sanitize TOOL SUITE SHARD. Only the run without sanitizers tries every short length many times.
shards=6
sanitize() {
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$3 \
    compute-sanitizer --tool "$1" --error-exitcode 1 --log-file "$results/$1-$2-$3" \
    "$build/bin/$2" --gtest_brief=1 --gtest_filter='-HugeTensor.*:*EveryShortLength*'
}
# sanitized TOOL SUITE: waits for its shards; prints the worst of their verdicts.
sanitized() {
  local worst=0 shard
  for ((shard = 0; shard < shards; ++shard)); do
    wait "$(cat "$results/$1-$2-$shard.pid")" || worst=1
    tail -n 2 "$results/$1-$2-$shard.out"
    tail -n 1 "$results/$1-$2-$shard"
  done
  return $worst
}
if wanted sanitizer; then
  if command -v compute-sanitizer >/dev/null; then
    # All shards run at once: each test mostly waits for the GPU.
    for tool in memcheck racecheck; do
      for suite in gpu_contract gpu_kernels gpu_module; do
        for ((shard = 0; shard < shards; ++shard)); do
          sanitize $tool $suite $shard >"$results/$tool-$suite-$shard.out" 2>&1 &
          echo $! >"$results/$tool-$suite-$shard.pid"
        done
      done
    done
    for tool in memcheck racecheck; do
      for suite in gpu_contract gpu_kernels gpu_module; do
        step "$tool, $suite" sanitized $tool $suite
      done
    done
  else
    echo "compute-sanitizer is not here: left out"
  fi
fi
# megatron_step SNAPSHOT: the time that updates add to a step of a model of 1 G parameters.
megatron_step() {
  local python="env PYTHONPATH=$build/python:$PWD/tests/python/megatron:${PYTHONPATH:-} python3"
  timeout 120 mpirun --allow-run-as-root --oversubscribe --mca plm isolated --bind-to none \
    -n 1 $python tests/bench/megatron_bench.py trainer "$1" : \
    -n 1 $python tests/bench/megatron_bench.py rollout "$1" >"$results/megatron" 2>&1 &&
    grep -h '^{"megatron_overhead"' "$results/megatron" >>"$results/figures" ||
    { tail -n 40 "$results/megatron"; return 1; }
}
# megatron_steps: whole steps of that model, with and without updates in one run, by snapshot.
megatron_steps() {
  PYTHONPATH=$build/python:$PWD/tests/python/megatron:${PYTHONPATH:-} timeout 400 \
    python3 tests/bench/megatron_bench.py steps none device pinned >"$results/megatron" 2>&1 &&
    grep -h '^{"megatron_step"' "$results/megatron" >>"$results/figures" ||
    { tail -n 40 "$results/megatron"; return 1; }
}
# module_pause [--masked]: the pause of a module of 1 G elements, alone on the GPU.
module_pause() {
  PYTHONPATH=$build/python:${PYTHONPATH:-} timeout 200 \
    python3 tests/bench/module_bench.py --device cuda --versions 5 \
    --probe "$build/bin/libgpu_probe.so" "$@" >"$results/module" 2>&1 &&
    grep -v '^{"module"' "$results/module" &&
    grep -h '^{"module"' "$results/module" >>"$results/figures" ||
    { tail -n 40 "$results/module"; return 1; }
}
if wanted bench && [ -n "$part" ]; then
  step "benchmarks, $part" bash -c "'$build/bin/gpu_bench' --only '$part' >'$results/figures'"
  cat "$results/figures"
  python3 tests/bench/gpu_table.py "$results/figures"
elif wanted bench; then
  step "benchmarks" bash -c "'$build/bin/gpu_bench' >'$results/figures'"
  if python3 -c 'import torch' 2>/dev/null; then
    step "torch's way" bash -c "python3 tests/bench/torch_bench.py >>'$results/figures'"
  else
    echo "torch is not here: its way is left out of the table"
  fi
  if [ -x "$build/bin/gpu_publish_bench" ]; then
    step "publish to committed, NCCL" bash -c "mpirun --allow-run-as-root --oversubscribe \
      --mca plm isolated -n 1 '$build/bin/gpu_publish_bench' trainer : \
      -n 1 '$build/bin/gpu_publish_bench' rollout >>'$results/figures'"
  fi
  if python3 -c 'import torch, megatron.core' 2>/dev/null && ls "$build"/python/driftless/_native* >/dev/null 2>&1; then
    for snapshot in device pinned; do
      step "Megatron's step, snapshot $snapshot" megatron_step $snapshot
    done
    step "Megatron's whole steps" megatron_steps
  else
    echo "torch, megatron-core or the Python module is not here: the share of a step is left out"
  fi
  if python3 -c 'import torch, safetensors' 2>/dev/null && ls "$build"/python/driftless/_native* >/dev/null 2>&1; then
    for way in "" "--prove always" --masked; do
      step "an engine's pause ${way#--}" module_pause $way
    done
  else
    echo "torch, safetensors or the Python module is not here: an engine's pause is left out"
  fi
  python3 tests/bench/gpu_table.py "$results/figures"
fi
echo
cat "$results/steps"
exit $failed
