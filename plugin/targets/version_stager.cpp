// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/version_stager.h"

#include <algorithm>
#include <atomic>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/version_fold.h"

namespace driftless {
namespace {

constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kFrameBytes = std::uint64_t{4} << 20;

// One version's contribution to a tensor.
struct TensorVersion {
  const VersionSource* source = nullptr;
  const TensorChange* change = nullptr;
  std::unique_ptr<TensorPatcher> patcher;
  Checksum checksum;
  bool coded = false;  // folded from a chain with blocks of `compact`
};

// Applies changes that are decoded already.
class ChangesPatcher final : public TensorPatcher {
 public:
  ChangesPatcher(const TensorSpec& tensor, UnitChanges changes)
      : TensorPatcher(tensor), width_(unit_bytes(tensor.dtype)), changes_(std::move(changes)) {}

 private:
  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    const std::uint64_t end = (byte_offset + chunk.size()) / width_;
    for (; at_ < changes_.positions.size() && changes_.positions[at_] < end; ++at_) {
      std::copy_n(changes_.values.data() + at_ * width_, width_,
                  chunk.data() + (changes_.positions[at_] * width_ - byte_offset));
    }
    return {};
  }

  unsigned width_;
  UnitChanges changes_;
  std::size_t at_ = 0;
};

// The state of one thread, kept from tensor to tensor.
class Stager {
 public:
  Stager(const WeightView& weights, std::span<const VersionSource> chain,
         const StageOptions& options, const FrameSink& sink)
      : weights_(weights),
        chain_(chain),
        options_(options),
        sink_(sink),
        builder_(*weights.layout, Encoding::kDeltas),
        chunk_(kChunkBytes),
        old_chunk_(kChunkBytes),
        offsets_(kChunkBytes + kDiffSlackUnits),
        new_values_(kChunkBytes + kDiffSlackUnits * std::uint64_t{8}),
        old_values_(kChunkBytes) {}

