// SPDX-License-Identifier: Apache-2.0
#include "plugin/interchange/trl_writer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "collectives/shared_fs/medium.h"
#include "collectives/shared_fs/visibility_hook.h"
#include "formats/flush_file.h"
#include "formats/run_info.h"
#include "formats/version_dir.h"
#include "plugin/interchange/trl_directory.h"

namespace driftless {
namespace {

using Metadata = std::map<std::string, std::string>;

// A piece of a changed tensor in the flush files; a tensor's pieces ascend.
struct Piece {
  const BucketView* bucket;
  const BucketEntry* entry;
};

// Writes one step from the files of a publication in `directory`.
class StepWriter {
 public:
  StepWriter(FileSystem& fs, const WeightLayout& layout, Encoding encoding, std::string directory,
             const Manifest& manifest)
      : fs_(fs),
        layout_(layout),
        gaps_(encoding != Encoding::kIndices),
        directory_(std::move(directory)),
        manifest_(manifest) {}

  [[nodiscard]] Status write(const std::string& path) {
    return manifest_.encoding == Encoding::kFull ? write_anchor(path) : write_delta(path);
  }

 private:
  [[nodiscard]] std::string positions_name(const std::string& name) const {
    return concat(name, gaps_ ? ".idx" : ".indices");
  }
  [[nodiscard]] std::string values_name(const std::string& name) const {
    return concat(name, gaps_ ? ".val" : ".values");
  }

  [[nodiscard]] Metadata metadata(const std::vector<std::string>& names, std::uint64_t changed,
                                  std::uint64_t total) const {
    const bool sparse = manifest_.encoding != Encoding::kFull;
    const double share =
        total == 0 ? 0.0 : static_cast<double>(changed) / static_cast<double>(total);
    Metadata made{{"format", "sparse_weight_patch"},
                  {"version", "1"},
                  {"sparse", sparse ? "True" : "False"},
                  {"model_version", std::to_string(manifest_.id.version)},
                  {"num_changed_params", std::to_string(names.size())},
                  {"total_changed_elements", std::to_string(changed)},
                  {"total_elements", std::to_string(total)},
                  {"sparsity", nlohmann::json(1.0 - share).dump()},
                  {std::string(kTrlRunKey), to_hex(manifest_.id.run)},
                  {std::string(kTrlDigestKey), to_hex(manifest_.digest)}};
    if (sparse) made.emplace(kTrlBaseDigestKey, to_hex(manifest_.base_digest));
    if (gaps_) {
      made.emplace("encoding", "gap_delta");
    } else {
      made.emplace("changed_params", nlohmann::json(names).dump());
    }
    return made;
  }

  [[nodiscard]] Result<SafetensorsWriter> create(const std::string& path,
                                                 const std::vector<std::string>& names,
                                                 std::size_t dimensions, const Metadata& metadata) {
    const std::uint64_t room = SafetensorsWriter::header_bytes_for(names, dimensions, metadata);
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                               SafetensorsWriter::create(fs_, path, room));
    for (const auto& [key, value] : metadata) {
      DRIFTLESS_RETURN_IF_ERROR(writer.add_metadata(key, value));
    }
    return writer;
  }

