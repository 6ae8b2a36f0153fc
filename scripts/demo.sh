#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on made-up data, over every road. Needs no GPU and no cluster, and removes its files.
#
#   scripts/demo.sh [PARAMS [STEPS]]
#
# 2 trainer ranks and 2 rollouts under mpirun follow the same run over mpi_rma, shared_fs with both
# layouts, and hdf5. Every rollout's saved weights are compared with the trainer's, bit for bit. At the
# end, if megatron-core can be installed, it trains a small model, and a transformers model follows it
# while generating.
set -euo pipefail
cd "$(dirname "$0")/.."
params=${1:-20000000}
steps=${2:-6}
driftless=build/bin/driftless

if ! $driftless info | grep -q '^mpi_rma *built' || ! command -v mpirun > /dev/null; then
  echo "MPI is missing: this runs the encodings alone, without roads (driftless demo)"
  exec $driftless demo --params "$params" --steps "$steps"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/driftless-demo-XXXXXX")
trap 'rm -rf "$work"' EXIT
run=(mpirun --oversubscribe --bind-to none --mca plm isolated)  # this host: no ssh needed
[ "$(id -u)" -ne 0 ] || run+=(--allow-run-as-root)
# MPI puts its windows in /dev/shm, which is often small in containers: then use another folder.
shm_kb=$(df -Pk /dev/shm 2> /dev/null | awk 'NR == 2 { print $4 }')
[ "${shm_kb:-0}" -ge 2000000 ] || run+=(--mca osc_sm_backing_directory "$work")

echo "A run of about $params parameters and $steps steps ..."
$driftless synth --out "$work/run" --params "$params" --steps "$steps"
last=$(printf 'step_%06d' "$steps")

rows=()
# road NAME CONFIG [settings ...]
road() {
  local name=$1 config=configs/$2 settings=() begin=$SECONDS result same=yes
  shift 2
  for setting in "$@"; do settings+=(--set "$setting"); done
  echo
  echo "== $name ($config)"
  "${run[@]}" -n 2 $driftless trainer --config "$config" "${settings[@]}" --replay "$work/run" : \
    -n 2 $driftless rollout --config "$config" "${settings[@]}" --save "$work/save_$name" \
    | tee "$work/output"
  for rollout in 00 01; do
    $driftless verify "$work/save_$name/rollout_$rollout" --like "$work/run/$last" || same=NO
  done
  result=$(grep ' versions, ' "$work/output" | sed 's/^[0-9]* versions, //; s/; median ms: /|/')
  rows+=("$name|${result/instead of/of}|$same|$((SECONDS - begin)) s")
  rm -rf "$work/save_$name" "$work/$name"
}

road mpi_rma single_node.yaml
road flush shared_fs_flush.yaml "road.shared_fs.dir=$work/flush"
road hf_delta shared_fs_sglang.yaml "road.shared_fs.dir=$work/hf_delta"
if $driftless info | grep -q '^shared_fs/hdf5 *built'; then
  road hdf5 parallel_hdf5.yaml "road.shared_fs.dir=$work/hdf5"
fi

echo
for row in 'road|sent|median ms|bit-identical|time' "${rows[@]}"; do
  IFS='|' read -r name sent times same seconds <<< "$row"
  printf '%-9s %-41s %-42s %-14s %s\n' "$name" "$sent" "$times" "$same" "$seconds"
done
case "${rows[*]}" in *'|NO|'*) exit 1 ;; esac

echo
echo "== Megatron"
scripts/demo_megatron.sh
