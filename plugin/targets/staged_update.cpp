// SPDX-License-Identifier: Apache-2.0
// stage_update(). Deltas and full versions differ only in how the update is filled.
#include <algorithm>

#include "core/stopwatch.h"
#include "plugin/targets/digest_goals.h"
#include "plugin/targets/stage_ahead.h"
#include "plugin/targets/tensor_changes.h"
#include "plugin/targets/weight_sums.h"

namespace driftless {
namespace {

// If only the needed blocks of a version were fetched, checks the digests of the tensors that were
// fetched completely; the hashes of blocks prove the others.
Status check_fetched(const MappedWeights& weights, const VersionSource& version,
                     std::span<const Digest> tensors) {
  if (version.complete()) return {};
  for (const ManifestTensor& tensor : version.version().manifest->tensors) {
    const auto index = weights.layout.find(tensor.name);
    const TensorChange* const change = index ? version.find(*index) : nullptr;
    if (change == nullptr || !version.complete(*change) || !tensor.digest ||
        tensors[*index] == *tensor.digest) {
      continue;
    }
    return error(StatusCode::kMismatch, "tensor '", tensor.name, "' has digest ",
                 to_hex(tensors[*index]), ", the manifest says ", to_hex(*tensor.digest),
                 ". Nothing was changed; publish another full version");
  }
  return {};
}

class StagedUpdate final : public StagedChange {
 public:
  StagedUpdate(std::shared_ptr<MappedWeights> weights, const std::vector<VersionSource>& versions)
      : weights_(std::move(weights)),
        before_(weights_->state),
        after_(weights_->state),
        sums_before_(weights_->sums),
        tensors_(changed_tensors(versions)),
        goals_(weights_, versions),
        full_(versions.front().version().full()) {
    const VersionDirectory& first = versions.front().version();
    const VersionDirectory& last = versions.back().version();
    source_ = versions.size() == 1 ? last.path : concat(first.path, " to ", last.version);
    after_.id = last.manifest->id;
    after_.digest = last.manifest->digest;
    after_.valid = true;
    if (after_.partial) after_.version_digest = last.manifest->digest;
  }

  StagedUpdate(const StagedUpdate&) = delete;
  StagedUpdate& operator=(const StagedUpdate&) = delete;
  // Drops what the writer has staged, or what it keeps for undo().
  ~StagedUpdate() override {
    if (external_) weights_->writer->drop();
  }

  Status fill(std::vector<VersionSource> versions, bool in_place, StageAhead* ahead) {
    if (full_) {
      DRIFTLESS_RETURN_IF_ERROR(fill_full(std::move(versions)));
      return goals_.check_full(after_.digest, sums_after_->shares.tensors);
    }
    if (!in_place) return fill_deltas(std::move(versions), ahead);
    return weights_->contiguous ? fill_buckets(std::move(versions))
                                : fill_mapped(std::move(versions));
  }

  Result<CommitReport> commit() override {
    DRIFTLESS_RETURN_IF_ERROR(check_current());
    if (std::exchange(used_, true) || weights_->state != before_) {
      return error(StatusCode::kWrongBase, source_,
                   ": the weights are not those that it was staged for; stage it again");
    }
    Stopwatch watch;
    DRIFTLESS_RETURN_IF_ERROR(check_places().with_context(source_));
    weights_->state.valid = false;  // until everything is written or restored
    if (const Status status = write_all(); !status.ok()) {
      // The weights may have been wrong before this commit: then undoing it is not enough.
      const bool look = swept_ || (touched_ && full_) || status.code() == StatusCode::kMismatch;
      const Status back = look ? take_back_and_look() : take_back();
      if (back.ok()) return status;
      return not_restored(status, back);
    }
    weights_->state = after_;
    weights_->sums = sums_after_;
    committed_ = true;
    const CommitReport report{after_.id.version, after_.digest, units_, watch.lap_ms(), tensors_};
    const Status written = call_written();
    if (written.ok()) return report;
    const Status back = undo_written();
    if (back.ok()) return written.with_context("all was undone");
    weights_->state.valid = false;
    return not_restored(written, back);
  }

