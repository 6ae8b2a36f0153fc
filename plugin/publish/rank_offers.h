// SPDX-License-Identifier: Apache-2.0
// RankOffers: which tensors and blocks this rank's sources offer, which of them it owns, and which
// other ranks have, too. The lowest rank publishes such a copy; the others' must have the same bits
// in every version, or they are other tensors under the same name, which no receiver would get.
#pragma once

#include <set>

#include "plugin/publish/live_store.h"
#include "plugin/publish/rank_messages.h"

namespace driftless {

// One thread at a time.
class RankOffers {
 public:
  // What the base offers is what every later source offers.
  [[nodiscard]] OfferMessage open(const WeightSource& base);
  // What of that this rank owns, cut as the leader told, ascending by tensor. All ranks find the
  // same faults.
  [[nodiscard]] Result<std::vector<OwnedTensor>> own(const AssemblyMessage& told,
                                                     const WeightLayout& layout, unsigned rank);
  // Before the calls below. It outlives this.
  void use(const WeightStore& store) { store_ = &store; }

  // In the store, of each that is offered; kNotOurs: another rank publishes it.
  static constexpr std::uint32_t kNotOurs = ~std::uint32_t{0};
  [[nodiscard]] const std::vector<std::uint32_t>& numbers() const { return number_; }

  [[nodiscard]] Status check_source(const WeightSource& weights) const;
  // Every tensor of this rank, in the source's batches; and each copy that is read.
  [[nodiscard]] Status visit(WeightSource& weights, bool on_gpu,
                             const std::function<Status(std::span<const PairedTensor>)>& use,
                             const std::function<Status(const OfferedTensor&)>& copy) const;
  // What capture() was given, as far as this rank owns it.
  [[nodiscard]] Result<std::vector<NewValues>> new_values(
      std::span<const Publisher::NewTensor> values) const;

  // Without a snapshot: where all of it lies, the copies, too.
  [[nodiscard]] Result<std::vector<LivePlace>> find_places(WeightSource& live, bool on_gpu);
  // Whether a copy lies where it lay.
  [[nodiscard]] Status look_at_copy(const OfferedTensor& copy) const;
  // Reads the copies that are watched in the call that observes them.
  [[nodiscard]] Status observe_copies(PublisherDevice* device);
  [[nodiscard]] Status digest_live_copies(TensorDigests& digests) const;

  [[nodiscard]] Status digest_copy(const OfferedTensor& copy, TensorDigests& digests) const;
  // Adds the copies that this rank publishes and need not read again. `changed`: the digests of
  // tensors that a version changes; `before`: of all, by tensor.
  void add_kept_copies(const TensorDigests& changed, std::span<const Digest> before,
                       TensorDigests& digests) const;

 private:
  void find_copies(const AssemblyMessage& told, const WeightLayout& layout, unsigned rank,
                   const std::set<std::uint32_t>& dropped);

  const WeightStore* store_ = nullptr;
  std::vector<TensorSpec> offered_;    // in the sources' order
  std::vector<TensorBox> boxes_;       // which part of each
  std::vector<std::uint32_t> number_;  // of each in the store; kNotOurs: dropped
  // Offers that other ranks have, too: those to be read, those that are all that this rank has of a
  // tensor of the layout and publishes, and, without a snapshot, where the former lie.
  std::set<std::uint32_t> copies_;
  std::map<std::uint32_t, std::uint32_t> kept_copies_;
  std::map<std::uint32_t, OfferedTensor> live_copies_;
  std::set<std::uint32_t> watched_copies_;
  TensorDigests seen_copies_;  // of those, since observe_copies()
};

}  // namespace driftless
