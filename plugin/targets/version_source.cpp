// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/version_source.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "core/parallel.h"
#include "formats/checkpoint.h"

namespace driftless {
namespace {

Status unknown_tensor(const std::string& file, std::string_view tensor) {
  return error(StatusCode::kWrongLayout, file, ": tensor '", tensor,
               "' is not in the checkpoint; use the checkpoint that this run started from");
}

// In a delta a tensor's payload is a row of bytes; in a full version it is the tensor itself.
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

Result<MappedFile> inflate_in_memory(const MappedFile& file, const WeightLayout& layout,
                                     ZstdUnpacker& zstd, KeptMemory* memory) {
  const std::uint64_t max_bytes =
      8 + kMaxSafetensorsHeaderBytes + layout.total_bytes() + 8 * layout.total_units();
  const Result<std::uint64_t> size = zstd_content_bytes(file.bytes());
  if (!size.ok()) return size.status().with_context(file.path());
  if (*size > max_bytes) {
    return error(StatusCode::kCorrupt, file.path(), ": zstd frame: ", *size,
                 " bytes of content, at most ", max_bytes, " are expected");
  }
  const std::shared_ptr<std::byte> content = take_memory(memory, *size);
  if (content == nullptr) {
    return error(StatusCode::kNoSpace, file.path(), ": no memory for ", *size,
                 " bytes of content; lower receiver.fold_size");
  }
  const std::span<std::byte> bytes(content.get(), *size);
  DRIFTLESS_RETURN_IF_ERROR(zstd.read(file.bytes(), bytes).with_context(file.path()));
  return MappedFile(file.path(), content, bytes);
}

Status check_context(const FrameContext& found, const VersionDirectory& version,
                     const WeightLayout& layout) {
  FrameContext expected = found;  // rank and index are compared with other frames' later
  expected.id.version = version.version;
  if (version.manifest) expected.id.run = version.manifest->id.run;
  expected.base_version = version.base_version;
  expected.layout = layout.signature();
  const bool plain =  // for tensors that `compact` does not code
      version.encoding == Encoding::kCompact && found.encoding == Encoding::kDeltas;
  if (!plain) expected.encoding = version.encoding;
  if (found == expected) return {};
  return error(StatusCode::kCorrupt, "the frame is of version ", found.id.version, " on base ",
               found.base_version, " of run ", to_hex(found.id.run), " in '",
               info(found.encoding).name, "', expected version ", version.version, " on base ",
               version.base_version, " of run ", to_hex(expected.id.run), " in '",
               info(version.encoding).name, "'; fetch the version again");
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
  return open(fs, version, std::move(parts), {}, layout, spool_directory, 1);
}

Result<VersionSource> VersionSource::open(FileSystem& spool_fs, VersionDirectory version,
                                          std::vector<MappedFile> parts,
                                          std::vector<std::shared_ptr<Frame>> frames,
                                          const WeightLayout& layout,
                                          const std::string& spool_directory, unsigned threads,
                                          const HeadReader& head, KeptMemory* memory) {
  const bool framed = version.directory_layout == DirectoryLayout::kFrames ||
                      version.directory_layout == DirectoryLayout::kHdf5;
  for (const MappedFile& part : parts) {
    if (part.memory_kind() == MemoryKind::kHost || (framed && head)) continue;
    return error(StatusCode::kUnsupported, join_path(version.path, part.path()),
                 ": lies in device memory, where only plain frames for weights on the GPU can be "
                 "used; let the road deliver to the host");
  }
  if (parts.size() != version.payload_files.size()) {
    return error(StatusCode::kInternal, version.path, ": ", parts.size(), " parts for ",
                 version.payload_files.size(), " names");
  }
  VersionSource source(std::move(version), layout);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool by_need = i < frames.size() && frames[i] != nullptr;
    source.payload_bytes_ += by_need ? frames[i]->info().frame_bytes : parts[i].bytes().size();
  }
  switch (source.version_.directory_layout) {
    case DirectoryLayout::kHfDelta:
      DRIFTLESS_RETURN_IF_ERROR(source.open_shards(std::move(parts)));
      break;
    case DirectoryLayout::kFlush:
      DRIFTLESS_RETURN_IF_ERROR(
          source.open_flushes(spool_fs, std::move(parts), spool_directory, threads, memory));
      break;
    case DirectoryLayout::kFrames:
    case DirectoryLayout::kHdf5:
      frames.resize(parts.size());
      DRIFTLESS_RETURN_IF_ERROR(
          source.open_frames(std::move(parts), std::move(frames), threads, head, memory));
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
                   "' is missing, but the index names this file");
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
                   seen->second.claims.front().source,
                   "; two ranks published it, and only one may");
    }
    if (listed->second != name) {
      return error(StatusCode::kCorrupt, path, ": tensor '", tensor, "' is here, the index says ",
                   listed->second);
    }
    DRIFTLESS_RETURN_IF_ERROR(check_entry(path, entry.spec, (*layout_)[*index], version_.full()));
    TensorChange change{*index, {}};
    const auto checksum = shard.header().metadata.find(tensor);
    if (checksum != shard.header().metadata.end() && !version_.full()) {
      change.checksum = checksum->second;
    } else if (!version_.full()) {
      return error(StatusCode::kCorrupt, path, ": the metadata has no checksum of tensor '", tensor,
                   "'");
    }
    Payload& payload = payloads_[*index];
    payload.bytes = shard.bytes(entry);
    const std::uint64_t units = (*layout_)[*index].units();
    payload.claims.push_back({{}, name, units, {}});
    if (units > 0) payload.claims.front().runs.emplace_back(0, units);
    if (version_.full()) payload.dense.push_back({0, payload.bytes});
    changes_.push_back(std::move(change));
  }
  return {};
}