  Status undo() override {
    DRIFTLESS_RETURN_IF_ERROR(check_current());
    if (!committed_ || weights_->state != after_) {
      return error(StatusCode::kInvalidArgument, source_,
                   ": only the last committed change can be taken back, and only once");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_places().with_context(
        concat(source_, ": cannot be taken back, so the weights keep it")));
    return undo_written();
  }

 private:
  Status undo_written() {
    if (!before_.valid) {
      return error(StatusCode::kUnsupported, source_,
                   ": no version was held before it, so the weights keep it");
    }
    committed_ = false;
    // Staging a full version does not prove the weights that it replaces: prove them now.
    const bool look = full_ || weights_->proof.always;
    DRIFTLESS_RETURN_IF_ERROR((look ? take_back_and_look() : take_back())
                                  .with_context(concat(source_,
                                                       ": could not be taken back, the weights "
                                                       "hold no version; send a full one, or "
                                                       "reload them")));
    const Status written = call_written();
    weights_->state.valid = written.ok();
    return written;
  }
  // Ok if the engine's parameters are still at their places.
  [[nodiscard]] Status check_places() const {
    return weights_->writer ? weights_->writer->check(true) : Status();
  }
  [[nodiscard]] Status check_current() const {
    if (!weights_->replaced) return {};
    return error(StatusCode::kBusy,
                 "the engine's tensors were traced again since this was staged; stage again");
  }
  // Ok if the engine's derived data now belongs to the version of the weights.
  Status call_written() { return weights_->writer ? weights_->writer->written() : Status(); }
  static Status not_restored(const Status& why, const Status& back) {
    return why.with_context(concat("the weights could not be restored (", back.message(),
                                   "), and hold no version; send a full one, or reload them"));
  }

  Status fill_deltas(std::vector<VersionSource> versions, StageAhead* ahead) {
    goals_.fold(source_);
    changes_ = std::make_shared<TensorChanges>(weights_, std::move(versions));
    return fold_and_place(ahead != nullptr ? ahead->take_decoded(*weights_) : DecodedBlocks());
  }
  // Decodes on the host.
  Status fold_and_place(DecodedBlocks decoded) {
    DRIFTLESS_RETURN_IF_ERROR(changes_->fold(std::move(decoded)).with_context(source_));
    DRIFTLESS_RETURN_IF_ERROR(place_pieces().with_context(source_));
    DRIFTLESS_RETURN_IF_ERROR(sum_parts());
    return stage_external();
  }

  Status fill_buckets(std::vector<VersionSource> versions) {
    std::vector<ContiguousTensor> tensors(weights_->layout.size());
    for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      tensors[tensor].units = weights_->layout[tensor].units();
      tensors[tensor].key = &weights_->tensors[tensor].key;
      if (weights_->maps_any(tensor)) tensors[tensor].data = weights_->map_of(tensor).at(0);
    }
    Result<BucketMemory::Placed> placed =
        weights_->memory->buckets()->place_buckets(tensors, std::move(versions));
    if (!placed.ok()) return placed.status().with_context(source_);
    placed_ = std::move(placed->changes);
    measured_ = std::make_shared<WeightSums>(*sums_before_);
    units_ = placed->units;
    return prove(placed_->measured(), false);
  }

