#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The nccl road on a machine with a GPU. Builds nothing.
#   tests/gpu/parts/nccl.sh BUILD_DIRECTORY
# Several NCCL ranks share one GPU: each process claims to be another host (NCCL_HOSTID, set by the
# programs), and they communicate over the loopback interface. Prints one line per part; the exit status
# is not 0 if any part failed.
set -u
build=$(realpath "${1:?usage: tests/gpu/parts/nccl.sh BUILD_DIRECTORY}")
cd "$(dirname "$0")/../../.." || exit 1
bin=$build/bin
failed=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

export NCCL_SOCKET_IFNAME=lo
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_plm=isolated OMPI_MCA_mpi_yield_when_idle=1

# part NAME SECONDS COMMAND...
part() {
  local name=$1 limit=$2 begin code
  shift 2
  begin=$(date +%s)
  timeout --kill-after=5 "$limit" "$@" >"$logs/$name.log" 2>&1
  code=$?
  local took=$(($(date +%s) - begin))
  case $code in
    0) echo "nccl.$name: ok (${took} s) $(grep -E '^\[  PASSED' "$logs/$name.log" | tail -1)" ;;
    77) echo "nccl.$name: skipped: $(tail -1 "$logs/$name.log")" ;;
    *)
      echo "nccl.$name: FAILED with $code after ${took} s"
      tail -40 "$logs/$name.log"
      failed=1
      return 1
      ;;
  esac
}

if [ ! -x "$bin/gpu_nccl_faults" ]; then
  echo "nccl: skipped: this build has no NCCL road"
  exit 77
fi
part device_hash 120 "$bin/gpu_device_hash"
part faults 180 "$bin/gpu_nccl_faults"
grep -hE '^(follow|killed|stopped|late|  again)' "$logs/faults.log"
part bench 120 "$bin/nccl_bench"
grep -hE '^[0-9]+ MB|^  ' "$logs/bench.log"
if [ -x "$bin/gpu_nccl_contract" ]; then
  part contract_file 300 mpirun -n 6 "$bin/gpu_nccl_contract" --rendezvous=file &
  part contract_mpi 300 mpirun -n 6 "$bin/gpu_nccl_contract" --rendezvous=mpi || failed=1
  wait $! || failed=1
else
  echo "nccl.contract: skipped: this build has no MPI"
fi

# The main job: rollouts save the trainer's weights, bit for bit. Each process has its own NCCL_HOSTID.
job() {
  local work=$logs/job config=configs/nccl_cluster.yaml rank=0 line=(mpirun) steps=4 role count
  "$bin/driftless" synth --out "$work/run" --params 20000000 --steps $steps || return 1
  for role in trainer trainer rollout rollout; do
    [ $rank -eq 0 ] || line+=(:)
    line+=(-n 1 -x "NCCL_HOSTID=driftless-$rank" "$bin/driftless" $role --config "$config" "$@")
    case $role in
      trainer) line+=(--replay "$work/run") ;;
      rollout) line+=(--save "$work/save") ;;
    esac
    rank=$((rank + 1))
  done
  "${line[@]}" || return 1
  for count in 00 01; do
    "$bin/driftless" verify "$work/save/rollout_$count" --like "$work/run/$(printf 'step_%06d' $steps)" || return 1
  done
  rm -rf "$work"
}
if [ -x "$bin/driftless" ] && "$bin/driftless" info | grep -q '^nccl  *built'; then
  export -f job
  export bin logs
  part job 180 bash -c 'job'
  grep -h ' versions, ' "$logs/job.log"
else
  echo "nccl.job: skipped: the driftless command is not built, or without nccl"
fi
exit $failed
