// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/mapped_target.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "core/environment.h"
#include "core/parallel.h"
#include "formats/checkpoint.h"
#include "plugin/targets/frame_heads.h"
#include "plugin/targets/held_copies.h"
#include "plugin/targets/stage_ahead.h"
#include "plugin/targets/weight_sums.h"

namespace driftless {
namespace {

constexpr std::uint64_t kTensorAlignment = 256;
constexpr std::size_t kNamesShown = 3;                         // in a message
constexpr std::uint64_t kLoadBytes = std::uint64_t{16} << 20;  // per task

Result<std::shared_ptr<MappedWeights>> map_weights(MappedParts parts,
                                                   const MappedOptions& options) {
  auto weights = std::make_shared<MappedWeights>();
  weights->threads = options.threads == 0 ? default_threads() : options.threads;
  weights->rank = options.rank;
  DRIFTLESS_RETURN_IF_ERROR(weights->fill(std::move(parts)));
  weights->summed = weights->proven || options.digest_of_held;
  weights->state.partial = !weights->proven && (options.initial && !options.initial_digest);
  if (options.digest_of_held) {
    DRIFTLESS_RETURN_IF_ERROR(weights->check_summed());
    weights->state.partial = !weights->proven;
  }
  if (options.initial) {
    weights->state.id = *options.initial;
    weights->state.digest = options.initial_digest.value_or(Digest());
    DRIFTLESS_RETURN_IF_ERROR(weights->sum_state());
    if (options.initial_digest && weights->state.digest != *options.initial_digest) {
      return error(StatusCode::kMismatch, "the module's weights have digest ",
                   to_hex(weights->state.digest), ", expected ", to_hex(*options.initial_digest),
                   ": they were changed after the checkpoint was loaded; load it again");
    }
    weights->state.valid = true;
  }
  return weights;
}

MappedOptions contiguous_options(std::optional<VersionId> initial, unsigned threads) {
  MappedOptions options;
  options.initial = initial;
  options.threads = threads;
  options.digest_of_held = true;
  return options;
}

Result<std::shared_ptr<MappedWeights>> map_contiguous(const WeightLayout& layout,
                                                      const std::vector<std::byte*>& data,
                                                      const MappedOptions& options,
                                                      std::shared_ptr<WeightMemory> memory) {
  if (data.size() != layout.size()) {
    return error(StatusCode::kInvalidArgument, data.size(), " tensors in memory, the layout has ",
                 layout.size());
  }
  MappedParts parts;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    const std::uint64_t units = layout[tensor].units();
    if (data[tensor] == nullptr || units == 0) continue;
    WeightMap map;
    map.tensor = tensor;
    map.data = data[tensor];
    map.unit_bytes = unit_bytes(layout[tensor].dtype);
    map.map = StridedMap::whole(units);
    if (memory->kind() == MemoryKind::kDevice &&
        reinterpret_cast<std::uintptr_t>(map.data) % map.unit_bytes != 0) {
      return error(StatusCode::kInvalidArgument, "tensor '", layout[tensor].name,
                   "' lies at an address that is not a multiple of its ", map.unit_bytes, " bytes");
    }
    parts.maps.push_back(std::move(map));
  }
  parts.layout = layout;
  parts.memory = std::move(memory);
  return map_weights(std::move(parts), options);
}

// Copies a checkpoint into contiguous tensors.
Status load_weights(const Checkpoint& from, const std::vector<std::byte*>& to, WeightMemory& memory,
                    unsigned threads) {
  struct Stretch {
    WeightMap map;  // maps the bytes onto themselves
    std::size_t tensor = 0;
    std::uint64_t offset = 0, size = 0;
  };
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::uint64_t bytes = from.layout()[i].size_bytes;
    if (bytes == 0) continue;
    Stretch each{{}, i, 0, 0};
    each.map.map = StridedMap::whole(bytes);
    each.map.data = to[i];
    for (; each.offset < bytes; each.offset += each.size) {
      each.size = std::min(kLoadBytes, bytes - each.offset);
      stretches.push_back(each);
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(
      stretches.size(), memory.threads(threads), [&](std::size_t task, unsigned) -> Status {
        const Stretch& each = stretches[task];
        const WeightMap* const map = &each.map;
        const Status status =
            memory.write(std::span(&map, 1), each.offset, each.size,
                         from.tensor(each.tensor).data + each.offset, MemoryKind::kHost);
        from.forget(each.tensor, each.offset, each.size);
        return status;
      }));
  return memory.finish();
}

// The parts of `weights` that belong to the tensors of `kept`, a subset of its tensors.
MappedParts parts_of(const MappedWeights& weights, const WeightLayout& kept) {
  MappedParts parts;
  parts.layout = kept;
  parts.writer = weights.writer;
  parts.memory = weights.memory;
  parts.only_rule = weights.only_rule;
  for (std::uint32_t tensor = 0; tensor < kept.size(); ++tensor) {
    const std::uint32_t old = *weights.layout.find(kept[tensor].name);
    const MappedWeights::Tensor& mapped = weights.tensors[old];
    for (const WeightMap* map : weights.maps_of(old, false)) {
      parts.maps.push_back(*map);
      parts.maps.back().tensor = tensor;
    }
    if (mapped.external) parts.external.push_back(tensor);
    if (!mapped.why_refused.empty()) parts.refused.emplace_back(tensor, mapped.why_refused);
  }
  return parts;
}

}  // namespace

