# SPDX-License-Identifier: Apache-2.0
# What nearly every file includes of the standard library, read once. A file still names what it uses:
# the database for clang-tidy has no precompiled headers.
set(precompiled OFF)
if(DRIFTLESS_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # others want all flags to be the same
  set(precompiled ON)
endif()
option(DRIFTLESS_PRECOMPILED "Precompile the standard headers" ${precompiled})

set(driftless_precompiled_headers
  <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <deque> <filesystem>
  <functional> <future> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string> <string_view>
  <thread> <tuple> <utility> <variant> <vector>)

# driftless_precompile(NAME library|program HEADERS <more> LINKS <libraries>): a target whose headers others
# take. Code of programs is position independent in another way than that of libraries.
function(driftless_precompile name kind)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINKS" ${ARGN})
  if(NOT DRIFTLESS_PRECOMPILED)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
  if(kind STREQUAL "program")
    add_executable(${name} ${source})
  else()
    add_library(${name} OBJECT ${source})
  endif()
  target_link_libraries(${name} PRIVATE driftless_compile_options ${ARG_LINKS})
  target_precompile_headers(${name} PRIVATE ${driftless_precompiled_headers} ${ARG_HEADERS})
endfunction()

# driftless_reuse_precompiled(DIRECTORY): for every library there and below, and for the programs of the
# tests. Kernels that are compiled for other instruction sets cannot take them.
function(driftless_reuse_precompiled directory)
  if(NOT DRIFTLESS_PRECOMPILED)
    return()
  endif()
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    get_target_property(own ${target} PRECOMPILE_HEADERS)
    get_target_property(sources ${target} SOURCES)
    set(from driftless_precompiled_library)
    if(type STREQUAL "EXECUTABLE")
      set(from driftless_precompiled_test)
      if(NOT directory MATCHES "^${CMAKE_SOURCE_DIR}/tests")
        continue()
      endif()
    endif()
    if(own OR target MATCHES "^driftless_kernels_" OR NOT TARGET ${from} OR
       NOT "${sources}" MATCHES "[.]cpp" OR
       NOT type MATCHES "^(STATIC|SHARED|MODULE|OBJECT)_LIBRARY$|^EXECUTABLE$")
      continue()
    endif()
    target_precompile_headers(${target} REUSE_FROM ${from})
  endforeach()
  get_property(below DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(each ${below})
    driftless_reuse_precompiled(${each})
  endforeach()
endfunction()
