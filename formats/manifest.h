// SPDX-License-Identifier: Apache-2.0
// The manifest of a version: its identity, its base, its parts, and the digest of the weights after
// it. In a directory it is manifest.json beside the payload, and the DONE marker beside it holds
// the manifest's xxh3-128. Roads without files carry the same text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/status.h"
#include "core/version.h"
#include "formats/checksum.h"
#include "formats/encoding.h"

namespace driftless {

inline constexpr std::uint64_t kManifestFormat = 1;
inline constexpr std::uint64_t kMaxManifestBytes = 256ULL << 20;

// The form of the payload: files for engines (hf_delta, flush); frames (frame.h) in files or
// windows; or frames as datasets of one HDF5 file.
enum class DirectoryLayout : unsigned char { kHfDelta, kFlush, kFrames, kHdf5 };
// "hf_delta", "flush", "frames", "hdf5"
[[nodiscard]] std::string_view to_string(DirectoryLayout layout);
[[nodiscard]] Result<DirectoryLayout> parse_directory_layout(std::string_view name);

// A part: a file, a dataset of version.h5, or another object of a road.
struct ManifestFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  Hash128 hash;               // xxh3-128 of its bytes
  std::uint32_t rank = 0;     // of the publisher that wrote it; below `ranks`
  std::uint64_t locator = 0;  // where the road stores it; has a meaning for the road only
  // For a frame: the xxh3-128 of its table, as in its trailer. Together with the blocks' hashes in
  // the table it proves ranges fetched from the frame. Without it only the whole frame can be
  // proven.
  std::optional<Hash128> table = {};
  // For a frame on an agent's road: blocks that no worker needed were not fetched, and are zeros.
  bool partial = false;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// A changed tensor; in a full version, any tensor.
struct ManifestTensor {
  std::string name;
  // The checksum of all new bytes, hexadecimal. Empty if the layout stores none, or stores it
  // elsewhere (hf_delta: in the shards).
  std::string checksum = {};
  std::optional<Digest> digest = {};  // of all elements after the version

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct Manifest {
  VersionId id;
  std::uint64_t base_version = 0;
  DirectoryLayout directory_layout = DirectoryLayout::kHfDelta;
  Encoding encoding = Encoding::kXor;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  Hash128 layout;           // signature of the weight layout
  Digest base_digest;       // of all weights before the version
  Digest digest;            // of all weights after it
  std::uint32_t ranks = 1;  // publisher ranks
  std::uint64_t changed_tensors = 0;
  std::uint64_t changed_units = 0;
  std::uint64_t total_units = 0;
  std::uint64_t full_bytes = 0;  // of all weights
  // payload_of(*this). In manifests of older releases: the bytes of the changes before compression.
  std::uint64_t payload_bytes = 0;
  std::vector<ManifestFile> files;  // all parts (without manifest.json and DONE), sorted by name
  // Sorted by name. Either all have a digest or none. If they have, tensors that are not listed are
  // unchanged; a full version lists all tensors, and their digests add up to the version's.
  std::vector<ManifestTensor> tensors;
  // The rule by which the weights were quantized (core/quantize_rule.h); empty: they were not.
  std::string quantize_rule = {};
  std::map<std::string, double> timings_ms;  // informative
  std::string created;                       // informative: UTC, ISO 8601

  friend bool operator==(const Manifest&, const Manifest&) = default;

  // Whether the manifest gives the digest of every tensor after the version: the tensor is listed
  // with it, or is unchanged.
  [[nodiscard]] bool has_tensor_digests() const {
    return tensors.empty() ? changed_tensors == 0 && encoding != Encoding::kFull
                           : tensors.front().digest.has_value();
  }
};

// The number of bytes in parts that hold changes or weights (frames, flush files, shards), as the
// road stores them. Excludes index, configuration and tokenizer.
[[nodiscard]] std::uint64_t payload_of(const Manifest& manifest);

[[nodiscard]] std::string manifest_to_json(const Manifest& manifest);
// Checks every field, and ignores unknown keys. kUnsupported for a newer format. The base must be
// below the version; only a full version (an anchor) may have itself as base.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, std::string_view what);

}  // namespace driftless