// The state behind the public methods. Any thread may call weights().
class MappedTarget::Held {
 public:
  explicit Held(std::shared_ptr<MappedWeights> weights, MappedOptions options)
      : memory_(weights->memory),
        threads_(weights->threads),
        options_(std::move(options)),
        weights_(std::move(weights)) {
    // A later version may differ from the base in any tensor.
    if (options_.initial && options_.initial->version > 0) note_all_taken();
  }
  // Without weights: allocate() makes them once the layout is known.
  Held(std::shared_ptr<WeightMemory> memory, unsigned threads)
      : memory_(std::move(memory)), threads_(threads) {}

  Status load(const Checkpoint& base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte*> data, allocate(base.layout()));
    DRIFTLESS_RETURN_IF_ERROR(load_weights(base, data, *memory_, threads_));
    options_ = contiguous_options(VersionId{}, threads_);
    return take(map_contiguous(base.layout(), data, options_, memory_));
  }

 private:
  friend class MappedTarget;

  void note_all_taken() {
    for (const TensorSpec& tensor : weights_->layout.tensors()) taken_.insert(tensor.name);
  }
  // Ok if `next` has every tensor that a version of the old run may have changed: a full version of
  // the new run then replaces them all.
  [[nodiscard]] Status check_covers(const MappedWeights& weights, const WeightLayout& next) const {
    std::string names;
    std::size_t count = 0;
    for (const std::string& name : taken_) {
      if (next.find(name)) continue;
      if (count++ < kNamesShown) names += concat(names.empty() ? "'" : ", '", name, "'");
    }
    if (count == 0) return {};
    return error(StatusCode::kWrongLayout, "the weights took tensors from run ",
                 to_hex(weights.state.id.run), " that no version of this run replaces: ", names,
                 count > kNamesShown ? concat(" and ", count - kNamesShown, " more") : "",
                 "; restart the engine");
  }
  // Follows the tensors of `next` from now on, which all lie here. The target then holds no
  // version.
  Status change_layout(const MappedWeights& weights, const WeightLayout& next) {
    const MappedWeights& all = whole_ ? *whole_ : weights;
    DRIFTLESS_RETURN_IF_ERROR(all.layout.check_has(next, "the weights in memory", "the run"));
    MappedOptions options = options_;
    options.initial.reset();
    options.initial_digest.reset();
    options.initial_tensors.clear();
    std::vector<LeftTensor> left = left_by(weights, next);
    const std::shared_ptr<MappedWeights> before = this->weights();
    DRIFTLESS_RETURN_IF_ERROR(take(map_weights(parts_of(all, next), options)));
    left_alone_ = std::move(left);
    if (!whole_) whole_ = before;
    options_ = std::move(options);
    return {};
  }
  // The tensors that lie here and that a run with layout `next` does not publish.
  [[nodiscard]] std::vector<LeftTensor> left_by(const MappedWeights& weights,
                                                const WeightLayout& next) const {
    std::vector<LeftTensor> left;
    for (const LeftTensor& each : left_alone_) {
      if (!next.find(each.name)) left.push_back(each);
    }
    for (std::uint32_t tensor = 0; tensor < weights.layout.size(); ++tensor) {
      const std::string& name = weights.layout[tensor].name;
      if (!next.find(name)) left.push_back({name, digest_of(weights, tensor)});
    }
    return left;
  }
  [[nodiscard]] std::shared_ptr<MappedWeights> weights() const {
    const std::scoped_lock lock(mutex_);
    return weights_;
  }
  // Replaces the current weights.
  Status take(Result<std::shared_ptr<MappedWeights>> weights) {
    DRIFTLESS_RETURN_IF_ERROR(weights.status());
    const std::scoped_lock lock(mutex_);
    if (weights_) weights_->replaced = true;
    weights_.swap(*weights);  // destroyed after the lock is released: their writer may call back
    return {};
  }

  static bool in_share(const MappedWeights* weights) {
    return weights != nullptr && weights->state.valid && weights->sums;
  }
  Result<Shares> sweep(MappedWeights* weights) {
    if (!in_share(weights)) {
      return error(StatusCode::kWrongBase,
                   "the weights hold no version that they could be compared with; send a full one");
    }
    if (Status status = check_sums(*weights, *weights->sums); !status.ok()) {
      weights->state.valid = weights->state.valid && status.code() != StatusCode::kMismatch;
      return status;
    }
    swept_ = weights->state.id.version;
    return weights->sums->shares;
  }

  // Follows the tensors of `kept` from now on. A base may hold more tensors than the run publishes:
  // the others are left alone.
  Status keep_only(const WeightLayout& kept) {
    const auto weights = this->weights();
    const WeightLayout& layout = weights->layout;
    const TargetState& state = weights->state;
    const bool base = state.valid && state.id.run.is_zero();
    const bool countable = weights->summed || options_.initial_tensors.size() == layout.size();
    if (layout.signature() == kept.signature() || !base || !countable) {
      return layout.check_same(kept, "the weights in memory", "the run");
    }
    DRIFTLESS_RETURN_IF_ERROR(layout.check_has(kept, "the weights in memory", "the run"));
    if (options_.initial_digest && options_.initial_tensors.size() != layout.size()) {
      return error(StatusCode::kInvalidArgument, "the run publishes ", kept.size(), " of the ",
                   layout.size(), " tensors in memory, and initial_digest is that of all ",
                   layout.size(), " together: pass the digest of each tensor as well ",
                   "(initial_tensors; digests= in Python)");
    }
    MappedOptions options = options_;
    options.initial_tensors.clear();
    std::vector<LeftTensor> left;
    Digest digest;
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      if (!kept.find(layout[tensor].name)) {
        left.push_back({layout[tensor].name, digest_of(*weights, tensor)});
      } else if (!options_.initial_tensors.empty()) {
        digest += options_.initial_tensors[tensor];
        options.initial_tensors.push_back(options_.initial_tensors[tensor]);
      }
    }
    if (options.initial_digest) options.initial_digest = digest;
    DRIFTLESS_RETURN_IF_ERROR(take(map_weights(parts_of(*weights, kept), options)));
    whole_ = weights;
    options_ = std::move(options);
    left_alone_ = std::move(left);
    return {};
  }

  // The digest of one tensor when the weights were opened: from the caller, or from its own bits.
  [[nodiscard]] std::optional<Digest> digest_of(const MappedWeights& weights,
                                                std::uint32_t tensor) const {
    if (!options_.initial_tensors.empty()) return options_.initial_tensors[tensor];
    if (weights.layout[tensor].units() == 0) return Digest();
    const MappedWeights::Tensor& mapped = weights.tensors[tensor];
    if (!weights.sums || !mapped.complete || mapped.external) return std::nullopt;
    return weights.sums->shares.tensors[mapped.share].digest;
  }

  Result<std::vector<std::byte*>> allocate(const WeightLayout& layout) {
    std::vector<std::uint64_t> offsets;
    std::uint64_t size = kTensorAlignment;  // never empty
    for (const TensorSpec& tensor : layout.tensors()) {
      offsets.push_back(size);
      const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - kTensorAlignment;
      if (tensor.size_bytes > most - size) {
        return error(StatusCode::kNoSpace, "no memory holds ", layout.total_bytes(),
                     " bytes of weights");
      }
      size += (tensor.size_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(slab_, memory_->allocate(size));
    std::vector<std::byte*> tensors;
    for (const std::uint64_t offset : offsets) tensors.push_back(slab_.get() + offset);
    return tensors;
  }

  // Whether staging these versions begins with a sweep (ProofRule). A full version needs none: it
  // is compared with all weights, or replaces them.
  [[nodiscard]] bool sweep_is_due(const MappedWeights& weights, const Manifest& first,
                                  const Manifest& last) const {
    if (!weights.state.valid || first.encoding == Encoding::kFull) return false;
    if (proof_.always || proof_.every == 0) return false;
    const std::uint64_t next = last.id.version;
    return proof_.every == 1 || next < swept_ || next - swept_ >= proof_.every;
  }

  // Sweeps. If the engine moved its tensors meanwhile, fails with the writer's error instead of the
  // mismatch: the weights may be right.
  [[nodiscard]] Status sweep_unmoved(MappedWeights& weights) {
    Status swept = sweep(&weights).status();
    if (swept.code() != StatusCode::kMismatch || !weights.writer) return swept;
    Status moved = weights.writer->check(false);
    if (moved.ok()) return swept;
    weights.state.valid = true;
    return moved;
  }
  static Status check_tensor(const MappedWeights* weights, std::size_t tensor) {
    if (weights != nullptr && tensor < weights->tensors.size()) return {};
    return error(StatusCode::kInvalidArgument, "the weights have no tensor ", tensor);
  }

  // The bytes of a contiguous tensor; empty for others.
  static std::span<const std::byte> contiguous(const MappedWeights* weights, std::size_t tensor) {
    const auto number = static_cast<std::uint32_t>(tensor);
    if (weights == nullptr || tensor >= weights->tensors.size() ||
        !weights->tensors[tensor].contiguous) {
      return {};
    }
    return {weights->map_of(number).at(0), weights->layout[tensor].size_bytes};
  }
  // Whether the memory itself can decode the chain through maps of any kind: one positional
  // version. A writer also needs the version on the host.
  static bool decodes_mapped(const MappedWeights& weights,
                             const std::vector<FetchedVersion>& chain) {
    if (chain.size() != 1 || !info(chain.front().manifest.encoding).positional) return false;
    const bool external = std::ranges::any_of(weights.tensors, &MappedWeights::Tensor::external);
    return !external || std::ranges::all_of(chain.front().parts, [](const MappedFile& part) {
      return part.memory_kind() == MemoryKind::kHost;
    });
  }
  // Whether the memory decodes the versions itself. In contiguous tensors it measures the later
  // versions of a chain only while it writes them. Nothing but the expected digest then shows that
  // other code wrote into the weights, so a chain needs weights whose digest is known.
  static bool applies_in_place(const MappedWeights& weights,
                               const std::vector<FetchedVersion>& chain) {
    if (weights.memory->buckets() == nullptr) return false;
    if (!weights.contiguous) return decodes_mapped(weights, chain);
    const bool known = weights.summed && !weights.state.partial;
    return (known || chain.size() == 1) &&
           std::all_of(chain.begin(), chain.end(), [](const FetchedVersion& each) {
             return info(each.manifest.encoding).positional ||
                    each.manifest.encoding == Encoding::kFull;
           });
  }

  std::shared_ptr<WeightMemory> memory_;
  unsigned threads_;
  MappedOptions options_;  // of the current weights
  ProofRule proof_;
  std::vector<LeftTensor> left_alone_;
  std::shared_ptr<MappedWeights> whole_;    // with the tensors that are now left alone, or null
  std::set<std::string> taken_;             // tensors that a version changed, or may have changed
  Hash128 admitted_;                        // the run that may take over the weights; zero: none
  std::set<Hash128> left_;                  // runs whose weights another run took over
  std::uint64_t swept_ = 0;                 // the version at the last sweep
  std::shared_ptr<std::byte> slab_;         // of all tensors, if allocated here
  mutable std::mutex mutex_;                // guards the next one
  std::shared_ptr<MappedWeights> weights_;  // null until there is a layout
};

MappedTarget::MappedTarget(std::unique_ptr<Held> held) : held_(std::move(held)) {}
MappedTarget::~MappedTarget() = default;

const WeightLayout* MappedTarget::layout() const {
  const auto weights = held_->weights();
  return weights ? &weights->layout : nullptr;
}
Status MappedTarget::adopt_layout(const WeightLayout& layout) {
  if (held_->weights()) return held_->keep_only(layout);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte*> data, held_->allocate(layout));
  held_->options_ = contiguous_options(std::nullopt, held_->threads_);
  return held_->take(map_contiguous(layout, data, held_->options_, held_->memory_));
}
Status MappedTarget::admit(const Hash128& run, const WeightLayout& layout) {
  const auto weights = held_->weights();
  if (!weights) return adopt_layout(layout);
  if (held_->left_.contains(run)) {
    return error(
        StatusCode::kWrongRun, "run ", to_hex(run),
        " was replaced by another run before, and is not accepted again here; restart the engine");
  }
  DRIFTLESS_RETURN_IF_ERROR(held_->check_covers(*weights, layout));
  if (weights->layout.signature() != layout.signature()) {
    DRIFTLESS_RETURN_IF_ERROR(held_->change_layout(*weights, layout));
  }
  held_->left_.insert(weights->state.id.run);
  held_->admitted_ = run;
  return {};
}
std::vector<std::string> MappedTarget::left_alone() const {
  std::vector<std::string> names;
  for (const LeftTensor& each : held_->left_alone_) names.push_back(each.name);
  return names;
}
std::vector<LeftTensor> MappedTarget::left_tensors() const { return held_->left_alone_; }
std::shared_ptr<const TargetNeeds> MappedTarget::needs() const {
  const auto weights = held_->weights();
  return weights ? needs_of(weights) : nullptr;
}
std::uint64_t MappedTarget::readable_units(std::uint32_t tensor) const {
  const auto weights = held_->weights();
  const MappedWeights::Tensor& mapped = weights->tensors[tensor];
  if (mapped.complete) return weights->layout[tensor].units();
  if (mapped.external || mapped.converted || mapped.maps == 0) return 0;
  return weights->no_shares.tensors[mapped.share].units;
}
TargetState MappedTarget::state() const {
  const auto weights = held_->weights();
  if (!weights) return {};
  TargetState state = weights->state;
  if (state.partial && weights->summed && weights->sums) {
    state.tensors = {weights->sums, &weights->sums->shares.tensors};
  }
  return state;
}
bool MappedTarget::proven() const {
  const auto weights = held_->weights();
  return weights && weights->proven;
}
bool MappedTarget::proven_in_share() const { return Held::in_share(held_->weights().get()); }
Status MappedTarget::recover() { return {}; }  // a failed undo cannot be repaired here
void MappedTarget::set_proof(const ProofRule& rule) { held_->proof_ = rule; }

