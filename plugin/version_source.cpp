#include "plugin/version_source.h"

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

}  // namespace

Result<VersionSource> VersionSource::open(FileSystem& fs, const VersionDirectory& version,
                                          const WeightLayout& layout,
                                          const std::string& spool_directory) {
  DRIFTLESS_RETURN_IF_ERROR(check_has_files(version));
  if (version.directory_layout == DirectoryLayout::kFrames) {
    return error(StatusCode::kUnsupported, version.path,
                 ": layout frames; follow it with driftless rollout, road.layout: frames");
  }
  VersionSource source(version, layout);
  if (version.directory_layout == DirectoryLayout::kHfDelta) {
    DRIFTLESS_RETURN_IF_ERROR(source.open_shards(fs));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(source.open_flushes(fs, spool_directory));
  }
  if (version.directory_layout == DirectoryLayout::kFlush || version.full()) {
    DRIFTLESS_RETURN_IF_ERROR(source.adopt_manifest_checksums());
  }
  std::sort(source.changes_.begin(), source.changes_.end(),
            [&layout](const TensorChange& a, const TensorChange& b) {
              const std::uint64_t a_bytes = layout[a.tensor].size_bytes;
              const std::uint64_t b_bytes = layout[b.tensor].size_bytes;
              return a_bytes != b_bytes ? a_bytes > b_bytes : a.tensor < b.tensor;
            });
  return source;
}

Status VersionSource::open_shards(FileSystem& fs) {
  shards_.reserve(version_->payload_files.size());
  for (const std::string& name : version_->payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile shard,
                               SafetensorsFile::open(fs, join_path(version_->path, name)));
    shards_.push_back(std::move(shard));
    DRIFTLESS_RETURN_IF_ERROR(add_shard(name, shards_.back()));
  }
  for (const auto& [tensor, file] : version_->weight_map) {
    const auto index = layout_->find(tensor);
    if (!index) return unknown_tensor(join_path(version_->path, kIndexName), tensor);
    if (!payloads_.contains(*index)) {
      return error(StatusCode::kCorrupt, join_path(version_->path, file), ": tensor '", tensor,
                   "' is not there, but the index says so");
    }
  }
  if (version_->full() && payloads_.size() != layout_->size()) {
    return error(StatusCode::kWrongLayout, version_->path, ": a full version with ",
                 payloads_.size(), " tensors, but the checkpoint has ", layout_->size());
  }
  return {};
}

Status VersionSource::add_shard(const std::string& name, const SafetensorsFile& shard) {
  const std::string path = join_path(version_->path, name);
  for (const SafetensorsEntry& entry : shard.header().tensors) {
    const std::string& tensor = entry.spec.name;
    const auto listed = version_->weight_map.find(tensor);
    if (listed == version_->weight_map.end()) {
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
    DRIFTLESS_RETURN_IF_ERROR(check_entry(path, entry.spec, (*layout_)[*index], version_->full()));
    TensorChange change{*index, entry.spec.size_bytes, {}};
    const auto checksum = shard.header().metadata.find(tensor);
    if (checksum != shard.header().metadata.end() && !version_->full()) {
      change.checksum = checksum->second;
    } else if (!version_->full()) {
      return error(StatusCode::kCorrupt, path, ": the metadata has no checksum of tensor '", tensor,
                   "'");
    }
    payloads_[*index] = {shard.bytes(entry), {}, name};
    changes_.push_back(std::move(change));
  }
  return {};
}

Status VersionSource::open_flushes(FileSystem& fs, const std::string& spool_directory) {
  std::map<std::uint32_t, std::string> rank_of;  // tensor -> "rank0003"
  for (const std::string& name : version_->payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(FlushFile flush,
                               FlushFile::open(fs, join_path(version_->path, name), *layout_,
                                               version_->version, spool_directory));
    if (!version_->manifest && flush.metadata().contains(std::string(kOursKey))) {
      return error(StatusCode::kIncomplete, version_->path, ": ", kManifestName,
                   " is not there (yet), but ", name,
                   " is a file of ours; wait until the version is whole, then try again");
    }
    flushes_.push_back(std::make_unique<FlushFile>(std::move(flush)));
    const BucketView bucket = flushes_.back()->bucket();
    const std::string rank = name.substr(0, name.find('_'));
    for (const BucketEntry& entry : bucket.entries) {
      const auto [seen, first] = rank_of.emplace(entry.tensor, rank);
      if (!first && seen->second != rank) {
        return error(StatusCode::kCorrupt, join_path(version_->path, name), ": tensor '",
                     (*layout_)[entry.tensor].name, "' is also published by ", seen->second,
                     "; only one rank may");
      }
      Payload& payload = payloads_[entry.tensor];
      payload.pieces.push_back({bucket, entry});
      if (first) changes_.push_back({entry.tensor, 0, {}});
    }
  }
  for (TensorChange& change : changes_) {
    for (const BucketPiece& piece : payloads_[change.tensor].pieces) {
      change.payload_bytes += piece.entry.position_end - piece.entry.position_begin +
                              piece.entry.count() * unit_bytes(piece.bucket.dtype);
    }
  }
  return {};
}

Status VersionSource::adopt_manifest_checksums() {
  if (!version_->manifest) return {};
  std::map<std::uint32_t, const ManifestTensor*> listed;
  for (const ManifestTensor& tensor : version_->manifest->tensors) {
    const auto index = layout_->find(tensor.name);
    if (!index) return unknown_tensor(join_path(version_->path, kManifestName), tensor.name);
    listed[*index] = &tensor;
  }
  for (TensorChange& change : changes_) {
    const auto found = listed.find(change.tensor);
    if (found == listed.end()) {
      return error(StatusCode::kCorrupt, version_->path, ": tensor '",
                   (*layout_)[change.tensor].name, "' is in the files but not in the manifest");
    }
    change.checksum = found->second->checksum;
    listed.erase(found);
  }
  if (listed.empty()) return {};
  return error(StatusCode::kCorrupt, version_->path, ": tensor '", listed.begin()->second->name,
               "' is in the manifest but in none of the files");
}

Result<std::unique_ptr<TensorPatcher>> VersionSource::patcher(const TensorChange& change) const {
  const TensorSpec& tensor = (*layout_)[change.tensor];
  const Payload& payload = payloads_.at(change.tensor);
  if (version_->directory_layout == DirectoryLayout::kFlush) {
    return make_bucket_patcher(*layout_, change.tensor, payload.pieces);
  }
  switch (version_->encoding) {
    case Encoding::kXor: return make_xor_patcher(tensor, payload.bytes);
    case Encoding::kOverwrite: return make_overwrite_patcher(tensor, payload.bytes);
    default: return make_full_patcher(tensor, payload.bytes);
  }
}

std::uint64_t VersionSource::payload_bytes() const {
  std::uint64_t sum = 0;
  for (const TensorChange& change : changes_) sum += change.payload_bytes;
  return sum;
}

}  // namespace driftless
