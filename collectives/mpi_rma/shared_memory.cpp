// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/shared_memory.h"

#include <mpi.h>
#include <sys/statvfs.h>

#include <string>
#include <vector>

namespace driftless::mpi_rma {
namespace {

constexpr const char* kDefaultDirectory = "/dev/shm";
constexpr const char* kVariable = "osc_sm_backing_directory";  // Open MPI's
constexpr std::uint64_t kSlack = std::uint64_t{1} << 20;       // for MPI's own

std::string read_variable(int index) {
  MPI_T_cvar_handle handle = nullptr;
  int count = 0;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return {};
  std::vector<char> text(static_cast<std::size_t>(count) + 1, '\0');
  const int code = MPI_T_cvar_read(handle, text.data());
  MPI_T_cvar_handle_free(&handle);
  return code == MPI_SUCCESS ? std::string(text.data()) : std::string();
}

std::string window_directory() {
  int level = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return kDefaultDirectory;
  int index = 0;
  std::string directory;
  if (MPI_T_cvar_get_index(kVariable, &index) == MPI_SUCCESS) directory = read_variable(index);
  MPI_T_finalize();
  return directory.empty() ? kDefaultDirectory : directory;
}

}  // namespace

Status check_shared_memory(std::uint64_t needed_bytes) {
  const std::string directory = window_directory();
  struct statvfs info{};
  if (::statvfs(directory.c_str(), &info) != 0) return {};
  const std::uint64_t room = std::uint64_t{info.f_bavail} * info.f_frsize;
  if (needed_bytes + kSlack <= room) return {};
  return error(
      StatusCode::kNoSpace, "the windows on this host need ", needed_bytes, " bytes, ", directory,
      " has ", room,
      " free: enlarge it, or lower road.ring_size and road.anchor_size, or give mpirun --mca ",
      kVariable, " DIR, on a file system with room");
}

}  // namespace driftless::mpi_rma