  [[nodiscard]] Status write_anchor(const std::string& path) {
    std::vector<SafetensorsFile> files;
    std::map<std::string, std::pair<const SafetensorsFile*, const SafetensorsEntry*>> found;
    files.reserve(manifest_.files.size());
    for (const ManifestFile& file : manifest_.files) {
      if (!file.name.ends_with(".safetensors")) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs_.map(join_path(directory_, file.name)));
      DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::open(std::move(mapped)));
      files.push_back(std::move(opened));
      for (const SafetensorsEntry& entry : files.back().header().tensors) {
        found[entry.spec.name] = {&files.back(), &entry};
      }
    }
    std::vector<std::string> names;
    std::size_t dimensions = 1;
    for (const auto& [name, place] : found) {
      names.push_back(name);
      dimensions = std::max(dimensions, place.second->spec.shape.size());
    }
    const std::uint64_t units = layout_.total_units();
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                               create(path, names, dimensions, metadata(names, units, units)));
    for (const auto& [name, place] : found) {
      DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(name, place.second->spec.dtype));
      DRIFTLESS_RETURN_IF_ERROR(writer.append(place.first->bytes(*place.second)));
      DRIFTLESS_RETURN_IF_ERROR(writer.end_tensor(place.second->spec.shape));
    }
    return writer.finish().status();
  }

  [[nodiscard]] Status open_flush_files() {
    files_.reserve(manifest_.files.size());
    buckets_.reserve(manifest_.files.size());
    for (const ManifestFile& file : manifest_.files) {
      DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs_.map(join_path(directory_, file.name)));
      DRIFTLESS_ASSIGN_OR_RETURN(
          FlushFile opened,
          FlushFile::open(fs_, std::move(mapped), layout_, manifest_.id.version, directory_));
      files_.push_back(std::move(opened));
      buckets_.push_back(files_.back().buckets());
    }
    for (const std::vector<BucketView>& buckets : buckets_) {
      for (const BucketView& bucket : buckets) {
        for (const BucketEntry& entry : bucket.entries) {
          pieces_[entry.tensor].push_back({&bucket, &entry});
        }
      }
    }
    return {};
  }

  [[nodiscard]] Status write_delta(const std::string& path) {
    DRIFTLESS_RETURN_IF_ERROR(open_flush_files());
    std::vector<std::string> changed, names;
    std::uint64_t units = 0, total = 0;
    for (const auto& [tensor, pieces] : pieces_) {
      changed.push_back(layout_[tensor].name);
      names.push_back(positions_name(changed.back()));
      names.push_back(values_name(changed.back()));
      total += layout_[tensor].units();
      for (const Piece& piece : pieces) units += piece.entry->count();
    }
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                               create(path, names, 1, metadata(changed, units, total)));
    for (const auto& [tensor, pieces] : pieces_) {
      DRIFTLESS_RETURN_IF_ERROR(write_positions(tensor, pieces, writer));
      DRIFTLESS_RETURN_IF_ERROR(write_values(tensor, pieces, writer));
    }
    return writer.finish().status();
  }

  // Passes every delta of a tensor to `take`, in ascending order.
  [[nodiscard]] Status each_delta(const std::vector<Piece>& pieces, const auto& take) {
    for (const Piece& piece : pieces) {
      EntryCursor cursor(layout_, *piece.bucket, *piece.entry);
      for (;;) {
        DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView delta, cursor.next());
        if (delta.count() == 0) break;
        DRIFTLESS_RETURN_IF_ERROR(take(delta));
      }
    }
    return {};
  }

  template <typename T>
  [[nodiscard]] static Status append(SafetensorsWriter& writer, const std::vector<T>& numbers) {
    return writer.append(std::as_bytes(std::span(numbers)));
  }

  [[nodiscard]] Status write_positions(std::uint32_t tensor, const std::vector<Piece>& pieces,
                                       SafetensorsWriter& writer) {
    std::vector<std::uint32_t> stored;  // positions, or gaps
    std::uint64_t next = 0;
    std::uint32_t most = 0;
    DRIFTLESS_RETURN_IF_ERROR(each_delta(pieces, [&](const DeltaView& delta) -> Status {
      for (const std::uint32_t offset : delta.offsets) {
        const std::uint64_t position = delta.origin + offset;
        stored.push_back(static_cast<std::uint32_t>(gaps_ ? position - next : position));
        most = std::max(most, stored.back());
        next = position + 1;
      }
      return {};
    }));
    const bool narrow = gaps_ && most <= std::numeric_limits<std::uint16_t>::max();
    const DType type = !gaps_ ? DType::kI32 : narrow ? DType::kU16 : DType::kU32;
    DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(positions_name(layout_[tensor].name), type));
    DRIFTLESS_RETURN_IF_ERROR(
        narrow ? append(writer, std::vector<std::uint16_t>(stored.begin(), stored.end()))
               : append(writer, stored));
    return writer.end_tensor({stored.size()});
  }

  [[nodiscard]] Status write_values(std::uint32_t tensor, const std::vector<Piece>& pieces,
                                    SafetensorsWriter& writer) {
    const TensorSpec& spec = layout_[tensor];
    DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(values_name(spec.name), spec.dtype));
    std::uint64_t count = 0;
    DRIFTLESS_RETURN_IF_ERROR(each_delta(pieces, [&](const DeltaView& delta) {
      count += delta.count();
      return writer.append(delta.value_bytes());
    }));
    return writer.end_tensor({count});
  }

  FileSystem& fs_;
  const WeightLayout& layout_;
  const bool gaps_;
  const std::string directory_;
  const Manifest& manifest_;
  std::vector<FlushFile> files_;
  std::vector<std::vector<BucketView>> buckets_;
  std::map<std::uint32_t, std::vector<Piece>> pieces_;
};

