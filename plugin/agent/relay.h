// SPDX-License-Identifier: Apache-2.0
// Relay: takes each publication from one road once, and offers it on another to the receivers of
// this host. Steps and anchors stay what they are, so that a Receiver follows either road alike.
//
//   fetch -> verify -> inflate (parts in parallel) -> publish        one step after the other
//
// Receivers that cannot get on by steps get an anchor: the newest that is there, or, where none
// helps, the publisher is asked for one (wants_anchor()).
//
// One thread at a time. Both roads outlive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/road.h"
#include "core/digest.h"
#include "core/hash128.h"
#include "core/layout.h"
#include "formats/manifest.h"
#include "plugin/agent/memory_budget.h"

namespace driftless {

struct RelayOptions {
  unsigned read_workers = 4;                          // parts fetched and inflated at a time
  std::uint64_t read_bytes = std::uint64_t{1} << 30;  // held by them, at most; one part always goes
  unsigned versions = 32;                             // steps of before that a start brings along
  std::chrono::milliseconds fetch_deadline{60'000};   // of one publication
  std::chrono::milliseconds report_deadline{10'000};
};

// What one publication took.
struct RelayReport {
  PublicationId id;
  std::uint64_t base_version = 0;
  Encoding encoding = Encoding::kDeltas;  // as it came
  Digest digest;
  std::uint64_t changed_units = 0;
  std::uint64_t full_bytes = 0, delta_bytes = 0;
  std::uint64_t wire_bytes = 0;   // fetched, manifest included
  std::uint64_t plain_bytes = 0;  // offered to the workers
  double fetch_ms = 0;            // waiting for the road, summed over the read workers
  double process_ms = 0;          // all of it: fetch, verify, inflate, write
};

class Relay {
 public:
  // Waits for the run's announcement, and repeats it on `down`.
  [[nodiscard]] static Result<std::unique_ptr<Relay>> open(const RelayOptions& options,
                                                           ReceiveRoad& up, SendRoad& down,
                                                           const Deadline& deadline);

  // Waits until a step past version() is there, and relays it. Nothing: the deadline passed, or it
  // is gone already. What is incomplete or damaged is fetched again until fetch_deadline; after any
  // failure nothing of it is on `down`, and follow() may be called again.
  [[nodiscard]] Result<std::optional<RelayReport>> follow(const Deadline& deadline);

  // Looks at what the receivers on `down` say, and relays an anchor where one of them needs it.
  [[nodiscard]] Result<std::optional<RelayReport>> help();

  // The newest step relayed; 0: none.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  // Whether anything newer is there to be relayed.
  [[nodiscard]] Result<bool> behind();
  // Of a version that was relayed, or of the base.
  [[nodiscard]] std::optional<Digest> digest(std::uint64_t version) const;
  // What the receivers last said to help().
  [[nodiscard]] const std::vector<ReceiverReport>& receivers() const { return receivers_; }
  // A receiver needs an anchor that is not there.
  [[nodiscard]] bool wants_anchor() const { return wants_anchor_; }
  [[nodiscard]] const Hash128& run() const { return run_; }
  [[nodiscard]] const WeightLayout& layout() const { return layout_; }

 private:
  Relay(const RelayOptions& options, ReceiveRoad& up, SendRoad& down)
      : options_(options),
        up_(&up),
        down_(&down),
        fetched_budget_(options.read_bytes / 2),
        inflated_budget_(options.read_bytes / 2) {}

  [[nodiscard]] Result<std::optional<PublicationId>> next_step();
  [[nodiscard]] Result<std::optional<RelayReport>> relay(const PublicationId& id);
  [[nodiscard]] Result<RelayReport> attempt(const PublicationId& id, const Deadline& deadline);
  [[nodiscard]] Status carry(const PublicationId& id, Manifest& manifest, RelayReport& report,
                             const Deadline& deadline);
  struct Carried {
    std::uint64_t delta_bytes = 0;
    double fetch_ms = 0;
  };
  [[nodiscard]] Result<Carried> carry_part(const PublicationId& id, const Manifest& manifest,
                                           const ManifestFile& file, const Deadline& deadline);
  [[nodiscard]] Result<bool> leads_on(std::uint64_t anchor);

  const RelayOptions options_;
  ReceiveRoad* up_;
  SendRoad* down_;
  Hash128 run_;
  WeightLayout layout_;
  std::uint64_t version_ = 0;
  bool started_ = false;                     // a step was relayed
  std::optional<std::uint64_t> anchor_;      // relayed last
  std::map<std::uint64_t, Digest> digests_;  // of what was relayed, and of the base
  std::vector<ReceiverReport> receivers_;
  bool wants_anchor_ = false;
  std::mutex roads_;  // each is used by one thread at a time
  // Two, since a part is inflated while it is held: whoever holds of the second waits for nobody.
  MemoryBudget fetched_budget_, inflated_budget_;
};

}  // namespace driftless
