# SPDX-License-Identifier: Apache-2.0
# The hash on the device, and the nccl road over NCCL itself. parts/nccl.sh runs them: most need several
# processes.
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
if(TARGET driftless_nccl AND TARGET driftless_hub_mpi)
  add_executable(gpu_nccl_contract nccl_contract_main.cpp)
  target_include_directories(gpu_nccl_contract PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(gpu_nccl_contract PRIVATE remote_world road_contract driftless_nccl driftless_hub_mpi driftless_kernels_cuda
                        driftless_test_options GTest::gtest)
  add_dependencies(gpu_all gpu_nccl_contract)
endif()
if(TARGET driftless_nccl AND TARGET driftless)
  add_dependencies(gpu_all driftless)  # for the job over this road
endif()
if(TARGET driftless_nccl AND TARGET driftless_hub_mpi)
  add_executable(gpu_publish_bench ../bench/gpu_publish_bench.cu)
  target_link_libraries(gpu_publish_bench PRIVATE driftless_roads driftless_device driftless_compile_options)
  add_dependencies(gpu_all gpu_publish_bench)
endif()
