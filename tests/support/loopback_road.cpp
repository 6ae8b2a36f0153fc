// SPDX-License-Identifier: Apache-2.0
#include "support/loopback_road.h"

#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "collectives/held_publications.h"
#include "collectives/open_part.h"
#include "collectives/part_ranges.h"

namespace driftless {

// The ranks' mailboxes. Any thread may call any function.
class LoopbackMail {
 public:
  // A moment in an epoch: the n-th call of gather() or broadcast(). All ranks count alike.
  struct Moment {
    std::uint64_t epoch = 0;
    std::uint64_t call = 0;
    friend auto operator<=>(const Moment&, const Moment&) = default;
  };

  explicit LoopbackMail(unsigned ranks) : boxes_(ranks) {}
  [[nodiscard]] unsigned ranks() const { return static_cast<unsigned>(boxes_.size()); }

  // Drops older messages. Messages that were sent ahead for this epoch stay.
  void begin_epoch(unsigned rank, std::uint64_t epoch) {
    const std::scoped_lock lock(mutex_);
    Box& box = boxes_[rank];
    box.epoch = epoch;
    box.letters.erase(box.letters.begin(), box.letters.lower_bound(Key({epoch, 0}, 0)));
  }

  void send(unsigned from, unsigned to, const Moment& when, std::string_view message) {
    const std::scoped_lock lock(mutex_);
    Box& box = boxes_[to];
    if (when.epoch < box.epoch) return;
    box.letters.insert_or_assign(Key(when, from), std::string(message));
    arrived_.notify_all();
  }

  // The messages of ranks `first` to `last` for this moment, in rank order.
  [[nodiscard]] Result<std::vector<std::string>> take(unsigned rank, unsigned first, unsigned last,
                                                      const Moment& when, std::string_view what,
                                                      const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    Box& box = boxes_[rank];
    const auto count = [&] {
      return std::distance(box.letters.lower_bound(Key(when, first)),
                           box.letters.upper_bound(Key(when, last)));
    };
    const bool all = wait_until(arrived_, lock, deadline.at(),
                                [&] { return count() == std::ptrdiff_t{last} - first + 1; });
    if (!all) {
      std::string silent;
      for (unsigned from = first; from <= last; ++from) {
        if (box.letters.contains(Key(when, from))) continue;
        silent += concat(silent.empty() ? "" : ", ", "rank ", from);
      }
      return deadline.check(concat(what, " on rank ", rank, ": nothing from ", silent));
    }
    std::vector<std::string> messages;
    for (unsigned from = first; from <= last; ++from) {
      messages.push_back(std::move(box.letters.extract(Key(when, from)).mapped()));
    }
    return messages;
  }

 private:
  using Key = std::pair<Moment, unsigned>;  // when, and from whom
  struct Box {
    std::uint64_t epoch = 0;
    std::map<Key, std::string> letters;
  };
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Box> boxes_;
};

// The state that both sides of the road share: publications, announcement, and the receivers'
// reports. Used with the mutex held.
struct LoopbackMedium {
  LoopbackMedium(const LoopbackOptions& given, unsigned publishers)
      : options(given),
        ranks(publishers),
        ring("loopback", given.ring_bytes, given.ring_versions) {}

  // The leader begins it. A message with an earlier attempt number is late, and is ignored.
  struct Pending {
    PublicationId id;
    std::uint64_t attempt = 0;
    std::map<unsigned, std::uint64_t> bytes;  // of the ranks that have flushed
  };
  struct TimedReport {
    ReceiverReport report;
    Deadline::Clock::time_point at;
  };

  const LoopbackOptions options;
  const unsigned ranks;
  std::mutex mutex;
  std::condition_variable changed;  // announced, or sealed
  std::optional<std::string> run_info;
  RetentionRing ring;
  HeldPublications held{"loopback"};
  std::optional<Pending> pending;
  std::uint64_t attempts = 0;
  std::map<std::string, TimedReport> timed_reports;
  std::set<std::string> left;  // ids of those that signed off
};

namespace {

// The publisher ranks' group inside one process.
class LoopbackGroup final : public Group {
 public:
  LoopbackGroup(std::shared_ptr<LoopbackMail> mail, unsigned rank)
      : mail_(std::move(mail)), rank_(rank) {}

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return mail_->ranks(); }

  void begin_epoch(std::uint64_t epoch) override {
    if (epoch <= now_.epoch) return;  // they ascend
    now_ = {epoch, 0};
    mail_->begin_epoch(rank_, epoch);
  }

  Result<std::vector<std::string>> gather(std::string_view message,
                                          const Deadline& deadline) override {
    const LoopbackMail::Moment when = next();
    mail_->send(rank_, 0, when, message);
    if (rank_ != 0) return std::vector<std::string>();
    return mail_->take(0, 0, size() - 1, when, "gather", deadline);
  }

