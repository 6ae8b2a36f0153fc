// SPDX-License-Identifier: Apache-2.0
// The sending side: writes parts into its own window, records and manifests into the leader's.
#include <cstring>
#include <mutex>

#include "collectives/mpi_rma/medium.h"
#include "collectives/mpi_rma/part_ring.h"
#include "collectives/mpi_rma/progress_thread.h"

namespace driftless::mpi_rma {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

// An anchor is no longer kept for a receiver that has made no progress for this time.
constexpr milliseconds kHoldPatience{60'000};

// The leader's knowledge of a receiver.
struct Peer {
  ReceiverSlot slot;  // the last whole one read
  Clock::time_point seen;
  Clock::time_point held;
};

Status already_published(const PublicationId& id) {
  return error(StatusCode::kAlreadyExists, "mpi_rma: ", to_string(id), " is published");
}

class Sender final : public SendRoad {
 public:
  explicit Sender(Medium& medium)
      : medium_(medium),
        map_(medium.map(medium.rank())),
        window_(medium.window()),
        steps_(std::make_shared<PartRing>(window_.subspan(map_.ring, map_.ring_bytes),
                                          medium.options().ring_versions, "road.ring_size",
                                          [this](std::uint64_t version) { end_below(version); })),
        anchors_(std::make_shared<PartRing>(window_.subspan(map_.anchor, map_.anchor_bytes), 1,
                                            "road.mpi_rma.anchor_size",
                                            [this](std::uint64_t) { forget_anchor(); })),
        peers_(leads() ? medium.receivers() : 0),
        progress_(medium.quiet()) {}

  Status announce(std::string_view run_info, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_leader("announce"));
    if (run_info.size() > map_.announcement_bytes) {
      return error(
          StatusCode::kNoSpace, "the announcement has ", run_info.size(), " bytes, room is ",
          map_.announcement_bytes,
          ": the layout has too many tensors for this road (MpiRmaOptions::announcement_bytes)");
    }
    const Record there = records().announcement;
    const Hash128 hash = xxh3_128(run_info);
    if (!there.hash.is_zero()) {
      if (there.content_hash == hash && there.size_bytes == run_info.size()) return {};
      return error(StatusCode::kAlreadyExists, "mpi_rma: this road carries another run already");
    }
    if (!run_info.empty()) {
      std::memcpy(window_.data() + map_.announcement, run_info.data(), run_info.size());
    }
    write_record(map_.announcement_record, {.offset = map_.announcement,
                                            .size_bytes = run_info.size(),
                                            .content_hash = hash,
                                            .hash = {}});
    return medium_.sync();
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    end_last();
    if (id.kind == PublicationKind::kAnchor && map_.anchor_bytes == 0) {
      return error(StatusCode::kUnsupported, to_string(id),
                   ": this road has no room for anchors: set road.mpi_rma.anchor_size");
    }
    if (leads()) {
      DRIFTLESS_RETURN_IF_ERROR(check_new(id));
      if (id.kind == PublicationKind::kAnchor) DRIFTLESS_RETURN_IF_ERROR(check_anchor_is_free());
    } else {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Hash128> there, published(id, deadline));
      if (there) return already_published(id);
    }
    id_ = id;
    flushed_ = false;
    ring().begin(id.version);
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    if (!id_ || flushed_) {
      return error(StatusCode::kInvalidArgument, name, ": no publication is being written");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
    return ring().create(name);
  }

  Result<std::vector<PartReceipt>> flush(const Deadline&) override {
    if (!id_ || flushed_) {
      return error(StatusCode::kInvalidArgument, "mpi_rma: flush() without a publication");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> parts, ring().flush());
    for (PartReceipt& part : parts) {
      part.rank = medium_.rank();
      part.locator += anchor() ? map_.anchor : map_.ring;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (anchor()) store_word(control().anchor_mark, id_->version + 1);
    DRIFTLESS_RETURN_IF_ERROR(medium_.sync());
    flushed_ = true;
    return parts;
  }

  Status seal(std::string_view manifest, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_leader("seal"));
    if (!id_ || !flushed_) {
      return error(StatusCode::kInvalidArgument, "mpi_rma: seal() before flush()");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t offset, ring().append(manifest));
    const Record record{.version = id_->version,
                        .kind = static_cast<std::uint64_t>(id_->kind),
                        .offset = offset + (anchor() ? map_.anchor : map_.ring),
                        .size_bytes = manifest.size(),
                        .content_hash = xxh3_128(manifest),
                        .hash = {}};
    if (anchor()) {
      write_record(map_.anchor_record, record);
    } else {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t place, free_version_record());
      write_record(place, record);
      store_word(control().newest_mark, id_->version + 1);
    }
    ring().finish();
    id_.reset();
    return medium_.sync();
  }