  Status stage(std::uint32_t index, std::atomic<std::uint64_t>& done, std::uint64_t total) {
    const TensorSpec& tensor = (*weights_.layout)[index];
    const bool whole = weights_.held(index) == HeldShare::kAll;
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<TensorVersion> versions, open_versions(index));
    const std::uint64_t units_before = staged_.changed_units;
    const bool coded = whole && !versions.empty() && versions.back().coded;
    Digest digest;  // of the new bytes
    for (std::uint64_t at = 0; at < tensor.size_bytes; at += kChunkBytes) {
      const std::uint64_t size = std::min(kChunkBytes, tensor.size_bytes - at);
      const std::span<std::byte> chunk(chunk_.data(), size);
      DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const old_bytes,
                                 weights_.bytes(index, at, {old_chunk_.data(), size}));
      std::copy_n(old_bytes, size, chunk.data());
      for (TensorVersion& each : versions) {
        DRIFTLESS_RETURN_IF_ERROR(named(each.patcher->patch(at, chunk), each));
        if (whole && !each.change->checksum.empty()) each.checksum.update(chunk);
      }
      if (coded || chain_.back().version().full()) {
        digest += host_kernels().digest(digest_tensor_key(tensor.name), at, chunk);
      }
      DRIFTLESS_RETURN_IF_ERROR(record(index, at, old_bytes, chunk));
      if (weights_.forget) weights_.forget(index, at, size);
      const std::uint64_t so_far = done += size;
      if (options_.progress) options_.progress(so_far, total);
    }
    for (TensorVersion& each : versions) {
      DRIFTLESS_RETURN_IF_ERROR(named(each.patcher->finish(), each));
      if (whole) DRIFTLESS_RETURN_IF_ERROR(check(each, tensor));
    }
    if (coded) DRIFTLESS_RETURN_IF_ERROR(check_digest(versions.back(), tensor, digest));
    if (chain_.back().version().full()) staged_.new_digest += digest;
    staged_.touched_bytes += tensor.size_bytes;
    if (staged_.changed_units != units_before) ++staged_.changed_tensors;
    return {};
  }

  Status flush() {
    if (builder_.empty()) return {};
    const VersionDirectory& last = chain_.back().version();
    FrameContext context;
    context.id.version = last.version;
    context.id.run = last.manifest ? last.manifest->id.run : Hash128();
    context.base_version = chain_.front().version().base_version;
    context.layout = weights_.layout->signature();
    context.encoding = Encoding::kDeltas;
    frame_.clear();
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(context, builder_.view(), frame_));
    builder_.clear();
    return sink_(frame_);
  }

  [[nodiscard]] const StagedVersion& staged() const { return staged_; }

 private:
  Result<std::vector<TensorVersion>> open_versions(std::uint32_t tensor) const {
    std::vector<TensorVersion> versions;
    if (is_coded(tensor)) {
      DRIFTLESS_ASSIGN_OR_RETURN(TensorVersion all, fold_versions(tensor));
      versions.push_back(std::move(all));
      return versions;
    }
    for (const VersionSource& source : chain_) {
      const TensorChange* const change = source.find(tensor);
      if (change == nullptr) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<TensorPatcher> patcher, source.patcher(*change));
      versions.push_back(
          {&source, change, std::move(patcher), Checksum(source.version().checksum), false});
    }
    return versions;
  }

  [[nodiscard]] bool is_coded(std::uint32_t tensor) const {
    return std::any_of(chain_.begin(), chain_.end(), [&](const VersionSource& source) {
      const TensorChange* const change = source.find(tensor);
      return change != nullptr && !source.compact(*change).empty();
    });
  }

  // Folds a chain in which some versions change the tensor in `compact`. These versions have no
  // checksums of tensors.
  Result<TensorVersion> fold_versions(std::uint32_t tensor) const {
    const TensorSpec& spec = (*weights_.layout)[tensor];
    const unsigned width = unit_bytes(spec.dtype);
    const OldUnits old_units = [&](std::uint32_t which, std::uint64_t first, std::uint64_t count,
                                   std::byte* scratch) {
      return weights_.bytes(which, first * width, {scratch, count * width});
    };
    DRIFTLESS_ASSIGN_OR_RETURN(auto folded, fold_chain(*weights_.layout, chain_, old_units,
                                                       {std::span(&tensor, 1), nullptr, 1}));
    const VersionSource* last = nullptr;
    for (const VersionSource& source : chain_) {
      if (source.find(tensor) != nullptr) last = &source;
    }
    return TensorVersion{last, last->find(tensor),
                         std::make_unique<ChangesPatcher>(spec, std::move(folded[tensor])),
                         Checksum(last->version().checksum), true};
  }

  // Names the version that failed, if the chain has several.
  [[nodiscard]] Status named(const Status& status, const TensorVersion& each) const {
    return chain_.size() == 1 ? status : status.with_context(each.source->version().path);
  }

  // Adds the difference between the old bytes at `at` and `chunk` to the digest and to a frame.
  Status record(std::uint32_t index, std::uint64_t at, const std::byte* old_bytes,
                std::span<const std::byte> chunk) {
    const HostKernels& kernels = host_kernels();
    const TensorSpec& tensor = (*weights_.layout)[index];
    const unsigned width = unit_bytes(tensor.dtype);
    const std::uint32_t count =
        kernels.diff(old_bytes, chunk.data(), static_cast<std::uint32_t>(chunk.size() / width),
                     width, offsets_.data(), new_values_.data(), old_values_.data());
    if (count == 0) return {};
    staged_.changed_units += count;
    staged_.digest_change +=
        kernels.digest_change(digest_tensor_key(tensor.name), width, at / width, offsets_.data(),
                              count, old_values_.data(), new_values_.data());
    const DeltaView delta{index, width, at / width, {offsets_.data(), count}, new_values_.data()};
    if (!builder_.accepts(delta) || builder_.size_bytes() >= kFrameBytes) {
      DRIFTLESS_RETURN_IF_ERROR(flush());
    }
    return builder_.add(delta);
  }

  Status check(const TensorVersion& each, const TensorSpec& tensor) const {
    if (each.change->checksum.empty()) return {};
    const std::string found = each.checksum.hex();
    if (found == each.change->checksum) return {};
    const VersionDirectory& version = each.source->version();
    return error(
        StatusCode::kMismatch, "tensor '", tensor.name, "' would have ",
        to_string(version.checksum), " ", found, " after version ", version.version, ", but ",
        version.path, " says ", each.change->checksum, ": ", weights_.name,
        " does not hold version ", chain_.front().version().base_version,
        ", or the delta is damaged. Nothing was changed; restore the checkpoint's base, or "
        "fetch the version again");
  }

  // Compares the digest of the whole tensor. The digest of the changes alone does not reveal an old
  // unit that was already wrong: the new one is wrong by the same amount.
  Status check_digest(const TensorVersion& each, const TensorSpec& tensor,
                      const Digest& found) const {
    if (!each.change->digest || found == *each.change->digest) return {};
    const VersionDirectory& version = each.source->version();
    return error(StatusCode::kMismatch, "tensor '", tensor.name, "' would have digest ",
                 to_hex(found), " after version ", version.version, ", but ", version.path,
                 " says ", to_hex(*each.change->digest), ": ", weights_.name,
                 " does not hold version ", chain_.front().version().base_version,
                 ", or the trainer wrote the tensor without capture() between two sweeps "
                 "(capture.sweep_every). Nothing was changed; restore the weights, or take a full "
                 "version");
  }

  const WeightView& weights_;
  std::span<const VersionSource> chain_;
  const StageOptions& options_;
  const FrameSink& sink_;
  BucketBuilder builder_;
  std::vector<std::byte> chunk_, old_chunk_;
  std::vector<std::uint32_t> offsets_;
  std::vector<std::byte> new_values_;
  std::vector<std::byte> old_values_;
  std::vector<std::byte> frame_;
  StagedVersion staged_;
};

