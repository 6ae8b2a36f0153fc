// SPDX-License-Identifier: Apache-2.0
// The parts of a publication as a file each.
#pragma once

#include <memory>

#include "collectives/shared_fs/part_container.h"

namespace driftless {

// `fs` outlives them. The sink leaves removing to the directory's owner.
[[nodiscard]] std::unique_ptr<PartSink> make_part_files_sink(FileSystem& fs);
// Reads a file into memory; maps it where it is larger than `map_above_bytes`. A mapping is
// cheaper, but an I/O error in it ends the process.
[[nodiscard]] std::unique_ptr<PartReader> make_part_files_reader(
    FileSystem& fs, std::uint64_t map_above_bytes = std::uint64_t{1} << 30);

}  // namespace driftless
