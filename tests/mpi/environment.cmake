# SPDX-License-Identifier: Apache-2.0
# mpi_environment: what tests under mpirun are started with; sanitizer_environment: the part of it that
# sanitizers read.
set(sanitizer_environment
  ASAN_OPTIONS=detect_leaks=0  # MPI itself leaves memory behind
  TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp)
# Open MPI's; others do not look at them. plm=isolated: this host only, and no need of an ssh.
set(mpi_environment
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_plm=isolated ${sanitizer_environment})

# Containers often have a small /dev/shm, where MPI puts windows.
execute_process(COMMAND df -Pk /dev/shm OUTPUT_VARIABLE shm ERROR_QUIET)
if(NOT shm MATCHES " ([0-9]+) +[0-9]+% " OR CMAKE_MATCH_1 LESS 2000000)
  list(APPEND mpi_environment OMPI_MCA_osc_sm_backing_directory=${CMAKE_BINARY_DIR})
endif()