class TrlSender final : public SendRoad {
 public:
  TrlSender(FileSystem& fs, SharedFsOptions options, Encoding encoding,
            std::unique_ptr<SendRoad> road)
      : fs_(fs), options_(std::move(options)), encoding_(encoding), road_(std::move(road)) {}

  Status announce(std::string_view run_info, const Deadline& deadline) override;
  Status begin(const PublicationId& id, const Deadline& deadline) override {
    for (const auto& [left, places] : std::exchange(written_, {})) {
      const Status ignored = fs_.remove_file(places.hidden);  // write() checks again
    }
    id_ = id;
    return road_->begin(id, deadline);
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    return road_->create_part(name);
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    return road_->flush(deadline);
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override;
  Status abort() override { return road_->abort(); }
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override;
  Result<std::vector<ReceiverReport>> receivers() override { return road_->receivers(); }
  [[nodiscard]] std::vector<std::string> left() const override { return road_->left(); }
  [[nodiscard]] std::vector<std::string> notes() const override { return road_->notes(); }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override;
  Result<std::uint64_t> highest_number() override { return road_->highest_number(); }
  [[nodiscard]] MemoryKind part_memory() const override { return road_->part_memory(); }
  [[nodiscard]] std::string pending_directory() const override {
    return road_->pending_directory();
  }
  void progress() override { road_->progress(); }

 private:
  // The paths of a step: the final one, and the hidden one until then.
  struct Places {
    std::string directory, hidden, shown;
  };
  [[nodiscard]] Places places(std::uint64_t version, bool full) const;
  [[nodiscard]] Status write(const std::string& directory, std::string_view manifest,
                             const PublicationId& id);
  [[nodiscard]] Status check_same(const std::string& path, const Manifest& manifest);
  [[nodiscard]] Status show(const PublicationId& id);
  [[nodiscard]] Status make_up(const PublicationId& id);

  FileSystem& fs_;
  const SharedFsOptions options_;
  const Encoding encoding_;
  const std::unique_ptr<SendRoad> road_;
  // Part of the hidden names, so that a replaced publisher that still writes cannot touch the files
  // of its successor.
  const std::string session_ = to_hex(random_hash128());
  WeightLayout layout_;
  PublicationId id_;
  std::map<PublicationId, Places> written_;  // not renamed yet
};

TrlSender::Places TrlSender::places(std::uint64_t version, bool full) const {
  const TrlPlace place = trl_place(options_.dir, version, full);
  return {place.directory,
          join_path(place.directory, concat(".", place.name, ".", session_, ".tmp")),
          join_path(place.directory, place.name)};
}

Status TrlSender::announce(std::string_view run_info, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(RunInfo run, parse_run_info(run_info, "the announcement"));
  layout_ = std::move(run.layout);
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    const TensorSpec& tensor = layout_[i];
    const bool fits = tensor.units() <= std::numeric_limits<std::int32_t>::max();
    if (fits && info(tensor.dtype).bits >= 8) continue;
    return error(StatusCode::kUnsupported, "road.layout: trl: tensor '", tensor.name, "' of ",
                 tensor.units(),
                 " elements: TRL's positions have 32 bits, and count elements of "
                 "whole bytes; use another layout");
  }
  DRIFTLESS_RETURN_IF_ERROR(road_->announce(run_info, deadline));
  for (const std::string& directory : trl_directories(options_.dir)) {
    DRIFTLESS_RETURN_IF_ERROR(make_directories(fs_, directory));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.list(directory));
    for (const std::string& name : names) {
      if (name.starts_with(".step_") && name.ends_with(".tmp")) {
        DRIFTLESS_RETURN_IF_ERROR(fs_.remove_file(join_path(directory, name)));
      }
    }
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.list(options_.dir));
  for (const std::string& name : names) {
    const auto id = shared_fs::parse_publication_name(name);
    if (id) DRIFTLESS_RETURN_IF_ERROR(make_up(*id));
  }
  return {};
}