// One thread inflates a file, because it is one zstd frame; the largest files come first. If each
// file can have two threads or more, they share the work of its checksum. If several files are
// damaged, the error names the first one in the version's order, so all are read.
Status VersionSource::open_flushes(FileSystem& spool_fs, std::vector<MappedFile> parts,
                                   const std::string& spool_directory, unsigned threads,
                                   KeptMemory* memory) {
  threads = std::max(1U, threads);
  const auto files = static_cast<unsigned>(std::max<std::size_t>(1, parts.size()));
  std::vector<std::size_t> order(parts.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&parts](std::size_t i) { return parts[i].bytes().size(); });
  std::vector<ZstdUnpacker> zstd(threads);  // by worker
  std::vector<std::optional<FlushFile>> opened(parts.size());
  std::vector<Status> failures(parts.size());
  const auto open_one = [&](std::size_t i, unsigned worker) -> Status {
    if (spool_directory.empty() && is_zstd_frame(parts[i].bytes())) {
      DRIFTLESS_ASSIGN_OR_RETURN(parts[i],
                                 inflate_in_memory(parts[i], *layout_, zstd[worker], memory));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(
        opened[i], FlushFile::open(spool_fs, std::move(parts[i]), *layout_, version_.version,
                                   spool_directory, std::max(1U, threads / files)));
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(order.size(), threads, [&](std::size_t task, unsigned worker) -> Status {
        failures[order[task]] = open_one(order[task], worker);
        return {};
      }));
  for (const Status& failure : failures) DRIFTLESS_RETURN_IF_ERROR(failure);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = version_.payload_files[i];
    if (!version_.manifest && opened[i]->metadata().contains(std::string(kOursKey))) {
      return error(StatusCode::kIncomplete, version_.path, ": ", kManifestName,
                   " is not there (yet), but ", name,
                   " was written by Driftless; wait until the version is whole, then try again");
    }
    flushes_.push_back(std::make_unique<FlushFile>(std::move(*opened[i])));
    for (const BucketView& bucket : flushes_.back()->buckets()) {
      DRIFTLESS_RETURN_IF_ERROR(add_bucket(name, name.substr(0, name.find('_')), bucket));
    }
  }
  return {};
}

