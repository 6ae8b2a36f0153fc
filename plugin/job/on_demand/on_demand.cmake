# SPDX-License-Identifier: Apache-2.0
# Libraries that the command, the Python module and libdriftless.so load on demand (loaded_library.h).
# Included by plugin/CMakeLists.txt.
set(on_demand ${CMAKE_CURRENT_SOURCE_DIR}/job/on_demand)
set(DRIFTLESS_LOADED_DIRECTORY ${CMAKE_BINARY_DIR}/lib/driftless)
set(build_text "driftless ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
string(APPEND build_text ", ${CMAKE_BUILD_TYPE}")
file(RELATIVE_PATH loaded_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/driftless)

set_source_files_properties(${on_demand}/loaded_library.cpp PROPERTIES
  COMPILE_DEFINITIONS
  "DRIFTLESS_BUILD_TEXT=\"${build_text}\";DRIFTLESS_LOADED_FROM_BIN=\"${loaded_from_bin}/\""
  SKIP_UNITY_BUILD_INCLUSION ON)

# The table for programs that load libraries on demand: links no optional library.
driftless_road_table(driftless_loading_roads LOADED MPI HDF5 NCCL OBJECT_STORE OPENSSL HTTPLIB CUDA)
driftless_make_shared_code()

# driftless_loaded_library(NAME OUTPUT SOURCE LIBRARY...)
function(driftless_loaded_library name output source)
  add_library(${name} MODULE ${on_demand}/${source})
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME ${output} LIBRARY_OUTPUT_DIRECTORY ${DRIFTLESS_LOADED_DIRECTORY})
  driftless_shares_code(${name})
  target_link_libraries(${name} PRIVATE ${ARGN} driftless_compile_options)
  # Like the libraries that load it, it exports nothing to the rest of the process. The nccl road's MPI
  # part is in the library of MPI.
  target_link_options(${name} PRIVATE LINKER:--as-needed
    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/c_abi/driftless.map)
  # Its component (mpi, hdf5, nccl, object_store, peer, monitor, cuda); the package is
  # driftless-COMPONENT.
  string(REGEX REPLACE "^driftless_|_roads$" "" component ${output})
  string(REGEX REPLACE "^roads$" mpi component ${component})
  string(REGEX REPLACE "^device$" cuda component ${component})
  install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/driftless COMPONENT ${component})
endfunction()

# HDF5 has a library of its own: a job over MPI also runs on hosts without HDF5.
if(DRIFTLESS_HAS_MPI)
  driftless_road_table(driftless_mpi_roads LOADED HDF5 HTTPLIB CUDA)
  driftless_loaded_library(driftless_road_library driftless_roads road_library.cpp
                           driftless_mpi_roads)
endif()
if(DRIFTLESS_HAS_HDF5)
  driftless_road_table(driftless_hdf5_roads LOADED NCCL OBJECT_STORE OPENSSL HTTPLIB CUDA)
  driftless_loaded_library(driftless_hdf5_road_library driftless_hdf5_roads road_library.cpp
                           driftless_hdf5_roads)
endif()
# Object stores and NCCL need no MPI; under mpirun a job finds them in the library of MPI.
if(DRIFTLESS_HAS_OBJECT_STORE AND NOT OBJECT_STORE IN_LIST DRIFTLESS_WITHIN)
  driftless_road_table(driftless_object_store_roads LOADED MPI HDF5 NCCL OPENSSL HTTPLIB CUDA)
  driftless_loaded_library(driftless_object_store_road_library driftless_object_store_roads
                           road_library.cpp driftless_object_store_roads)
endif()
# The same holds for the peer road, which needs libcrypto.
if(DRIFTLESS_HAS_OPENSSL AND NOT OPENSSL IN_LIST DRIFTLESS_WITHIN)
  driftless_road_table(driftless_peer_roads LOADED MPI HDF5 NCCL OBJECT_STORE HTTPLIB CUDA)
  driftless_loaded_library(driftless_peer_road_library driftless_peer_roads road_library.cpp
                           driftless_peer_roads)
endif()
if(DRIFTLESS_HAS_NCCL)
  driftless_road_table(driftless_nccl_roads LOADED MPI HDF5 OBJECT_STORE HTTPLIB CUDA)
  driftless_loaded_library(driftless_nccl_road_library driftless_nccl_roads road_library.cpp
                           driftless_nccl_roads)
endif()
# NCCL is searched beside these libraries, and in PyPI's package beside ours. Programs of the build
# folder find the one that scripts/nccl_root.sh put there.
foreach(library driftless_road_library driftless_nccl_road_library)
  if(DRIFTLESS_HAS_NCCL AND TARGET ${library})
    set_property(TARGET ${library} PROPERTY INSTALL_RPATH "$ORIGIN;$ORIGIN/../nvidia/nccl/lib")
  endif()
endforeach()
if(DRIFTLESS_HAS_NCCL AND EXISTS ${NCCL_INCLUDE_DIR}/../lib/libnccl.so.2)
  foreach(folder lib/driftless python/driftless)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/${folder})
    file(CREATE_LINK ${NCCL_INCLUDE_DIR}/../lib/libnccl.so.2 ${CMAKE_BINARY_DIR}/${folder}/libnccl.so.2 SYMBOLIC)
  endforeach()
endif()
# The status server, with cpp-httplib.
if(DRIFTLESS_HAS_HTTPLIB AND NOT HTTPLIB IN_LIST DRIFTLESS_WITHIN)
  driftless_loaded_library(driftless_monitor_library driftless_monitor monitor_library.cpp
                           driftless_monitor)
endif()
if(TARGET driftless_device)
  driftless_loaded_library(driftless_device_library driftless_device device_library.cpp
                           driftless_device)
endif()
