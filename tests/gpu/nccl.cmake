# What needs a GPU and NCCL to run: built wherever both are found, run by tests/gpu/nccl.sh.
if(TARGET driftless_kernels_cuda)
  add_executable(gpu_device_hash ${CMAKE_CURRENT_LIST_DIR}/device_hash_test.cpp)
  target_include_directories(gpu_device_hash PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(gpu_device_hash PRIVATE driftless_kernels_cuda driftless_compile_options
                        GTest::gtest GTest::gtest_main)
  add_test(NAME gpu.device_hash COMMAND gpu_device_hash)
endif()
if(TARGET driftless_nccl AND TARGET driftless_kernels_cuda)
  add_executable(gpu_nccl_faults ${CMAKE_CURRENT_LIST_DIR}/nccl_faults_main.cpp)
  target_include_directories(gpu_nccl_faults PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(gpu_nccl_faults PRIVATE driftless_nccl driftless_kernels_cuda
                        driftless_compile_options)
endif()
if(TARGET driftless_nccl AND TARGET driftless_nccl_mpi AND TARGET driftless_kernels_cuda)
  set(tests ${CMAKE_SOURCE_DIR}/tests)
  add_executable(gpu_nccl_contract ${CMAKE_CURRENT_LIST_DIR}/nccl_contract_main.cpp
    ${tests}/mpi/remote_world.cpp ${tests}/mpi/road_server.cpp
    ${tests}/contract/road_contract_test.cpp ${tests}/contract/road_room_contract_test.cpp)
  target_include_directories(gpu_nccl_contract PRIVATE ${tests})
  target_link_libraries(gpu_nccl_contract PRIVATE driftless_nccl driftless_nccl_mpi
                        driftless_kernels_cuda driftless_compile_options GTest::gtest)
endif()
