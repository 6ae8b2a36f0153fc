// SPDX-License-Identifier: Apache-2.0
// The receiving side: it reads everything from the publishers' windows, and reports in a slot of
// the leader's window.
#include <array>
#include <cstring>

#include "collectives/mpi_rma/medium.h"
#include "collectives/mpi_rma/part_ring.h"
#include "collectives/part_buffer.h"
#include "collectives/part_ranges.h"

namespace driftless::mpi_rma {
namespace {

constexpr std::uint64_t kIdleBytes = std::uint64_t{256} << 20;
constexpr std::chrono::milliseconds kOneLook{20};
constexpr std::uint64_t kLabel = sizeof(PartLabel);

Status gone(const PublicationId& id) {
  return error(StatusCode::kNotFound, "mpi_rma: ", to_string(id),
               " is not in the publishers' windows (any more): take the newest anchor");
}

Status check_control(const Control& control, const WindowMap& map, unsigned rank) {
  if (control.magic == kWindowMagic && control.window_bytes == map.window_bytes) return {};
  return error(StatusCode::kCorrupt, "mpi_rma: the window of publisher rank ", rank,
               " is not one of this release; use the same release on both sides");
}

class RmaReceiver final : public ReceiveRoad {
 public:
  explicit RmaReceiver(Medium& medium)
      : medium_(medium), leader_(medium.map(0)), pool_(std::make_shared<PartPool>(kIdleBytes)) {
    // An earlier receiver of this process may have used the slot: the leader must see other
    // heartbeats.
    slot_.heartbeat = slot_.hold_heartbeat = random_hash128().low;
  }

  Result<std::string> run_info(const Deadline& deadline) override {
    Backoff wait = backoff();
    Waiting waiting;
    const auto whom = [] {
      return std::string("mpi_rma: no announcement from the publisher (trainer 0)");
    };
    do {
      DRIFTLESS_ASSIGN_OR_RETURN(const LeaderRecords now, records(deadline));
      if (now.announcement.hash.is_zero()) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(std::string info,
                                 text(now.announcement, deadline, "mpi_rma: the announcement"));
      if (xxh3_128(info) == now.announcement.content_hash) return info;
      return error(StatusCode::kCorrupt,
                   "mpi_rma: the announcement does not have its recorded hash");
    } while (waiting.sleep(wait, deadline, whom));
    return deadline.check(whom());
  }

  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const LeaderRecords now, records(deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Control> ranks, controls(deadline));
    std::uint64_t from = 0;
    for (const Control& control : ranks) from = std::max(from, control.versions_from);
    std::vector<PublicationId> ids;
    for (const Record& record : now.versions) {
      if (record.version >= from) ids.push_back({record.version, PublicationKind::kVersion});
    }
    const bool anchor_is_whole = !now.anchor.hash.is_zero() &&
                                 std::all_of(ranks.begin(), ranks.end(), [&](const Control& c) {
                                   return c.anchor_mark == now.anchor.version + 1;
                                 });
    if (anchor_is_whole) ids.push_back({now.anchor.version, PublicationKind::kAnchor});
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    Backoff wait = backoff();
    // Reads the leader's state once even if the deadline has passed.
    const bool late = deadline.remaining() < kOneLook;
    const Deadline look = late ? Deadline::after(kOneLook) : deadline;
    do {
      if (newest_mark_ > version + 1) return {};
      DRIFTLESS_ASSIGN_OR_RETURN(
          const std::vector<std::byte> bytes,
          medium_.get(0, 0, sizeof(Control), look, "mpi_rma: the leader's state"));
      const auto control = load<Control>(bytes, 0);
      DRIFTLESS_RETURN_IF_ERROR(check_control(control, leader_, 0));
      newest_mark_ = control.newest_mark;
      if (newest_mark_ > version + 1) return {};
    } while (wait.sleep(deadline));
    return deadline.check(concat("mpi_rma: nothing beyond version ", version));
  }

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    const std::uint64_t mark = id.kind == PublicationKind::kAnchor ? id.version + 1 : 0;
    // Holds the anchor first: if the record is there afterwards, the leader keeps the anchor.
    if (mark != 0 || slot_.held_mark != 0) DRIFTLESS_RETURN_IF_ERROR(hold(mark, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const LeaderRecords now, records(deadline));
    const std::optional<Record> record = now.find(id);
    if (!record) {
      if (mark != 0) DRIFTLESS_RETURN_IF_ERROR(hold(0, deadline));
      return gone(id);
    }
    const std::string what = concat("mpi_rma: manifest of ", to_string(id));
    DRIFTLESS_ASSIGN_OR_RETURN(std::string manifest, text(*record, deadline, what));
    DRIFTLESS_RETURN_IF_ERROR(check_still_there(0, id, deadline));
    if (xxh3_128(manifest) == record->content_hash) return manifest;
    return error(StatusCode::kCorrupt, what, " does not have the hash in its record");
  }

