// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/on_demand/loaded_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>

namespace driftless {
namespace {

using TableFunction = const void* (*)();

// Beside the file that this code was linked into, wherever that was installed.
Result<std::string> library_path(const std::string& name) {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(&load_table), &found) == 0 || found.dli_fname == nullptr) {
    return error(StatusCode::kInternal, "the file of this library is not known");
  }
  const std::string file = found.dli_fname;
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  if (::access((folder + name).c_str(), F_OK) == 0) return folder + name;
  return concat(folder, "driftless/", name);
}

// Who loads us may not offer what we load to others; but plugins of Open MPI find libmpi's symbols
// only where they are offered to all.
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
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();  // NOLINT(concurrency-mt-unsafe)
    return error(StatusCode::kUnsupported, needed,
                 " is needed and cannot be loaded: ", why == nullptr ? path.c_str() : why,
                 "; install the libraries that driftless was built with");
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
