// SPDX-License-Identifier: Apache-2.0
// Delivery: hands versions over from the agent's road to its host: through shared memory to
// receivers (relay.h), into a checkpoint directory, or not at all if the engines' workers read the
// road themselves.
//
// One thread at a time. The road outlives it.
#pragma once

#include "plugin/engines/engine_session.h"
#include "plugin/job/config.h"

namespace driftless {

// One publication that was handed over.
struct DeliveryReport {
  UpdateReport
      update;  // as a receiver reports it; the times of a pause are in the engines' records
  std::uint64_t plain_bytes = 0;  // size handed over, inflated
  double process_ms = 0;          // all but apply_ms
};

// A receiver on the host.
struct HostReceiver {
  std::string id;
  std::optional<std::uint64_t> version;  // held and proven; none: it has no version yet
  std::string waits = {};                // without a version: what it waits for, by its report
};

class Delivery {
 public:
  virtual ~Delivery() = default;
  // Hands over the next publication, if one arrives before the deadline.
  [[nodiscard]] virtual Result<std::optional<DeliveryReport>> step(const Deadline& deadline) = 0;
  // The newest version handed over; 0: none.
  [[nodiscard]] virtual std::uint64_t version() const = 0;
  // Whether the road has something newer.
  [[nodiscard]] virtual Result<bool> has_newer() = 0;
  // The digest of a version that was handed over, or of the base.
  [[nodiscard]] virtual std::optional<Digest> digest(std::uint64_t version) const = 0;
  // Whether the publisher must be asked for an anchor.
  [[nodiscard]] virtual bool wants_anchor() const = 0;
  // The needs of all workers, to be announced (formats/receiver_needs.h). Empty: all blocks.
  [[nodiscard]] virtual std::string needs() const { return {}; }
  // The workers that the last step() found.
  [[nodiscard]] virtual std::vector<HostReceiver> workers() const = 0;
  // Passes the end-of-run note on to the workers.
  [[nodiscard]] virtual Status publish_end(std::string_view text) = 0;
  [[nodiscard]] virtual const Hash128& run() const = 0;
  // A session for an engine, in the way that this delivery needs. The delivery outlives it.
  [[nodiscard]] virtual Result<std::unique_ptr<EngineSession>> session(EngineKind kind,
                                                                       EngineLink link) = 0;
};

// Waits for the run's announcement. `threads`: whether other threads may use the road.
[[nodiscard]] Result<std::unique_ptr<Delivery>> make_shm_delivery(const Config& config,
                                                                  ReceiveRoad& road, bool threads,
                                                                  const Deadline& deadline);
// Hands nothing over: each engine worker reads the road itself and fetches what it needs. Waits for
// the run's announcement.
[[nodiscard]] Result<std::unique_ptr<Delivery>> make_workers_delivery(const Config& config,
                                                                      ReceiveRoad& road,
                                                                      const Deadline& deadline);
// A session for an engine whose workers follow options.source with receivers of their own.
[[nodiscard]] Result<std::unique_ptr<EngineSession>> make_worker_session(
    const Config& config, EngineKind kind, EngineLink link, EngineSessionOptions options);
// kBusy, naming the process, if another agent hands over into this checkpoint.
[[nodiscard]] Result<std::unique_ptr<FileLock>> lock_checkpoint_for_agent(
    const std::string& checkpoint);
// `target` is the checkpoint at `checkpoint` (make_checkpoint_target()) and outlives the delivery.
[[nodiscard]] Result<std::unique_ptr<Delivery>> make_checkpoint_delivery(
    const Config& config, const std::string& checkpoint, WeightTarget& target, ReceiveRoad& road,
    const Deadline& deadline);

}  // namespace driftless
