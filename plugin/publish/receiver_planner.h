// SPDX-License-Identifier: Apache-2.0
// ReceiverPlanner: decides from the receivers' announcements how versions are cut and encoded, so
// that all receivers can read a version and fetch only their slices. On the leader.
#pragma once

#include "collectives/road.h"
#include "formats/receiver_needs.h"
#include "plugin/interchange/layouts.h"
#include "plugin/publish/encoding_chooser.h"
#include "plugin/publish/publisher.h"

namespace driftless {

// Whether this publisher can code `compact`. The codes are made from the store's units, which must
// lie where units are compared. Without a snapshot, a publisher that quantizes keeps no FP8 codes.
[[nodiscard]] inline bool codes_compact(const PublisherOptions& options) {
  if (!options.keep_snapshot && !options.quantize_rule.empty()) return false;
  return options.device == nullptr || options.device->on_device();
}

// The options and the run outlive it.
class ReceiverPlanner {
 public:
  ReceiverPlanner(const PublisherOptions& options, const RunState& run, unsigned threads)
      : options_(options), run_(run), chooser_(options.encoding, threads) {}

  // The cuts that the options request for these tensors, which the ranks offer in these boxes.
  // kInvalidArgument if they do not fit.
  [[nodiscard]] Result<std::vector<BlockCut>> open(std::span<const TensorSpec> tensors,
                                                   std::vector<std::vector<TensorBox>> boxes);
  // The shape of the next version, from the receivers' current reports.
  [[nodiscard]] VersionShape plan(const Result<std::vector<ReceiverReport>>& reports,
                                  std::vector<std::string>& notes);
  // All ranks have received the plan.
  void adopted() { adopted_needs_ = planned_needs_; }
  // A delta that was published.
  void note(const EncodingChooser::Version& version) { chooser_.note(version); }

 private:
  [[nodiscard]] bool takes_blocks() const {
    return publication_format(options_.layout).takes_blocks;
  }
  void read_needs(const std::map<std::string, std::string>& needs_by_receiver,
                  std::vector<std::string>& notes);
  [[nodiscard]] std::string who_cannot(Encoding encoding) const;  // names; empty: all can
  [[nodiscard]] Encoding choose_encoding(const std::vector<ReceiverReport>& reports,
                                         std::vector<std::string>& notes);
  [[nodiscard]] Encoding encoding_for(Encoding wanted, std::vector<std::string>& notes) const;
  // Tensors of which a receiver holds a slice that does not begin and end at these cuts.
  [[nodiscard]] std::vector<std::uint32_t> plain_for(std::span<const BlockCut> cuts) const;
  [[nodiscard]] std::vector<BlockCut> cuts_for(std::vector<std::string>& notes) const;

  const PublisherOptions& options_;
  const RunState& run_;
  std::vector<std::vector<TensorBox>> boxes_;  // of each tensor, over all ranks
  std::vector<BlockCut> option_cuts_;          // from the options
  // Each receiver's announcement: at the last plan, and at the last adopted plan.
  std::map<std::string, std::string> planned_needs_, adopted_needs_;
  std::map<std::string, ReceiverNeeds> receivers_;  // the last announcements, parsed
  EncodingChooser chooser_;
};

}  // namespace driftless
