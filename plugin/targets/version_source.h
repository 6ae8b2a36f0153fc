// SPDX-License-Identifier: Apache-2.0
// The payload of a version, opened and checked against a weight layout: which tensors it changes,
// and for each what makes its new bytes. The same for a directory and for what came over a road.
#pragma once

#include "formats/flush_file.h"
#include "formats/frame.h"
#include "formats/tensor_patcher.h"
#include "formats/version_dir.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

struct TensorChange {
  std::uint32_t tensor = 0;         // index in the layout
  std::uint64_t payload_bytes = 0;  // of its encoded delta
  std::string checksum;             // of its new bytes, hexadecimal; empty if the version has none
};

// New bytes of a tensor from `byte_offset` on, verbatim.
struct DensePiece {
  std::uint64_t byte_offset = 0;
  std::span<const std::byte> bytes;
  MemoryKind memory = MemoryKind::kHost;
};

// A bucket as it came. In device memory its streams must not be followed here; its entries may.
struct SourceBucket {
  BucketView view;
  MemoryKind memory = MemoryKind::kHost;
  std::string name;  // of the part
};

// No honest frame of this layout has a longer body: every unit once with the widest position, and a
// row of the table for each of at most that many entries.
[[nodiscard]] std::uint64_t max_frame_body_bytes(const WeightLayout& layout);

// The front of a frame that lies in device memory (frame.h), valid as long as it is asked for.
// Called from several threads.
using FrontReader = std::function<std::span<const std::byte>(const MappedFile& frame)>;

// Holds the payload mapped. Immutable once open; patchers may be made and used from several
// threads, and must not outlive it. The layout outlives it.
class VersionSource {
 public:
  // Refuses a tensor that is unknown, is there twice (in two files, by two ranks), is listed but
  // missing or there but not listed, has another dtype or shape, or lacks the checksum it must
  // have; and a full version that does not hold every byte of every tensor once. Compressed flush
  // files are inflated into `spool_directory`, or, where that is empty, into memory.
  [[nodiscard]] static Result<VersionSource> open(FileSystem& fs, const VersionDirectory& version,
                                                  const WeightLayout& layout,
                                                  const std::string& spool_directory);
  // The same from payload that is there already: `parts` as version.payload_files. Frames must
  // belong to the version, and each rank's must be numbered from 0 without a gap. Plain frames may
  // lie in device memory where `front` is given; then there are no patchers. kUnsupported for other
  // parts there.
  [[nodiscard]] static Result<VersionSource> open(FileSystem& spool_fs, VersionDirectory version,
                                                  std::vector<MappedFile> parts,
                                                  const WeightLayout& layout,
                                                  const std::string& spool_directory,
                                                  unsigned threads, const FrontReader& front = {});

  [[nodiscard]] const VersionDirectory& version() const { return version_; }
  // Largest tensors first, so that parallel work ends together.
  [[nodiscard]] std::span<const TensorChange> changes() const { return changes_; }
  // Null if the version does not change the tensor.
  [[nodiscard]] const TensorChange* find(std::uint32_t tensor) const;
  [[nodiscard]] Result<std::unique_ptr<TensorPatcher>> patcher(const TensorChange& change) const;
  [[nodiscard]] std::uint64_t payload_bytes() const;

  // True: every change is pieces(); what lies between them stays.
  [[nodiscard]] bool positional() const { return info(version_.encoding).positional; }
  [[nodiscard]] std::span<const BucketPiece> pieces(const TensorChange& change) const;
  // Of a positional version: all of it, bucket by bucket.
  [[nodiscard]] std::vector<SourceBucket> buckets() const;
  // Of a full version: all of the tensor, ascending.
  [[nodiscard]] std::span<const DensePiece> dense(const TensorChange& change) const;

 private:
  VersionSource(VersionDirectory version, const WeightLayout& layout)
      : version_(std::move(version)), layout_(&layout) {}
  Status open_shards(std::vector<MappedFile> parts);
  Status add_shard(const std::string& name, const SafetensorsFile& shard);
  Status open_flushes(FileSystem& spool_fs, std::vector<MappedFile> parts,
                      const std::string& spool_directory);
  Status open_frames(std::vector<MappedFile> parts, unsigned threads, const FrontReader& front);
  [[nodiscard]] Result<Frame> open_frame(const MappedFile& part, const FrontReader& front) const;
  Status add_bucket(const std::string& name, const std::string& rank, const BucketView& bucket);
  Status add_runs(const std::string& name, const std::string& rank, const Frame& frame,
                  MemoryKind memory);
  Status claim(const std::string& name, const std::string& rank, std::uint32_t tensor);
  Status check_coverage();
  Status adopt_manifest_checksums();
  void order_changes();

  struct Payload {
    std::span<const std::byte> bytes;  // hf_delta
    std::vector<BucketPiece> pieces;   // flush, frames
    std::vector<DensePiece> dense;     // of a full version
    std::string source;                // the file, or the rank, it was first seen in
    std::size_t change = 0;            // index into changes_
  };
  VersionDirectory version_;
  const WeightLayout* layout_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::unique_ptr<FlushFile>> flushes_;
  std::vector<MappedFile> frame_bytes_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::map<std::uint32_t, Payload> payloads_;
  std::vector<TensorChange> changes_;
};

// The tensors that they change.
[[nodiscard]] std::set<std::uint32_t> changed_tensors(std::span<const VersionSource> versions);

// What targets do with fetched versions before they look at payloads: whether they follow from the
// target's state, and their payloads opened.

// Ok if `chain` is deltas that adjoin each other and the state, or one full version. kWrongRun,
// kWrongLayout, or kWrongBase naming the version and what it needs.
[[nodiscard]] Status check_chain(const TargetState& state, const WeightLayout& layout,
                                 std::span<const FetchedVersion> chain);

// The payloads, in order (VersionSource::open). The layout outlives them.
[[nodiscard]] Result<std::vector<VersionSource>> open_chain(
    FileSystem& spool_fs, std::vector<FetchedVersion> chain, const WeightLayout& layout,
    const std::string& spool_directory, unsigned threads, const FrontReader& front = {});

}  // namespace driftless