Status VersionSource::adopt_manifest_checksums() {
  // Without a list, the digest of all weights is the proof.
  if (!version_.manifest || version_.manifest->tensors.empty()) return {};
  std::map<std::uint32_t, const ManifestTensor*> listed;
  for (const ManifestTensor& tensor : version_.manifest->tensors) {
    const auto index = layout_->find(tensor.name);
    if (!index) return unknown_tensor(join_path(version_.path, kManifestName), tensor.name);
    // Frames have no entry for a tensor without bytes.
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
    change.digest = found->second->digest;
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

bool VersionSource::complete(const TensorChange& change) const {
  return payloads_.at(change.tensor).complete;
}

std::span<const BucketPiece> VersionSource::pieces(const TensorChange& change) const {
  return payloads_.at(change.tensor).pieces;
}

std::span<const CompactPiece> VersionSource::compact(const TensorChange& change) const {
  return payloads_.at(change.tensor).compact;
}

std::vector<SourceBucket> VersionSource::buckets() const {
  std::vector<SourceBucket> buckets;
  if (!positional()) return buckets;
  for (std::size_t i = 0; i < flushes_.size(); ++i) {
    for (const BucketView& bucket : flushes_[i]->buckets()) {
      buckets.push_back({bucket, MemoryKind::kHost, version_.payload_files[i]});
    }
  }
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    buckets.push_back({frames_[i]->bucket(), frames_[i]->memory(), version_.payload_files[i]});
  }
  return buckets;
}

std::span<const DensePiece> VersionSource::dense(const TensorChange& change) const {
  return payloads_.at(change.tensor).dense;
}

Result<std::unique_ptr<TensorPatcher>> VersionSource::patcher(const TensorChange& change) const {
  const TensorSpec& tensor = (*layout_)[change.tensor];
  const Payload& payload = payloads_.at(change.tensor);
  if (version_.full()) {
    return make_dense_patcher(tensor, payload.dense);
  }
  if (!payload.compact.empty()) {
    return error(StatusCode::kInternal, "tensor '", tensor.name,
                 "': 'compact' is decoded block by block");
  }
  switch (version_.encoding) {
    case Encoding::kXor: return make_xor_patcher(tensor, payload.bytes);
    case Encoding::kOverwrite: return make_overwrite_patcher(tensor, payload.bytes);
    default: return make_bucket_patcher(*layout_, change.tensor, payload.pieces);
  }
}

std::uint64_t max_frame_body_bytes(const WeightLayout& layout) {
  const std::uint64_t rows = std::min(layout.total_units(), layout.size() * kMaxBlocksOfTensor);
  constexpr std::uint64_t kMostRowBytes = kFrameRowBytes + std::uint64_t{16} * 255;
  return layout.total_bytes() + 8 * layout.total_units() + kMostRowBytes * (rows + layout.size());
}

Status check_sizes(const Manifest& manifest, const WeightLayout& layout, std::string_view source) {
  // For headers and the tables of many ranks. A full version also has the non-weight files of up to
  // two directories: the base, and the checkpoint that the version is published from.
  constexpr std::uint64_t kSpareBytes = std::uint64_t{256} << 20;
  const bool full = manifest.encoding == Encoding::kFull;
  // `overwrite` has a position for each byte; zstd adds less than 1/64 to incompressible data.
  const std::uint64_t bytes = layout.total_bytes();
  const std::uint64_t most = max_frame_body_bytes(layout) +
                             (manifest.encoding == Encoding::kOverwrite ? 8 * bytes : 0) +
                             bytes / 64 + kSpareBytes + (full ? 2 * kMaxCompanionBytes : 0);
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest.files) {
    if (file.size_bytes > most - sum) {
      return error(StatusCode::kMismatch, source, ": with part ", file.name, " of ",
                   file.size_bytes, " bytes the version is larger than any valid one: in '",
                   info(manifest.encoding).name, "', a version of ", bytes,
                   " bytes of weights has at most ", most,
                   " bytes. Nothing was read; send a full version");
    }
    sum += file.size_bytes;
  }
  return {};
}