  Status abort() override {
    if (!id_) return {};
    if (anchor()) {
      // Also needed after a seal that succeeded but whose result was lost: receivers then see that
      // the anchor is gone.
      forget_anchor();
      ring().drop();
    } else if (flushed_ && !leads()) {
      ring().finish();  // if it is sealed after all, its bytes are whole
    } else {
      ring().drop();
    }
    id_.reset();
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    const auto hash_in = [&id](const LeaderRecords& records) {
      const auto record = records.find(id);
      return record ? std::optional(record->content_hash) : std::nullopt;
    };
    if (leads()) return hash_in(records());
    const WindowMap& leader = medium_.map(0);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                               medium_.get(0, 0, leader.slots, deadline, "the leader's records"));
    return hash_in(LeaderRecords::read(leader, bytes));
  }

  // This road forgets versions that it does not list.
  Result<std::uint64_t> highest_number() override { return std::uint64_t{0}; }
  Result<std::vector<ReceiverReport>> receivers() override {
    DRIFTLESS_RETURN_IF_ERROR(check_leader("receivers"));
    DRIFTLESS_RETURN_IF_ERROR(medium_.sync());
    look_at_receivers();
    std::vector<ReceiverReport> reports;
    const auto now = Clock::now();
    for (const Peer& peer : peers_) {
      if (peer.slot.state != SlotState::kRegistered) continue;
      if (now - peer.seen > medium_.options().patience) continue;
      reports.push_back({.id = {peer.slot.id.data(), peer.slot.id_bytes},
                         .version = peer.slot.version,
                         .proof = {peer.slot.proof.data(), peer.slot.proof_bytes},
                         .needs = {peer.slot.needs.data(), peer.slot.needs_bytes}});
    }
    return reports;
  }

  [[nodiscard]] std::vector<std::string> left() const override {
    std::vector<std::string> ids;
    for (const Peer& peer : peers_) {
      if (peer.slot.state == SlotState::kLeft) {
        ids.emplace_back(peer.slot.id.data(), peer.slot.id_bytes);
      }
    }
    return ids;
  }

  void progress() override { progress_.poll(); }

 private:
  [[nodiscard]] bool leads() const { return medium_.rank() == 0; }
  [[nodiscard]] Control& control() { return *reinterpret_cast<Control*>(window_.data()); }
  [[nodiscard]] PartRing& ring() { return anchor() ? *anchors_ : *steps_; }
  [[nodiscard]] bool anchor() const { return id_->kind == PublicationKind::kAnchor; }
  [[nodiscard]] Status check_leader(std::string_view call) const {
    if (leads()) return {};
    return error(StatusCode::kInvalidArgument, "mpi_rma: ", call, "() on publisher rank ",
                 medium_.rank(), ": rank 0 leads");
  }

  [[nodiscard]] Status check_new(const PublicationId& id) const {
    const LeaderRecords now = records();
    if (now.find(id)) return already_published(id);
    const std::uint64_t least = id.kind == PublicationKind::kAnchor
                                    ? (now.anchor.hash.is_zero() ? 0 : now.anchor.version + 1)
                                    : now.control.newest_mark;
    if (id.version >= least) return {};
    return error(StatusCode::kInvalidArgument, "mpi_rma: ", to_string(id),
                 " comes after a newer one; the next may be ", least);
  }

  [[nodiscard]] Status check_anchor_is_free() {
    look_at_receivers();
    const auto now = Clock::now();
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Peer& peer = peers_[i];
      const auto patience =
          std::min<std::chrono::milliseconds>(kHoldPatience, medium_.options().patience);
      if (peer.slot.held_mark == 0 || peer.slot.state == SlotState::kLeft) continue;
      if (now - peer.held > patience) continue;
      return error(StatusCode::kBusy, "mpi_rma: receiver ", i, " reads the anchor of version ",
                   peer.slot.held_mark - 1, ": publish the next one later");
    }
    return {};
  }

  // The leader drops an unsealed publication. The other ranks get no message about the seal: a
  // publication that they flushed and did not abort was sealed.
  void end_last() {
    if (!id_) return;
    if (flushed_ && !leads()) {
      ring().finish();
    } else {
      ring().drop();
    }
    id_.reset();
  }

  // Called before bytes of lower versions are overwritten, by any thread that writes a part.
  void end_below(std::uint64_t version) {
    const std::lock_guard lock(records_mutex_);
    if (version <= control().versions_from) return;
    store_word(control().versions_from, version);
    if (!leads()) return;
    for (std::uint64_t i = 0; i < map_.records; ++i) {
      const auto record = load<Record>(window_, map_.version_record(i));
      if (!record.hash.is_zero() && record.version < version) erase_record(map_.version_record(i));
    }
  }

  void forget_anchor() {
    const std::lock_guard lock(records_mutex_);
    if (leads()) erase_record(map_.anchor_record);
    store_word(control().anchor_mark, 0);
  }

  // Records change under records_mutex_: a thread that writes a part may have to remove some.
  [[nodiscard]] LeaderRecords records() const {
    const std::lock_guard lock(records_mutex_);
    return LeaderRecords::read(map_, window_.first(map_.slots));
  }

  // No reader accepts it before its last byte is there.
  void write_record(std::uint64_t offset, const Record& record) {
    const std::lock_guard lock(records_mutex_);
    Record whole = record;
    whole.hash = hash_of(whole);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // after the bytes that it describes
    std::memcpy(window_.data() + offset, &whole, sizeof(whole));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  // Needs the mutex.
  void erase_record(std::uint64_t offset) {
    std::memset(window_.data() + offset, 0, sizeof(Record));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  [[nodiscard]] Result<std::uint64_t> free_version_record() const {
    const std::lock_guard lock(records_mutex_);
    for (std::uint64_t i = 0; i < map_.records; ++i) {
      const std::uint64_t offset = map_.version_record(i);
      if (load<Record>(window_, offset).hash.is_zero()) return offset;
    }
    return error(StatusCode::kInternal, "mpi_rma: all ", map_.records, " records are in use");
  }

  void look_at_receivers() {
    const auto now = Clock::now();
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const auto slot = load<ReceiverSlot>(window_, map_.slots + i * sizeof(ReceiverSlot));
      Peer& peer = peers_[i];
      // A half-done put, or none yet: the last whole slot counts.
      if (!is_whole(slot) || slot.heartbeat == peer.slot.heartbeat) continue;
      if (slot.id_bytes > slot.id.size() || slot.proof_bytes > slot.proof.size() ||
          slot.needs_bytes > slot.needs.size()) {
        continue;
      }
      if (slot.hold_heartbeat != peer.slot.hold_heartbeat) peer.held = now;
      peer.slot = slot;
      peer.seen = now;
    }
  }

  Medium& medium_;
  const WindowMap& map_;
  const std::span<std::byte> window_;
  std::shared_ptr<PartRing> steps_, anchors_;  // shared with the files
  std::optional<PublicationId> id_;            // begun; seal() resets it on the leader
  bool flushed_ = false;
  std::vector<Peer> peers_;  // by receiver; on the leader only
  mutable std::mutex records_mutex_;
  ProgressPoll progress_;
};

}  // namespace

Result<std::unique_ptr<SendRoad>> make_sender(Medium& medium) {
  return std::unique_ptr<SendRoad>(std::make_unique<Sender>(medium));
}

}  // namespace driftless::mpi_rma
