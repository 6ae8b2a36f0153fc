// SPDX-License-Identifier: Apache-2.0
// A trainer of some ranks and rollouts over one loopback hub, in one process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/host_kernels.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/faulty_road.h"
#include "support/loopback_road.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {

inline PublisherOptions quick_options() {
  PublisherOptions options;
  options.threads = 2;
  options.buffer_bytes = 4096;
  options.deadline = std::chrono::seconds(5);
  return options;
}

// A trainer of some ranks over a hub, each rank on a thread of its own while it publishes.
class Trainer {
 public:
  // `devices`: one for each rank; null or left out: none.
  Trainer(LoopbackHub& hub, unsigned ranks, const PublisherOptions& options, const Weights& base,
          const std::vector<std::shared_ptr<PublisherDevice>>& devices = {})
      : mail_({}, ranks) {
    for (unsigned rank = 0; rank < ranks; ++rank) {
      groups_.push_back(mail_.group(rank));
      roads_.push_back(std::make_unique<FaultyRoad>(hub.sender(rank)));
      histories_.push_back(hub.receiver());
    }
    publishers_.resize(ranks);
    for (unsigned rank = 0; rank < ranks && !options.keep_snapshot; ++rank) {
      live_.push_back(offer(live_weights_ ? *live_weights_ : base, rank));
      live_.back().stay();
      for (const std::string& name : watched_) live_.back().watch(name);
    }
    statuses_ = each([&](unsigned rank) -> Status {
      MemorySource source = offer(base, rank);
      PublisherOptions job_options = options;
      if (rank < devices.size()) job_options.device = devices[rank];
      auto opened =
          Publisher::open(job_options, *groups_[rank], *roads_[rank], histories_[rank].get(),
                          source, live_.empty() ? nullptr : &live_[rank]);
      if (opened.ok()) publishers_[rank] = std::move(*opened);
      return opened.status();
    });
  }

  // Publishes on every rank.
  std::vector<Status> publish(const Weights& weights) {
    reports_.assign(publishers_.size(), {});
    return each([&](unsigned rank) -> Status {
      MemorySource source = offer(weights, rank);
      if (!live_.empty()) DRIFTLESS_RETURN_IF_ERROR(step(rank, source));
      auto report = publishers_[rank]->publish(live_.empty() ? source : live_[rank]);
      if (report.ok()) reports_[rank] = *report;
      return report.status();
    });
  }

  // Without a snapshot: an optimizer's step to these weights, captured before they are written.
  Status step(unsigned rank, MemorySource& after, const std::string& unseen = "nothing") {
    std::vector<Publisher::NewTensor> values;
    for (std::size_t i = 0; i < after.tensors().size(); ++i) {
      if (after.tensors()[i].name == unseen) continue;
      values.push_back({i, after.bytes(i).data(), after.tensors()[i].dtype});
    }
    const Status captured = publishers_[rank]->capture(values);
    for (std::size_t i = 0; i < after.tensors().size(); ++i) {
      std::ranges::copy(after.bytes(i), live_[rank].bytes(i).begin());
    }
    return captured;
  }
  // A step on all ranks; capture() is not called for the tensor `unseen`.
  void step(const Weights& weights, const std::string& unseen = "nothing") {
    for (unsigned rank = 0; rank < live_.size(); ++rank) {
      MemorySource after = offer(weights, rank);
      EXPECT_TRUE(step(rank, after, unseen).ok());
    }
  }
  // Publishes, on every rank, the changes that were captured.
  std::vector<Status> publish_live() {
    reports_.assign(publishers_.size(), {});
    return each([&](unsigned rank) -> Status {
      auto report = publishers_[rank]->publish(live_[rank]);
      if (report.ok()) reports_[rank] = *report;
      return report.status();
    });
  }

