// SPDX-License-Identifier: Apache-2.0
// A part of the host_shm road while it is written: a segment, its hash, and the room it takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/host_shm/medium.h"
#include "collectives/part_hash.h"
#include "core/file_system.h"

namespace driftless::host_shm {

// Asked for before a part grows by so many bytes; from any thread.
using TakeRoom = std::function<Status(std::uint64_t bytes)>;

// Shared by the sender and by the file, which may outlive the publication.
class PartSegment {
 public:
  PartSegment(std::string name, std::string file_name, Descriptor file, TakeRoom room);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& file_name() const { return file_name_; }
  [[nodiscard]] std::uint64_t size_bytes() const;
  // Nothing may be written any more: the publication was aborted or flushed.
  void close();
  // Size and hash, once it is closed and synced (kInvalidArgument otherwise). No byte of it is left
  // without memory: a reader of the mapping can then not be hit by a lack of it.
  [[nodiscard]] Result<PartReceipt> finish(std::uint64_t index);

 private:
  friend class SegmentFile;
  [[nodiscard]] Status fill(std::uint64_t size);
  [[nodiscard]] Result<Hash128> read_hash(std::uint64_t size);

  const std::string name_;
  const std::string file_name_;
  mutable std::mutex mutex_;
  Descriptor file_;
  TakeRoom room_;
  PartHash hash_;
  std::uint64_t size_bytes_ = 0;
  bool synced_ = false;  // since the last write
  bool open_ = true;     // its SegmentFile lives
  bool closed_ = false;
};

[[nodiscard]] std::unique_ptr<File> make_segment_file(std::shared_ptr<PartSegment> segment);

}  // namespace driftless::host_shm