// Makes the step of an existing publication, if a publisher died before it renamed the step.
Status TrlSender::make_up(const PublicationId& id) {
  const std::string directory = join_path(options_.dir, shared_fs::publication_name(id));
  Result<std::string> manifest =
      shared_fs::read_small(fs_, join_path(directory, kManifestName), shared_fs::kMaxManifestBytes);
  if (manifest.status().code() == StatusCode::kNotFound) return {};  // not a version of ours
  DRIFTLESS_RETURN_IF_ERROR(manifest.status());
  DRIFTLESS_RETURN_IF_ERROR(write(directory, *manifest, id));
  return show(id);
}

Status TrlSender::write(const std::string& directory, std::string_view manifest,
                        const PublicationId& id) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest parsed, parse_manifest(manifest, directory));
  const Places places = this->places(id.version, parsed.encoding == Encoding::kFull);
  if (exists(fs_, places.shown)) return check_same(places.shown, parsed);
  Status removed = fs_.remove_file(places.hidden);
  if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;
  DRIFTLESS_RETURN_IF_ERROR(
      StepWriter(fs_, layout_, encoding_, directory, parsed).write(places.hidden));
  written_[id] = places;
  return {};
}

// Accepts a step that exists already if it is of this run and digest, as when an anchor follows a
// full version of the same number.
Status TrlSender::check_same(const std::string& path, const Manifest& manifest) {
  DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs_.map(path));
  DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(std::move(mapped)));
  const auto& metadata = file.header().metadata;
  const auto has_value = [&](std::string_view key, const std::string& value) {
    const auto found = metadata.find(std::string(key));
    return found != metadata.end() && found->second == value;
  };
  if (has_value(kTrlRunKey, to_hex(manifest.id.run)) &&
      has_value(kTrlDigestKey, to_hex(manifest.digest))) {
    return {};
  }
  return error(StatusCode::kAlreadyExists, path,
               ": is another run's step; use another road.shared_fs.dir, or move it away");
}

Status TrlSender::show(const PublicationId& id) {
  const auto written = written_.find(id);
  if (written == written_.end()) return {};
  const Places places = written->second;
  written_.erase(written);
  DRIFTLESS_RETURN_IF_ERROR(fs_.rename_file(places.hidden, places.shown));
  return fs_.sync_directory(places.directory);
}

Status TrlSender::seal(std::string_view manifest, const Deadline& deadline) {
  const PublicationId id = id_;
  DRIFTLESS_RETURN_IF_ERROR(write(road_->pending_directory(), manifest, id));
  DRIFTLESS_RETURN_IF_ERROR(road_->seal(manifest, deadline));
  DRIFTLESS_RETURN_IF_ERROR(show(id));
  return shared_fs::run_after_publish(
      options_, join_path(options_.dir, shared_fs::publication_name(id)), deadline);
}

Result<std::optional<Hash128>> TrlSender::published(const PublicationId& id,
                                                    const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::optional<Hash128> found, road_->published(id, deadline));
  if (found) DRIFTLESS_RETURN_IF_ERROR(show(id));
  return found;
}

Result<std::vector<PublicationId>> TrlSender::prune(std::uint64_t version) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PublicationId> removed, road_->prune(version));
  for (const PublicationId& id : removed) {
    const bool anchor = id.kind == PublicationKind::kAnchor;
    for (const bool full : {false, true}) {
      // A full version and an anchor of one number share a step. It is removed together with the
      // anchor.
      const PublicationId other{id.version, PublicationKind::kAnchor};
      if (full ? !anchor && exists(fs_, join_path(options_.dir, shared_fs::publication_name(other)))
               : anchor) {
        continue;
      }
      const Status gone = fs_.remove_file(places(id.version, full).shown);
      if (!gone.ok() && gone.code() != StatusCode::kNotFound) return gone;
    }
  }
  return removed;
}

}  // namespace

std::unique_ptr<SendRoad> make_trl_sender(FileSystem& fs, const SharedFsOptions& options,
                                          Encoding encoding, std::unique_ptr<SendRoad> road) {
  return std::make_unique<TrlSender>(fs, options, encoding, std::move(road));
}

}  // namespace driftless
