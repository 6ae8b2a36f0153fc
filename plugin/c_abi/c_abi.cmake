# SPDX-License-Identifier: Apache-2.0
# libdriftless.so: the receiver behind a C ABI (driftless.h). Included by plugin/CMakeLists.txt.
set(c_abi ${CMAKE_CURRENT_SOURCE_DIR}/c_abi)
file(STRINGS ${c_abi}/driftless.h abi REGEX "^#define DRIFTLESS_ABI [0-9]+$")
string(REGEX REPLACE "[^0-9]" "" abi "${abi}")

file(GLOB c_abi_sources CONFIGURE_DEPENDS ${c_abi}/*.cpp)
add_library(driftless_c SHARED ${c_abi_sources})
add_library(driftless::c ALIAS driftless_c)
set_target_properties(driftless_c PROPERTIES
  OUTPUT_NAME driftless EXPORT_NAME c SOVERSION ${abi} VERSION ${abi}.${PROJECT_VERSION}
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
  LINK_DEPENDS ${c_abi}/driftless.map)
# Included as <driftless/driftless.h>, in the build folder as well as when installed.
set(c_abi_include ${CMAKE_BINARY_DIR}/rooms/c_abi)
file(MAKE_DIRECTORY ${c_abi_include}/driftless)
file(CREATE_LINK ${c_abi}/driftless.h ${c_abi_include}/driftless/driftless.h SYMBOLIC)
target_include_directories(driftless_c PUBLIC
  $<BUILD_INTERFACE:${c_abi_include}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_options(driftless_c PRIVATE $<$<CONFIG:Release>:-O1>)  # it only calls the libraries
target_compile_definitions(driftless_c PRIVATE "DRIFTLESS_VERSION=\"${PROJECT_VERSION}\"")
# Roads load their libraries on demand (on_demand/); unused parts of linked rooms are dropped.
target_link_libraries(driftless_c PRIVATE driftless_loading_roads
                      nlohmann_json::nlohmann_json driftless_compile_options)
target_link_options(driftless_c PRIVATE
  LINKER:--as-needed LINKER:--version-script=${c_abi}/driftless.map)
