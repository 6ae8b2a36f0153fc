// SPDX-License-Identifier: Apache-2.0
// The payload of a version, opened and checked against a weight layout: the tensors that it
// changes, and the bytes that make up their new values. The payload comes from a version directory,
// or from parts that a road has fetched.
#pragma once

#include "formats/flush_file.h"
#include "formats/frame.h"
#include "formats/tensor_patcher.h"
#include "formats/version_dir.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

struct TensorChange {
  std::uint32_t tensor = 0;  // index in the layout
  std::string checksum;      // of its new bytes, hexadecimal; empty if not in the version
  std::optional<Digest> digest = std::nullopt;  // of the whole new tensor, if in the manifest
};

// New bytes of a tensor, verbatim. Without `cut` they begin at the tensor's byte `byte_offset`.
// With `cut` they belong to a block whose units do not adjoin in the tensor, and begin at the
// block's unit `first_unit`.
struct DensePiece {
  std::uint64_t byte_offset = 0;
  std::span<const std::byte> bytes;
  MemoryKind memory = MemoryKind::kHost;
  const BlockPlace* cut = nullptr;
  std::uint64_t first_unit = 0;

  // From byte `done` on, the longest stretch that adjoins in the tensor, as a piece without `cut`.
  [[nodiscard]] DensePiece stretch(std::uint64_t done, unsigned unit_bytes) const {
    if (cut == nullptr) return {byte_offset + done, bytes.subspan(done), memory};
    const std::uint64_t unit = first_unit + done / unit_bytes;
    const std::uint64_t left = (cut->run - unit % cut->run) * unit_bytes;
    const auto rest = bytes.subspan(done);
    return {cut->at(unit) * unit_bytes, rest.first(std::min<std::uint64_t>(left, rest.size())),
            memory};
  }
  // Calls use(piece) for each such stretch, ascending, until one fails.
  template <typename Use>
  [[nodiscard]] Status each_stretch(unsigned unit_bytes, const Use& use) const {
    for (std::uint64_t done = 0; done < bytes.size();) {
      const DensePiece next = stretch(done, unit_bytes);
      DRIFTLESS_RETURN_IF_ERROR(use(next));
      done += next.bytes.size();
    }
    return {};
  }
};

// A patcher that writes the pieces over the old bytes. They outlive it.
[[nodiscard]] std::unique_ptr<TensorPatcher> make_dense_patcher(const TensorSpec& tensor,
                                                                std::span<const DensePiece> pieces);

// A block that is coded relative to its old units, and the table that it is coded with.
struct CompactPiece {
  CompactBlock block;
  const CompactTable* table = nullptr;
};

// A bucket as it arrived. If it lies in device memory, do not dereference its streams on the host;
// its entries are on the host.
struct SourceBucket {
  BucketView view;
  MemoryKind memory = MemoryKind::kHost;
  std::string name;  // of the part
};

// The longest body of a valid frame of this layout: every unit once with the widest position, and
// the longest table that these units can have.
[[nodiscard]] std::uint64_t max_frame_body_bytes(const WeightLayout& layout);
// Call it before reading the parts. kMismatch, naming `source`, if the manifest lists more bytes
// than any valid version of this layout and encoding has. Such a manifest is damaged, and only
// another version helps.
[[nodiscard]] Status check_sizes(const Manifest& manifest, const WeightLayout& layout,
                                 std::string_view source);

// Returns the head of a frame that lies in device memory (frame.h). It stays valid as long as the
// reader. Called from several threads.
using HeadReader = std::function<std::span<const std::byte>(const MappedFile& frame)>;

// Keeps the payload mapped. Immutable once open; patchers may be made and used from several
// threads, and must not outlive it. The layout outlives it.
class VersionSource {
 public:
  // Opens a version directory. Compressed flush files are inflated into `spool_directory`, or into
  // memory if that is empty. Refuses
  //   a tensor that the layout does not have, or that has another dtype or shape;
  //   a tensor that two ranks, or two files of `hf_delta`, publish, except in blocks; blocks that
  //     overlap;
  //   a tensor that is listed but missing, or present but not listed, or that lacks a required
  //     checksum;
  //   a full version that lacks units of a tensor.
  [[nodiscard]] static Result<VersionSource> open(FileSystem& fs, const VersionDirectory& version,
                                                  const WeightLayout& layout,
                                                  const std::string& spool_directory);
  // Opens payload that was fetched. parts[i] is version.payload_files[i]; if frames[i] is there and
  // not null, it is used instead, and may lack blocks. Frames must belong to the version, and those
  // of each rank must be numbered from 0 without a gap. With `head`, frames may lie in device
  // memory, where patcher() cannot read them; other parts in device memory are refused
  // (kUnsupported). All `threads` hash and inflate the blocks of frames and flush files, into
  // `memory` (null: memory of their own). If several are damaged, the error names the first.
  [[nodiscard]] static Result<VersionSource> open(FileSystem& spool_fs, VersionDirectory version,
                                                  std::vector<MappedFile> parts,
                                                  std::vector<std::shared_ptr<Frame>> frames,
                                                  const WeightLayout& layout,
                                                  const std::string& spool_directory,
                                                  unsigned threads, const HeadReader& head = {},
                                                  KeptMemory* memory = nullptr);