Result<Frame> VersionSource::open_frame(const MappedFile& part, const HeadReader& head) const {
  const std::uint64_t max_body = max_frame_body_bytes(*layout_);
  if (part.memory_kind() == MemoryKind::kHost) {
    return Frame::decode(part.bytes(), *layout_, max_body);
  }
  return Frame::decode_head(head(part), part.bytes(), *layout_, max_body);
}

// Reads frames in host memory. One frame may be most of a version, so a task of a thread is one
// stream, not one frame; the largest streams come first. All frames are opened before any stream is
// read, and finished after all of them.
Status VersionSource::read_frames(std::span<const std::size_t> numbers, unsigned threads,
                                  KeptMemory* memory) {
  struct Stream {
    FrameReader* reader = nullptr;
    std::size_t number = 0;
  };
  std::vector<std::optional<FrameReader>> readers(numbers.size());
  const std::uint64_t max_body = max_frame_body_bytes(*layout_);
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(numbers.size(), threads, [&](std::size_t i, unsigned) -> Status {
        const std::span<const std::byte> bytes = frame_bytes_[numbers[i]].bytes();
        DRIFTLESS_ASSIGN_OR_RETURN(readers[i],
                                   FrameReader::open(bytes, *layout_, max_body, memory));
        return {};
      }));
  std::vector<Stream> streams;
  for (std::optional<FrameReader>& reader : readers) {
    for (std::size_t i = 0; i < reader->streams(); ++i) streams.push_back({&*reader, i});
  }
  std::ranges::stable_sort(streams, std::ranges::greater(), [](const Stream& stream) {
    return stream.reader->stored_bytes(stream.number);
  });
  std::vector<ZstdUnpacker> zstd(std::max(1U, threads));  // by worker
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(streams.size(), threads, [&](std::size_t i, unsigned worker) -> Status {
        return streams[i].reader->read(streams[i].number, zstd[worker]);
      }));
  return parallel_for(numbers.size(), threads, [&](std::size_t i, unsigned) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(Frame frame, readers[i]->finish(*layout_));
    frames_[numbers[i]] = std::make_shared<Frame>(std::move(frame));
    return {};
  });
}

Status VersionSource::decode_frames(unsigned threads, const HeadReader& head, KeptMemory* memory) {
  std::vector<std::size_t> on_host;
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    const bool host = frame_bytes_[i].memory_kind() == MemoryKind::kHost;
    if (frames_[i] == nullptr && host) on_host.push_back(i);
  }
  // If several frames are damaged, read_frames() names the one with the largest damaged stream.
  // After a failure each frame is decoded again, below, so that the first damaged one is named.
  const Status read = read_frames(on_host, threads, memory);
  if (!read.ok()) {
    for (const std::size_t i : on_host) frames_[i] = nullptr;
  }
  const bool more = std::ranges::find(frames_, nullptr) != frames_.end();
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames_.size(), more ? threads : 1, [&](std::size_t i, unsigned) -> Status {
        const std::string what = join_path(version_.path, version_.payload_files[i]);
        if (frames_[i] == nullptr) {
          Result<Frame> frame = open_frame(frame_bytes_[i], head);
          if (!frame.ok()) return frame.status().with_context(what);
          frames_[i] = std::make_shared<Frame>(std::move(*frame));
        }
        return check_context(frames_[i]->info().context, version_, *layout_).with_context(what);
      }));
  return read.with_context(version_.path);
}

