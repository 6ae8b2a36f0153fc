#!/usr/bin/env bash
# The NCCL road on a machine with a GPU. Builds nothing.
#   tests/gpu/parts/nccl.sh BUILD_DIRECTORY
# Several NCCL ranks share one GPU: each process calls itself another host (NCCL_HOSTID, set by the programs), and
# they talk over the loopback interface. Prints one line for each part; the exit status is not 0 where any failed.
set -u
build=${1:?usage: tests/gpu/parts/nccl.sh BUILD_DIRECTORY}
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
if [ -x "$bin/gpu_nccl_contract" ]; then
  part contract_file 300 mpirun -n 6 "$bin/gpu_nccl_contract" --rendezvous=file
  part contract_mpi 300 mpirun -n 6 "$bin/gpu_nccl_contract" --rendezvous=mpi
else
  echo "nccl.contract: skipped: this build has no MPI"
fi
exit $failed