Result<Shares> MappedTarget::sweep() { return held_->sweep(held_->weights().get()); }
const Shares& MappedTarget::tracked() const {
  static const Shares nothing;
  const auto weights = held_->weights();
  if (!weights) return nothing;
  return weights->sums ? weights->sums->shares : weights->no_shares;
}
StagingMemory MappedTarget::staging_memory() const {
  const auto weights = held_->weights();
  return (weights ? weights->memory : held_->memory_)->staging_memory();
}
Result<LookedShares> MappedTarget::look() const {
  const auto weights = held_->weights();
  DRIFTLESS_RETURN_IF_ERROR(Held::check_tensor(weights.get(), 0));
  return look_at(*weights);
}
Result<BlockSums> MappedTarget::blocks(std::uint32_t tensor, std::uint64_t block_units) const {
  const auto weights = held_->weights();
  DRIFTLESS_RETURN_IF_ERROR(Held::check_tensor(weights.get(), tensor));
  return sum_blocks(*weights, tensor, block_units);
}
Result<std::vector<HeldCopy>> MappedTarget::copies(std::uint32_t tensor, std::uint64_t first,
                                                   std::uint64_t count) const {
  const auto weights = held_->weights();
  DRIFTLESS_RETURN_IF_ERROR(Held::check_tensor(weights.get(), tensor));
  return read_copies(*weights, tensor, first, count);
}

