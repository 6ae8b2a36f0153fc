// SPDX-License-Identifier: Apache-2.0
// Containers of the parts of a publication in its directory: a file for each part (part_files.cpp),
// packs into which many ranks write (part_packs.cpp), or one HDF5 file of all ranks
// (hdf5_container.h, if it is built).
#pragma once

#include <array>
#include <functional>

#include "collectives/road.h"

namespace driftless {

// The writing side of one publisher rank. The contracts of SendRoad apply.
class PartSink {
 public:
  virtual ~PartSink() = default;
  // `directory` exists: it is the hidden one, which all ranks share.
  [[nodiscard]] virtual Status begin(const std::string& directory, const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<File>> create_part(const std::string& name) = 0;
  [[nodiscard]] virtual bool writes_at_once() const { return false; }
  [[nodiscard]] virtual Result<std::vector<PartReceipt>> flush(const Deadline& deadline) = 0;
  [[nodiscard]] virtual Status abort() = 0;
};

// Reads ranges of a part from a publication's directory, like ReceiveRoad::fetch_ranges(). The
// ranges were checked. kIncomplete if the part is not there, or not yet whole. Thread-safe.
using PartReader = std::function<Result<std::vector<MappedFile>>(
    const std::string& directory, const PartReceipt& part, std::span<const ByteRange> ranges,
    const Deadline& deadline)>;

// A file for each part. `fs` must outlive the sink. The directory's owner removes the files.
[[nodiscard]] std::unique_ptr<PartSink> make_part_files_sink(FileSystem& fs);

// Packs: the parts of several ranks in one file, so that a version of many ranks needs few files.
// Ranks with the same pack number write into the same pack, each into space that it reserved under
// the pack's lock. A part stays in memory until its file is closed. A label precedes it, so that a
// reader can check that it read the right part. PartReceipt::locator is pack_locator(): the place
// of the label, and a mark that the part is in a pack (a part with its own file has 0).
inline constexpr unsigned kPackOffsetBits = 44;
inline constexpr std::uint64_t kPackAlignment = 4096;  // of labels
struct PackLabel {
  std::uint64_t magic = 0x6b63'6170'7466'7264;  // "drftpack"
  std::uint64_t size_bytes = 0;
  Hash128 name;  // hash of the name
  std::array<std::uint64_t, 4> unused{};

  friend bool operator==(const PackLabel&, const PackLabel&) = default;
};
static_assert(sizeof(PackLabel) == 64);
[[nodiscard]] inline PackLabel pack_label(const std::string& name, std::uint64_t size_bytes) {
  return {.size_bytes = size_bytes, .name = xxh3_128(name)};
}
inline constexpr unsigned kMostPacks = (1U << (64 - kPackOffsetBits)) - 1;
[[nodiscard]] constexpr std::uint64_t pack_locator(unsigned pack, std::uint64_t offset) {
  return (std::uint64_t{pack} + 1) << kPackOffsetBits | offset;
}
[[nodiscard]] std::string pack_name(unsigned pack);  // "parts0003.pack"
[[nodiscard]] std::unique_ptr<PartSink> make_part_packs_sink(FileSystem& fs, unsigned pack);

// Reads ranges of a part, in its own file or in a pack, into memory; maps the file if they exceed
// `map_above_bytes` together. A mapping is cheaper, but an I/O error in it ends the process.
[[nodiscard]] PartReader make_part_files_reader(FileSystem& fs,
                                                std::uint64_t map_above_bytes = std::uint64_t{1}
                                                                                << 30);

}  // namespace driftless