Status VersionSource::open_frames(std::vector<MappedFile> parts,
                                  std::vector<std::shared_ptr<Frame>> frames, unsigned threads,
                                  const HeadReader& head, KeptMemory* memory) {
  frame_bytes_ = std::move(parts);
  frames_ = std::move(frames);
  DRIFTLESS_RETURN_IF_ERROR(decode_frames(threads, head, memory));
  std::vector<std::size_t> order(frames_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto place = [this](std::size_t i) {
    const FrameContext& context = frames_[i]->info().context;
    return std::pair(context.rank, context.index);
  };
  std::sort(order.begin(), order.end(),
            [&place](std::size_t a, std::size_t b) { return place(a) < place(b); });
  std::pair<std::uint32_t, std::uint32_t> expected{0, 0};
  for (const std::size_t i : order) {
    const auto [rank, index] = place(i);
    const std::string& name = version_.payload_files[i];
    if (name != frame_file_name(rank, index)) {
      return error(StatusCode::kCorrupt, join_path(version_.path, name), ": holds frame ", index,
                   " of rank ", rank, "; fetch the version again");
    }
    if (rank != expected.first) expected = {rank, 0};
    if (index != expected.second) {
      return error(StatusCode::kCorrupt, join_path(version_.path, name), ": is frame ", index,
                   " of rank ", rank, ", expected frame ", expected.second,
                   "; fetch the version again");
    }
    ++expected.second;
    const std::string owner = concat("rank ", rank);
    const Frame& frame = *frames_[i];
    DRIFTLESS_RETURN_IF_ERROR(frame.dense()     ? add_runs(name, owner, frame, frame.memory())
                              : frame.compact() ? add_compact(name, owner, frame)
                                                : add_bucket(name, owner, frame.bucket()));
    DRIFTLESS_RETURN_IF_ERROR(add_others(name, owner, *frames_[i]));
  }
  return {};
}

Result<VersionSource::Claim*> VersionSource::claim(const std::string& name,
                                                   const std::string& source, std::uint32_t tensor,
                                                   const TensorBlock* block) {
  const auto [payload, first] = payloads_.try_emplace(tensor);
  const TensorSpec& spec = (*layout_)[tensor];
  if (first) {
    payload->second.change = changes_.size();
    changes_.push_back({tensor, {}});
  }
  const TensorBox box = block != nullptr ? block->box : TensorBox();
  cut_ = cut_ || block != nullptr;
  std::vector<Claim>& claims = payload->second.claims;
  for (Claim& other : claims) {
    if (other.box == box && other.source == source) return &other;
    if (!overlap(other.box, box)) continue;
    return error(StatusCode::kCorrupt, join_path(version_.path, name), ": tensor '", spec.name, "'",
                 box.whole() ? "" : concat(" ", box.to_string()), " is also published by ",
                 other.source, other.box.whole() ? "" : concat(" as ", other.box.to_string()),
                 "; only one rank may");
  }
  if (claims.size() == kMaxBlocksOfTensor) {
    return error(StatusCode::kCorrupt, join_path(version_.path, name), ": tensor '", spec.name,
                 "' comes in more than ", kMaxBlocksOfTensor, " blocks");
  }
  claims.push_back({box, source, block != nullptr ? block->place.units : spec.units(), {}});
  return &claims.back();
}

Status VersionSource::add_bucket(const std::string& name, const std::string& rank,
                                 const BucketView& bucket) {
  for (const BucketEntry& entry : bucket.entries) {
    DRIFTLESS_RETURN_IF_ERROR(claim(name, rank, entry.tensor, entry.block).status());
    Payload& payload = payloads_[entry.tensor];
    payload.pieces.push_back({bucket, entry});
  }
  return {};
}

Status VersionSource::add_compact(const std::string& name, const std::string& rank,
                                  const Frame& frame) {
  for (const CompactBlock& block : frame.compact_blocks()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Claim* const whose,
                               claim(name, rank, block.tensor, block.block));
    Payload& payload = payloads_[block.tensor];
    for (const CompactPiece& other : payload.compact) {
      const TensorBox box = other.block.block != nullptr ? other.block.block->box : TensorBox();
      if (box != whose->box) continue;
      return error(StatusCode::kCorrupt, join_path(version_.path, name), ": tensor '",
                   (*layout_)[block.tensor].name, "'",
                   box.whole() ? "" : concat(" ", box.to_string()),
                   " is in another frame already; fetch the version again");
    }
    payload.compact.push_back({block, &frame.compact_tables()[block.table]});
  }
  return {};
}