  // Lets the memory decode one version through the maps.
  Status fill_mapped(std::vector<VersionSource> versions) {
    changes_ = std::make_shared<TensorChanges>(weights_, std::move(versions));
    DRIFTLESS_RETURN_IF_ERROR(changes_->fold_external().with_context(source_));
    const std::vector<SourceBucket> buckets = changes_->versions().front().buckets();
    std::vector<BucketPart> parts;
    for (std::size_t number = 0; number < buckets.size(); ++number) {
      for (const BucketEntry& entry : buckets[number].view.entries) {
        const MappedWeights::Tensor& mapped = weights_->tensors[entry.tensor];
        const std::uint64_t units = weights_->layout[entry.tensor].units();
        if (mapped.maps > 0 || mapped.external) units_ += entry.count();
        for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
          parts.push_back({number, &entry, &weights_->maps[m], units, &mapped.key});
          parts_.emplace_back().map = &weights_->maps[m];
        }
      }
    }
    Result<std::unique_ptr<PlacedChanges>> placed =
        weights_->memory->buckets()->place_parts(parts, buckets);
    const bool there = std::ranges::any_of(
        buckets, [](const SourceBucket& bucket) { return bucket.memory == MemoryKind::kDevice; });
    if (placed.status().code() == StatusCode::kNoSpace && !there) {
      parts_.clear();
      return fold_and_place({});  // on the host only mapped changes need room
    }
    if (!placed.ok()) return placed.status().with_context(source_);
    placed_ = std::move(*placed);
    DRIFTLESS_RETURN_IF_ERROR(sum_parts());
    DRIFTLESS_RETURN_IF_ERROR(stage_external());
    if (!external_) changes_.reset();  // the memory has a copy
    return {};
  }

  Status fill_full(std::vector<VersionSource> versions) {
    changes_ = std::make_shared<TensorChanges>(weights_, std::move(versions));
    const VersionSource& version = changes_->versions().front();
    DRIFTLESS_RETURN_IF_ERROR(changes_->check_followed().with_context(source_));
    DRIFTLESS_RETURN_IF_ERROR(prove_full(version).with_context(source_));
    units_ = version.version().manifest->changed_units;
    const bool copied = weights_->contiguous && weights_->memory->kind() == MemoryKind::kDevice;
    std::optional<DeltaPieces> difference;
    if (before_.valid && !copied) {
      Result<std::optional<DeltaPieces>> found = find_difference(*weights_, version);
      if (!found.ok()) return found.status().with_context(source_);
      difference = std::move(*found);
    }
    if (difference) {
      // No digest to compare: prove_full() proved the version, and its units replace the others.
      changes_->only(std::move(*difference));
      DRIFTLESS_RETURN_IF_ERROR(place_pieces().with_context(source_));
    } else {
      Result<std::unique_ptr<PlacedChanges>> dense =
          make_dense_change(weights_, changes_, before_.valid);
      if (!dense.ok()) return dense.status().with_context(source_);
      placed_ = std::move(*dense);
      dense_ = true;
    }
    return stage_external();
  }

  Status stage_external() {
    if (!weights_->writer || changes_->tensors().empty()) return {};
    external_ = true;
    return weights_->writer->stage(changes_).with_context(source_);
  }

  // Proves that the version has its manifest's digest, and sums what every map will hold of it.
  Status prove_full(const VersionSource& version) {
    DRIFTLESS_ASSIGN_OR_RETURN(VersionSums sums, sums_of_version(*weights_, version));
    Digest all, ours;
    for (std::size_t tensor = 0; tensor < sums.tensors.size(); ++tensor) {
      all += sums.tensors[tensor];
      if (weights_->tensors[tensor].complete) ours += sums.tensors[tensor];
    }
    const Digest& expected = version.version().manifest->digest;
    if (version.complete() && all != expected) {
      return error(StatusCode::kMismatch, "its weights have digest ", to_hex(all),
                   ", the manifest says ", to_hex(expected),
                   ". Nothing was changed; publish another full version");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_fetched(*weights_, version, sums.tensors));
    if (weights_->summed) after_.digest = ours;
    sums_after_ = make_sums(*weights_, std::move(sums.maps));
    return {};
  }

