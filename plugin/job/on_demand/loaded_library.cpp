// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/on_demand/loaded_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <fstream>

namespace driftless {
namespace {

using TableFunction = const void* (*)();

// The file into which this code was linked. The loader does not report a program's path.
Result<std::string> this_file() {
  Dl_info found{};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&load_table), &found, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) == 0) {
    return error(StatusCode::kInternal, "the file of this library is not known");
  }
  if (map->l_name[0] != '\0') return std::string(map->l_name);
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  if (size > 0) return std::string(path.data(), static_cast<std::size_t>(size));
  return error(StatusCode::kInternal, "the file of this program is not known: /proc is needed");
}

// The path of the library: beside that file (a Python package and its bin/), or in the folder
// driftless/ beside libdriftless.so.
Result<std::string> library_path(const std::string& name) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string file, this_file());
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  for (const char* const near : {"", "driftless/", "../", DRIFTLESS_LOADED_FROM_BIN}) {
    std::string path = concat(folder, near, name);
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return concat(folder, "driftless/", name);
}

struct ElfFile {
  Elf64_Ehdr header{};
  std::uint64_t size_bytes = 0;
};

// False if the file is missing or not a 64-bit ELF file; then dlopen() reports which.
bool read_elf(const std::string& path, ElfFile& elf) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  elf.size_bytes = file ? static_cast<std::uint64_t>(file.tellg()) : 0;
  file.seekg(0);
  file.read(reinterpret_cast<char*>(&elf.header), sizeof(elf.header));
  return file && std::memcmp(elf.header.e_ident, ELFMAG, SELFMAG) == 0 &&
         elf.header.e_ident[EI_CLASS] == ELFCLASS64;
}

// Checks the file before dlopen(): a truncated file would end the process, and dlopen() reports a
// file for another processor as missing.
Status check_file(const std::string& path) {
  ElfFile elf, this_elf;
  if (!read_elf(path, elf)) return {};
  const Elf64_Ehdr& header = elf.header;
  const std::uint64_t table = std::uint64_t{header.e_shnum} * header.e_shentsize;
  if (header.e_shoff > elf.size_bytes || table > elf.size_bytes - header.e_shoff) {
    return error(StatusCode::kUnsupported, path, ": was cut short, to ", elf.size_bytes,
                 " bytes: install driftless again");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string ours, this_file());
  if (read_elf(ours, this_elf) && this_elf.header.e_machine != header.e_machine) {
    return error(StatusCode::kUnsupported, path,
                 ": is for another processor than this one: install driftless for this one");
  }
  return {};
}

// The package to install for a library that the loader did not find.
std::string_view package_with(std::string_view why) {
  struct Package {
    std::string_view library, advice;
  };
  constexpr std::string_view kOtherMpi =
      "the libmpi.so.40 that was found is not Open MPI's: install Open MPI 4 or 5 (Debian and "
      "Ubuntu: libopenmpi3), and take the other's folder out of LD_LIBRARY_PATH";
  constexpr std::array kPackages{
      // Another library of that name, usually from a folder in LD_LIBRARY_PATH.
      Package{"undefined symbol: MPI_", kOtherMpi},
      Package{"undefined symbol: ompi_", kOtherMpi},
      Package{"undefined symbol: H5",
              "the HDF5 that was found is not that of Open MPI: install it "
              "(Debian and Ubuntu: libhdf5-openmpi-103), and take the "
              "other's folder out of LD_LIBRARY_PATH"},
      Package{"libmpi.so.40", "install Open MPI 4 or 5 (Debian and Ubuntu: libopenmpi3)"},
      Package{"libhdf5", "install HDF5 for Open MPI (Debian and Ubuntu: libhdf5-openmpi-103)"},
      Package{"libcuda.so.1", "install NVIDIA's driver"},
      // Our own libraries: Debian has a package for each (on_demand.cmake).
      Package{"libdriftless_roads.so: cannot open", "install the package driftless-mpi"},
      Package{"libdriftless_hdf5_roads.so: cannot open", "install the package driftless-hdf5"},
      Package{"libdriftless_nccl_roads.so: cannot open", "install the package driftless-nccl"},
      Package{"libdriftless_object_store_roads.so: cannot open",
              "install the package driftless-object-store"},
      Package{"libdriftless_peer_roads.so: cannot open", "install the package driftless-peer"},
      Package{"libdriftless_monitor.so: cannot open", "install the package driftless-monitor"},
      Package{"libdriftless_device.so: cannot open", "install the package driftless-cuda"},
  };
  for (const Package& package : kPackages) {
    if (why.find(package.library) != std::string_view::npos) return package.advice;
  }
  return "install the libraries that driftless was built with";
}

// Makes libmpi's symbols global. The program that loads us may have loaded us with local symbols,
// but plugins of Open MPI find libmpi's symbols only if they are global.
void offer_mpi(void* library) {
  void* const symbol = dlsym(library, "MPI_Initialized");
  Dl_info found{};
  if (symbol == nullptr || dladdr(symbol, &found) == 0) return;
  dlopen(found.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

}  // namespace

const char* build_text() { return DRIFTLESS_BUILD_TEXT; }

Result<const void*> load_table(const std::string& name, const char* symbol,
                               std::string_view needed) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string path, library_path(name));
  DRIFTLESS_RETURN_IF_ERROR(
      check_file(path).with_context(concat(needed, " is needed and cannot be loaded")));
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();  // NOLINT(concurrency-mt-unsafe)
    const std::string why = reason == nullptr ? path : reason;
    return error(StatusCode::kUnsupported, needed, " is needed and cannot be loaded: ", why, "; ",
                 package_with(why));
  }
  const auto table = reinterpret_cast<TableFunction>(dlsym(library, symbol));
  const char* const build = table == nullptr ? nullptr : *static_cast<const char* const*>(table());
  if (build == nullptr || std::strcmp(build, build_text()) != 0) {
    return error(StatusCode::kUnsupported, path, " belongs to another build of driftless (",
                 build == nullptr ? "unknown" : build, ", this is ", build_text(),
                 "): install driftless again");
  }
  offer_mpi(library);
  return table();
}

}  // namespace driftless
