// SPDX-License-Identifier: Apache-2.0
// Relay: takes each publication from one road once, and offers it on another road to the receivers
// of this host. Versions and anchors keep their numbers and kinds, so a Receiver follows either
// road in the same way.
//
//   fetch -> verify -> inflate (parts in parallel) -> publish        one version after the other
//
// Receivers that cannot follow the versions get the newest anchor on the road. If none helps them,
// the publisher is asked for one (wants_anchor()).
//
// One thread at a time. Both roads outlive it.
#pragma once

#include <mutex>

#include "core/layout.h"
#include "core/memory_budget.h"
#include "formats/manifest.h"
#include "plugin/agent/delivery.h"
#include "plugin/agent/union_needs.h"
#include "plugin/receive/version_fetcher.h"

namespace driftless {

struct RelayOptions {
  // The relay first fetches everything. Once this many workers have announced their needs, it
  // fetches only what they need. 0: it does so after `versions` versions in a row without a new
  // announcement; a worker that starts later than that cannot follow from the base anyway.
  std::uint64_t workers = 0;
  unsigned read_workers = 4;                          // parts fetched and inflated at a time
  std::uint64_t read_bytes = std::uint64_t{1} << 30;  // their limit; one part always proceeds
  unsigned versions = 32;                             // existing ones relayed at the start
  std::chrono::milliseconds fetch_deadline{60'000};   // for one publication
  std::chrono::milliseconds report_deadline{10'000};
};

class Relay {
 public:
  // Waits for the run's announcement, and repeats it on `down`.
  [[nodiscard]] static Result<std::unique_ptr<Relay>> open(const RelayOptions& options,
                                                           ReceiveRoad& up, SendRoad& down,
                                                           const Deadline& deadline);

  // Waits for the next version, and relays it. Nothing: the deadline passed, or the version is
  // already gone. Retries what is incomplete or damaged until fetch_deadline; after any failure
  // nothing of the version is on `down`, and follow() may be called again. If it stays damaged,
  // only an anchor leads past it: help() relays one in the version's place, or asks for one.
  [[nodiscard]] Result<std::optional<DeliveryReport>> follow(const Deadline& deadline);

  // Reads the reports of the receivers on `down`, and relays an anchor if one of them or follow()
  // needs it.
  [[nodiscard]] Result<std::optional<DeliveryReport>> help();

  // The newest version relayed; 0: none.
  [[nodiscard]] std::uint64_t version() const { return holds_.id.version; }
  // Whether anything newer can be relayed.
  [[nodiscard]] Result<bool> has_newer();
  // The digests of the base and of the relayed versions.
  [[nodiscard]] const std::shared_ptr<VersionDigests>& digests() const { return digests_; }
  // The announcement of this agent: the needs of all its workers. Empty: everything.
  [[nodiscard]] std::string needs() const;
  // The receivers' reports that help() read last.
  [[nodiscard]] const std::vector<ReceiverReport>& receivers() const { return receivers_; }
  // A receiver needs an anchor, and none is on the road.
  [[nodiscard]] bool wants_anchor() const { return wants_anchor_; }
  [[nodiscard]] const Hash128& run() const { return holds_.id.run; }

 private:
  Relay(const RelayOptions& options, ReceiveRoad& up, SendRoad& down, const RunInfo& run);

  [[nodiscard]] Result<std::optional<PublicationId>> next_version();
  // `as`: its id on `down`.
  [[nodiscard]] Result<std::optional<DeliveryReport>> relay(const PublicationId& id,
                                                            const PublicationId& as);
  [[nodiscard]] Result<DeliveryReport> attempt(const PublicationId& id, const PublicationId& as,
                                               const Deadline& deadline);
  [[nodiscard]] Status carry(const PublicationId& id, const PublicationId& as, Manifest& manifest,
                             DeliveryReport& report, const Deadline& deadline);
  struct Carried {
    std::uint64_t delta_bytes = 0;
    std::optional<Hash128> table;
    double fetch_ms = 0;
  };
  [[nodiscard]] Result<Carried> carry_part(const PublicationId& id, const Manifest& manifest,
                                           Encoding plain_as, const ManifestFile& file,
                                           const Deadline& deadline);
  void note_speed(const DeliveryReport& report);
  // Fetches the needed blocks of frames that are only needed in part, and marks these frames in the
  // manifest.
  [[nodiscard]] Status carry_blocks(const PublicationId& id, Manifest& manifest,
                                    UpdateReport& update, const Deadline& deadline);
  [[nodiscard]] bool is_ours(const ReceiverReport& report) const;
  void listen(std::span<const ReceiverReport> receivers);
  [[nodiscard]] bool knows_needs() const;
  [[nodiscard]] Result<bool> leads_on(std::uint64_t anchor);
  [[nodiscard]] Result<bool> has_handed(std::uint64_t least);
  [[nodiscard]] Result<std::optional<PublicationId>> newest_full();
  [[nodiscard]] Result<std::optional<DeliveryReport>> hand_over(const PublicationId& full);

  const RelayOptions options_;
  ReceiveRoad* up_;
  SendRoad* down_;
  VersionFetcher fetcher_;
  WeightLayout layout_;
  TargetState holds_;     // the newest version relayed
  bool started_ = false;  // a version was relayed
  // The last full publication on `down`: an anchor, or a full version in place of a damaged one.
  std::optional<PublicationId> full_;
  std::optional<std::uint64_t> damaged_;       // the next version, if it stays damaged
  std::optional<PublicationId> damaged_full_;  // likewise the newest anchor
  std::shared_ptr<VersionDigests> digests_ = std::make_shared<VersionDigests>();
  std::vector<ReceiverReport> receivers_;
  UnionNeeds needs_;
  std::uint64_t unchanged_ = 0;  // versions relayed since needs_ changed
  bool wants_anchor_ = false;
  std::mutex roads_;  // serializes the use of each road
  // Two budgets, since a part is inflated while it is held: a thread that holds inflated_budget_
  // never waits for either.
  MemoryBudget fetched_budget_, inflated_budget_;
};

}  // namespace driftless