  // Makes a part for each piece and each map that it meets, with room for old values. The counted
  // maps of a tensor share the room of the piece, because no unit is in two of them; other maps
  // have room in old_values_. If the memory measures the changes, the parts need no room.
  Status place_pieces() {
    const bool measured = weights_->memory->measures_parts();
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> room;  // per part: its place in old_values_, or none
    for (const DeltaPiece& piece : changes_->all_pieces()) {
      const MappedWeights::Tensor& tensor = weights_->tensors[piece.tensor];
      for (std::uint32_t m = tensor.first_map; m < tensor.first_map + tensor.maps; ++m) {
        ChangePart part = part_of(piece, weights_->maps[m]);
        if (part.count == 0) continue;
        const unsigned width = part.map->unit_bytes;
        part.key = &tensor.key;
        if (weights_->counted[m] && !measured) {
          part.old_values = piece.old_values + std::size_t{part.begin} * width;
        }
        room.push_back(bytes);
        if (part.old_values == nullptr && !measured) bytes += std::uint64_t{part.count} * width;
        parts_.push_back(part);
      }
    }
    old_values_.resize(bytes);
    for (std::size_t i = 0; i < parts_.size() && !measured; ++i) {
      if (parts_[i].old_values == nullptr) parts_[i].old_values = old_values_.data() + room[i];
    }
    units_ = changes_->units();
    DRIFTLESS_ASSIGN_OR_RETURN(placed_, weights_->memory->place(parts_, weights_->threads));
    return {};
  }

  // Computes the digest of what every map will hold, and from these the digest of the tensors that
  // are held whole and unconverted.
  Status sum_parts() {
    DRIFTLESS_ASSIGN_OR_RETURN(
        std::vector<Digest> after,
        driftless::sums_after(*weights_, sums_before_->maps, parts_, placed_->part_changes()));
    sums_after_ = make_sums(*weights_, std::move(after));
    if (!weights_->summed) return {};
    Digest change;
    for (std::size_t m = 0; m < weights_->maps.size(); ++m) {
      if (weights_->in_share[m]) change += sums_after_->maps[m] - sums_before_->maps[m];
    }
    return prove(std::span(&change, 1), false);
  }

  // The same for buckets, whose changes the memory has measured. Runs during the pause, so
  // everything is allocated beforehand. Each tensor has one map and one share.
  void add_measured(WeightSums& sums) const {
    for (const TensorDigest& each : placed_->measured_tensors()) {
      const MappedWeights::Tensor& tensor = weights_->tensors[each.tensor];
      sums.maps[tensor.first_map] += each.digest;
      sums.shares.tensors[tensor.share].digest += each.digest;
    }
  }

  // The digests that the tensors will have, for messages.
  [[nodiscard]] std::vector<TensorShare> shares_after() const {
    if (!measured_) return sums_after_->shares.tensors;
    WeightSums found = *measured_;
    add_measured(found);
    return found.shares.tensors;
  }