// The held tensors that any version of the chain changes, the largest first.
std::vector<std::uint32_t> touched_tensors(const WeightView& weights,
                                           std::span<const VersionSource> chain) {
  std::vector<std::uint32_t> tensors;
  for (const VersionSource& source : chain) {
    for (const TensorChange& change : source.changes()) {
      if (weights.held(change.tensor) != HeldShare::kNothing ||
          (*weights.layout)[change.tensor].size_bytes == 0) {
        tensors.push_back(change.tensor);
      }
    }
  }
  const auto size = [&weights](std::uint32_t tensor) {
    return (*weights.layout)[tensor].size_bytes;
  };
  std::sort(tensors.begin(), tensors.end(), [&size](std::uint32_t a, std::uint32_t b) {
    return size(a) != size(b) ? size(a) > size(b) : a < b;
  });
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  return tensors;
}

}  // namespace

WeightView view_of(const Checkpoint& checkpoint) {
  WeightView view;
  view.name = checkpoint.path();
  view.layout = &checkpoint.layout();
  view.held = [](std::size_t) { return HeldShare::kAll; };
  view.bytes = [&checkpoint](std::size_t tensor, std::uint64_t offset, std::span<std::byte>) {
    return Result<const std::byte*>(checkpoint.tensor(tensor).data + offset);
  };
  view.forget = [&checkpoint](std::size_t tensor, std::uint64_t offset, std::uint64_t size) {
    checkpoint.forget(tensor, offset, size);
  };
  return view;
}

Result<StagedVersion> stage_version(const WeightView& weights, std::span<const VersionSource> chain,
                                    const StageOptions& options, const FrameSink& sink) {
  if (chain.empty()) return error(StatusCode::kInvalidArgument, "a chain without versions");
  const std::string where = chain.size() == 1 ? chain.front().version().path : weights.name;
  const std::vector<std::uint32_t> tensors = touched_tensors(weights, chain);
  std::uint64_t total = 0;
  for (const std::uint32_t tensor : tensors) total += (*weights.layout)[tensor].size_bytes;
  std::vector<std::unique_ptr<Stager>> stagers(std::max(1U, options.threads));
  std::atomic<std::uint64_t> done = 0;
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(
      tensors.size(), options.threads, [&](std::size_t task, unsigned worker) -> Status {
        std::unique_ptr<Stager>& stager = stagers[worker];
        if (!stager) stager = std::make_unique<Stager>(weights, chain, options, sink);
        return stager->stage(tensors[task], done, total)
            .with_context(concat(where, ": tensor '", (*weights.layout)[tensors[task]].name, "'"));
      }));
  StagedVersion all;
  for (const std::unique_ptr<Stager>& stager : stagers) {
    if (!stager) continue;
    DRIFTLESS_RETURN_IF_ERROR(stager->flush());
    all.changed_tensors += stager->staged().changed_tensors;
    all.changed_units += stager->staged().changed_units;
    all.touched_bytes += stager->staged().touched_bytes;
    all.digest_change += stager->staged().digest_change;
    all.new_digest += stager->staged().new_digest;
  }
  return all;
}

}  // namespace driftless
