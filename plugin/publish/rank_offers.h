// SPDX-License-Identifier: Apache-2.0
// RankOffers: the tensors and blocks that this rank's sources offer: those that it owns, and
// copies, which other ranks offer, too. The lowest of these ranks publishes a copy. The other ranks
// must have the same bits in every version: otherwise their copies are different weights under the
// same name, which no receiver would get.
#pragma once

#include <set>

#include "plugin/publish/live_store.h"
#include "plugin/publish/rank_messages.h"

namespace driftless {

// One thread at a time.
class RankOffers {
 public:
  // All later sources must offer what the base offers.
  [[nodiscard]] OfferMessage open(const WeightSource& base);
  // The parts that this rank owns, cut as the leader decided, ascending by tensor. All ranks find
  // the same errors.
  [[nodiscard]] Result<std::vector<OwnedTensor>> owned_parts(const AssemblyMessage& assembly,
                                                             const WeightLayout& layout,
                                                             unsigned rank);
  // Call it before the calls below. The store outlives this.
  void use(const WeightStore& store) { store_ = &store; }

  // The number in the store of each offer; kNotOurs: another rank publishes it.
  static constexpr std::uint32_t kNotOurs = ~std::uint32_t{0};
  [[nodiscard]] const std::vector<std::uint32_t>& numbers() const { return number_; }

  [[nodiscard]] Status check_source(const WeightSource& weights) const;
  // Passes every tensor of this rank to `use`, in the source's batches, and every copy to `copy`.
  [[nodiscard]] Status visit(WeightSource& weights, bool on_gpu,
                             const std::function<Status(std::span<const PairedTensor>)>& use,
                             const std::function<Status(const OfferedTensor&)>& copy) const;
  // The values of capture() that belong to parts that this rank owns.
  [[nodiscard]] Result<std::vector<NewValues>> new_values(
      std::span<const Publisher::NewTensor> values) const;

  // Without a snapshot: the places of all offers, copies included.
  [[nodiscard]] Result<std::vector<LivePlace>> find_places(WeightSource& live, bool on_gpu);
  // Ok if a copy still lies at its place.
  [[nodiscard]] Status look_at_copy(const OfferedTensor& copy) const;
  // Digests the watched copies, in the call that observes them.
  [[nodiscard]] Status observe_copies(PublisherDevice* device);
  [[nodiscard]] Status digest_live_copies(TensorDigests& digests) const;

  [[nodiscard]] Status digest_copy(const OfferedTensor& copy, TensorDigests& digests) const;
  // Adds the digests of copies that this rank publishes and that need not be read again. `changed`:
  // the digests of the tensors that a version changes; `before`: of all tensors, by number.
  void add_kept_copies(const TensorDigests& changed, std::span<const Digest> before,
                       TensorDigests& digests) const;

 private:
  void find_copies(const AssemblyMessage& assembly, const WeightLayout& layout, unsigned rank,
                   const std::set<std::uint32_t>& dropped);

  const WeightStore* store_ = nullptr;
  std::vector<TensorSpec> offered_;    // in the sources' order
  std::vector<TensorBox> boxes_;       // which part of each
  std::vector<std::uint32_t> number_;  // the number of each in the store; kNotOurs: dropped
  // Offers that other ranks have, too. copies_: those that must be read. kept_copies_: those that
  // this rank publishes and that are its only part of a tensor. live_copies_: without a snapshot,
  // the places of copies_.
  std::set<std::uint32_t> copies_;
  std::map<std::uint32_t, std::uint32_t> kept_copies_;
  std::map<std::uint32_t, OfferedTensor> live_copies_;
  std::set<std::uint32_t> watched_copies_;
  TensorDigests seen_copies_;  // of watched copies, by observe_copies()
};

}  // namespace driftless
