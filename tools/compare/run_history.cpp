// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/run_history.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "core/counted.h"
#include "plugin/checkpoint/journal.h"
#include "plugin/checkpoint/verify.h"
#include "plugin/targets/version_fold.h"
#include "plugin/targets/version_stager.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {
namespace {

using ChangesByTensor = std::map<std::uint32_t, UnitChanges>;

// The weights of one version, in host memory.
class ReplayWeights {
 public:
  explicit ReplayWeights(const WeightLayout& layout) : layout_(&layout) {}

  [[nodiscard]] bool at(std::uint64_t version) const { return valid_ && version_ == version; }
  [[nodiscard]] bool valid() const { return valid_; }
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] const Digest& digest() const { return digest_; }
  [[nodiscard]] std::span<std::byte> tensor(std::uint32_t index) { return bytes_[index]; }
  void invalidate() { valid_ = false; }

  void load(const Checkpoint& base, std::uint64_t version, unsigned threads) {
    bytes_.resize(layout_->size());
    for (std::uint32_t i = 0; i < layout_->size(); ++i) {
      const auto from = base.tensor(i).bytes();
      bytes_[i].assign(from.begin(), from.end());
      base.forget(i, 0, from.size());
    }
    adopt(version, sum(threads));
  }

  // Loads all weights of a full version, which is checked against its manifest.
  Status load(const VersionSource& source, unsigned threads) {
    valid_ = false;
    bytes_.resize(layout_->size());
    for (const TensorChange& change : source.changes()) {
      const TensorSpec& spec = (*layout_)[change.tensor];
      bytes_[change.tensor].resize(spec.size_bytes);
      DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<TensorPatcher> patcher,
                                 source.patcher(change));
      DRIFTLESS_RETURN_IF_ERROR(patcher->patch(0, bytes_[change.tensor]));
      DRIFTLESS_RETURN_IF_ERROR(patcher->finish());
    }
    const Digest found = sum(threads);
    DRIFTLESS_RETURN_IF_ERROR(check(source, found));
    adopt(source.version().version, found);
    return {};
  }

  // Decodes and proves a version's changes. The weights stay as they are.
  Result<ChangesByTensor> decode(const VersionSource& source, unsigned threads) {
    std::mutex mutex;
    ChangesByTensor changes;
    const auto take = [&](std::span<const std::byte> bytes) -> Status {
      DRIFTLESS_ASSIGN_OR_RETURN(const Frame frame,
                                 Frame::decode(bytes, *layout_, max_frame_body_bytes(*layout_)));
      const BucketView bucket = frame.bucket();
      const std::scoped_lock lock(mutex);
      for (const BucketEntry& entry : bucket.entries) {
        DRIFTLESS_RETURN_IF_ERROR(append({bucket, entry}, changes[entry.tensor]));
      }
      return {};
    };
    DRIFTLESS_ASSIGN_OR_RETURN(const StagedVersion staged,
                               stage_version(view(), {&source, 1}, {threads, {}}, take));
    const Digest found =
        source.version().full() ? staged.new_digest : digest_ + staged.digest_change;
    DRIFTLESS_RETURN_IF_ERROR(check(source, found));
    for (auto& [tensor, units] : changes) sort_changes(units, unit_bytes((*layout_)[tensor].dtype));
    next_digest_ = found;
    return changes;
  }
  // Call it once the changes of the decoded version are written: that version becomes the present
  // one.
  void step(std::uint64_t version) { adopt(version, next_digest_); }

 private:
  void adopt(std::uint64_t version, const Digest& digest) {
    version_ = version;
    digest_ = digest;
    valid_ = true;
  }

  Status append(const BucketPiece& piece, UnitChanges& to) const {
    return walk_pieces(*layout_, piece.entry.tensor, {&piece, 1}, [&to](const DeltaView& delta) {
      for (const std::uint32_t offset : delta.offsets)
        to.positions.push_back(delta.origin + offset);
      const auto values = delta.value_bytes();
      to.values.insert(to.values.end(), values.begin(), values.end());
    });
  }

  [[nodiscard]] Digest sum(unsigned threads) const {
    Digest all;
    for (std::uint32_t i = 0; i < layout_->size(); ++i) {
      all +=
          digest_tensor(host_kernels(), digest_tensor_key((*layout_)[i].name), bytes_[i], threads);
    }
    return all;
  }

  static Status check(const VersionSource& source, const Digest& found) {
    const auto& manifest = source.version().manifest;
    if (!manifest || manifest->digest == found) return {};
    return error(StatusCode::kMismatch, source.version().path, ": the weights would have digest ",
                 to_hex(found), ", the manifest has ", to_hex(manifest->digest));
  }

  WeightView view() {
    WeightView view;
    view.name = "the replayed weights";
    view.layout = layout_;
    view.held = [](std::size_t) { return HeldShare::kAll; };
    view.bytes = [this](std::size_t tensor, std::uint64_t offset, std::span<std::byte>) {
      return Result<const std::byte*>(bytes_[tensor].data() + offset);
    };
    return view;
  }

  const WeightLayout* layout_;
  std::vector<std::vector<std::byte>> bytes_;
  bool valid_ = false;
  std::uint64_t version_ = 0;
  Digest digest_, next_digest_;
};

