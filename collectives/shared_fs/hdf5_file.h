// SPDX-License-Identifier: Apache-2.0
// version.h5 while it is written: the calls that all ranks make together. Internal to the
// hdf5_*.cpp files.
#pragma once

#include <array>

#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/hdf5_handle.h"

namespace driftless {

// As it travels, between ranks of one build: plain bytes.
struct Hdf5Message {
  enum Kind : std::uint32_t { kPart = 1, kNoMore = 2, kFailed = 3, kGo = 4 };

  std::uint32_t kind = kFailed;
  std::uint32_t code = 0;       // of a failure
  std::uint64_t file_open = 0;  // whether the sender takes part in closing the file
  Hash128 attempt;
  std::uint64_t size_bytes = 0;  // of a part, like the following
  Hash128 hash;
  std::array<char, kMaxHdf5PartName + 1> name{};  // ends with a zero
  std::array<char, 512> text{};                   // of a failure; ends with a zero

  void set_failure(const Status& why);
  [[nodiscard]] Status failure(unsigned rank) const;
};

// Each call is made by all ranks, in the same order, with the same arguments except `mine`; the
// ranks agree on that before. A call that fails leaves the file open where it was.
class Hdf5VersionFile {
 public:
  Hdf5VersionFile(MPI_Comm ranks, unsigned rank, unsigned size, Hdf5Options options)
      : ranks_(ranks), rank_(rank), size_(size), options_(std::move(options)) {}

  [[nodiscard]] bool is_open() const { return file_.valid(); }
  // Overwrites what is at `path`.
  [[nodiscard]] Status create(const std::string& path);
  // A dataset for every rank that announced a part, in the order of ranks; then each rank writes
  // its own.
  [[nodiscard]] Status write_round(const std::vector<Hdf5Message>& announced,
                                   std::span<const std::byte> mine);
  // All bytes handed to stable storage. Where it failed on any rank, discard() is next.
  [[nodiscard]] Status flush();
  // After flush() went well on all ranks: closed, and synced once more by the leader.
  [[nodiscard]] Status close();
  // Closes a file that is not wanted, and removes its content first: room for what HDF5 writes even
  // then. Nothing where it is not open.
  void discard();
  // Left open: another rank does not take part in closing it, or HDF5 could not write what it must
  // (a close that failed would end the process in H5close()).
  void leave();

 private:
  [[nodiscard]] Result<Hid> access_properties() const;
  [[nodiscard]] Status create_groups();
  [[nodiscard]] Result<Hid> create_dataset(unsigned rank, const Hdf5Message& part);
  [[nodiscard]] Status write(const Hid& dataset, std::span<const std::byte> bytes);
  [[nodiscard]] Status write_error(std::uint64_t bytes) const;

  const MPI_Comm ranks_;
  const unsigned rank_, size_;
  const Hdf5Options options_;
  std::string path_;
  Hid file_;
};

}  // namespace driftless
