// SPDX-License-Identifier: Apache-2.0
#include "collectives/fallback/state.h"

namespace driftless::fallback {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{1'000};  // limit for one slice of a wait on the first road
constexpr milliseconds kBetween{20};
// After the switch: the least time between two looks at the first road, and the limit for one.
constexpr milliseconds kLookBack{5'000}, kBackTime{200};
// After a look, the next one waits for this many times as long as it took.
constexpr int kLookShare = 10;

const Status& status_of(const Status& status) { return status; }
template <typename T>
const Status& status_of(const Result<T>& result) {
  return result.status();
}

class Receiver final : public ReceiveRoad {
 public:
  Receiver(std::shared_ptr<State> state, std::unique_ptr<ReceiveRoad> first, Status trouble,
           std::unique_ptr<ReceiveRoad> second)
      : state_(std::move(state)),
        first_(std::move(first)),
        trouble_(std::move(trouble)),
        second_(std::move(second)) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    Result<std::string> found = either<Result<std::string>>(
        deadline, [&](const Deadline& slice) { return first_->run_info(slice); },
        [&] { return second_->run_info(deadline); });
    if (found.ok() && run_.empty()) run_ = state_->read(*found).run;
    return found;
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    return either<Result<std::vector<PublicationId>>>(
        deadline, [&](const Deadline& slice) { return first_->list(slice); },
        [&] { return list_both(deadline); });
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return either<Status>(
        deadline,
        [&](const Deadline& slice) {
          return first_->wait_beyond(version, slice.sooner(kFallbackLook));
        },
        [&] {
          if (has_version_past(old_, version)) return Status();
          Status waited = second_->wait_beyond(version, deadline);
          return waited.code() == StatusCode::kDeadlineExceeded ? look_back(waited) : waited;
        });
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    return fetch(id, [&](ReceiveRoad& road) { return road.fetch_manifest(id, deadline); });
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    return fetch(id, [&](ReceiveRoad& road) { return road.fetch_part(id, part, deadline); });
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    return fetch(id,
                 [&](ReceiveRoad& road) { return road.fetch_ranges(id, part, ranges, deadline); });
  }
  [[nodiscard]] bool fetches_to_device() const override {
    const bool first = first_ != nullptr && first_->fetches_to_device();
    return first || second_->fetches_to_device();
  }
  Status fetch_to_device(const PublicationId& id, const PartReceipt& part,
                         std::span<const DeviceRange> ranges, const DeviceSpace& space,
                         const Deadline& deadline) override {
    return fetch(id, [&](ReceiveRoad& road) {
      return road.fetch_to_device(id, part, ranges, space, deadline);
    });
  }
  // False while reads still use the first road, because they change old_.
  [[nodiscard]] bool fetches_at_once() const override {
    return state_->used && old_.empty() && second_->fetches_at_once();
  }
  [[nodiscard]] bool batches_ranges() const override {
    const bool second = state_->used || first_ == nullptr;
    return (second ? *second_ : *first_).batches_ranges();
  }

  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    return either<Status>(
        deadline,
        [&](const Deadline& slice) {
          Status reported = first_->report(report, slice);
          reported_ = reported_ || reported.ok();
          return reported;
        },
        [&] {
          Status reported = second_->report(report, deadline);
          // The publisher reads the reports of both roads, and must count a receiver once. Tries
          // only once: a leader that does not answer forgets silent receivers, or is gone.
          if (reported.ok() && std::exchange(reported_, false)) {
            static_cast<void>(first_->leave(Deadline::after(kSlice)));
          }
          return reported;
        });
  }
  [[nodiscard]] std::string carrier() const override {
    return state_->used || first_ == nullptr ? second_->carrier() : first_->carrier();
  }
  [[nodiscard]] bool serves_others() const override {
    return !state_->used && first_ != nullptr && first_->serves_others();
  }
  Result<std::uint64_t> offer_part(const PublicationId& id, const PartReceipt& part,
                                   std::span<const std::byte> bytes,
                                   const Deadline& deadline) override {
    if (!serves_others()) return std::uint64_t{0};
    return first_->offer_part(id, part, bytes, deadline);
  }
  Status leave(const Deadline& deadline) override {
    Status left;
    if (first_ != nullptr) left = first_->leave(state_->used ? deadline.sooner(kSlice) : deadline);
    return state_->used ? second_->leave(deadline) : left;
  }

 private:
  // Whether the trainer publishes on the second road. Checks that every kFallbackLook, or less
  // often if the second road answers slowly.
  bool look(bool now = false) {
    if (state_->used) return true;
    if (!now && !next_look_.expired()) return false;
    const auto begin = Deadline::Clock::now();
    const Result<std::string> there = second_->run_info(Deadline::after(milliseconds(0)));
    const bool announced = there.ok() && is_ours(*there);
    const auto took = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - begin);
    next_look_ = Deadline::after(std::max(kFallbackLook, kLookShare * took));
    if (!announced) return false;
    if (first_ != nullptr) {
      Result<std::vector<PublicationId>> listed = first_->list(Deadline::after(kSlice));
      if (listed.ok()) old_ = std::move(*listed);
    }
    state_->go_over(trouble_.ok() ? std::string_view("the trainer has switched roads")
                                  : trouble_.message());
    return true;
  }