// Weights with a writer are not read ahead: the engine may move its tensors at any time during the
// fetch.
std::shared_ptr<StageAhead> MappedTarget::begin_stage(const Manifest& first, const Manifest& last) {
  const std::shared_ptr<MappedWeights> weights = held_->weights();
  if (!environment().has_threads() || !Held::in_share(weights.get()) || weights->writer ||
      weights->memory->kind() != MemoryKind::kHost || first.encoding == Encoding::kFull) {
    return nullptr;
  }
  return std::make_shared<StageAhead>(weights, held_->sweep_is_due(*weights, first, last));
}

ArrivalMemory* MappedTarget::arrivals(const Manifest& version) {
  const std::shared_ptr<MappedWeights> weights = held_->weights();
  if (!weights || weights->memory->buckets() == nullptr) return nullptr;
  const bool full = version.encoding == Encoding::kFull;
  const bool plain =
      version.encoding == Encoding::kIndices || version.encoding == Encoding::kDeltas;
  const bool external = std::ranges::any_of(weights->tensors, &MappedWeights::Tensor::external);
  // The versions for which applies_in_place() is true, if their parts are in the GPU's memory.
  const bool used = weights->contiguous ? plain || full : plain && !external;
  return used ? weights->memory->arrivals() : nullptr;
}

