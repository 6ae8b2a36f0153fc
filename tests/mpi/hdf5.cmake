# version.h5: its reader in a process without MPI, its sink under mpirun with 1, 2 and 3 ranks, with
# and without threads.
if(NOT DRIFTLESS_HAS_HDF5 OR NOT TARGET driftless_hdf5)
  return()
endif()
driftless_test(unit_hdf5 SOURCES mpi/hdf5_reader_test.cpp LINKS driftless_hdf5)

# Open MPI's; others do not look at them.
set(hdf5_environment
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1
  ASAN_OPTIONS=detect_leaks=0)  # MPI itself leaves memory behind

# driftless_hdf5_test(NAME RANKS BINARY [ARGUMENTS]): under mpirun.
function(driftless_hdf5_test name ranks binary)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
           $<TARGET_FILE:${binary}> ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS ${ranks}
                       ENVIRONMENT "${hdf5_environment}")
endfunction()

foreach(binary mpi_hdf5 mpi_hdf5_contract)
  add_executable(${binary})
  target_include_directories(${binary} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${binary} PRIVATE driftless_hdf5 driftless_compile_options GTest::gtest)
endforeach()
target_sources(mpi_hdf5 PRIVATE mpi/hdf5_test.cpp)
target_sources(mpi_hdf5_contract PRIVATE mpi/hdf5_contract_test.cpp contract/road_contract_test.cpp)

foreach(ranks 1 2 3)
  foreach(threads multiple serialized)
    driftless_hdf5_test(mpi.hdf5_${ranks}_${threads} ${ranks} mpi_hdf5 --threads=${threads})
  endforeach()
endforeach()
driftless_hdf5_test(mpi.hdf5_contract 1 mpi_hdf5_contract)