  // Whether this receiver follows the run on the second road. If it is another run than the one
  // that it follows, or if it follows none yet, the first road's announcement decides.
  bool is_ours(std::string_view announcement) {
    const AnnouncedRun there = state_->read(announcement);
    const bool other_job = state_->is_of_another_job(there);
    if (!other_job) {
      if (there.run.empty() || there.run == run_) return true;
      const std::string run = run_of_first(kSlice);
      if (run == there.run || (run_.empty() && run.empty())) return true;
      if (run_.empty()) {  // both may be runs of other jobs
        conflict_ = error(StatusCode::kWrongRun, two_runs(run, there.run));
        return false;
      }
    }
    const bool known = !stranger_.ok();
    stranger_ =
        error(StatusCode::kWrongRun, state_->roads.name, " holds run ", there.run,
              other_job ? " of another job" : concat(", and this rollout follows ", run_),
              ": it is not followed; set another ", state_->roads.place_key, " for one of the two");
    if (!known && state_->roads.log) {
      state_->roads.log(concat(state_->roads.label, " ", stranger_.message()));
    }
    return false;
  }
  // The run that the first road announces; empty if it does not answer within `time`.
  [[nodiscard]] std::string run_of_first(milliseconds time) {
    if (first_ == nullptr) return {};
    const Result<std::string> here = first_->run_info(Deadline::after(time));
    return here.ok() ? state_->read(*here).run : std::string();
  }
  [[nodiscard]] std::string two_runs(std::string_view first, std::string_view second) const {
    return concat("the trainer publishes run ", first, ", and ", state_->roads.name, " holds run ",
                  second, ": set ", state_->roads.place_key, " as for that trainer, and, if two ",
                  "jobs share it or hub.address, another one for each");
  }

  // Returns `waited`; or kWrongRun if the first road announces another run by now, because then the
  // trainer publishes no further version of this one.
  [[nodiscard]] Status look_back(Status waited) {
    if (first_ == nullptr || run_.empty() || !next_look_back_.expired()) return waited;
    const auto begin = Deadline::Clock::now();
    const std::string run = run_of_first(kBackTime);
    const auto took = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - begin);
    next_look_back_ = Deadline::after(std::max(kLookBack, kLookShare * took));
    if (run.empty() || run == run_) return waited;
    return error(StatusCode::kWrongRun, two_runs(run, run_), "; then start this rollout again");
  }

  // Uses the first road, in slices, until the trainer has switched; then the second.
  template <typename Found, typename First, typename Second>
  Found either(const Deadline& deadline, const First& first, const Second& second) {
    Backoff backoff(kBetween, kBetween);
    for (;;) {
      if (look()) return second();
      if (!conflict_.ok()) return conflict_;
      if (first_ == nullptr) {
        if (backoff.sleep(deadline)) continue;
        return deadline.check(concat(trouble_.message(), "; and the trainer does not publish on ",
                                     state_->roads.name,
                                     stranger_.ok() ? "" : concat("; ", stranger_.message())));
      }
      Found found = first(deadline.sooner(kSlice));
      if (status_of(found).ok()) return found;
      const bool late = status_of(found).code() == StatusCode::kDeadlineExceeded;
      if (look(!late)) return second();
      if (!conflict_.ok()) return conflict_;
      if (!late || !backoff.sleep(deadline)) return found;
    }
  }

  Result<std::vector<PublicationId>> list_both(const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PublicationId> ids, second_->list(deadline));
    std::erase_if(old_,
                  [&](const PublicationId& id) { return std::ranges::find(ids, id) != ids.end(); });
    ids.insert(ids.end(), old_.begin(), old_.end());
    std::ranges::sort(ids);
    return ids;
  }

  template <typename Fetch>
  auto fetch(const PublicationId& id, const Fetch& from)
      -> decltype(from(std::declval<ReceiveRoad&>())) {
    const bool of_first = std::ranges::find(old_, id) != old_.end();
    if (state_->used && !of_first) return from(*second_);
    if (first_ == nullptr) return not_there(state_->roads.name, id);
    auto found = from(*first_);
    // kNotFound is the answer of a leader that publishes there.
    const bool now = !state_->used && status_of(found).code() != StatusCode::kNotFound;
    if (found.ok() || !look(now)) return found;
    // The next list() is that of the second road alone.
    old_.clear();
    return not_there(state_->roads.name, id);
  }

  const std::shared_ptr<State> state_;
  const std::unique_ptr<ReceiveRoad> first_;  // null: it could not be opened
  const Status trouble_;                      // the reason
  const std::unique_ptr<ReceiveRoad> second_;
  Deadline next_look_ = Deadline::after(milliseconds(0));
  std::vector<PublicationId> old_;  // on the first road when the trainer switched
  bool reported_ = false;           // it has reported on the first road
  std::string run_;                 // the run that it follows; empty: none yet, or unreadable
  Status stranger_;                 // the second road has a run that this receiver does not follow
  Status conflict_;                 // each road has another run, and neither was followed yet
  Deadline next_look_back_ = Deadline::after(kLookBack);
};

}  // namespace

Result<std::unique_ptr<ReceiveRoad>> make_receiver(std::shared_ptr<State> state) {
  FallbackRoads& roads = state->roads;
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<ReceiveRoad> second,
      roads.second.receiver().with_context(concat("the fallback ", roads.name)));
  Status trouble = roads.first.status();
  std::unique_ptr<ReceiveRoad> first;
  if (roads.first.ok()) {
    Result<std::unique_ptr<ReceiveRoad>> made = roads.first->receiver();
    trouble = made.status();
    if (made.ok()) first = std::move(*made);
  }
  return std::unique_ptr<ReceiveRoad>(std::make_unique<Receiver>(
      std::move(state), std::move(first), std::move(trouble), std::move(second)));
}

}  // namespace driftless::fallback
