# version.h5: its reader in a process without MPI, its sink under mpirun with 1, 2 and 3 ranks, with
# and without threads.
driftless_test(unit_hdf5 SOURCES hdf5_reader_test.cpp LINKS driftless_hdf5)

driftless_mpi_program(mpi_hdf5 SOURCES hdf5_test.cpp LINKS driftless_hdf5 GTest::gtest)
foreach(ranks 1 2 3)
  foreach(threads multiple serialized)
    driftless_mpi_test(hdf5_${ranks}_${threads} ${ranks} $<TARGET_FILE:mpi_hdf5> --threads=${threads})
  endforeach()
endforeach()

driftless_mpi_program(mpi_hdf5_contract
  SOURCES hdf5_contract_test.cpp ../contract/road_contract_test.cpp
          ../contract/road_room_contract_test.cpp ../contract/group_contract_test.cpp
  LINKS driftless_hdf5 GTest::gtest)
driftless_mpi_test(hdf5_contract 1 $<TARGET_FILE:mpi_hdf5_contract>)
