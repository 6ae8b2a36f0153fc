// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include "collectives/fallback/state.h"

namespace driftless::fallback {
namespace {

// The failure of the first road on this rank. Thread-safe, because several threads write parts.
class Trouble {
 public:
  // A fence is not a failure of the road: nothing of this trainer may become visible on any road.
  Status note(Status found) {
    if (found.ok() || found.code() == StatusCode::kWrongRun) return found;
    const std::scoped_lock lock(mutex_);
    if (first_.ok()) first_ = found;
    return found;
  }
  template <typename T>
  Result<T> note(Result<T> found) {
    static_cast<void>(note(found.status()));
    return found;
  }
  void clear() {
    const std::scoped_lock lock(mutex_);
    first_ = {};
  }
  [[nodiscard]] Status get() const {
    const std::scoped_lock lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  Status first_;
};

class NotingFile final : public File {
 public:
  NotingFile(std::unique_ptr<File> file, std::shared_ptr<Trouble> trouble)
      : file_(std::move(file)), trouble_(std::move(trouble)) {}
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return trouble_->note(file_->pwrite(offset, bytes));
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return trouble_->note(file_->pread(offset, bytes));
  }
  Status sync() override { return trouble_->note(file_->sync()); }
  [[nodiscard]] const std::string& path() const override { return file_->path(); }

 private:
  const std::unique_ptr<File> file_;
  const std::shared_ptr<Trouble> trouble_;
};

// Leaves half of the time for the second road, and for the ranks to agree on it.
Deadline half(const Deadline& deadline) { return deadline.sooner(deadline.remaining() / 2); }

// Whether an announcement that failed with this code may be visible nevertheless.
bool may_be_there(StatusCode code) {
  return code != StatusCode::kOk && code != StatusCode::kAlreadyExists &&
         code != StatusCode::kInvalidArgument && code != StatusCode::kUnsupported &&
         code != StatusCode::kWrongRun;
}

class Sender final : public SendRoad, public Fallback {
 public:
  // `job`: that of the announcement on the second road.
  Sender(std::shared_ptr<State> state, std::unique_ptr<SendRoad> first, Status trouble,
         std::unique_ptr<SendRoad> second, std::string job)
      : state_(std::move(state)),
        first_(std::move(first)),
        second_(std::move(second)),
        job_(std::move(job)),
        trouble_(std::make_shared<Trouble>()) {
    static_cast<void>(trouble_->note(std::move(trouble)));
  }

  [[nodiscard]] Fallback* fallback() override { return this; }
  [[nodiscard]] bool used() const override { return state_->used; }
  [[nodiscard]] Status trouble() const override { return trouble_->get(); }

  Status use(std::string_view reason, const std::optional<std::string>& run_info,
             const Deadline& deadline) override {
    if (used()) return {};
    if (first_ != nullptr) static_cast<void>(first_->abort());
    if (run_info) {
      const Status announced =
          second_->announce(signed_by_job(*run_info), deadline)
              .with_context(concat(reason, "; and switching to ", state_->roads.name));
      doubt_ = may_be_there(announced.code()) ? announced : Status();
      DRIFTLESS_RETURN_IF_ERROR(announced);
    }
    if (!state_->roads.leads) state_->used = true;  // only the leader reports the switch
    state_->go_over(reason);
    return {};
  }

  Status check_version_size(std::uint64_t bytes) override {
    if (used()) return second_->check_version_size(bytes);
    return trouble_->note(first_->check_version_size(bytes));
  }
  Status announce(std::string_view run_info, const Deadline& deadline) override {
    if (used()) return second_->announce(signed_by_job(run_info), deadline);
    return trouble_->note(first_->announce(run_info, deadline));
  }
  Status begin(const PublicationId& id, const Deadline& deadline) override {
    if (used()) return second_->begin(id, deadline);
    trouble_->clear();
    DRIFTLESS_RETURN_IF_ERROR(trouble_->note(doubt_));
    return trouble_->note(first_->begin(id, half(deadline)));
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    if (used()) return second_->create_part(name);
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                               trouble_->note(first_->create_part(name)));
    return std::unique_ptr<File>(std::make_unique<NotingFile>(std::move(file), trouble_));
  }
  [[nodiscard]] bool writes_at_once() const override {
    const SendRoad* const road = used() ? second_.get() : first_.get();
    return road != nullptr && road->writes_at_once();
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    if (used()) return second_->flush(deadline);
    return trouble_->note(first_->flush(half(deadline)));
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override {
    if (used()) return second_->seal(manifest, deadline);
    return trouble_->note(first_->seal(manifest, half(deadline)));
  }
  Status abort() override { return road().abort(); }
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    return road().published(id, deadline);
  }