  // The part's label is read with the ranges: it shows that they are of this part.
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    const std::string what = concat("mpi_rma: ", part.name, " of ", to_string(id));
    if (part.rank >= medium_.publishers() ||
        !medium_.map(part.rank).holds_part(id.kind, part.locator, part.size_bytes)) {
      return error(StatusCode::kCorrupt, what, ": rank ", part.rank, ", offset ", part.locator,
                   ", size ", part.size_bytes, " is not in a window of ", medium_.publishers(),
                   " publishers");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("mpi_rma", id, part, ranges));
    if (slot_.held_mark != 0) DRIFTLESS_RETURN_IF_ERROR(hold(slot_.held_mark, deadline));
    const RangePlaces places(ranges, kLabel);
    PartBuffer buffer = pool_->take(places.total_bytes());
    if (!buffer.resize(places.total_bytes())) {
      return error(StatusCode::kNoSpace, what, ": no memory for ", places.total_bytes(), " bytes");
    }
    std::byte* const memory = buffer.writable().data();
    const std::shared_ptr<const PartBuffer> owner = pool_->share(std::move(buffer));
    DRIFTLESS_RETURN_IF_ERROR(
        medium_.get(pieces_of(part, ranges, places, memory), owner, deadline, what));
    DRIFTLESS_RETURN_IF_ERROR(check_still_there(part.rank, id, deadline));
    const auto label = load<PartLabel>({memory, kLabel}, 0);
    const PartLabel expected{
        .version = id.version, .size_bytes = part.size_bytes, .name = xxh3_128(part.name)};
    if (label != expected) {
      return error(StatusCode::kCorrupt, what, ": ", part.size_bytes, " bytes at offset ",
                   part.locator, " of rank ", part.rank, "'s window belong to another part");
    }
    return places.files(part.name, owner, memory);
  }
  // MPI may not allow threads; the gets of one call are in flight together.
  [[nodiscard]] bool fetches_at_once() const override { return false; }

  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    slot_.state = SlotState::kRegistered;
    slot_.version = report.version;
    slot_.id_bytes = static_cast<std::uint32_t>(report.id.size());
    slot_.proof_bytes = static_cast<std::uint32_t>(report.proof.size());
    slot_.id = {};
    slot_.proof = {};
    slot_.needs = {};
    slot_.needs_bytes = static_cast<std::uint32_t>(report.needs.size());
    std::copy(report.needs.begin(), report.needs.end(), slot_.needs.begin());
    std::copy(report.id.begin(), report.id.end(), slot_.id.begin());
    std::copy(report.proof.begin(), report.proof.end(), slot_.proof.begin());
    if (report.version + 1 >= slot_.held_mark) slot_.held_mark = 0;
    return put_slot(deadline);
  }

  Status leave(const Deadline& deadline) override {
    slot_.state = SlotState::kLeft;
    slot_.held_mark = 0;
    return put_slot(deadline);
  }

 private:
  // The pieces for the label and for the ranges after it in `memory`. Adjoining ranges are one
  // piece.
  [[nodiscard]] static std::vector<Piece> pieces_of(const PartReceipt& part,
                                                    std::span<const ByteRange> ranges,
                                                    const RangePlaces& places, std::byte* memory) {
    std::vector<Piece> pieces{{part.rank, part.locator - kLabel, {memory, kLabel}}};
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::span<std::byte> into = places.of(i, memory);
      const std::uint64_t offset = part.locator + ranges[i].offset;
      Piece& last = pieces.back();
      if (last.offset + last.into.size() == offset &&
          last.into.data() + last.into.size() == into.data()) {
        last.into = {last.into.data(), last.into.size() + into.size()};
      } else {
        pieces.push_back({part.rank, offset, into});
      }
    }
    return pieces;
  }

  [[nodiscard]] Result<LeaderRecords> records(const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::vector<std::byte> bytes,
        medium_.get(0, 0, leader_.slots, deadline, "mpi_rma: the leader's records"));
    LeaderRecords records = LeaderRecords::read(leader_, bytes);
    DRIFTLESS_RETURN_IF_ERROR(check_control(records.control, leader_, 0));
    return records;
  }

  // Reads the controls of all publishers at the same time.
  [[nodiscard]] Result<std::vector<Control>> controls(const Deadline& deadline) {
    const auto found = std::make_shared<std::vector<Control>>(medium_.publishers());
    std::vector<Piece> pieces;
    for (unsigned rank = 0; rank < medium_.publishers(); ++rank) {
      pieces.push_back({rank, 0, std::as_writable_bytes(std::span(&(*found)[rank], 1))});
    }
    DRIFTLESS_RETURN_IF_ERROR(
        medium_.get(pieces, found, deadline, "mpi_rma: the publishers' state"));
    for (unsigned rank = 0; rank < medium_.publishers(); ++rank) {
      DRIFTLESS_RETURN_IF_ERROR(check_control((*found)[rank], medium_.map(rank), rank));
    }
    return std::move(*found);
  }

  [[nodiscard]] Result<std::string> text(const Record& record, const Deadline& deadline,
                                         std::string_view what) {
    if (record.offset > leader_.window_bytes ||
        record.size_bytes > leader_.window_bytes - record.offset) {
      return error(StatusCode::kCorrupt, what, ": its record leads out of the leader's window");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                               medium_.get(0, record.offset, record.size_bytes, deadline, what));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  // Called after bytes of publisher `rank` were read: a publication that is whole now was whole
  // then.
  [[nodiscard]] Status check_still_there(unsigned rank, const PublicationId& id,
                                         const Deadline& deadline) {
    const auto bytes = std::make_shared<std::vector<std::byte>>(leader_.slots + sizeof(Control));
    const std::span<std::byte> all(*bytes);
    const std::array<Piece, 2> pieces{Piece{0, 0, all.first(leader_.slots)},
                                      Piece{rank, 0, all.subspan(leader_.slots)}};
    DRIFTLESS_RETURN_IF_ERROR(
        medium_.get(pieces, bytes, deadline, "mpi_rma: the publishers' state"));
    const LeaderRecords now = LeaderRecords::read(leader_, all.first(leader_.slots));
    const auto control = load<Control>(all, leader_.slots);
    DRIFTLESS_RETURN_IF_ERROR(check_control(now.control, leader_, 0));
    DRIFTLESS_RETURN_IF_ERROR(check_control(control, medium_.map(rank), rank));
    const bool whole = id.kind == PublicationKind::kAnchor ? control.anchor_mark == id.version + 1
                                                           : control.versions_from <= id.version;
    return whole && now.find(id) ? Status() : gone(id);
  }

  [[nodiscard]] Backoff backoff() const {
    return {medium_.options().poll_first, medium_.options().poll_longest};
  }

  // Reports to the leader that anchor `mark` - 1 is being read; 0: none.
  [[nodiscard]] Status hold(std::uint64_t mark, const Deadline& deadline) {
    slot_.held_mark = mark;
    ++slot_.hold_heartbeat;
    if (slot_.state == SlotState::kEmpty) slot_.state = SlotState::kNameless;
    return put_slot(deadline);
  }

  [[nodiscard]] Status put_slot(const Deadline& deadline) {
    ++slot_.heartbeat;
    slot_.hash = hash_of(slot_);
    const std::uint64_t index = medium_.rank() - medium_.publishers();
    return medium_.put(0, leader_.slots + index * sizeof(slot_),
                       std::as_bytes(std::span(&slot_, 1)), deadline,
                       "mpi_rma: reporting to the leader");
  }

  Medium& medium_;
  const WindowMap& leader_;
  const std::shared_ptr<PartPool> pool_;
  ReceiverSlot slot_;
  std::uint64_t newest_mark_ = 0;  // as last read; it never falls
};

}  // namespace

Result<std::unique_ptr<ReceiveRoad>> make_receiver(Medium& medium) {
  return std::unique_ptr<ReceiveRoad>(std::make_unique<RmaReceiver>(medium));
}

}  // namespace driftless::mpi_rma