  [[nodiscard]] const VersionDirectory& version() const { return version_; }
  // Largest tensors first, so that parallel work ends at about the same time.
  [[nodiscard]] std::span<const TensorChange> changes() const { return changes_; }
  // Null if the version does not change the tensor.
  [[nodiscard]] const TensorChange* find(std::uint32_t tensor) const;
  // Whether the whole change is here. A version of which only the needed blocks were fetched may
  // lack parts of it.
  [[nodiscard]] bool complete(const TensorChange& change) const;
  [[nodiscard]] bool complete() const { return complete_; }
  // Whether it has blocks of tensors, not only whole tensors.
  [[nodiscard]] bool cut() const { return cut_; }
  // For a change without compact() blocks: those need all old units of a block (version_fold.h).
  [[nodiscard]] Result<std::unique_ptr<TensorPatcher>> patcher(const TensorChange& change) const;
  // The size of all parts as they lie on the road (payload_of() of the manifest).
  [[nodiscard]] std::uint64_t payload_bytes() const { return payload_bytes_; }

  // True: every change is given by pieces(), and all other units stay.
  [[nodiscard]] bool positional() const { return info(version_.encoding).positional; }
  [[nodiscard]] std::span<const BucketPiece> pieces(const TensorChange& change) const;
  // For a version in `compact`: the coded blocks that are here. Changes of tensors that `compact`
  // cannot code are in pieces().
  [[nodiscard]] std::span<const CompactPiece> compact(const TensorChange& change) const;
  // Whether every change is in pieces() or compact().
  [[nodiscard]] bool has_positions() const {
    return positional() || version_.encoding == Encoding::kCompact;
  }
  // For a positional version: all its buckets.
  [[nodiscard]] std::vector<SourceBucket> buckets() const;
  // For a full version: the whole tensor; ascending, unless it was published in blocks.
  [[nodiscard]] std::span<const DensePiece> dense(const TensorChange& change) const;

 private:
  VersionSource(VersionDirectory version, const WeightLayout& layout)
      : version_(std::move(version)), layout_(&layout) {}
  Status open_shards(std::vector<MappedFile> parts);
  Status add_shard(const std::string& name, const SafetensorsFile& shard);
  Status open_flushes(FileSystem& spool_fs, std::vector<MappedFile> parts,
                      const std::string& spool_directory, unsigned threads, KeptMemory* memory);
  Status open_frames(std::vector<MappedFile> parts, std::vector<std::shared_ptr<Frame>> frames,
                     unsigned threads, const HeadReader& head, KeptMemory* memory);
  Status decode_frames(unsigned threads, const HeadReader& head, KeptMemory* memory);
  Status read_frames(std::span<const std::size_t> numbers, unsigned threads, KeptMemory* memory);
  [[nodiscard]] Result<Frame> open_frame(const MappedFile& part, const HeadReader& head) const;
  Status add_bucket(const std::string& name, const std::string& rank, const BucketView& bucket);
  Status add_compact(const std::string& name, const std::string& rank, const Frame& frame);
  Status add_runs(const std::string& name, const std::string& rank, const Frame& frame,
                  MemoryKind memory);
  // Notes the blocks that a frame lists but that were not fetched.
  Status add_others(const std::string& name, const std::string& rank, const Frame& frame);
  Status check_coverage();
  Status adopt_manifest_checksums();
  void order_changes();

  // A tensor or a block: which file or rank has it, and for a full version which units are there.
  struct Claim {
    TensorBox box;
    std::string source;  // the file or rank that has it
    std::uint64_t units = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;  // first unit, count
  };
  struct Payload {
    std::span<const std::byte> bytes;  // hf_delta
    std::vector<BucketPiece> pieces;   // flush, frames
    std::vector<CompactPiece> compact;
    std::vector<DensePiece> dense;  // for a full version
    std::vector<Claim> claims;
    bool complete = true;
    std::size_t change = 0;  // index into changes_
  };
  // Records that `source` has the block. No other source may have it.
  Result<Claim*> claim(const std::string& name, const std::string& source, std::uint32_t tensor,
                       const TensorBlock* block);
  [[nodiscard]] Status check_runs(const TensorSpec& tensor, Claim& claim) const;
  VersionDirectory version_;
  const WeightLayout* layout_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::unique_ptr<FlushFile>> flushes_;
  std::vector<MappedFile> frame_bytes_;
  std::vector<std::shared_ptr<Frame>> frames_;
  std::map<std::uint32_t, Payload> payloads_;
  std::vector<TensorChange> changes_;
  std::uint64_t payload_bytes_ = 0;
  bool complete_ = true;
  bool cut_ = false;
};

// The tensors that these versions change.
[[nodiscard]] std::set<std::uint32_t> changed_tensors(std::span<const VersionSource> versions);

// Targets check fetched versions in two steps: whether they follow from the target's state, then
// their payloads.

// Ok if `chain` is deltas that adjoin each other and the state, or one full version. kWrongRun,
// kWrongLayout, or kWrongBase, which names the version and the base that it needs. `admitted`:
// another run whose full version is accepted, too (WeightTarget::admit()).
[[nodiscard]] Status check_chain(const TargetState& state, const WeightLayout& layout,
                                 std::span<const FetchedVersion> chain,
                                 const Hash128& admitted = {});

// Opens the payloads, in order (VersionSource::open). The layout outlives them.
[[nodiscard]] Result<std::vector<VersionSource>> open_chain(
    FileSystem& spool_fs, std::vector<FetchedVersion> chain, const WeightLayout& layout,
    const std::string& spool_directory, unsigned threads, const HeadReader& head = {});

}  // namespace driftless
