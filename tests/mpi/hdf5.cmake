# SPDX-License-Identifier: Apache-2.0
# version.h5: its reader in a process without MPI; its writer under mpirun with 1, 2 and 3 ranks, with
# and without threads.
driftless_test(unit_hdf5 SOURCES hdf5_reader_test.cpp LINKS driftless_hdf5)

driftless_mpi_program(mpi_hdf5 SOURCES hdf5_test.cpp LINKS driftless_hdf5 GTest::gtest)
foreach(ranks 1 2 3)
  foreach(threads multiple serialized)
    driftless_mpi_test(hdf5_${ranks}_${threads} ${ranks} $<TARGET_FILE:mpi_hdf5> --threads=${threads})
  endforeach()
endforeach()

driftless_mpi_program(mpi_hdf5_contract
  SOURCES hdf5_contract_main.cpp
  LINKS driftless_hdf5 ${remote_contract})
set(contract $<TARGET_FILE:mpi_hdf5_contract>)
foreach(ranks 2 3 4)
  math(EXPR processes "${ranks} + 1")
  driftless_mpi_test(hdf5_contract_${ranks} ${processes} ${contract})
endforeach()
driftless_mpi_test(hdf5_contract_3_serialized 1 ${contract}
  : ${MPIEXEC_NUMPROC_FLAG} 3 ${contract} --threads=serialized)

# Run by hand.
driftless_mpi_program(fan_in_bench SOURCES ../bench/fan_in_bench.cpp scenario.cpp LINKS driftless_hdf5)
target_compile_options(fan_in_bench PRIVATE $<$<CONFIG:Release>:-O2>)
