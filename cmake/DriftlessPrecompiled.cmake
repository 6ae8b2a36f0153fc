# SPDX-License-Identifier: Apache-2.0
# The foreign headers that nearly every file includes, precompiled. Each file still includes what it
# uses: the compile database of clang-tidy has no precompiled headers.
set(precompiled OFF)
if(DRIFTLESS_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # other compilers require identical flags
  set(precompiled ON)
endif()
option(DRIFTLESS_PRECOMPILED "Precompile the headers of the standard library" ${precompiled})

if(DRIFTLESS_PRECOMPILED)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/empty.cpp CONTENT "")
  add_library(driftless_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled/empty.cpp)
  target_link_libraries(driftless_precompiled PRIVATE driftless_compile_options)
  # No other headers: reading a larger file takes longer than compiling the few that a source uses.
  target_precompile_headers(driftless_precompiled PRIVATE
    <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex>
    <optional> <span> <string> <string_view> <utility> <vector>)
endif()

# driftless_reuse_precompiled(DIRECTORY): for every library in it. Kernels cannot use it, because they
# have flags for other instruction sets; if any other flags differ, the compiler reads the headers
# themselves. In driftless_hub_tcp g++ 12 would warn about its own std::string.
function(driftless_reuse_precompiled directory)
  if(NOT DRIFTLESS_PRECOMPILED)
    return()
  endif()
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    get_target_property(sources ${target} SOURCES)
    if(target MATCHES "^driftless_(kernels|precompiled|hub_tcp|arc4random)" OR NOT "${sources}" MATCHES "[.]cpp" OR
       NOT type MATCHES "^(STATIC|SHARED|MODULE|OBJECT)_LIBRARY$")
      continue()
    endif()
    target_precompile_headers(${target} REUSE_FROM driftless_precompiled)
    set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
  endforeach()
  get_property(below DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(each ${below})
    driftless_reuse_precompiled(${each})
  endforeach()
endfunction()
