// SPDX-License-Identifier: Apache-2.0
// OpenPart: a part while it is being written, independent of where a road stores its bytes.
//
// Shared by the road and by the part's file, which may outlive the publication. Any thread may call
// through the file; a mutex lets one call through at a time.
#pragma once

#include <concepts>
#include <functional>
#include <mutex>

#include "collectives/part_buffer.h"
#include "collectives/part_hash.h"
#include "collectives/road.h"

namespace driftless {

// Called before a part grows by `bytes`, from any thread. kNoSpace names the setting to raise.
using TakeRoom = std::function<Status(std::uint64_t bytes)>;
// A budget of `bytes` for all parts together. Its error reads "does not fit into ... bytes; raise
// <option>".
[[nodiscard]] TakeRoom make_byte_budget(std::uint64_t bytes, std::string option);

class OpenPart {
 public:
  // Error messages name `road`. Without `room` only the storage itself limits the part.
  OpenPart(std::string road, std::string name, TakeRoom room)
      : road_(std::move(road)), name_(std::move(name)), room_(std::move(room)) {}
  virtual ~OpenPart() = default;

  [[nodiscard]] const std::string& name() const { return name_; }
  // Refuses all further writes: the publication was aborted or flushed.
  void close();
  // Returns the receipt. kInvalidArgument unless the file is closed, and was synced after the last
  // write.
  [[nodiscard]] Result<PartReceipt> finish(unsigned rank, const Deadline& deadline);

 protected:
  // Called with the mutex held. `offset` + size is at most size_bytes(), which was raised before
  // the call.
  [[nodiscard]] virtual Status write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual Status read(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  [[nodiscard]] virtual Status sync() { return {}; }
  // Fills the rest of the receipt, which already has name, rank and size.
  [[nodiscard]] virtual Status complete(PartReceipt& receipt, const Deadline& deadline) = 0;
  // Called when the file is closed. `whole`: it was synced after its last write.
  virtual void file_closed(bool /*whole*/) {}

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  friend class OpenPartFile;
  const std::string road_;
  const std::string name_;
  const TakeRoom room_;
  std::mutex mutex_;
  std::uint64_t size_bytes_ = 0;
  bool synced_ = false;  // since the last write
  bool failed_ = false;  // a write or sync failed
  bool open_ = true;     // the file object exists
  bool closed_ = false;
};

// A part whose bytes the processor can read. Its hash is computed while it is written front to
// back, otherwise by reading it back.
class HashedPart : public OpenPart {
 public:
  using OpenPart::OpenPart;

 protected:
  [[nodiscard]] virtual Status store(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) final;
  Status complete(PartReceipt& receipt, const Deadline& deadline) override;
  // Empty if the part was not written front to back.
  [[nodiscard]] std::optional<Hash128> known_hash() const { return hash_.hash(); }

 private:
  PartHash hash_;
};

// A part whose bytes are in memory of this process.
class BufferPart : public HashedPart {
 public:
  BufferPart(std::string road, std::string name, TakeRoom room, PartBuffer buffer)
      : HashedPart(std::move(road), std::move(name), std::move(room)), buffer_(std::move(buffer)) {}
  // Takes the bytes. Call it after finish(), unless the part's complete() does not read them.
  [[nodiscard]] PartBuffer take() { return std::move(buffer_); }

 protected:
  Status store(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status read(std::uint64_t offset, std::span<std::byte> bytes) override;

 private:
  PartBuffer buffer_;
};

[[nodiscard]] std::unique_ptr<File> make_part_file(std::shared_ptr<OpenPart> part);

// kAlreadyExists if one of `parts` has the name `name`.
template <std::derived_from<OpenPart> Part>
[[nodiscard]] Status check_part_name(const std::vector<std::shared_ptr<Part>>& parts,
                                     const std::string& name, std::string_view road) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
  for (const auto& part : parts) {
    if (part->name() != name) continue;
    return error(StatusCode::kAlreadyExists, road, ": there is a part '", name, "' already");
  }
  return {};
}

}  // namespace driftless
