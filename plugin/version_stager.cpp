#include "plugin/version_stager.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/parallel.h"
#include "formats/bucket.h"
#include "formats/frame.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

// What one thread needs, kept from tensor to tensor.
class Stager {
 public:
  Stager(const Checkpoint& checkpoint, const VersionDirectory& version, const VersionSource& source,
         const StageOptions& options, const FrameSink& sink)
      : checkpoint_(checkpoint),
        version_(version),
        source_(source),
        options_(options),
        sink_(sink),
        builder_(checkpoint.layout(), Encoding::kDeltas),
        chunk_(kChunkBytes),
        offsets_(kChunkBytes + kDiffSlackUnits),
        new_values_(kChunkBytes + kDiffSlackUnits * std::uint64_t{8}),
        old_values_(kChunkBytes) {}

  Status stage(const TensorChange& change, std::atomic<std::uint64_t>& done, std::uint64_t total) {
    const TensorView tensor = checkpoint_.tensor(change.tensor);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<TensorPatcher> patcher,
                               source_.patcher(change));
    Checksum checksum(version_.checksum);
    const std::uint64_t units_before = staged_.changed_units;
    for (std::uint64_t at = 0; at < tensor.spec->size_bytes; at += kChunkBytes) {
      const std::uint64_t size = std::min(kChunkBytes, tensor.spec->size_bytes - at);
      const std::span<std::byte> chunk(chunk_.data(), size);
      std::copy_n(tensor.data + at, size, chunk.data());
      DRIFTLESS_RETURN_IF_ERROR(patcher->patch(at, chunk));
      if (!change.checksum.empty()) checksum.update(chunk);
      DRIFTLESS_RETURN_IF_ERROR(record(change.tensor, tensor, at, chunk));
      checkpoint_.forget(change.tensor, at, size);
      const std::uint64_t so_far = done += size;
      if (options_.progress) options_.progress(so_far, total);
    }
    DRIFTLESS_RETURN_IF_ERROR(patcher->finish());
    staged_.touched_bytes += tensor.spec->size_bytes;
    if (staged_.changed_units != units_before) ++staged_.changed_tensors;
    return check(change, *tensor.spec, checksum);
  }

  Status flush() {
    if (builder_.empty()) return {};
    FrameContext context;
    context.id.version = version_.version;
    context.id.run = version_.manifest ? version_.manifest->id.run : Hash128();
    context.base_version = version_.base_version;
    context.layout = checkpoint_.layout().signature();
    context.encoding = Encoding::kDeltas;
    frame_.clear();
    DRIFTLESS_RETURN_IF_ERROR(encode_frame(context, builder_.view(), frame_));
    builder_.clear();
    return sink_(frame_);
  }

  [[nodiscard]] const StagedVersion& staged() const { return staged_; }

 private:
  // What differs between the old bytes at `at` and `chunk`: into the digest and into a frame.
  Status record(std::uint32_t index, const TensorView& tensor, std::uint64_t at,
                std::span<const std::byte> chunk) {
    const HostKernels& kernels = host_kernels();
    const unsigned width = unit_bytes(tensor.spec->dtype);
    const std::byte* const old_bytes = tensor.data + at;
    const std::uint32_t count =
        kernels.diff(old_bytes, chunk.data(), static_cast<std::uint32_t>(chunk.size() / width),
                     width, offsets_.data(), new_values_.data());
    if (count == 0) return {};
    kernels.gather(old_bytes, width, offsets_.data(), count, old_values_.data());
    staged_.changed_units += count;
    staged_.digest_change +=
        kernels.digest_change(digest_tensor_key(tensor.spec->name), width, at / width,
                              offsets_.data(), count, old_values_.data(), new_values_.data());
    if (!sink_) return {};
    const DeltaView delta{index, width, at / width, {offsets_.data(), count}, new_values_.data()};
    if (!builder_.accepts(delta) || builder_.size_bytes() >= options_.frame_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(flush());
    }
    return builder_.add(delta);
  }

  Status check(const TensorChange& change, const TensorSpec& tensor, const Checksum& checksum) {
    if (change.checksum.empty()) return {};
    const std::string found = checksum.hex();
    if (found == change.checksum) return {};
    return error(
        StatusCode::kMismatch, "tensor '", tensor.name, "' would have ",
        to_string(version_.checksum), " ", found, " after version ", version_.version, ", but ",
        version_.path, " says ", change.checksum, ": ", checkpoint_.path(),
        " does not hold version ", version_.base_version,
        ", or the delta is damaged. Nothing was changed; restore the checkpoint's base, or "
        "fetch the version again");
  }

  const Checkpoint& checkpoint_;
  const VersionDirectory& version_;
  const VersionSource& source_;
  const StageOptions& options_;
  const FrameSink& sink_;
  BucketBuilder builder_;
  std::vector<std::byte> chunk_;
  std::vector<std::uint32_t> offsets_;
  std::vector<std::byte> new_values_;
  std::vector<std::byte> old_values_;
  std::vector<std::byte> frame_;
  StagedVersion staged_;
};

}  // namespace

Result<StagedVersion> stage_version(const Checkpoint& checkpoint, const VersionDirectory& version,
                                    const VersionSource& source, const StageOptions& options,
                                    const FrameSink& sink) {
  const std::span<const TensorChange> changes = source.changes();
  std::uint64_t total = 0;
  for (const TensorChange& change : changes) total += checkpoint.layout()[change.tensor].size_bytes;
  std::vector<std::unique_ptr<Stager>> stagers(std::max(1U, options.threads));
  std::atomic<std::uint64_t> done = 0;
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(
      changes.size(), options.threads, [&](std::size_t task, unsigned worker) -> Status {
        std::unique_ptr<Stager>& stager = stagers[worker];
        if (!stager) {
          stager = std::make_unique<Stager>(checkpoint, version, source, options, sink);
        }
        const std::string& name = checkpoint.layout()[changes[task].tensor].name;
        return stager->stage(changes[task], done, total)
            .with_context(concat(version.path, ": tensor '", name, "'"));
      }));
  StagedVersion all;
  for (const std::unique_ptr<Stager>& stager : stagers) {
    if (!stager) continue;
    if (sink) DRIFTLESS_RETURN_IF_ERROR(stager->flush());
    all.changed_tensors += stager->staged().changed_tensors;
    all.changed_units += stager->staged().changed_units;
    all.touched_bytes += stager->staged().touched_bytes;
    all.digest_change += stager->staged().digest_change;
  }
  return all;
}

}  // namespace driftless