  // See DigestGoals::prove().
  Status prove(std::span<const Digest> changes, bool written) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        const Digest reached,
        goals_.prove(before_.digest, changes, written, [this] { return shares_after(); }));
    if (weights_->summed && changes.size() == goals_.size()) after_.digest = reached;
    return {};
  }

  // Calls the writer first, since it can fail.
  Status write_all() {
    if (external_) DRIFTLESS_RETURN_IF_ERROR(weights_->writer->commit().with_context(source_));
    touched_ = true;
    return write();
  }

  Status write() {
    const Result<std::optional<PartFault>> written = placed_->write();
    if (!written.ok()) return written.status().with_context(source_);
    if (*written) return name_fault(**written);
    DRIFTLESS_RETURN_IF_ERROR(prove(placed_->measured(), true));
    if (measured_) {
      add_measured(*measured_);
      sums_after_ = measured_;
    }
    // A dense write touched every unit: read all weights back.
    swept_ = dense_ || weights_->proof.always;
    if (!swept_) return {};
    return check_sums(*weights_, *sums_after_)
        .with_context(concat(source_, ": read back after the commit"));
  }

  // The state stays invalid until everything is restored. A writer whose commit failed is undone,
  // too.
  Status take_back() {
    weights_->state.valid = false;
    if (touched_) DRIFTLESS_RETURN_IF_ERROR(placed_->take_back());
    if (external_) DRIFTLESS_RETURN_IF_ERROR(weights_->writer->undo());
    weights_->state = before_;
    weights_->sums = sums_before_;
    return {};
  }

  // Restores, then reads all weights: the fault may be older than this commit, or may not have been
  // restored.
  Status take_back_and_look() {
    DRIFTLESS_RETURN_IF_ERROR(take_back());
    weights_->state.valid = false;
    if (sums_before_) DRIFTLESS_RETURN_IF_ERROR(check_sums(*weights_, *sums_before_));
    if (!sums_before_ && foreign_) {
      return error(StatusCode::kMismatch, "other code wrote into them after it was staged");
    }
    weights_->state = before_;
    return {};
  }

  Status name_fault(const PartFault& fault) {
    foreign_ = !fault.written;
    const ChangePart& part = parts_[fault.part];
    const std::string place = name_of(*weights_, *part.map);
    if (fault.written) {
      return error(StatusCode::kMismatch, source_, ": ", place,
                   " does not hold what was written into it: other code writes into the weights, "
                   "or the memory is bad. All was undone");
    }
    return error(StatusCode::kMismatch, source_, ": ", place,
                 " is not what it was when the change was staged: other code writes into the "
                 "weights. All was undone; send a full version");
  }

  std::shared_ptr<MappedWeights> weights_;
  std::string source_;  // for messages
  TargetState before_, after_;
  std::shared_ptr<const WeightSums> sums_before_, sums_after_;
  std::shared_ptr<WeightSums> measured_;  // for buckets: sums_before_; write() updates it
  std::set<std::uint32_t> tensors_;       // the changed ones
  DigestGoals goals_;
  bool full_ = false;                       // it is a full version
  bool external_ = false;                   // the writer has staged its part
  std::shared_ptr<TensorChanges> changes_;  // null if buckets are applied in place
  std::vector<ChangePart> parts_;
  std::vector<std::byte> old_values_;  // of parts whose map is not counted
  std::unique_ptr<PlacedChanges> placed_;
  std::uint64_t units_ = 0;
  bool touched_ = false;    // writing through the maps has begun
  bool foreign_ = false;    // a unit to be written had another value than expected
  bool dense_ = false;      // all units are written, changed or not
  bool swept_ = false;      // all weights were read after writing
  bool used_ = false;       // commit() was called
  bool committed_ = false;  // ... and not undone
};

Status check_rule(const MappedWeights& weights, const std::vector<VersionSource>& versions) {
  for (const VersionSource& each : versions) {
    const std::string& rule = each.version().manifest->quantize_rule;
    if (weights.only_rule.empty() || rule == weights.only_rule) continue;
    return error(StatusCode::kUnsupported, each.version().path, ": is quantized by ",
                 rule.empty() ? "a rule that it does not name" : concat("the rule ", rule),
                 ", and this engine keeps codes and scales of ", weights.only_rule,
                 " only. Nothing was changed; publish with quantize.rule: ", weights.only_rule,
                 ", or start the engine with kernels that accept any rule");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_update(std::shared_ptr<MappedWeights> weights,
                                                   std::vector<VersionSource> versions,
                                                   bool in_place, StageAhead* ahead) {
  DRIFTLESS_RETURN_IF_ERROR(check_rule(*weights, versions));
  auto update = std::make_unique<StagedUpdate>(std::move(weights), versions);
  DRIFTLESS_RETURN_IF_ERROR(update->fill(std::move(versions), in_place, ahead));
  return std::unique_ptr<StagedChange>(std::move(update));
}

}  // namespace driftless
