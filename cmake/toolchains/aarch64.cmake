# SPDX-License-Identifier: Apache-2.0
# Debian's cross compiler (g++-aarch64-linux-gnu), for scripts/wheels.py. DRIFTLESS_ROOT: the folder of
# unpacked arm64 packages and libraries.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DRIFTLESS_ROOT)

# Headers that differ by processor: those of OpenSSL's configuration, and HDF5's.
set(CMAKE_C_FLAGS_INIT "-isystem ${DRIFTLESS_ROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
set(CMAKE_CUDA_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")

# The linker need not resolve the libraries that libmpi needs.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,--allow-shlib-undefined)
set(CMAKE_FIND_ROOT_PATH ${DRIFTLESS_ROOT} ${DRIFTLESS_ROOT}/usr ${DRIFTLESS_ROOT}/../cuda)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)  # header-only libraries and Python come from this machine
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
# MPI's wrapper compiler belongs to this machine, so pkg-config is used instead.
set(MPI_SKIP_COMPILER_WRAPPER TRUE)
set(MPI_mpi_LIBRARY ${DRIFTLESS_ROOT}/usr/lib/aarch64-linux-gnu/openmpi/lib/libmpi.so CACHE FILEPATH "")
set(MPI_CXX_SKIP_MPICXX TRUE)
