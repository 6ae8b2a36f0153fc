# The hash on the device, and the nccl road over NCCL itself. parts/nccl.sh runs them: most want several processes.
driftless_gpu_test(gpu_device_hash SOURCES device_hash_test.cpp LINKS driftless_kernels_cuda)
add_dependencies(gpu_all gpu_device_hash)
if(TARGET driftless_nccl)
  add_executable(gpu_nccl_faults nccl_faults_main.cpp)
  add_executable(nccl_bench ../bench/nccl_bench.cpp)
  foreach(program gpu_nccl_faults nccl_bench)
    target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${program} PRIVATE driftless_nccl driftless_kernels_cuda driftless_compile_options)
    add_dependencies(gpu_all ${program})
  endforeach()
endif()
if(TARGET driftless_nccl AND TARGET driftless_nccl_mpi)
  add_executable(gpu_nccl_contract nccl_contract_main.cpp ../mpi/remote_world.cpp ../mpi/road_server.cpp
                 ../contract/road_contract_test.cpp ../contract/road_room_contract_test.cpp)
  target_include_directories(gpu_nccl_contract PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(gpu_nccl_contract PRIVATE driftless_nccl driftless_nccl_mpi driftless_kernels_cuda
                        driftless_compile_options GTest::gtest)
  add_dependencies(gpu_all gpu_nccl_contract)
endif()
if(TARGET driftless_nccl AND TARGET driftless)
  add_dependencies(gpu_all driftless)  # the job over the road
endif()
