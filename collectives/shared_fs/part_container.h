// SPDX-License-Identifier: Apache-2.0
// What holds the parts of a publication inside its directory: a file each (part_files.cpp), or one
// HDF5 file written by all ranks together (hdf5_container.h, where it is built).
#pragma once

#include <functional>

#include "collectives/road.h"

namespace driftless {

// The writing side of one publisher rank. The contract of each call is SendRoad's.
class PartSink {
 public:
  virtual ~PartSink() = default;
  // `directory` exists: the hidden one, which all ranks share.
  [[nodiscard]] virtual Status begin(const std::string& directory, const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<File>> create_part(const std::string& name) = 0;
  [[nodiscard]] virtual Result<std::vector<PartReceipt>> flush(const Deadline& deadline) = 0;
  [[nodiscard]] virtual Status abort() = 0;
};

// Reads ranges of a part out of a publication's directory, as ReceiveRoad::fetch_ranges() does. The
// ranges were checked. kIncomplete where the part is not there, or not whole (yet). Any thread.
using PartReader = std::function<Result<std::vector<MappedFile>>(
    const std::string& directory, const PartReceipt& part, std::span<const ByteRange> ranges,
    const Deadline& deadline)>;

// A file each. `fs` outlives them. The sink leaves removing to the directory's owner.
[[nodiscard]] std::unique_ptr<PartSink> make_part_files_sink(FileSystem& fs);
// Reads ranges of a file into memory; maps it if they are more than `map_above_bytes` together. A
// mapping is cheaper, but an I/O error in it ends the process.
[[nodiscard]] PartReader make_part_files_reader(FileSystem& fs,
                                                std::uint64_t map_above_bytes = std::uint64_t{1}
                                                                                << 30);

}  // namespace driftless