// A range of a tensor's changes that fits into one DeltaView.
struct ChangeStretch {
  std::uint64_t origin = 0;
  std::vector<std::uint32_t> offsets;
  std::size_t first = 0;  // index of its first change
};

std::vector<ChangeStretch> stretches_of(const UnitChanges& changes) {
  constexpr std::size_t kMostUnits = std::size_t{1} << 20;
  constexpr std::uint64_t kReach = 0xffff'0000;
  std::vector<ChangeStretch> all;
  for (std::size_t i = 0; i < changes.positions.size(); ++i) {
    const std::uint64_t position = changes.positions[i];
    if (all.empty() || all.back().offsets.size() == kMostUnits ||
        position - all.back().origin >= kReach) {
      all.push_back({position, {}, i});
    }
    all.back().offsets.push_back(static_cast<std::uint32_t>(position - all.back().origin));
  }
  return all;
}

class HistoryReader {
 public:
  HistoryReader(FileSystem& fs, RunSource& source, const HistoryOptions& options)
      : fs_(fs), source_(source), options_(options) {}

  Result<RunHistory> read() {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed, source_.list());
    if (listed.empty()) return error(StatusCode::kNotFound, "there are no versions");
    DRIFTLESS_RETURN_IF_ERROR(open_layout());
    for (std::size_t i = 0; i < listed.size(); ++i) {
      if (const Status status = add(listed[i]); !status.ok()) {
        history_.left_out.push_back({listed[i], status});
        if (is_version(listed[i]) && weights_) weights_->invalidate();
      }
      const std::uint64_t weights = std::max<std::uint64_t>(1, history_.total_bytes);
      if (options_.progress) options_.progress((i + 1) * weights, listed.size() * weights);
    }
    if (history_.versions.empty() && history_.anchors == 0) {
      return history_.left_out.front().why.with_context(
          concat("of ", counted(listed.size(), "version"),
                 " none can be read: ", to_string(history_.left_out.front().id)));
    }
    finish();
    return std::move(history_);
  }

 private:
  // Reads the layout from the announcement, or from the base.
  Status open_layout() {
    if (const auto& run = source_.run()) {
      layout_ = run->layout;
      history_.run = to_hex(run->run);
    }
    if (!options_.base.empty()) DRIFTLESS_RETURN_IF_ERROR(open_base());
    if (!layout_) {
      history_.notes.push_back(
          "The directory has no run.json, which lists the tensors: without --base the report shows "
          "only what the manifests contain.");
      return {};
    }
    if (!weights_) weights_.emplace(*layout_);
    for (const TensorSpec& spec : layout_->tensors()) {
      ++group_named(history_.layers, place_of_tensor(spec.name).layer).tensors;
    }
    std::ranges::sort(history_.layers, natural_less, &DensityGroup::name);
    for (const TensorSpec& spec : layout_->tensors()) {
      DensityGroup& layer = group_named(history_.layers, place_of_tensor(spec.name).layer);
      layer_of_.push_back(static_cast<std::uint32_t>(&layer - history_.layers.data()));
      layer.total_units += spec.units();
      changed_.push_back({spec.name, 1, 0, 0, spec.units()});
    }
    history_.total_units = layout_->total_units();
    history_.total_bytes = layout_->total_bytes();
    return {};
  }

  Status open_base() {
    DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs_, options_.base));
    DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint base, Checkpoint::open(fs_, options_.base));
    DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs_, options_.base));
    DRIFTLESS_RETURN_IF_ERROR(leave_others(state, base));
    if (layout_) DRIFTLESS_RETURN_IF_ERROR(base.keep_only(*layout_));
    if (!layout_) layout_ = base.layout();
    weights_.emplace(*layout_);
    weights_->load(base, state.version, options_.threads);
    const auto& run = source_.run();
    if (run && !state.run.is_zero() && state.run != run->run) {
      return error(StatusCode::kWrongRun, options_.base, ": is version ", state.version, " of run ",
                   to_hex(state.run), ", not of run ", history_.run);
    }
    if (run && state.version == 0 && weights_->digest() != run->base_digest) {
      return error(StatusCode::kWrongBase, options_.base, ": its digest is ",
                   to_hex(weights_->digest()), ", the base of run ", history_.run, " has ",
                   to_hex(run->base_digest));
    }
    return {};
  }

  Status add(const PublicationId& id) {
    DRIFTLESS_ASSIGN_OR_RETURN(FoundVersion found, source_.describe(id));
    if (history_.run.empty() && found.manifest) history_.run = to_hex(found.manifest->id.run);
    if (!is_version(id)) {
      ++history_.anchors;
      return add_anchor(found);
    }
    HistoryVersion& version = history_.versions.emplace_back();
    version.found = std::move(found);
    if (const auto& manifest = version.found.manifest) {
      version.changed_units = manifest->changed_units;
      version.payload_bytes = payload_of(*manifest);
      if (history_.total_units == 0) history_.total_units = manifest->total_units;
      if (history_.total_bytes == 0) history_.total_bytes = manifest->full_bytes;
    }
    if (!layout_) return {};
    return decode(version);
  }

  // Starts the weights, or replaces them, with an anchor.
  Status add_anchor(const FoundVersion& found) {
    if (!layout_ || (weights_->valid() && weights_->version() >= found.id.version)) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const VersionSource source, source_.open(found, *layout_));
    return weights_->load(source, options_.threads);
  }

  Status check_layout(const FoundVersion& found) const {
    if (!found.manifest || found.manifest->layout == layout_->signature()) return {};
    return error(StatusCode::kWrongLayout, to_string(found.id), ": made for weight layout ",
                 to_hex(found.manifest->layout), ", the base has ", to_hex(layout_->signature()));
  }

  Status decode(HistoryVersion& version) {
    DRIFTLESS_RETURN_IF_ERROR(check_layout(version.found));
    DRIFTLESS_ASSIGN_OR_RETURN(const VersionSource source, source_.open(version.found, *layout_));
    if (!version.found.manifest) version.payload_bytes = source.payload_bytes();
    const bool follows = weights_->at(version.found.base_version);
    if (follows) {
      DRIFTLESS_ASSIGN_OR_RETURN(const ChangesByTensor changes,
                                 weights_->decode(source, options_.threads));
      DRIFTLESS_RETURN_IF_ERROR(record(version, changes, ""));
      weights_->step(version.found.id.version);
      version.replayed = true;
      return {};
    }
    if (version.found.full()) return weights_->load(source, options_.threads);
    const std::string why = weights_->valid()
                                ? concat("it builds on version ", version.found.base_version,
                                         ", and the replay is at version ", weights_->version())
                                : std::string("its base is missing: name it with --base");
    weights_->invalidate();
    return count_undecoded(version, source, why);
  }

  // Counts what is known about a version without the weights before it.
  Status count_undecoded(HistoryVersion& version, const VersionSource& source,
                         const std::string& why) {
    if (source.positional()) {
      std::vector<std::uint32_t> tensors;
      for (const TensorChange& change : source.changes()) tensors.push_back(change.tensor);
      std::ranges::sort(tensors);
      const OldUnits none = [](std::uint32_t, std::uint64_t, std::uint64_t,
                               std::byte*) -> Result<const std::byte*> {
        return error(StatusCode::kInternal, "no old values");
      };
      DRIFTLESS_ASSIGN_OR_RETURN(const ChangesByTensor changes,
                                 fold_chain(*layout_, {&source, 1}, none, {tensors}));
      return record(version, changes, concat("old values are not known: ", why));
    }
    if (version.found.encoding == Encoding::kCompact) {
      version.by_layer.resize(history_.layers.size());
      for (const TensorChange& change : source.changes()) {
        std::uint64_t units = 0;
        for (const CompactPiece& piece : source.compact(change)) units += piece.block.changes;
        for (const BucketPiece& piece : source.pieces(change)) units += piece.entry.count();
        note(version, change.tensor, units);
      }
    }
    return error(StatusCode::kWrongBase, to_string(version.found.id), ": not decoded: ", why);
  }

  void note(HistoryVersion& version, std::uint32_t tensor, std::uint64_t units) {
    version.by_layer[layer_of_[tensor]] += units;
    history_.layers[layer_of_[tensor]].changed_units += units;
    changed_[tensor].changed_units += units;
    changed_[tensor].changed_tensors += units > 0 ? 1 : 0;
  }

  // Counts the changes and their costs, and writes them into the weights if their old values are
  // known.
  Status record(HistoryVersion& version, const ChangesByTensor& changes,
                std::string no_old_values) {
    CostOptions options;
    options.id = {version.found.manifest ? version.found.manifest->id.run : Hash128(),
                  version.found.id.version};
    options.base_version = version.found.base_version;
    options.buffer_bytes = options_.buffer_bytes;
    options.threads = options_.threads;
    options.no_old_values = std::move(no_old_values);
    EncodingCosts costs(*layout_, options);
    const bool replays = options.no_old_values.empty();
    std::vector<std::uint32_t> candidates;
    for (const auto& [tensor, units] : changes) candidates.push_back(tensor);
    if (replays) DRIFTLESS_RETURN_IF_ERROR(costs.begin_whole(candidates));
    version.by_layer.resize(history_.layers.size());
    version.changed_units = 0;
    for (const auto& [tensor, units] : changes) {
      version.changed_units += units.positions.size();
      note(version, tensor, units.positions.size());
      DRIFTLESS_RETURN_IF_ERROR(cost(tensor, units, replays, costs));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(version.costs, costs.finish());
    return {};
  }

  Status cost(std::uint32_t tensor, const UnitChanges& units, bool replays, EncodingCosts& costs) {
    const unsigned width = unit_bytes((*layout_)[tensor].dtype);
    std::vector<std::byte> before;
    std::byte* const weights = replays ? weights_->tensor(tensor).data() : nullptr;
    if (replays) {
      before.resize(units.values.size());
      for (std::size_t k = 0; k < units.positions.size(); ++k) {
        std::byte* const unit = weights + units.positions[k] * width;
        std::memcpy(before.data() + k * width, unit, width);
        std::memcpy(unit, units.values.data() + k * width, width);
      }
    }
    const TensorPair pair{tensor, width, (*layout_)[tensor].units(), nullptr, weights};
    const std::vector<ChangeStretch> stretches = stretches_of(units);
    std::vector<HfShardWriter::Changes> pieces;
    for (const ChangeStretch& each : stretches) {
      const DeltaView delta{tensor, width, each.origin, each.offsets,
                            units.values.data() + each.first * width};
      const std::byte* const old_values = replays ? before.data() + each.first * width : nullptr;
      DRIFTLESS_RETURN_IF_ERROR(
          costs.add({&pair, each.origin, each.offsets.back() + 1ULL, delta, old_values}));
      pieces.push_back({delta, old_values});
    }
    if (!replays || pieces.empty()) return {};
    const HfShardWriter::Tensor whole{tensor, {}, weights_->tensor(tensor), pieces};
    return costs.add_whole({&whole, 1});
  }

  void finish() {
    for (DensityGroup& tensor : changed_) {
      if (tensor.changed_units > 0) history_.tensors_changed.push_back(std::move(tensor));
    }
    std::ranges::stable_sort(history_.tensors_changed, std::greater<>(),
                             &DensityGroup::changed_units);
  }

  FileSystem& fs_;
  RunSource& source_;
  const HistoryOptions& options_;
  RunHistory history_;
  std::optional<WeightLayout> layout_;
  std::optional<ReplayWeights> weights_;
  std::vector<std::uint32_t> layer_of_;  // the layer of each tensor
  // By tensor; changed_tensors: number of versions that changed it.
  std::vector<DensityGroup> changed_;
};

}  // namespace

Result<RunHistory> read_history(FileSystem& fs, RunSource& source, const HistoryOptions& options) {
  return HistoryReader(fs, source, options).read();
}

}  // namespace driftless