Result<std::unique_ptr<StagedChange>> MappedTarget::stage(std::vector<FetchedVersion> chain) {
  const std::shared_ptr<MappedWeights> weights = held_->weights();
  if (!weights) {
    return error(StatusCode::kInvalidArgument, "the weights have no layout yet; adopt the run's");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_chain(weights->state, weights->layout, chain, held_->admitted_));
  if (weights->writer) DRIFTLESS_RETURN_IF_ERROR(weights->writer->check(false));
  weights->proof = held_->proof_;
  const std::shared_ptr<StageAhead> ahead = std::move(chain.front().ahead);
  if (ahead) ahead->finish();
  if (held_->sweep_is_due(*weights, chain.front().manifest, chain.back().manifest)) {
    if (ahead && ahead->swept(*weights)) {
      held_->swept_ = weights->state.id.version;
    } else {
      DRIFTLESS_RETURN_IF_ERROR(held_->sweep_unmoved(*weights));
    }
  }
  const bool in_place = Held::applies_in_place(*weights, chain);
  FrameHeads heads;
  HeadReader head;
  if (weights->memory->kind() == MemoryKind::kDevice) {
    DRIFTLESS_ASSIGN_OR_RETURN(heads, fetch_heads(*weights->memory, in_place, chain));
    head = [&heads](const MappedFile& part) {
      return std::span<const std::byte>(heads.at(part.bytes().data()));
    };
  }
  for (const FetchedVersion& version : chain) {
    const bool there = std::ranges::any_of(version.frames, [](const std::shared_ptr<Frame>& frame) {
      return frame != nullptr && frame->memory() == MemoryKind::kDevice;
    });
    if (!there || in_place) continue;
    return error(StatusCode::kInternal, version.source,
                 ": its blocks are in the GPU's memory, where this target does not use them");
  }
  // Nothing is spooled: without a directory, compressed files are inflated in memory.
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<VersionSource> versions,
                             open_chain(posix_file_system(), std::move(chain), weights->layout, {},
                                        weights->threads, head));
  for (const std::uint32_t tensor : changed_tensors(versions)) {
    held_->taken_.insert(weights->layout[tensor].name);
  }
  return stage_update(weights, std::move(versions), in_place, ahead.get());
}

