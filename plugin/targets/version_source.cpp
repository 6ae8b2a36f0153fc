// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/version_source.h"

#include <algorithm>

namespace driftless {
namespace {

Status unknown_tensor(const std::string& file, std::string_view tensor) {
  return error(StatusCode::kWrongLayout, file, ": tensor '", tensor,
               "' is not in the checkpoint; use the checkpoint that this run started from");
}

// A delta's payload is a row of bytes; a full version's tensor is the tensor itself.
Status check_entry(const std::string& file, const TensorSpec& entry, const TensorSpec& target,
                   bool full) {
  const bool fits = full ? entry.dtype == target.dtype && entry.shape == target.shape
                         : entry.dtype == DType::kU8 && entry.shape.size() == 1;
  if (fits) return {};
  return error(StatusCode::kWrongLayout, file, ": tensor '", entry.name, "' is ",
               info(entry.dtype).name, " ", entry.shape_string(), ", expected ",
               full ? concat(info(target.dtype).name, " ", target.shape_string())
                    : std::string("U8 [compressed length]"));
}

Result<MappedFile> inflate_in_memory(const MappedFile& file, const WeightLayout& layout) {
  const std::uint64_t max_bytes =
      8 + kMaxSafetensorsHeaderBytes + layout.total_bytes() + 8 * layout.total_units();
  Result<std::vector<std::byte>> content = zstd_decompress(file.bytes(), max_bytes);
  if (!content.ok()) return content.status().with_context(file.path());
  const auto held = std::make_shared<const std::vector<std::byte>>(std::move(*content));
  return MappedFile(file.path(), held, *held);
}

}  // namespace

Result<VersionSource> VersionSource::open(FileSystem& fs, const VersionDirectory& version,
                                          const WeightLayout& layout,
                                          const std::string& spool_directory) {
  DRIFTLESS_RETURN_IF_ERROR(check_has_files(version));
  std::vector<MappedFile> parts;
  for (const std::string& name : version.payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(MappedFile part, fs.map(join_path(version.path, name)));
    parts.push_back(std::move(part));
  }
  return open(fs, version, std::move(parts), layout, spool_directory, 1);
}

Result<VersionSource> VersionSource::open(FileSystem& spool_fs, VersionDirectory version,
                                          std::vector<MappedFile> parts, const WeightLayout& layout,
                                          const std::string& spool_directory, unsigned threads,
                                          const FrontReader& front) {
  const bool frames = version.directory_layout == DirectoryLayout::kFrames ||
                      version.directory_layout == DirectoryLayout::kHdf5;
  for (const MappedFile& part : parts) {
    if (part.memory_kind() == MemoryKind::kHost || (frames && front)) continue;
    return error(StatusCode::kUnsupported, join_path(version.path, part.path()),
                 ": lies in device memory, where only weights on the GPU and plain frames are of "
                 "use; let the road land on the host");
  }
  if (parts.size() != version.payload_files.size()) {
    return error(StatusCode::kInternal, version.path, ": ", parts.size(), " parts for ",
                 version.payload_files.size(), " names");
  }
  VersionSource source(std::move(version), layout);
  switch (source.version_.directory_layout) {
    case DirectoryLayout::kHfDelta:
      DRIFTLESS_RETURN_IF_ERROR(source.open_shards(std::move(parts)));
      break;
    case DirectoryLayout::kFlush:
      DRIFTLESS_RETURN_IF_ERROR(source.open_flushes(spool_fs, std::move(parts), spool_directory));
      break;
    case DirectoryLayout::kFrames:
    case DirectoryLayout::kHdf5:
      DRIFTLESS_RETURN_IF_ERROR(source.open_frames(std::move(parts), threads, front));
      break;
  }
  if (source.version_.full()) DRIFTLESS_RETURN_IF_ERROR(source.check_coverage());
  if (source.version_.directory_layout != DirectoryLayout::kHfDelta || source.version_.full()) {
    DRIFTLESS_RETURN_IF_ERROR(source.adopt_manifest_checksums());
  }
  source.order_changes();
  return source;
}

void VersionSource::order_changes() {
  std::sort(changes_.begin(), changes_.end(), [this](const TensorChange& a, const TensorChange& b) {
    const std::uint64_t a_bytes = (*layout_)[a.tensor].size_bytes;
    const std::uint64_t b_bytes = (*layout_)[b.tensor].size_bytes;
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.tensor < b.tensor;
  });
  for (std::size_t i = 0; i < changes_.size(); ++i) payloads_[changes_[i].tensor].change = i;
}

Status VersionSource::open_shards(std::vector<MappedFile> parts) {
  shards_.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::open(std::move(parts[i])));
    shards_.push_back(std::move(shard));
    DRIFTLESS_RETURN_IF_ERROR(add_shard(version_.payload_files[i], shards_.back()));
  }
  for (const auto& [tensor, file] : version_.weight_map) {
    const auto index = layout_->find(tensor);
    if (!index) return unknown_tensor(join_path(version_.path, kIndexName), tensor);
    if (!payloads_.contains(*index)) {
      return error(StatusCode::kCorrupt, join_path(version_.path, file), ": tensor '", tensor,
                   "' is not there, but the index says so");
    }
  }
  return {};
}

