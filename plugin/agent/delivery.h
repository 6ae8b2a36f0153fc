// SPDX-License-Identifier: Apache-2.0
// Delivery: how versions get from the agent's road to its host. Through shared memory to
// receivers (relay.h), into a checkpoint directory, or not at all: the engines' workers read the
// road themselves.
//
// One thread at a time. The road outlives it.
#pragma once

#include "plugin/engines/engine_session.h"
#include "plugin/job/config.h"

namespace driftless {

// One publication, handed over.
struct DeliveryReport {
  UpdateReport update;            // as a receiver's; its pause is the engines' business
  std::uint64_t plain_bytes = 0;  // handed over, inflated
  double process_ms = 0;          // decoding, and writing into shared memory
};

// A receiver on the host.
struct HostReceiver {
  std::string id;
  std::optional<std::uint64_t> version;  // that it proved to hold; none: nothing yet
  std::string waits = {};                // then: what it reports instead
};

class Delivery {
 public:
  virtual ~Delivery() = default;
  // The next thing to hand over, if it comes before the deadline.
  [[nodiscard]] virtual Result<std::optional<DeliveryReport>> step(const Deadline& deadline) = 0;
  // The newest version handed over; 0: none.
  [[nodiscard]] virtual std::uint64_t version() const = 0;
  // Whether the road has something newer.
  [[nodiscard]] virtual Result<bool> behind() = 0;
  // Of a version that was handed over, or of the base.
  [[nodiscard]] virtual std::optional<Digest> digest(std::uint64_t version) const = 0;
  // The publisher must be asked for an anchor.
  [[nodiscard]] virtual bool wants_anchor() const = 0;
  // What the workers need of a version, to be announced (formats/receiver_needs.h). Empty: all.
  [[nodiscard]] virtual std::string needs() const { return {}; }
  // Those that are there, as of the last step().
  [[nodiscard]] virtual std::vector<HostReceiver> workers() const = 0;
  // The run's last word, for the workers.
  [[nodiscard]] virtual Status tell_end(std::string_view text) = 0;
  [[nodiscard]] virtual const Hash128& run() const = 0;
  // A session for an engine, as this way of handing over needs it. The delivery outlives it.
  [[nodiscard]] virtual Result<std::unique_ptr<EngineSession>> session(EngineKind kind,
                                                                       EngineLink link) = 0;
};

// Waits for the run's announcement. `threads`: whether the road may be used by other threads.
[[nodiscard]] Result<std::unique_ptr<Delivery>> make_shm_delivery(const Config& config,
                                                                  ReceiveRoad& road, bool threads,
                                                                  const Deadline& deadline);
// Hands nothing over: the engine's workers read the road themselves, each what it needs. Waits for
// the run's announcement.
[[nodiscard]] Result<std::unique_ptr<Delivery>> make_workers_delivery(const Config& config,
                                                                      ReceiveRoad& road,
                                                                      const Deadline& deadline);
// A session for an engine whose workers follow options.source by receivers of their own.
[[nodiscard]] Result<std::unique_ptr<EngineSession>> make_worker_session(
    const Config& config, EngineKind kind, EngineLink link, EngineSessionOptions options);
// kBusy, naming the process, where another agent hands over into this checkpoint.
[[nodiscard]] Result<std::unique_ptr<FileLock>> lock_checkpoint_for_agent(
    const std::string& checkpoint);
// `target` is the checkpoint at `checkpoint` (make_checkpoint_target) and outlives it.
[[nodiscard]] Result<std::unique_ptr<Delivery>> make_checkpoint_delivery(
    const Config& config, const std::string& checkpoint, WeightTarget& target, ReceiveRoad& road,
    const Deadline& deadline);

}  // namespace driftless
