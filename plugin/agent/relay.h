// SPDX-License-Identifier: Apache-2.0
// Relay: takes each publication from one road once, and offers it on another to the receivers of
// this host. Versions and anchors stay what they are, so that a Receiver follows either road alike.
//
//   fetch -> verify -> inflate (parts in parallel) -> publish        one version after the other
//
// Receivers that cannot follow the versions get an anchor: the newest that is there, or, if none
// helps, the publisher is asked for one (wants_anchor()).
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
  // Once so many workers have said what they need, only that is fetched, of all that ever did.
  // 0: once as many as `versions` were relayed and no worker said anything new; who comes then
  // cannot follow from the base in any case.
  std::uint64_t workers = 0;
  unsigned read_workers = 4;                          // parts fetched and inflated at a time
  std::uint64_t read_bytes = std::uint64_t{1} << 30;  // held by them, at most; one part always goes
  unsigned versions = 32;                             // of before that a start brings along
  std::chrono::milliseconds fetch_deadline{60'000};   // of one publication
  std::chrono::milliseconds report_deadline{10'000};
};

class Relay {
 public:
  // Waits for the run's announcement, and repeats it on `down`.
  [[nodiscard]] static Result<std::unique_ptr<Relay>> open(const RelayOptions& options,
                                                           ReceiveRoad& up, SendRoad& down,
                                                           const Deadline& deadline);

  // Waits until a version past its own is there, and relays it. Nothing: the deadline passed, or it
  // is gone already. What is incomplete or damaged is fetched again until fetch_deadline; after any
  // failure nothing of it is on `down`, and follow() may be called again. Past what stays damaged
  // leads an anchor: help() relays it in the version's place, or asks for it.
  [[nodiscard]] Result<std::optional<DeliveryReport>> follow(const Deadline& deadline);

  // Looks at what the receivers on `down` say, and relays an anchor if one of them or follow()
  // needs it.
  [[nodiscard]] Result<std::optional<DeliveryReport>> help();

  // The newest version relayed; 0: none.
  [[nodiscard]] std::uint64_t version() const { return holds_.id.version; }
  // Whether anything newer is there to be relayed.
  [[nodiscard]] Result<bool> behind();
  // Of what was relayed, and of the base.
  [[nodiscard]] const std::shared_ptr<VersionDigests>& digests() const { return digests_; }
  // What this agent announces: the needs of its workers, together. Empty: everything.
  [[nodiscard]] std::string needs() const;
  // What the receivers last said to help().
  [[nodiscard]] const std::vector<ReceiverReport>& receivers() const { return receivers_; }
  // A receiver needs an anchor that is not there.
  [[nodiscard]] bool wants_anchor() const { return wants_anchor_; }
  [[nodiscard]] const Hash128& run() const { return holds_.id.run; }

 private:
  Relay(const RelayOptions& options, ReceiveRoad& up, SendRoad& down, const RunInfo& run);

  [[nodiscard]] Result<std::optional<PublicationId>> next_version();
  // `as`: what it is on `down`.
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
  // Of the frames of which not everything is needed, what is. Marks them in the manifest.
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
  // On `down`, last: an anchor, or an anchor in the place of a damaged version.
  std::optional<PublicationId> full_;
  std::optional<std::uint64_t> damaged_;       // the next version, if it stays damaged
  std::optional<PublicationId> damaged_full_;  // the same of the newest anchor
  std::shared_ptr<VersionDigests> digests_ = std::make_shared<VersionDigests>();
  std::vector<ReceiverReport> receivers_;
  UnionNeeds needs_;
  std::uint64_t unchanged_ = 0;  // versions relayed since needs_ changed
  bool wants_anchor_ = false;
  std::mutex roads_;  // each is used by one thread at a time
  // Two, since a part is inflated while it is held: whoever holds of the second waits for nobody.
  MemoryBudget fetched_budget_, inflated_budget_;
};

}  // namespace driftless