  Result<std::string> broadcast(std::string_view message, const Deadline& deadline) override {
    const LoopbackMail::Moment when = next();
    if (rank_ != 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::string> received,
                                 mail_->take(rank_, 0, 0, when, "broadcast", deadline));
      return std::move(received.front());
    }
    for (unsigned to = 1; to < size(); ++to) mail_->send(0, to, when, message);
    return std::string(message);
  }

 private:
  LoopbackMail::Moment next() {
    ++now_.call;
    return now_;
  }

  std::shared_ptr<LoopbackMail> mail_;
  const unsigned rank_;
  LoopbackMail::Moment now_;
};

constexpr std::uint64_t kSparePoolBytes = std::uint64_t{128} << 20;

class LoopbackSender final : public SendRoad {
 public:
  LoopbackSender(std::shared_ptr<LoopbackMedium> medium, unsigned rank)
      : medium_(std::move(medium)), rank_(rank) {}
  LoopbackSender(const LoopbackSender&) = delete;
  LoopbackSender& operator=(const LoopbackSender&) = delete;
  ~LoopbackSender() override { drop(); }

  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: announcing the run"));
    const std::scoped_lock lock(medium_->mutex);
    if (medium_->run_info.has_value() && *medium_->run_info != run_info) {
      return error(StatusCode::kAlreadyExists,
                   "loopback: the hub carries another run; use a hub of its own for this one");
    }
    medium_->run_info = run_info;
    medium_->changed.notify_all();
    return {};
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("loopback: beginning ", to_string(id))));
    drop();
    const std::scoped_lock lock(medium_->mutex);
    if (medium_->ring.manifest(id)) {
      return error(StatusCode::kAlreadyExists, "loopback: ", to_string(id),
                   " is there already, and publications are never replaced");
    }
    std::optional<LoopbackMedium::Pending>& pending = medium_->pending;
    if (rank_ == 0) {
      const Status order = medium_->ring.check_new(id);
      if (!order.ok()) return error(StatusCode::kInvalidArgument, order.message());
      pending.emplace(LoopbackMedium::Pending{id, ++medium_->attempts, {}});
      medium_->held.forget_staged();
    }
    if (!pending.has_value() || pending->id != id) {
      return error(StatusCode::kInvalidArgument, "loopback: rank ", rank_, " begins ",
                   to_string(id), " which rank 0 has not begun");
    }
    pending->bytes.erase(rank_);
    attempt_ = pending->attempt;
    // Anchors are not counted against the ring.
    room_ = make_byte_budget(
        is_version(id) ? medium_->options.ring_bytes : std::numeric_limits<std::uint64_t>::max(),
        "ring_bytes");
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    DRIFTLESS_RETURN_IF_ERROR(check_part_name(parts_, name, "loopback"));
    parts_.push_back(
        std::make_shared<BufferPart>(concat("loopback: rank ", rank_), name, room_, pool_->take()));
    return make_part_file(parts_.back());
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: flushing"));
    std::vector<PartReceipt> receipts;
    for (const auto& part : parts_) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(rank_, deadline));
    }
    std::vector<HeldPart> finished;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::shared_ptr<const PartBuffer> buffer = pool_->share(parts_[i]->take());
      finished.push_back({receipts[i], buffer, buffer->bytes()});
      bytes += buffer->bytes().size();
    }
    parts_.clear();
    const std::scoped_lock lock(medium_->mutex);
    if (!is_pending()) {
      return error(StatusCode::kInvalidArgument, "loopback: rank ", rank_,
                   " flushes a publication that rank 0 has aborted");
    }
    medium_->pending->bytes[rank_] = bytes;
    medium_->held.stage(*attempt_, rank_, std::move(finished));
    return receipts;
  }

  Status seal(std::string_view manifest, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: sealing"));
    const std::scoped_lock lock(medium_->mutex);
    if (!is_pending()) {
      return error(StatusCode::kInvalidArgument,
                   "loopback: nothing was begun that could be sealed");
    }
    LoopbackMedium::Pending& pending = *medium_->pending;
    for (unsigned rank = 0; rank < medium_->ranks; ++rank) {
      if (!pending.bytes.contains(rank)) {
        return error(StatusCode::kInvalidArgument, "loopback: ", to_string(pending.id),
                     " cannot be sealed: rank ", rank, " has not flushed");
      }
    }
    medium_->ring.add(pending.id, xxh3_128(manifest), std::move(pending.bytes));
    (void)medium_->held.commit(*attempt_, pending.id, std::string(manifest), medium_->ring.ids());
    medium_->pending.reset();
    medium_->changed.notify_all();
    attempt_.reset();
    return {};
  }

  Status abort() override {
    drop();
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id, const Deadline&) override {
    const std::scoped_lock lock(medium_->mutex);
    return medium_->ring.manifest(id);
  }

  // Versions that are not listed are gone together with all processes that saw them.
  Result<std::uint64_t> highest_number() override { return std::uint64_t{0}; }
  Result<std::vector<ReceiverReport>> receivers() override {
    const std::scoped_lock lock(medium_->mutex);
    const auto now = Deadline::Clock::now();
    std::erase_if(medium_->timed_reports, [&](const auto& entry) {
      return now - entry.second.at > medium_->options.patience;
    });
    std::vector<ReceiverReport> reports;
    for (const auto& [id, timed] : medium_->timed_reports) reports.push_back(timed.report);
    return reports;
  }
  [[nodiscard]] std::vector<std::string> left() const override {
    const std::scoped_lock lock(medium_->mutex);
    return {medium_->left.begin(), medium_->left.end()};
  }

 private:
  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (attempt_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "loopback: ", what, " on rank ", rank_,
                 " without a begin()");
  }

  // Whether the leader's publication is still the one that this rank has begun. Used with the mutex
  // held.
  [[nodiscard]] bool is_pending() const {
    return attempt_ && medium_->pending && medium_->pending->attempt == *attempt_;
  }

  void drop() {
    parts_.clear();
    const std::scoped_lock lock(medium_->mutex);
    if (is_pending()) {
      medium_->pending->bytes.erase(rank_);
      if (rank_ == 0) medium_->pending.reset();
    }
    attempt_.reset();
  }

  std::shared_ptr<LoopbackMedium> medium_;
  const unsigned rank_;
  const std::shared_ptr<PartPool> pool_ = std::make_shared<PartPool>(kSparePoolBytes);
  std::optional<std::uint64_t> attempt_;  // of the medium; none: nothing was begun
  TakeRoom room_;
  std::vector<std::shared_ptr<BufferPart>> parts_;
};

