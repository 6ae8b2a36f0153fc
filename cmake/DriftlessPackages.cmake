# SPDX-License-Identifier: Apache-2.0
# Debian packages by CPack, one per component: `make packages`. dpkg-shlibdeps finds what a package
# links. MPI, HDF5, NCCL, object stores and the status server have packages of their own, which the
# library and the command recommend and load on demand.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME driftless)
set(CPACK_PACKAGE_VENDOR Driftless)
set(CPACK_PACKAGE_CONTACT "Driftless maintainers <maintainers@driftless.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENTS_ALL "")

# driftless_package(COMPONENT NAME SECTION DESCRIPTION [DEPENDS ...] [RECOMMENDS ...] [SUGGESTS ...])
macro(driftless_package component name section description)
  cmake_parse_arguments(PACKAGE "" "" "DEPENDS;RECOMMENDS;SUGGESTS" ${ARGN})
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${description}")
  foreach(field DEPENDS RECOMMENDS SUGGESTS)
    list(JOIN PACKAGE_${field} ", " CPACK_DEBIAN_${upper}_PACKAGE_${field})
  endforeach()
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name}
          RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL)
endmacro()

set(same "(= ${PROJECT_VERSION})")
set(recommended "")
set(suggested "")
# driftless_loaded_package(TARGET COMPONENT PRIORITY DESCRIPTION [fields]): a library loaded on demand.
macro(driftless_loaded_package target component list description)
  if(TARGET ${target})
    string(REPLACE _ - name driftless-${component})
    list(APPEND ${list} "${name} ${same}")
    driftless_package(${component} ${name} libs "${description}" ${ARGN})
  endif()
endmacro()
driftless_loaded_package(driftless_road_library mpi recommended
  "Driftless: the road over MPI, loaded on demand")
driftless_loaded_package(driftless_hdf5_road_library hdf5 recommended
  "Driftless: the road over parallel HDF5, loaded on demand")
driftless_loaded_package(driftless_object_store_road_library object_store recommended
  "Driftless: the road over object stores, loaded on demand")
driftless_loaded_package(driftless_peer_road_library peer recommended
  "Driftless: the road of reads between peers, loaded on demand")
driftless_loaded_package(driftless_monitor_library monitor recommended
  "Driftless: status server and metrics, loaded on demand")
driftless_loaded_package(driftless_device_library cuda recommended
  "Driftless: weights on NVIDIA GPUs, loaded on demand; needs the driver")
# NCCL itself is loaded at run time, too: libnccl2 comes from NVIDIA's repository, not from Debian's.
driftless_loaded_package(driftless_nccl_road_library nccl suggested
  "Driftless: the road over NCCL, loaded on demand" RECOMMENDS libnccl2)

get_target_property(abi driftless_c SOVERSION)
driftless_package(library libdriftless${abi} libs
  "Driftless: receives exactly the changed weights of a trainer (C library)"
  RECOMMENDS ${recommended} SUGGESTS ${suggested})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
if(TARGET driftless)
  driftless_package(tools driftless science
    "Driftless: ships exactly the changed weights from trainers to rollout engines (command)"
    RECOMMENDS ${recommended} SUGGESTS ${suggested})
endif()

# Depends on what driftless::plugin links; recommends what other parts link (driftlessConfig.cmake.in).
set(needed "libdriftless${abi} ${same}" libzstd-dev zlib1g-dev nlohmann-json3-dev libyaml-cpp-dev "pkgconf | pkg-config")
set(useful "")
foreach(part CURL:needed:libcurl4-openssl-dev MPI:useful:libopenmpi-dev HDF5:useful:libhdf5-openmpi-dev
        OPENSSL:useful:libssl-dev OBJECT_STORE:useful:libpugixml-dev PROMETHEUS:useful:prometheus-cpp-dev
        HTTPLIB:useful:libcpp-httplib-dev)
  string(REPLACE : ";" part ${part})
  list(GET part 0 backend)
  list(GET part 1 list)
  list(GET part 2 package)
  if(DRIFTLESS_HAS_${backend})
    list(APPEND ${list} ${package})
  endif()
endforeach()
driftless_package(development libdriftless-dev libdevel "Driftless: headers and libraries for C and C++"
  DEPENDS ${needed} RECOMMENDS ${useful})
include(CPack)
