# SPDX-License-Identifier: Apache-2.0
# mpi_environment: the environment of tests under mpirun. sanitizer_environment: the part of it for
# sanitizers.
set(sanitizer_environment
  ASAN_OPTIONS=detect_leaks=0  # MPI itself leaves memory behind
  TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp)
# Open MPI reads these; other implementations ignore them. plm=isolated: this host only, without ssh.
set(mpi_environment
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_plm=isolated ${sanitizer_environment})

# MPI puts its windows in /dev/shm, which is often small in containers.
execute_process(COMMAND df -Pk /dev/shm OUTPUT_VARIABLE shm ERROR_QUIET)
if(NOT shm MATCHES " ([0-9]+) +[0-9]+% " OR CMAKE_MATCH_1 LESS 2000000)
  list(APPEND mpi_environment OMPI_MCA_osc_sm_backing_directory=${CMAKE_BINARY_DIR})
endif()