Status MappedTarget::read(std::size_t tensor, std::uint64_t byte_offset,
                          std::span<std::byte> out) const {
  const auto weights = held_->weights();
  const std::span<const std::byte> bytes = Held::contiguous(weights.get(), tensor);
  if (byte_offset > bytes.size() || out.size() > bytes.size() - byte_offset) {
    return error(StatusCode::kInvalidArgument, "tensor ", tensor, ": from byte ", byte_offset,
                 " on, ", out.size(), " bytes were requested; ", bytes.size(), " are here");
  }
  return out.empty() ? Status() : weights->memory->fetch(out, bytes.data() + byte_offset);
}
std::span<const std::byte> MappedTarget::tensor(std::size_t index) const {
  const auto weights = held_->weights();
  if (!weights || weights->memory->kind() != MemoryKind::kHost) return {};
  return Held::contiguous(weights.get(), index);
}
Status MappedTarget::replace(MappedParts parts, const MappedOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(held_->take(map_weights(std::move(parts), options)));
  held_->options_ = options;
  if (options.initial && options.initial->version > 0) held_->note_all_taken();
  held_->left_alone_.clear();
  held_->whole_.reset();  // it points to the old places
  return {};
}

Result<std::unique_ptr<MappedTarget>> make_mapped_target(MappedParts parts,
                                                         const MappedOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<MappedWeights> weights,
                             map_weights(std::move(parts), options));
  return std::make_unique<MappedTarget>(
      std::make_unique<MappedTarget::Held>(std::move(weights), options));
}

Result<std::unique_ptr<MappedTarget>> make_memory_target(const WeightLayout& layout,
                                                         const std::vector<std::byte*>& data,
                                                         std::optional<VersionId> initial,
                                                         unsigned threads,
                                                         std::shared_ptr<WeightMemory> memory) {
  const MappedOptions options = contiguous_options(initial, threads);
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::shared_ptr<MappedWeights> weights,
      map_contiguous(layout, data, options, memory ? std::move(memory) : make_host_memory()));
  return std::make_unique<MappedTarget>(
      std::make_unique<MappedTarget::Held>(std::move(weights), options));
}

Result<std::unique_ptr<MappedTarget>> make_owned_target(FileSystem& fs,
                                                        const std::optional<std::string>& base,
                                                        unsigned threads,
                                                        std::shared_ptr<WeightMemory> memory) {
  auto held = std::make_unique<MappedTarget::Held>(memory ? std::move(memory) : make_host_memory(),
                                                   threads == 0 ? default_threads() : threads);
  if (base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(fs, *base));
    DRIFTLESS_RETURN_IF_ERROR(held->load(checkpoint));
  }
  return std::make_unique<MappedTarget>(std::move(held));
}

}  // namespace driftless
