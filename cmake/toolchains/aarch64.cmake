# SPDX-License-Identifier: Apache-2.0
# Debian's cross compiler (g++-aarch64-linux-gnu), for scripts/wheels.py. DRIFTLESS_ROOT: where
# packages of arm64 are unpacked and libraries for it are installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DRIFTLESS_ROOT)

# Headers that differ by processor: OpenSSL's configuration, HDF5's.
set(CMAKE_C_FLAGS_INIT "-isystem ${DRIFTLESS_ROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
set(CMAKE_CUDA_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")

# Libraries that libmpi needs are of no interest to the linker.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,--allow-shlib-undefined)
set(CMAKE_FIND_ROOT_PATH ${DRIFTLESS_ROOT} ${DRIFTLESS_ROOT}/usr)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)  # headers alone, and Python, are this machine's
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
# Its wrapper compiler is this machine's, and is not asked.
set(MPI_SKIP_COMPILER_WRAPPER TRUE)
set(MPI_HOME ${DRIFTLESS_ROOT}/usr/lib/aarch64-linux-gnu/openmpi)
set(MPI_CXX_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY ${MPI_HOME}/lib/libmpi.so CACHE FILEPATH "")
set(MPI_CXX_HEADER_DIR ${MPI_HOME}/include CACHE PATH "")
