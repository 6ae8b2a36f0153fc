// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/hdf5_handle.h"

namespace driftless {
namespace {

// The lock protects another library's globals, so it is global, too.
std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

struct StackText {
  std::string first, last;
};

// Walks from the place of the error up to the API call.
herr_t note(unsigned, const H5E_error2_t* entry, void* data) {
  auto& text = *static_cast<StackText*>(data);
  std::string line = entry->desc == nullptr ? "" : entry->desc;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (text.first.empty()) text.first = line;
  text.last = std::move(line);
  return 0;
}

bool names_no_space(std::string_view text) {
  for (const std::string_view sign : {"No space left", "MPI_ERR_NO_SPACE", "Disk quota exceeded"}) {
    if (text.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

Hdf5Scope::Hdf5Scope() : lock_(hdf5_mutex()) {
  (void)H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  (void)H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Scope::~Hdf5Scope() { (void)H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_); }

Status hdf5_error(StatusCode code, std::string_view what) {
  StackText text;
  (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note, &text);
  (void)H5Eclear2(H5E_DEFAULT);
  if (text.first.empty()) return error(code, what, ": HDF5 gave no reason");
  if (names_no_space(text.first) || names_no_space(text.last)) code = StatusCode::kNoSpace;
  if (text.first == text.last) return error(code, what, ": HDF5: ", text.first);
  return error(code, what, ": HDF5: ", text.first, "; ", text.last);
}

}  // namespace driftless
