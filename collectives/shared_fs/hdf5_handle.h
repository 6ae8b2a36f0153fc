// SPDX-License-Identifier: Apache-2.0
// The lock and the error handling of every HDF5 call here, and names within version.h5. Internal to
// the hdf5_*.cpp files.
#pragma once

#include <hdf5.h>

#include <mutex>

#include "collectives/road.h"

namespace driftless {

inline constexpr std::size_t kMaxHdf5PartName = 255;
inline constexpr unsigned kHdf5FormatVersion = 1;

// "/rank0003"
[[nodiscard]] inline std::string hdf5_group_name(unsigned rank) {
  const std::string digits = concat(rank);
  return concat("/rank", std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0'), digits);
}

// Locks every use of HDF5, including the closing of handles. The library keeps its state in globals
// and is not thread-safe as packaged, so there is one lock for the process: a writer thread and a
// reader in the same process take turns. During its lifetime HDF5 prints nothing; hdf5_error()
// returns the cause of a failure.
class Hdf5Scope {
 public:
  Hdf5Scope();
  ~Hdf5Scope();

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

// "<what>: HDF5: <where it began>; <what it meant>", from the error stack of the last failed call
// within its Hdf5Scope. kNoSpace if the stack names a full disk or quota, otherwise `code`.
[[nodiscard]] Status hdf5_error(StatusCode code, std::string_view what);

// Owns an HDF5 identifier. Used and destroyed within a Hdf5Scope.
class Hid {
 public:
  using Close = herr_t (*)(hid_t);

  Hid() = default;
  Hid(hid_t id, Close how) : id_(id), close_(how) {}
  Hid(Hid&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hid& operator=(Hid&& other) noexcept {
    if (this != &other) {
      (void)close();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
      close_ = other.close_;
    }
    return *this;
  }
  Hid(const Hid&) = delete;
  Hid& operator=(const Hid&) = delete;
  ~Hid() { (void)close(); }

  [[nodiscard]] bool valid() const { return id_ >= 0; }
  [[nodiscard]] hid_t get() const { return id_; }
  // True if it was closed, or there was nothing to close.
  bool close() { return !valid() || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }
  // Leaves it open permanently: for a file that cannot be closed any more.
  void forget() { id_ = H5I_INVALID_HID; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

}  // namespace driftless
