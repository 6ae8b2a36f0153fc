// SPDX-License-Identifier: Apache-2.0
// The layout of a publisher rank's window, and the records in it. Displacements are in bytes.
//
//   all publishers:  Control | ring of versions | anchor
//   the leader:      Control | Record of the announcement | Record of the anchor |
//                    Records of versions | ReceiverSlot of each receiver | announcement |
//                    ring of versions | anchor
//
// The words of a Control are stored one by one, each atomically. Records and slots may be read
// while they are written, and end with their own hash: a reader treats one with a wrong hash as
// missing. All processes of a job have the same byte order.
#pragma once

#include <array>
#include <cstring>
#include <type_traits>

#include "collectives/mpi_rma/mpi_rma_road.h"

namespace driftless::mpi_rma {

inline constexpr std::uint64_t kWindowMagic = 0x3177'616d'7266'7264;  // "drfrmaw1"

struct Control {
  std::uint64_t magic = kWindowMagic;
  std::uint64_t window_bytes = 0;
  std::uint64_t versions_from = 0;  // lower versions are no longer whole here
  std::uint64_t anchor_mark = 0;    // version + 1 of the anchor that is whole here; 0: none
  std::uint64_t newest_mark = 0;    // leader: the newest version + 1; 0: none yet
  std::array<std::uint64_t, 3> unused{};
};
static_assert(sizeof(Control) == 64);

// The record of a manifest or of the announcement, which are in the leader's window. All zero:
// none.
struct Record {
  std::uint64_t version = 0;
  std::uint64_t kind = 0;    // PublicationKind
  std::uint64_t offset = 0;  // displacement
  std::uint64_t size_bytes = 0;
  Hash128 content_hash;
  Hash128 hash;  // of all members above
};
static_assert(sizeof(Record) == 64);

enum class SlotState : std::uint32_t { kEmpty = 0, kNameless = 1, kRegistered = 2, kLeft = 3 };

// A receiver's report, which the receiver puts into the leader's window.
struct ReceiverSlot {
  std::uint64_t heartbeat = 0;       // changes with every put
  std::uint64_t hold_heartbeat = 0;  // changes while the receiver reads an anchor
  std::uint64_t version = 0;
  std::uint64_t held_mark = 0;  // version + 1 of the anchor that it reads; 0: none
  SlotState state = SlotState::kEmpty;
  std::uint32_t id_bytes = 0;
  std::uint32_t proof_bytes = 0;
  std::uint32_t needs_bytes = 0;
  std::array<char, kMaxReceiverIdBytes> id{};
  std::array<char, kMaxProofBytes> proof{};
  std::array<char, kMaxNeedsBytes> needs{};
  Hash128 hash;  // of all members above
};
static_assert(sizeof(ReceiverSlot) == 1800);

// Records and slots: types whose last member is the hash of all members before it.
template <typename T>
[[nodiscard]] Hash128 hash_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  return xxh3_128(std::as_bytes(std::span(&value, 1)).first(sizeof(T) - sizeof(Hash128)));
}
template <typename T>
[[nodiscard]] bool is_whole(const T& value) {
  return value.hash == hash_of(value);
}

// Copies the T at `offset`.
template <typename T>
[[nodiscard]] T load(std::span<const std::byte> bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

struct WindowMap {
  std::uint64_t records = 0;                                                      // of versions
  std::uint64_t announcement_record = 0, anchor_record = 0, version_records = 0;  // leader only
  std::uint64_t slots = 0;                                                        // leader only
  std::uint64_t announcement = 0, announcement_bytes = 0;                         // leader only
  std::uint64_t ring = 0, ring_bytes = 0;
  std::uint64_t anchor = 0, anchor_bytes = 0;
  std::uint64_t window_bytes = 0;

  [[nodiscard]] std::uint64_t version_record(std::uint64_t index) const {
    return version_records + index * sizeof(Record);
  }
  // The map for options that check_options() accepts.
  [[nodiscard]] static WindowMap of(const MpiRmaOptions& options, unsigned receivers, bool leader);
  // Whether [offset, offset + size) and the label before it lie within the ring or within the
  // anchor.
  [[nodiscard]] bool holds_part(PublicationKind kind, std::uint64_t offset,
                                std::uint64_t size) const;
};

[[nodiscard]] Status check_options(const MpiRmaOptions& options, unsigned publishers,
                                   unsigned ranks);

// A copy of what receivers read first: the leader's Control and all Records.
struct LeaderRecords {
  Control control;
  Record announcement;
  Record anchor;
  std::vector<Record> versions;  // whole ones, ascending by version

  // `bytes`: the first WindowMap::slots bytes of the leader's window.
  [[nodiscard]] static LeaderRecords read(const WindowMap& map, std::span<const std::byte> bytes);
  [[nodiscard]] std::optional<Record> find(const PublicationId& id) const;
};

}  // namespace driftless::mpi_rma
