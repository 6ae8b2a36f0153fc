// SPDX-License-Identifier: Apache-2.0
// PartRing: places the parts of one publisher rank in memory that receivers read.
//
// Publications follow each other around the ring; each part is contiguous. The oldest publications
// make room for a new one. Before a byte of an older publication is overwritten, the ring calls
// raise(v): versions below v are no longer whole. No receiver has seen the publication under
// construction, so its parts may still move, and they do if that makes it fit. A publication always
// fits if its parts, each rounded up to kPartAlignment, together do not exceed the memory.
//
// The first open part grows in place. A part that is opened while another one is open has separate
// memory until it is synced with no other part open, or until flush().
//
// One thread makes the calls, except those on the files: any thread may make these, also pwrite()
// and pread() at the same time. A file that outlives its publication refuses all calls. Does not
// use MPI.
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

// Precedes the bytes of each part, so that a receiver can check that it read the right part.
struct PartLabel {
  std::uint64_t magic = 0x6c62'616c'7472'6170;  // "partlabl"
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  Hash128 name;  // hash of the name
  std::array<std::uint64_t, 3> unused{};

  friend bool operator==(const PartLabel&, const PartLabel&) = default;
};
static_assert(sizeof(PartLabel) == kPartAlignment);

class PartRing : public std::enable_shared_from_this<PartRing> {
 public:
  // `memory` must outlive the ring. It holds at most `versions` publications, including the new
  // one. `option` names the setting to raise if the ring is too small: "road.ring_size".
  PartRing(std::span<std::byte> memory, unsigned versions, std::string option,
           std::function<void(std::uint64_t)> raise);

  // Begins a publication, and drops one under construction; versions never descend.
  void begin(std::uint64_t version);
  // kAlreadyExists if this publication has a part of that name.
  [[nodiscard]] Result<std::unique_ptr<File>> create(const std::string& name);
  // All parts in the order of their creation; a locator is an offset in the memory. All parts must
  // be synced and closed. Nothing moves afterwards.
  [[nodiscard]] Result<std::vector<PartReceipt>> flush();
  // After flush(): adds bytes to the same publication; returns their offset.
  [[nodiscard]] Result<std::uint64_t> append(std::string_view bytes);
  // Completes the publication, which then stays until it is evicted.
  void finish();
  void drop();

 private:
  friend class RingFile;
  struct Part {
    std::string name;
    std::uint64_t at = 0;    // position of its label, see head_
    std::uint64_t size = 0;  // without the label
    bool open = false;
    bool placed = false;  // in the ring; otherwise in `buffer`
    PartBuffer buffer;
    std::unique_ptr<PartHash> hashing = std::make_unique<PartHash>();
    std::optional<Hash128> hash;  // valid since the last sync()
  };
  struct Publication {
    std::uint64_t version = 0;
    std::uint64_t begin = 0;  // position
  };

  // Calls of files; `turn` identifies the publication.
  [[nodiscard]] Status write(std::uint64_t turn, std::size_t index, std::uint64_t offset,
                             std::span<const std::byte> bytes);
  [[nodiscard]] Status read(std::uint64_t turn, std::size_t index, std::uint64_t offset,
                            std::span<std::byte> bytes);
  [[nodiscard]] Status sync(std::uint64_t turn, std::size_t index);
  void close(std::uint64_t turn, std::size_t index);

  // The functions below need the mutex.
  [[nodiscard]] Status check(std::uint64_t turn, std::size_t index) const;
  [[nodiscard]] Status grow(Part& part, std::uint64_t size);
  [[nodiscard]] Status grow_in_ring(Part& part, std::uint64_t size);
  [[nodiscard]] Status compact(Part& last, std::uint64_t size);
  [[nodiscard]] Status place(Part& part);
  void evict_before(std::uint64_t end_position);
  void evict_oldest();
  [[nodiscard]] std::byte* block(const Part& part);  // its label, once it is placed
  [[nodiscard]] std::byte* bytes(Part& part);
  [[nodiscard]] Status too_small(std::uint64_t needed) const;
  void drop_locked();

  const std::span<std::byte> memory_;
  const unsigned versions_;
  const std::string option_;
  const std::function<void(std::uint64_t)> raise_;

  // Exclusive while parts are added, grow or move; shared while their bytes are copied.
  std::shared_mutex mutex_;
  // Positions ascend without limit; position p is byte p % memory_.size().
  std::uint64_t head_ = 0;  // the next free position
  std::deque<Publication> live_;
  std::optional<Publication> current_;
  std::vector<Part> parts_;             // of current_
  std::optional<std::size_t> growing_;  // the open part in the ring: the last one there
  // append() found no room after the parts, which cannot move any more: the next publication starts
  // at the beginning of the memory, where most space is available.
  bool restart_ = false;
  std::uint64_t turn_ = 0;  // counts publications; files of other publications are refused
};

}  // namespace driftless::mpi_rma