Status VersionSource::add_shard(const std::string& name, const SafetensorsFile& shard) {
  const std::string path = join_path(version_.path, name);
  for (const SafetensorsEntry& entry : shard.header().tensors) {
    const std::string& tensor = entry.spec.name;
    const auto listed = version_.weight_map.find(tensor);
    if (listed == version_.weight_map.end()) {
      return error(StatusCode::kCorrupt, path, ": tensor '", tensor, "' is not in the index");
    }
    const auto index = layout_->find(tensor);
    if (!index) return unknown_tensor(path, tensor);
    if (const auto seen = payloads_.find(*index); seen != payloads_.end()) {
      return error(StatusCode::kCorrupt, path, ": tensor '", tensor, "' is also in ",
                   seen->second.source, "; two ranks published it, and only one may");
    }
    if (listed->second != name) {
      return error(StatusCode::kCorrupt, path, ": tensor '", tensor, "' is here, the index says ",
                   listed->second);
    }
    DRIFTLESS_RETURN_IF_ERROR(check_entry(path, entry.spec, (*layout_)[*index], version_.full()));
    TensorChange change{*index, entry.spec.size_bytes, {}};
    const auto checksum = shard.header().metadata.find(tensor);
    if (checksum != shard.header().metadata.end() && !version_.full()) {
      change.checksum = checksum->second;
    } else if (!version_.full()) {
      return error(StatusCode::kCorrupt, path, ": the metadata has no checksum of tensor '", tensor,
                   "'");
    }
    Payload& payload = payloads_[*index];
    payload.bytes = shard.bytes(entry);
    payload.source = name;
    if (version_.full()) payload.dense.push_back({0, payload.bytes});
    changes_.push_back(std::move(change));
  }
  return {};
}

Status VersionSource::open_flushes(FileSystem& spool_fs, std::vector<MappedFile> parts,
                                   const std::string& spool_directory) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = version_.payload_files[i];
    if (spool_directory.empty() && is_zstd_frame(parts[i].bytes())) {
      DRIFTLESS_ASSIGN_OR_RETURN(parts[i], inflate_in_memory(parts[i], *layout_));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(
        FlushFile flush, FlushFile::open(spool_fs, std::move(parts[i]), *layout_, version_.version,
                                         spool_directory));
    if (!version_.manifest && flush.metadata().contains(std::string(kOursKey))) {
      return error(StatusCode::kIncomplete, version_.path, ": ", kManifestName,
                   " is not there (yet), but ", name,
                   " is a file of ours; wait until the version is whole, then try again");
    }
    flushes_.push_back(std::make_unique<FlushFile>(std::move(flush)));
    DRIFTLESS_RETURN_IF_ERROR(
        add_bucket(name, name.substr(0, name.find('_')), flushes_.back()->bucket()));
  }
  return {};
}

Status VersionSource::adopt_manifest_checksums() {
  // Without a list the digest of all weights is the proof.
  if (!version_.manifest || version_.manifest->tensors.empty()) return {};
  std::map<std::uint32_t, const ManifestTensor*> listed;
  for (const ManifestTensor& tensor : version_.manifest->tensors) {
    const auto index = layout_->find(tensor.name);
    if (!index) return unknown_tensor(join_path(version_.path, kManifestName), tensor.name);
    // Frames hold nothing of a tensor without bytes.
    if ((*layout_)[*index].size_bytes == 0 && !payloads_.contains(*index)) continue;
    listed[*index] = &tensor;
  }
  for (TensorChange& change : changes_) {
    const auto found = listed.find(change.tensor);
    if (found == listed.end()) {
      return error(StatusCode::kCorrupt, version_.path, ": tensor '",
                   (*layout_)[change.tensor].name, "' is in the files but not in the manifest");
    }
    change.checksum = found->second->checksum;
    listed.erase(found);
  }
  if (listed.empty()) return {};
  return error(StatusCode::kCorrupt, version_.path, ": tensor '", listed.begin()->second->name,
               "' is in the manifest but in none of the files");
}

const TensorChange* VersionSource::find(std::uint32_t tensor) const {
  const auto found = payloads_.find(tensor);
  return found == payloads_.end() ? nullptr : &changes_[found->second.change];
}

std::span<const BucketPiece> VersionSource::pieces(const TensorChange& change) const {
  return payloads_.at(change.tensor).pieces;
}

std::vector<SourceBucket> VersionSource::buckets() const {
  std::vector<SourceBucket> buckets;
  if (!positional()) return buckets;
  for (std::size_t i = 0; i < flushes_.size(); ++i) {
    buckets.push_back({flushes_[i]->bucket(), MemoryKind::kHost, version_.payload_files[i]});
  }
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    buckets.push_back(
        {frames_[i]->bucket(), frame_bytes_[i].memory_kind(), version_.payload_files[i]});
  }
  return buckets;
}

std::span<const DensePiece> VersionSource::dense(const TensorChange& change) const {
  return payloads_.at(change.tensor).dense;
}

Result<std::unique_ptr<TensorPatcher>> VersionSource::patcher(const TensorChange& change) const {
  const TensorSpec& tensor = (*layout_)[change.tensor];
  const Payload& payload = payloads_.at(change.tensor);
  if (version_.full()) return dense_patcher(change);
  switch (version_.encoding) {
    case Encoding::kXor: return make_xor_patcher(tensor, payload.bytes);
    case Encoding::kOverwrite: return make_overwrite_patcher(tensor, payload.bytes);
    default: return make_bucket_patcher(*layout_, change.tensor, payload.pieces);
  }
}

std::uint64_t VersionSource::payload_bytes() const {
  std::uint64_t sum = 0;
  for (const TensorChange& change : changes_) sum += change.payload_bytes;
  return sum;
}

}  // namespace driftless