  // Receivers that have not switched yet report on the first road.
  Result<std::vector<ReceiverReport>> receivers() override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<ReceiverReport> all, road().receivers());
    if (!used() || first_ == nullptr) return all;
    const Result<std::vector<ReceiverReport>> others = first_->receivers();
    if (!others.ok()) return all;
    for (const ReceiverReport& other : *others) {
      if (std::ranges::find(all, other.id, &ReceiverReport::id) == all.end()) all.push_back(other);
    }
    return all;
  }
  [[nodiscard]] std::vector<std::string> left() const override { return road().left(); }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override {
    return road().prune(version);
  }
  Result<std::uint64_t> highest_number() override { return road().highest_number(); }
  [[nodiscard]] MemoryKind part_memory() const override { return road().part_memory(); }
  [[nodiscard]] std::string pending_directory() const override {
    return road().pending_directory();
  }
  [[nodiscard]] std::vector<std::string> notes() const override { return road().notes(); }
  void progress() override {
    if (first_ != nullptr) first_->progress();
    second_->progress();
  }

 private:
  [[nodiscard]] std::string signed_by_job(std::string_view run_info) const {
    return state_->roads.sign && !job_.empty() ? state_->roads.sign(run_info, job_)
                                               : std::string(run_info);
  }
  // Publisher::open() switches before anything else if there is no first road.
  [[nodiscard]] SendRoad& road() const { return used() || first_ == nullptr ? *second_ : *first_; }

  const std::shared_ptr<State> state_;
  const std::unique_ptr<SendRoad> first_;  // null: it could not be opened
  const std::unique_ptr<SendRoad> second_;
  const std::string job_;
  const std::shared_ptr<Trouble> trouble_;
  // [leader] Why it is unknown whether the run is announced on the second road. If it is, receivers
  // have switched: no version may use the first road.
  Status doubt_;
};

}  // namespace

Result<std::unique_ptr<SendRoad>> make_sender(std::shared_ptr<State> state) {
  FallbackRoads& roads = state->roads;
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<SendRoad> second,
      roads.second.sender().with_context(concat("the fallback ", roads.name)));
  Status trouble = roads.first.status();
  std::unique_ptr<SendRoad> first;
  std::string job = roads.job;
  auto held = Result<std::optional<std::string>>(std::nullopt);
  if (roads.held) held = roads.held();
  if (!held.ok()) return held.status().with_context(concat("the fallback ", roads.name));
  if (held->has_value()) {
    const AnnouncedRun there = state->read(**held);
    if (state->is_of_another_job(there)) {
      return error(StatusCode::kAlreadyExists, "the fallback ", roads.name, " holds run ",
                   there.run, " of another job, whose hub.token_file has another secret: set ",
                   "another ", roads.place_key, " for this job, or, to continue that run, its ",
                   "hub.token_file");
    }
    job = there.job;  // the announcement must stay as it is
    trouble = error(StatusCode::kAlreadyExists, "the run is on ", roads.name,
                    " since an earlier start of the trainer, and goes on there (to leave it: set ",
                    roads.place_key, " to an empty place for trainer and rollouts, and start ",
                    "both again)");
  } else if (roads.first.ok()) {
    Result<std::unique_ptr<SendRoad>> made = roads.first->sender();
    trouble = made.status();
    if (made.ok()) first = std::move(*made);
  }
  return std::unique_ptr<SendRoad>(std::make_unique<Sender>(
      std::move(state), std::move(first), std::move(trouble), std::move(second), std::move(job)));
}

}  // namespace driftless::fallback
