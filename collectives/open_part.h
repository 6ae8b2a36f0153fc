// SPDX-License-Identifier: Apache-2.0
// OpenPart: a part while it is written, whatever a road keeps its bytes in.
//
// Shared by the road and by the part's file, which may outlive the publication. Calls through the
// file may come from any thread; one at a time goes on.
#pragma once

#include <concepts>
#include <functional>
#include <mutex>

#include "collectives/part_buffer.h"
#include "collectives/part_hash.h"
#include "collectives/road.h"

namespace driftless {

// Asked before a part grows by so many bytes; from any thread. kNoSpace says what to raise.
using TakeRoom = std::function<Status(std::uint64_t bytes)>;
// Of so many bytes in all: "<what> exceed ...; raise <option>".
[[nodiscard]] TakeRoom make_byte_budget(std::uint64_t bytes, std::string option);

class OpenPart {
 public:
  // `road` is named in messages. No `room`: the storage's own is the limit.
  OpenPart(std::string road, std::string name, TakeRoom room)
      : road_(std::move(road)), name_(std::move(name)), room_(std::move(room)) {}
  virtual ~OpenPart() = default;

  [[nodiscard]] const std::string& name() const { return name_; }
  // Nothing may be written any more: the publication was aborted or flushed.
  void close();
  // Its receipt. kInvalidArgument unless the file is closed, and synced after the last write.
  [[nodiscard]] Result<PartReceipt> finish(unsigned rank, const Deadline& deadline);

 protected:
  // With the mutex held. `offset` + size is at most size_bytes(), which was raised before.
  [[nodiscard]] virtual Status write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual Status read(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  [[nodiscard]] virtual Status sync() { return {}; }
  // The rest of the receipt, which has name, rank and size.
  [[nodiscard]] virtual Status complete(PartReceipt& receipt, const Deadline& deadline) = 0;
  // The file is closed; `whole`: synced after its last write.
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
  bool failed_ = false;  // a write or sync did
  bool open_ = true;     // the file lives
  bool closed_ = false;
};

// One whose bytes the processor can read: hashed while it is written front to back, else by reading
// it back.
class HashedPart : public OpenPart {
 public:
  using OpenPart::OpenPart;

 protected:
  [[nodiscard]] virtual Status store(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) final;
  Status complete(PartReceipt& receipt, const Deadline& deadline) override;
  // Nothing if it was not written front to back.
  [[nodiscard]] std::optional<Hash128> known_hash() const { return hash_.hash(); }

 private:
  PartHash hash_;
};

// One whose bytes are in memory of the process.
class BufferPart : public HashedPart {
 public:
  BufferPart(std::string road, std::string name, TakeRoom room, PartBuffer buffer)
      : HashedPart(std::move(road), std::move(name), std::move(room)), buffer_(std::move(buffer)) {}
  // Once it is finished.
  [[nodiscard]] PartBuffer take() { return std::move(buffer_); }

 protected:
  Status store(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status read(std::uint64_t offset, std::span<std::byte> bytes) override;

 private:
  PartBuffer buffer_;
};

[[nodiscard]] std::unique_ptr<File> make_part_file(std::shared_ptr<OpenPart> part);

// `name` may be given to a further part. kAlreadyExists if one of `parts` has it.
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