class LoopbackReceiver final : public ReceiveRoad {
 public:
  explicit LoopbackReceiver(std::shared_ptr<LoopbackMedium> medium) : medium_(std::move(medium)) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    std::unique_lock lock(medium_->mutex);
    const std::optional<std::string>& info = medium_->run_info;
    wait_until(medium_->changed, lock, deadline.at(), [&] { return info.has_value(); });
    if (info.has_value()) return *info;
    return deadline.check("loopback: waiting for the announcement of the run");
  }

  Result<std::vector<PublicationId>> list(const Deadline&) override {
    const std::scoped_lock lock(medium_->mutex);
    return medium_->held.list();
  }

  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    std::unique_lock lock(medium_->mutex);
    const bool there = wait_until(medium_->changed, lock, deadline.at(),
                                  [&] { return medium_->held.has_version_past(version); });
    return there ? Status()
                 : deadline.check(concat("loopback: waiting for a version past ", version));
  }

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline&) override {
    const std::scoped_lock lock(medium_->mutex);
    return medium_->held.manifest(id);
  }

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline&) override {
    const std::scoped_lock lock(medium_->mutex);
    DRIFTLESS_ASSIGN_OR_RETURN(const HeldPart held, medium_->held.part(id, part));
    return MappedFile(part.name, held.owner, held.bytes);
  }

  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("loopback", id, part, ranges));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile whole, fetch_part(id, part, deadline));
    return slices(whole, ranges);
  }
  [[nodiscard]] bool fetches_at_once() const override { return true; }

  Status report(const ReceiverReport& report, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    const std::scoped_lock lock(medium_->mutex);
    medium_->timed_reports[report.id] = {report, Deadline::Clock::now()};
    medium_->left.erase(report.id);
    id_ = report.id;
    return {};
  }

  Status leave(const Deadline&) override {
    const std::scoped_lock lock(medium_->mutex);
    if (medium_->timed_reports.erase(id_) > 0) medium_->left.insert(id_);
    id_.clear();
    return {};
  }

 private:
  std::shared_ptr<LoopbackMedium> medium_;
  std::string id_;  // as last reported
};

}  // namespace

LoopbackHub::LoopbackHub(const LoopbackOptions& options, unsigned ranks)
    : medium_(std::make_shared<LoopbackMedium>(options, ranks)),
      mail_(std::make_shared<LoopbackMail>(ranks)) {}

std::unique_ptr<SendRoad> LoopbackHub::sender(unsigned rank) {
  return std::make_unique<LoopbackSender>(medium_, rank);
}

std::unique_ptr<ReceiveRoad> LoopbackHub::receiver() {
  return std::make_unique<LoopbackReceiver>(medium_);
}

std::unique_ptr<Group> LoopbackHub::group(unsigned rank) {
  return std::make_unique<LoopbackGroup>(mail_, rank);
}

}  // namespace driftless
