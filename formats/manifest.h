// SPDX-License-Identifier: Apache-2.0
// The manifest of a version: what it is, what it takes, and what must hold after it. Written as
// manifest.json beside the payload; the DONE marker beside it holds its xxh3-128. Over roads
// without files it travels as it is.
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

// How the payload lies: files for engines (hf_delta, flush), frames (frame.h) in files or windows,
// frames as datasets of one HDF5 file.
enum class DirectoryLayout : unsigned char { kHfDelta, kFlush, kFrames, kHdf5 };
// "hf_delta", "flush", "frames", "hdf5"
[[nodiscard]] std::string_view to_string(DirectoryLayout layout);
[[nodiscard]] Result<DirectoryLayout> parse_directory_layout(std::string_view name);

// A part of the payload: a file, a dataset of version.h5, or what a road makes of it.
struct ManifestFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  Hash128 hash;               // xxh3-128 of its bytes
  std::uint32_t rank = 0;     // of the publisher that wrote it; below `ranks`
  std::uint64_t locator = 0;  // where it lies: the road's own
  // Of a frame: what its trailer says, the xxh3-128 of its table. It proves, by the blocks' hashes
  // in the table, what is fetched of the frame. Without it only the whole frame can be proven.
  std::optional<Hash128> table = {};
  // Of a frame on an agent's road: blocks that no worker needed were not fetched, and are zeros.
  bool partial = false;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// A changed tensor, or any of a full version.
struct ManifestTensor {
  std::string name;
  // Of all of its new bytes, hexadecimal. Empty if the layout has none, or has it elsewhere (in
  // hf_delta the shards).
  std::string checksum = {};
  std::optional<Digest> digest = {};  // of all of its elements after the version

  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

struct Manifest {
  VersionId id;
  std::uint64_t base_version = 0;
  DirectoryLayout directory_layout = DirectoryLayout::kHfDelta;
  Encoding encoding = Encoding::kXor;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  Hash128 layout;           // signature of the weight layout
  Digest base_digest;       // of all weights before
  Digest digest;            // and after
  std::uint32_t ranks = 1;  // publisher ranks
  std::uint64_t changed_tensors = 0;
  std::uint64_t changed_units = 0;
  std::uint64_t total_units = 0;
  std::uint64_t full_bytes = 0;     // of all weights
  std::uint64_t payload_bytes = 0;  // payload_of() it; older releases: changes before compression
  std::vector<ManifestFile> files;  // all parts (no manifest.json, no DONE), sorted by name
  // Sorted by name. All have a digest, or none has. If they have, those that are not listed are as
  // they were; of a full version all are listed, and together they have the version's digest.
  std::vector<ManifestTensor> tensors;
  // By which rule the weights were quantized (core/quantize_rule.h); empty: they were not.
  std::string quantize_rule = {};
  std::map<std::string, double> timings_ms;  // informative
  std::string created;                       // informative: UTC, ISO 8601

  friend bool operator==(const Manifest&, const Manifest&) = default;

  // Whether the digest of every tensor after the version follows from those before it.
  [[nodiscard]] bool has_tensor_digests() const {
    return tensors.empty() ? changed_tensors == 0 && encoding != Encoding::kFull
                           : tensors.front().digest.has_value();
  }
};

// The bytes of the parts that hold changes or weights: frames, flush files, shards, as they lie on
// the road. An index, configuration and tokenizer are not among them.
[[nodiscard]] std::uint64_t payload_of(const Manifest& manifest);

[[nodiscard]] std::string manifest_to_json(const Manifest& manifest);
// Checks every field; keys that it does not know are passed over. kUnsupported for a newer format.
// The base is below the version; only a full version (an anchor) may have itself as base.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text, std::string_view what);

}  // namespace driftless