  std::vector<Status> each(const std::function<Status(unsigned)>& work) {
    std::vector<Status> statuses(roads_.size());
    std::vector<std::thread> threads;
    for (unsigned rank = 0; rank < roads_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = work(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  [[nodiscard]] MemorySource offer(const Weights& weights, unsigned rank) const {
    if (offers_) return offers_(weights, rank);
    MemorySource source(weights, rank, roads_.size(), 2);
    if (shared_ && rank > 0) source.add("model.embed.weight", weights.at("model.embed.weight"));
    return source;
  }
  // Without a snapshot: the weights that trainers hold when they are opened, if not the base; and
  // tensors that are never captured.
  static void hold_at_first(std::optional<Weights> weights) { live_weights_ = std::move(weights); }
  static void watch(std::vector<std::string> names) { watched_ = std::move(names); }
  [[nodiscard]] MemorySource& live(unsigned rank) { return live_[rank]; }
  static void share_embedding(bool shared) { shared_ = shared; }
  // The offer of each rank. Null: every n-th tensor.
  using Offers = std::function<MemorySource(const Weights&, unsigned rank)>;
  static void offer_as(Offers offers) { offers_ = std::move(offers); }

  [[nodiscard]] FaultyRoad& road(unsigned rank) { return *roads_[rank]; }
  [[nodiscard]] Publisher& rank(unsigned rank) { return *publishers_[rank]; }
  [[nodiscard]] const PublishReport& report(unsigned rank = 0) const { return reports_[rank]; }
  [[nodiscard]] std::vector<Status> opened() const { return statuses_; }

 private:
  static inline bool shared_ = false;
  static inline std::optional<Weights> live_weights_;
  static inline std::vector<std::string> watched_;
  static inline Offers offers_;
  LoopbackHub mail_;  // only for the groups, which are a new job's; the road is not
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<FaultyRoad>> roads_;
  std::vector<std::unique_ptr<ReceiveRoad>> histories_;
  std::vector<MemorySource> live_;  // of each rank, if there is no snapshot
  std::vector<std::unique_ptr<Publisher>> publishers_;
  std::vector<PublishReport> reports_;
  std::vector<Status> statuses_;
};

// A rollout that holds its weights in memory.
class Rollout {
 public:
  Rollout(LoopbackHub& hub, const std::optional<Weights>& base) : road_(hub.receiver()) {
    if (base) {
      std::vector<TensorSpec> specs;
      for (const auto& [name, tensor] : *base) {
        specs.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
      }
      layout_ = *WeightLayout::make(specs);
      held_ = *base;
      std::vector<std::byte*> data;
      for (auto& [name, tensor] : held_) data.push_back(tensor.bytes.data());
      auto made = make_memory_target(layout_, data, VersionId{}, 2);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      target_ = std::move(*made);
    } else {
      auto made = make_owned_target(posix_file_system(), std::nullopt, 2);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      owned_ = made->get();
      target_ = std::move(*made);
    }
    auto opened = Receiver::open({}, *road_, *target_, Deadline::after(std::chrono::seconds(1)));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (opened.ok()) receiver_ = std::move(*opened);
  }

  // Follows to the newest version on the road.
  Status follow() {
    for (;;) {
      auto staged = receiver_->stage(Deadline::after(std::chrono::milliseconds(20)));
      if (!staged.ok()) return staged.status();
      if (!*staged) return {};
      auto done = receiver_->commit();
      if (!done.ok()) return done.status();
      last_ = *done;
      check_digests();
    }
  }

  // Checks that the run's digest of each tensor is that of its weights.
  void check_digests() const {
    const std::vector<Digest>& digests = receiver_->tensor_digests();
    const WeightLayout& layout = receiver_->layout();
    ASSERT_EQ(digests.size(), layout.size()) << "version " << state().id.version;
    Digest sum;
    std::size_t index = 0;
    for (const TensorSpec& tensor : layout.tensors()) {
      const std::span<const std::byte> bytes =
          owned_ != nullptr ? owned_->tensor(index) : std::span(held_.at(tensor.name).bytes);
      EXPECT_EQ(digests[index], host_kernels().digest(digest_tensor_key(tensor.name), 0, bytes))
          << tensor.name << " at version " << state().id.version;
      sum += digests[index++];
    }
    EXPECT_EQ(sum, state().digest) << "version " << state().id.version;
  }

  [[nodiscard]] bool holds(const Weights& weights) const {
    std::size_t index = 0;
    for (const auto& [name, tensor] : weights) {
      if (owned_ != nullptr) {
        const auto bytes = owned_->tensor(index++);
        if (!std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end())) {
          return false;
        }
      } else if (held_.at(name).bytes != tensor.bytes) {
        return false;
      }
    }
    return true;
  }
  // A tensor of a rollout that started with a base.
  [[nodiscard]] std::span<const std::byte> held(const std::string& name) const {
    return held_.at(name).bytes;
  }
  [[nodiscard]] TargetState state() const { return target_->state(); }
  [[nodiscard]] const Receiver& receiver() const { return *receiver_; }
  [[nodiscard]] const UpdateReport& last() const { return last_; }

 private:
  std::unique_ptr<ReceiveRoad> road_;
  WeightLayout layout_;
  Weights held_;
  std::unique_ptr<WeightTarget> target_;
  MappedTarget* owned_ = nullptr;
  std::unique_ptr<Receiver> receiver_;
  UpdateReport last_;
};

inline void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace driftless::testing
