# SPDX-License-Identifier: Apache-2.0
# Options, compiler settings, and the optional backends, with the reason if one is not built.

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

# Only kernels/ and formats/ set -O3: they process elements.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

option(DRIFTLESS_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(DRIFTLESS_FUZZ "Build libFuzzer targets (needs clang)" OFF)
option(DRIFTLESS_WERROR "Treat warnings as errors" OFF)
# A unity build compiles several files of a library as one, in less than half the time. Names in the
# anonymous namespaces of one library must differ.
option(DRIFTLESS_UNITY "Compile the files of a library together" ON)
set(CMAKE_UNITY_BUILD ${DRIFTLESS_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
set(DRIFTLESS_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

add_library(driftless_compile_options INTERFACE)
# g++ 12 reports every std::optional as uninitialized, and mistakes a file of a unity build for a header.
set(gnu $<CXX_COMPILER_ID:GNU>)
set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<AND:${gnu},$<BOOL:${DRIFTLESS_UNITY}>>:-Wno-subobject-linkage>
  $<$<BOOL:${DRIFTLESS_WERROR}>:-Werror> $<$<AND:${gnu},$<BOOL:${DRIFTLESS_WERROR}>>:-Wno-error=maybe-uninitialized>)
# g++ collects garbage less often: 10 % less time for twice the memory (1.5 GB at most).
set(hungry --param=ggc-min-expand=400 --param=ggc-min-heapsize=1048576)
target_compile_options(driftless_compile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${warnings}>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,${gnu}>:${hungry}>
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter$<$<BOOL:${DRIFTLESS_WERROR}>:,-Werror -Werror=all-warnings>>")
if(DRIFTLESS_FUZZ)
  target_compile_options(driftless_compile_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(DRIFTLESS_SANITIZE)
  target_compile_options(driftless_compile_options INTERFACE
    -fsanitize=${DRIFTLESS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(driftless_compile_options INTERFACE -fsanitize=${DRIFTLESS_SANITIZE})
endif()

# Other build folders, such as the wheel's, compile the same files. Paths relative to the sources let
# ccache share their objects.
find_program(DRIFTLESS_CCACHE ccache)
if(DRIFTLESS_CCACHE)
  set(ccache_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros ${DRIFTLESS_CCACHE})
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache_launcher})
  endif()
endif()

# driftless_backend(NAME FOUND_VARIABLE REASON) turns DRIFTLESS_WITH_<NAME> = AUTO|ON|OFF into
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

set(DRIFTLESS_BACKENDS MPI HDF5 CURL OPENSSL OBJECT_STORE HTTPLIB PROMETHEUS CUDA NCCL PYTHON)
foreach(backend ${DRIFTLESS_BACKENDS})
  set(DRIFTLESS_WITH_${backend} AUTO CACHE STRING "Build the ${backend} parts: AUTO, ON or OFF")
  set_property(CACHE DRIFTLESS_WITH_${backend} PROPERTY STRINGS AUTO ON OFF)
endforeach()

# Prefixes of our own for pkg-config's results: FindHDF5 and FindCURL use the plain names, and a project
# that uses driftless may call both.
find_package(PkgConfig REQUIRED)

# Only the C interface of MPI is used; the removed C++ one would only add symbols.
if(NOT DRIFTLESS_WITH_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS CXX)
endif()
driftless_backend(MPI "${MPI_CXX_FOUND}" "no MPI was found (Debian: libopenmpi-dev)")
if(DRIFTLESS_HAS_MPI)
  add_library(driftless_mpi INTERFACE)
  set_target_properties(driftless_mpi PROPERTIES EXPORT_NAME mpi)
  target_link_libraries(driftless_mpi INTERFACE MPI::MPI_CXX)
  target_compile_definitions(driftless_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()

set(hdf5_missing "no parallel HDF5 was found (Debian: libhdf5-openmpi-dev)")
if(NOT DRIFTLESS_WITH_HDF5 STREQUAL "OFF")
  # Takes the first that exists, and makes its target again when CMake runs again.
  pkg_search_module(DRIFTLESS_HDF5 QUIET IMPORTED_TARGET GLOBAL hdf5-openmpi hdf5-mpich hdf5)
endif()
set(hdf5_usable FALSE)
if(DRIFTLESS_HDF5_FOUND AND NOT DRIFTLESS_HAS_MPI)
  set(hdf5_missing "parallel HDF5 needs MPI: ${DRIFTLESS_WHY_NOT_MPI}")
elseif(DRIFTLESS_HDF5_FOUND)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES PkgConfig::DRIFTLESS_HDF5 MPI::MPI_CXX)
  check_cxx_source_compiles("
    #include <hdf5.h>
    #ifndef H5_HAVE_PARALLEL
    #error serial
    #endif
    int main() { return H5Pset_fapl_mpio(0, MPI_COMM_NULL, MPI_INFO_NULL); }"
    DRIFTLESS_HDF5_IS_PARALLEL)
  unset(CMAKE_REQUIRED_LIBRARIES)
  set(hdf5_usable ${DRIFTLESS_HDF5_IS_PARALLEL})
  set(hdf5_missing "the HDF5 that was found is serial (Debian: libhdf5-openmpi-dev)")
endif()
driftless_backend(HDF5 "${hdf5_usable}" "${hdf5_missing}")

# For wheels: links the libraries below statically, so that wheels run without them, and the standard
# library, too (not libgcc_s: exceptions need a single one per process). MPI and HDF5 are loaded on
# demand. Our own code is in a wheel once, in a library that the others share
# (plugin/job/on_demand/shared_code.cmake).
option(DRIFTLESS_STATIC "Link static libraries, where there are any, and share our own code" OFF)
if(DRIFTLESS_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
  target_link_options(driftless_compile_options INTERFACE -static-libstdc++ -Wl,--exclude-libs,ALL)
  # Debian 12's libstdc++ gets random numbers from a function of glibc 2.36; this uses one of 2.25.
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/arc4random.cpp CONTENT [[
#include <unistd.h>
#include <cstdlib>
extern "C" __attribute__((visibility("hidden"))) unsigned arc4random() {
  unsigned drawn = 0;
  if (::getentropy(&drawn, sizeof(drawn)) != 0) std::abort();
  return drawn;
}
]] @ONLY)
  add_library(driftless_arc4random STATIC ${CMAKE_BINARY_DIR}/arc4random.cpp)
  target_link_options(driftless_compile_options INTERFACE LINKER:-u,arc4random)
  target_link_libraries(driftless_compile_options INTERFACE $<LINK_ONLY:driftless_arc4random>)
endif()

if(NOT DRIFTLESS_WITH_CURL STREQUAL "OFF")
  pkg_check_modules(DRIFTLESS_CURL QUIET IMPORTED_TARGET GLOBAL libcurl)
endif()
driftless_backend(CURL "${DRIFTLESS_CURL_FOUND}" "no libcurl was found (Debian: libcurl4-openssl-dev)")

# For authentication by a token: the TCP rendezvous of the nccl road.
if(NOT DRIFTLESS_WITH_OPENSSL STREQUAL "OFF")
  pkg_check_modules(DRIFTLESS_OPENSSL QUIET IMPORTED_TARGET GLOBAL libcrypto)
endif()
driftless_backend(OPENSSL "${DRIFTLESS_OPENSSL_FOUND}" "no libcrypto was found (Debian: libssl-dev)")

# Object stores: HTTP, signatures and XML.
set(object_store_missing "no pugixml was found (Debian: libpugixml-dev)")
set(object_store_usable FALSE)
foreach(needed CURL OPENSSL)
  if(NOT DRIFTLESS_HAS_${needed})
    set(object_store_missing "object stores need ${needed}: ${DRIFTLESS_WHY_NOT_${needed}}")
  endif()
endforeach()
if(DRIFTLESS_HAS_CURL AND DRIFTLESS_HAS_OPENSSL AND NOT DRIFTLESS_WITH_OBJECT_STORE STREQUAL "OFF")
  pkg_check_modules(DRIFTLESS_PUGIXML QUIET IMPORTED_TARGET GLOBAL pugixml)
  set(object_store_usable ${DRIFTLESS_PUGIXML_FOUND})
endif()
driftless_backend(OBJECT_STORE "${object_store_usable}" "${object_store_missing}")

# The status server: cpp-httplib, as a library found by pkg-config or header-only.
if(NOT DRIFTLESS_WITH_HTTPLIB STREQUAL "OFF")
  if(NOT DRIFTLESS_STATIC)
    pkg_check_modules(DRIFTLESS_HTTPLIB QUIET IMPORTED_TARGET GLOBAL cpp-httplib)
  endif()
  find_path(DRIFTLESS_HTTPLIB_HEADER httplib.h)
  if(NOT DRIFTLESS_HTTPLIB_FOUND AND DRIFTLESS_HTTPLIB_HEADER)
    set(DRIFTLESS_HTTPLIB_FOUND TRUE)
    add_library(PkgConfig::DRIFTLESS_HTTPLIB INTERFACE IMPORTED GLOBAL)
    target_include_directories(PkgConfig::DRIFTLESS_HTTPLIB INTERFACE ${DRIFTLESS_HTTPLIB_HEADER})
  endif()
endif()
driftless_backend(HTTPLIB "${DRIFTLESS_HTTPLIB_FOUND}"
  "no cpp-httplib was found (Debian: libcpp-httplib-dev)")

# Prometheus metrics. Its CMake package also requires the libraries of its own server and client.
if(NOT DRIFTLESS_WITH_PROMETHEUS STREQUAL "OFF")
  pkg_check_modules(DRIFTLESS_PROMETHEUS QUIET IMPORTED_TARGET GLOBAL prometheus-cpp-core)
endif()
driftless_backend(PROMETHEUS "${DRIFTLESS_PROMETHEUS_FOUND}"
  "no prometheus-cpp was found (Debian: prometheus-cpp-dev)")

# CUDA: nvcc and its runtime, statically linked, so that the build also runs without a driver.
set(DRIFTLESS_CUDA_ARCHITECTURES "80-real;90-real;100-real;120-virtual" CACHE STRING
  "GPU architectures to compile for; one is enough if nothing is run")
set(cuda_missing "no nvcc was found (CUDA 12.8 or newer)")
set(cuda_usable FALSE)
if(DRIFTLESS_SANITIZE OR DRIFTLESS_FUZZ)
  set(cuda_missing "CUDA parts are not built with sanitizers (compute-sanitizer checks them)")
elseif(NOT DRIFTLESS_WITH_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  set(CMAKE_CUDA_ARCHITECTURES ${DRIFTLESS_CUDA_ARCHITECTURES})
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    set(cuda_usable ${CUDAToolkit_FOUND})
    # CMake 3.25 does not know that nvcc supports C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr")
    if(DRIFTLESS_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${ccache_launcher})
    endif()
  endif()
endif()
driftless_backend(CUDA "${cuda_usable}" "${cuda_missing}")

# Only its header: a job loads the library when it needs it (collectives/nccl/nccl_calls.h).
set(nccl_missing "no nccl.h was found: set NCCL_ROOT")
set(nccl_usable FALSE)
if(NOT DRIFTLESS_HAS_CUDA)
  set(nccl_missing "NCCL needs CUDA: ${DRIFTLESS_WHY_NOT_CUDA}")
elseif(NOT DRIFTLESS_WITH_NCCL STREQUAL "OFF")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} PATH_SUFFIXES include)
  if(NCCL_INCLUDE_DIR)
    set(nccl_usable TRUE)
  endif()
endif()
driftless_backend(NCCL "${nccl_usable}" "${nccl_missing}")


# The Python module. scikit-build-core names the interpreter; otherwise it is the system's, which also
# runs the tests. A pybind11 from PyPI reports its own folder.
set(python_missing "no Python headers were found (Debian: python3-dev)")
set(python_usable FALSE)
if(DRIFTLESS_SANITIZE OR DRIFTLESS_FUZZ)
  set(python_missing "an interpreter without sanitizers cannot load a module with them")
elseif(NOT DRIFTLESS_WITH_PYTHON STREQUAL "OFF")
  if(NOT Python_EXECUTABLE AND EXISTS /usr/bin/python3)
    set(Python_EXECUTABLE /usr/bin/python3 CACHE FILEPATH "The interpreter to build the module for")
  endif()
  set(PYBIND11_FINDPYTHON ON)
  find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module)
  if(Python_FOUND)
    set(python_missing "no pybind11 was found (Debian: pybind11-dev)")
    execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
      OUTPUT_VARIABLE pybind11_hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    find_package(pybind11 2.10 QUIET CONFIG HINTS ${pybind11_hint})
    set(python_usable ${pybind11_FOUND})
  endif()
endif()
driftless_backend(PYTHON "${python_usable}" "${python_missing}")

function(driftless_print_summary)
  message(STATUS "driftless ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}")
  foreach(backend ${DRIFTLESS_BACKENDS})
    if(DRIFTLESS_HAS_${backend})
      message(STATUS "  ${backend}: yes")
    else()
      message(STATUS "  ${backend}: no (${DRIFTLESS_WHY_NOT_${backend}})")
    endif()
  endforeach()
endfunction()
