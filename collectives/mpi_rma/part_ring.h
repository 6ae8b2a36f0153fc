// SPDX-License-Identifier: Apache-2.0
// PartRing: where the parts of one publisher rank lie in a stretch of memory that receivers read.
//
// Publications follow each other around the ring; each part is contiguous. The oldest ones make
// room for a new one. Before a byte of an older publication is overwritten, raise(v) is called:
// what is below version v is no longer whole. Nothing of the publication under construction was
// seen by anybody, so its parts may still be moved; they are, if that makes it fit. A
// publication whose parts (each rounded up to kPartAlignment) sum up to no more than the memory
// always fits.
//
// The first open part grows in place. Parts that are opened while another is open are kept in
// memory of their own until they are synced with no other part open, or until flush().
//
// Calls are made by one thread, except those on the files, which may come from any thread, pwrite()
// and pread() at the same time. A file that outlives its publication refuses to be used. Knows
// nothing of MPI.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <shared_mutex>

#include "collectives/part_buffer.h"
#include "collectives/part_hash.h"
#include "collectives/road.h"

namespace driftless::mpi_rma {

inline constexpr std::uint64_t kPartAlignment = 64;

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Lies right before the bytes of each part: a receiver sees that it got what it asked for.
struct PartLabel {
  std::uint64_t magic = 0x6c62'616c'7472'6170;  // "partlabl"
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  Hash128 name;  // hash of it
  std::array<std::uint64_t, 3> unused{};

  friend bool operator==(const PartLabel&, const PartLabel&) = default;
};
static_assert(sizeof(PartLabel) == kPartAlignment);

class PartRing : public std::enable_shared_from_this<PartRing> {
 public:
  // `memory` outlives the ring. At most `versions` publications lie in it, the new one included.
  // `option` is what to raise when it is too small: "road.ring_size".
  PartRing(std::span<std::byte> memory, unsigned versions, std::string option,
           std::function<void(std::uint64_t)> raise);

  // A new publication; versions never descend. One under construction is dropped.
  void begin(std::uint64_t version);
  // kAlreadyExists for a name that this publication has.
  [[nodiscard]] Result<std::unique_ptr<File>> create(const std::string& name);
  // All parts in the order of their creation; the locator counts from the begin of the memory. All
  // must be synced and closed. Afterwards nothing moves.
  [[nodiscard]] Result<std::vector<PartReceipt>> flush();
  // After flush(): further bytes of the same publication; returns where they lie.
  [[nodiscard]] Result<std::uint64_t> append(std::string_view bytes);
  // The publication stays until it is evicted.
  void finish();
  void drop();

 private:
  friend class RingFile;
  struct Part {
    std::string name;
    std::uint64_t at = 0;    // position of its label, see head_
    std::uint64_t size = 0;  // without the label
    bool open = false;
    bool placed = false;  // in the ring; else in `buffer`
    PartBuffer buffer;
    std::unique_ptr<PartHash> hashing = std::make_unique<PartHash>();
    std::optional<Hash128> hash;  // since the last sync()
  };
  struct Publication {
    std::uint64_t version = 0;
    std::uint64_t begin = 0;  // position
  };

  // Of files; `turn` tells the publication.
  [[nodiscard]] Status write(std::uint64_t turn, std::size_t index, std::uint64_t offset,
                             std::span<const std::byte> bytes);
  [[nodiscard]] Status read(std::uint64_t turn, std::size_t index, std::uint64_t offset,
                            std::span<std::byte> bytes);
  [[nodiscard]] Status sync(std::uint64_t turn, std::size_t index);
  void close(std::uint64_t turn, std::size_t index);

  // All below with the mutex held.
  [[nodiscard]] Status check(std::uint64_t turn, std::size_t index) const;
  [[nodiscard]] Status grow(Part& part, std::uint64_t size);
  [[nodiscard]] Status grow_in_ring(Part& part, std::uint64_t size);
  [[nodiscard]] Status compact(Part& last, std::uint64_t size);
  [[nodiscard]] Status place(Part& part);
  void evict_before(std::uint64_t end_position);
  void evict_oldest();
  [[nodiscard]] std::byte* block(const Part& part);  // its label, or nothing if not placed
  [[nodiscard]] std::byte* bytes(Part& part);
  [[nodiscard]] Status too_small(std::uint64_t needed) const;
  void drop_locked();

  const std::span<std::byte> memory_;
  const unsigned versions_;
  const std::string option_;
  const std::function<void(std::uint64_t)> raise_;

  // Exclusive where parts are added, grow or move; shared where their bytes are copied.
  std::shared_mutex mutex_;
  // Positions ascend for ever; position p is byte p % memory_.size().
  std::uint64_t head_ = 0;  // the next free one
  std::deque<Publication> live_;
  std::optional<Publication> current_;
  std::vector<Part> parts_;             // of current_
  std::optional<std::size_t> growing_;  // the open part that lies in the ring: the last one there
  // append() found no room behind the parts, which cannot move any more: the next publication
  // starts at the begin of the memory, where there is as much as can be.
  bool restart_ = false;
  std::uint64_t turn_ = 0;  // counts publications: a file of another one is refused
};

}  // namespace driftless::mpi_rma
