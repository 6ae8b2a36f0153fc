# Options, compiler settings, and the optional backends with the reason where one is not built.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

option(DRIFTLESS_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(DRIFTLESS_FUZZ "Build libFuzzer targets (needs clang)" OFF)
option(DRIFTLESS_WERROR "Treat warnings as errors" OFF)
set(DRIFTLESS_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

add_library(driftless_compile_options INTERFACE)
target_compile_options(driftless_compile_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<BOOL:${DRIFTLESS_WERROR}>:-Werror>)
if(DRIFTLESS_FUZZ)
  target_compile_options(driftless_compile_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(DRIFTLESS_SANITIZE)
  target_compile_options(driftless_compile_options INTERFACE
    -fsanitize=${DRIFTLESS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(driftless_compile_options INTERFACE -fsanitize=${DRIFTLESS_SANITIZE})
endif()

find_program(DRIFTLESS_CCACHE ccache)
if(DRIFTLESS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DRIFTLESS_CCACHE})
endif()

# driftless_backend(NAME FOUND_VARIABLE REASON) settles DRIFTLESS_WITH_<NAME> = AUTO|ON|OFF into
# DRIFTLESS_HAS_<NAME> and DRIFTLESS_WHY_NOT_<NAME>. Code lists every backend, built or not.
function(driftless_backend name found missing)
  if(NOT DRIFTLESS_WITH_${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR
      "DRIFTLESS_WITH_${name} is '${DRIFTLESS_WITH_${name}}': expected AUTO, ON or OFF")
  endif()
  if(DRIFTLESS_WITH_${name} STREQUAL "OFF")
    set(has OFF)
    set(why "switched off by DRIFTLESS_WITH_${name}=OFF")
  elseif(found)
    set(has ON)
    set(why "")
  elseif(DRIFTLESS_WITH_${name} STREQUAL "ON")
    message(FATAL_ERROR "DRIFTLESS_WITH_${name}=ON, but ${missing}")
  else()
    set(has OFF)
    set(why "${missing}")
  endif()
  set(DRIFTLESS_HAS_${name} ${has} PARENT_SCOPE)
  set(DRIFTLESS_WHY_NOT_${name} "${why}" PARENT_SCOPE)
endfunction()

foreach(backend CUDA MPI NCCL HDF5 PYTHON)
  set(DRIFTLESS_WITH_${backend} AUTO CACHE STRING "Build the ${backend} parts: AUTO, ON or OFF")
  set_property(CACHE DRIFTLESS_WITH_${backend} PROPERTY STRINGS AUTO ON OFF)
endforeach()

# A backend's part of the tree comes with the work that needs it; until then AUTO says so and ON is
# refused rather than ignored.
foreach(backend CUDA MPI NCCL HDF5 PYTHON)
  driftless_backend(${backend} FALSE "this release has no ${backend} part yet")
endforeach()

function(driftless_print_summary)
  message(STATUS "driftless ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
  foreach(backend CUDA MPI NCCL HDF5 PYTHON)
    if(DRIFTLESS_HAS_${backend})
      message(STATUS "  ${backend}: yes")
    else()
      message(STATUS "  ${backend}: no (${DRIFTLESS_WHY_NOT_${backend}})")
    endif()
  endforeach()
endfunction()