Status VersionSource::add_runs(const std::string& name, const std::string& rank, const Frame& frame,
                               MemoryKind memory) {
  for (const DenseRun& run : frame.runs()) {
    DRIFTLESS_ASSIGN_OR_RETURN(Claim* const whose, claim(name, rank, run.tensor, run.block));
    const unsigned unit = unit_bytes((*layout_)[run.tensor].dtype);
    whose->runs.emplace_back(run.first_unit, run.bytes.size() / unit);
    Payload& payload = payloads_[run.tensor];
    if (run.block == nullptr || run.block->place.contiguous()) {
      const std::uint64_t first = run.block != nullptr ? run.block->place.first : 0;
      payload.dense.push_back({(first + run.first_unit) * unit, run.bytes, memory});
    } else {
      payload.dense.push_back({0, run.bytes, memory, &run.block->place, run.first_unit});
    }
  }
  return {};
}

Status VersionSource::add_others(const std::string& name, const std::string& rank,
                                 const Frame& frame) {
  for (std::size_t i = 0; i < frame.others().size(); ++i) {
    const BucketEntry& entry = frame.others()[i];
    DRIFTLESS_ASSIGN_OR_RETURN(Claim* const whose, claim(name, rank, entry.tensor, entry.block));
    whose->runs.emplace_back(frame.other_first_units()[i], entry.count());
    payloads_[entry.tensor].complete = false;
    complete_ = false;
  }
  return {};
}

// Ok if the runs of a block have each of its units once.
Status VersionSource::check_runs(const TensorSpec& tensor, Claim& claim) const {
  std::sort(claim.runs.begin(), claim.runs.end());
  const std::string what = concat("tensor '", tensor.name, "'",
                                  claim.box.whole() ? "" : concat(" ", claim.box.to_string()));
  std::uint64_t next = 0;
  for (const auto& [first, count] : claim.runs) {
    if (first != next) {
      return error(StatusCode::kCorrupt, version_.path, ": ", what, ": units from ",
                   std::min(next, first), " on are ", first < next ? "there twice" : "missing");
    }
    next += count;
  }
  if (next == claim.units) return {};
  return error(StatusCode::kCorrupt, version_.path, ": ", what, ": has ", claim.units,
               " units, the version holds ", next);
}

// Ok if a full version has every unit of every tensor once.
Status VersionSource::check_coverage() {
  for (std::uint32_t tensor = 0; tensor < layout_->size(); ++tensor) {
    const TensorSpec& spec = (*layout_)[tensor];
    const auto found = payloads_.find(tensor);
    if (found == payloads_.end()) {
      // Frames have no run for a tensor without units; a safetensors file names it nevertheless.
      if (spec.size_bytes == 0 && version_.directory_layout != DirectoryLayout::kHfDelta) continue;
      return error(StatusCode::kWrongLayout, version_.path,
                   ": a full version, but it does not hold tensor '", spec.name, "' (",
                   payloads_.size(), " of ", layout_->size(), " tensors)");
    }
    std::uint64_t units = 0;
    for (Claim& claim : found->second.claims) {
      DRIFTLESS_RETURN_IF_ERROR(check_runs(spec, claim));
      units += claim.units;
    }
    if (units != spec.units()) {  // blocks do not overlap
      return error(StatusCode::kCorrupt, version_.path, ": tensor '", spec.name, "': has ",
                   spec.units(), " units, the blocks of the version hold ", units);
    }
    std::vector<DensePiece>& dense = found->second.dense;
    std::sort(dense.begin(), dense.end(), [](const DensePiece& a, const DensePiece& b) {
      return a.byte_offset < b.byte_offset;
    });
  }
  return {};
}

}  // namespace driftless
