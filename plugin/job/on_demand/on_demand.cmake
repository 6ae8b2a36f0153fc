# What the Python module and libdriftless.so load when it is needed, and how they reach it
# (loaded_library.h). Included by plugin/CMakeLists.txt.
set(on_demand ${CMAKE_CURRENT_SOURCE_DIR}/job/on_demand)
set(DRIFTLESS_LOADED_DIRECTORY ${CMAKE_BINARY_DIR}/lib/driftless)
set(build_text "driftless ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
string(APPEND build_text ", ${CMAKE_BUILD_TYPE}")

# driftless_plain_road_list(NAME BACKEND...): the list of roads without these backends.
function(driftless_plain_road_list name)
  foreach(backend ${ARGN})
    if(DRIFTLESS_HAS_${backend})
      set(DRIFTLESS_HAS_${backend} OFF)
      set(DRIFTLESS_WHY_NOT_${backend} "it is in a library that is loaded on demand")
    endif()
  endforeach()
  driftless_road_list(${name})
  set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
endfunction()
driftless_plain_road_list(driftless_plain_roads MPI HDF5 NCCL)
driftless_plain_road_list(driftless_c_roads MPI HDF5 NCCL CUDA)

# Links no roads: whoever uses it links a list after it.
add_library(driftless_roads_access STATIC
  ${on_demand}/loaded_library.cpp ${on_demand}/build_text.cpp)
target_link_libraries(driftless_roads_access PUBLIC driftless_plugin ${CMAKE_DL_LIBS}
                      PRIVATE driftless_compile_options)
target_compile_definitions(driftless_roads_access PRIVATE
  DRIFTLESS_HAS_NCCL=$<BOOL:${DRIFTLESS_HAS_NCCL}>
  "DRIFTLESS_BUILD_TEXT=\"${build_text}\"" "DRIFTLESS_WHY_NOT_CUDA=\"${DRIFTLESS_WHY_NOT_CUDA}\"")

# driftless_loaded_library(NAME OUTPUT SOURCE LIBRARY...)
function(driftless_loaded_library name output source)
  add_library(${name} MODULE ${on_demand}/${source} ${on_demand}/build_text.cpp)
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME ${output} LIBRARY_OUTPUT_DIRECTORY ${DRIFTLESS_LOADED_DIRECTORY})
  target_compile_definitions(${name} PRIVATE "DRIFTLESS_BUILD_TEXT=\"${build_text}\"")
  target_link_libraries(${name} PRIVATE ${ARGN} driftless_compile_options)
  # As the libraries that load it: nothing is offered to the rest of the process.
  target_link_options(${name} PRIVATE
    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/c_abi/driftless.map)
  install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/driftless)
endfunction()

# NCCL is in a library of its own: a job over MPI runs where there is no NCCL.
if(DRIFTLESS_HAS_MPI OR DRIFTLESS_HAS_NCCL)
  target_sources(driftless_roads_access PRIVATE ${on_demand}/roads_on_demand.cpp)
  driftless_plain_road_list(driftless_mpi_roads NCCL)
  driftless_loaded_library(driftless_road_library driftless_roads road_library.cpp
                           driftless_mpi_roads)
  if(DRIFTLESS_HAS_NCCL)
    driftless_loaded_library(driftless_nccl_road_library driftless_nccl_roads road_library.cpp
                             driftless_roads)
  endif()
else()
  target_sources(driftless_roads_access PRIVATE ${on_demand}/roads_linked.cpp)
endif()
if(TARGET driftless_device)
  target_sources(driftless_roads_access PRIVATE ${on_demand}/device_on_demand.cpp)
  driftless_loaded_library(driftless_device_library driftless_device device_library.cpp
                           driftless_device)
else()
  target_sources(driftless_roads_access PRIVATE ${on_demand}/device_missing.cpp)
endif()
