# version.h5: its reader in a process without MPI, its sink under mpirun with 1, 2 and 3 ranks, with
# and without threads.
if(NOT DRIFTLESS_HAS_HDF5 OR NOT TARGET driftless_hdf5)
  return()
endif()
driftless_test(unit_hdf5 SOURCES mpi/hdf5_reader_test.cpp LINKS driftless_hdf5)

add_executable(mpi_hdf5 mpi/hdf5_test.cpp)
target_include_directories(mpi_hdf5 PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(mpi_hdf5 PRIVATE driftless_hdf5 driftless_compile_options GTest::gtest)
foreach(ranks 1 2 3)
  foreach(threads multiple serialized)
    set(name mpi.hdf5_${ranks}_${threads})
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
             $<TARGET_FILE:mpi_hdf5> --threads=${threads})
    # Open MPI's; others do not look at them.
    set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS ${ranks} ENVIRONMENT
      "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_mpi_yield_when_idle=1")
  endforeach()
endforeach()
