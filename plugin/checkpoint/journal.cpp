// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/journal.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::string_view kBeginMagic = "DRIFTLSJ";
constexpr std::string_view kEndMagic = "DRIFTLSE";

// The last bytes of a journal. The hash covers the JSON text and the fields before it; each frame
// has its own hash.
struct Footer {
  std::uint64_t states_offset = 0;
  std::uint64_t states_bytes = 0;
  std::uint64_t frames = 0;
  std::uint64_t hash_high = 0, hash_low = 0;
  std::array<char, 8> magic{};
};
static_assert(sizeof(Footer) == 48);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Hash128 footer_hash(std::string_view states, const Footer& footer) {
  return xxh3_128(
      concat(states, "|", footer.states_offset, "|", footer.states_bytes, "|", footer.frames));
}

Status damaged(std::string_view what, std::string_view how) {
  return error(StatusCode::kCorrupt, what, ": the journal is damaged (", how,
               "), so the checkpoint may be between two versions; restore it from a full copy and "
               "remove its .weight_sync directory");
}

constexpr std::string_view kStateName = "state.json";
constexpr std::uint64_t kMaxStateBytes = 64 << 20;

// A stretch is read, changed and written as a whole. Changes that are more than kMaxGapBytes apart
// go into separate stretches, so that the bytes written stay O(changed).
constexpr std::uint64_t kMaxStretchBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxGapBytes = 16384;
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 40;

// Patches one file through one thread's buffer. Stretches begin and end with a changed unit, so
// threads that change different units of one file never write the same bytes.
class StretchWriter {
 public:
  Status write(File& file, std::uint64_t tensor_offset, const DeltaView& delta) {
    std::size_t begin = 0;
    while (begin < delta.offsets.size()) {
      std::size_t end = begin + 1;
      while (end < delta.offsets.size() && joins(delta, begin, end)) ++end;
      DRIFTLESS_RETURN_IF_ERROR(write_stretch(file, tensor_offset, delta, begin, end));
      begin = end;
    }
    return {};
  }

 private:
  static bool joins(const DeltaView& delta, std::size_t begin, std::size_t next) {
    const std::uint64_t gap = delta.offsets[next] - delta.offsets[next - 1];
    const std::uint64_t length = std::uint64_t{delta.offsets[next]} - delta.offsets[begin] + 1;
    return gap * delta.unit_bytes <= kMaxGapBytes && length * delta.unit_bytes <= kMaxStretchBytes;
  }

  Status write_stretch(File& file, std::uint64_t tensor_offset, const DeltaView& delta,
                       std::size_t begin, std::size_t end) {
    const unsigned width = delta.unit_bytes;
    const std::uint32_t first = delta.offsets[begin];
    const std::size_t count = end - begin;
    buffer_.resize((std::uint64_t{delta.offsets[end - 1]} - first + 1) * width);
    offsets_.resize(count);
    for (std::size_t i = 0; i < count; ++i) offsets_[i] = delta.offsets[begin + i] - first;
    const std::uint64_t at = tensor_offset + (delta.origin + first) * width;
    if (buffer_.size() > width) DRIFTLESS_RETURN_IF_ERROR(file.pread(at, buffer_));
    host_kernels().scatter(buffer_.data(), width, offsets_.data(), count,
                           delta.values + begin * width);
    return file.pwrite(at, buffer_);
  }

  std::vector<std::byte> buffer_;
  std::vector<std::uint32_t> offsets_;
};

// Visits every piece of a frame, with its tensor.
Status visit_frame(const Frame& frame, const Checkpoint& checkpoint,
                   const std::function<Status(std::uint32_t tensor, const DeltaView&)>& visit) {
  const BucketView bucket = frame.bucket();
  for (const BucketEntry& entry : bucket.entries) {
    EntryCursor cursor(checkpoint.layout(), bucket, entry);
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView delta, cursor.next());
      if (delta.offsets.empty()) break;
      DRIFTLESS_RETURN_IF_ERROR(visit(entry.tensor, delta));
    }
  }
  return {};
}

// The places where the tensor's bits are stored: its own and its copies'.
std::vector<TensorLocation> places(const Checkpoint& checkpoint, std::uint32_t tensor) {
  std::vector<TensorLocation> found = {checkpoint.location(tensor)};
  for (const OtherTensor& other : checkpoint.others()) {
    if (other.copy_of == tensor) found.push_back(other.at);
  }
  return found;
}

// Opens the files by their paths. They are compared once they are open, so that the file written is
// the one that is mapped.
Result<std::vector<std::unique_ptr<File>>> open_files(FileSystem& fs,
                                                      const Checkpoint& checkpoint) {
  std::vector<std::unique_ptr<File>> files;
  for (const SafetensorsFile& file : checkpoint.files()) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, fs.open(file.file().path()));
    files.push_back(std::move(opened));
  }
  DRIFTLESS_RETURN_IF_ERROR(check_same_files(fs, checkpoint));
  return files;
}

}  // namespace

Result<std::unique_ptr<JournalWriter>> JournalWriter::create(FileSystem& fs,
                                                             const std::string& path) {
  std::unique_ptr<JournalWriter> writer(new JournalWriter(fs, path));
  const std::string temporary = writer->temporary_path();
  if (exists(fs, temporary)) DRIFTLESS_RETURN_IF_ERROR(fs.remove_file(temporary));
  DRIFTLESS_ASSIGN_OR_RETURN(writer->file_, fs.create(temporary));
  DRIFTLESS_RETURN_IF_ERROR(writer->file_->pwrite(0, bytes_of(kBeginMagic)));
  writer->offset_ = kBeginMagic.size();
  return writer;
}

JournalWriter::~JournalWriter() {
  if (file_ == nullptr || committed_) return;
  file_.reset();
  const Status ignored = fs_->remove_file(temporary_path());  // the next writer removes it too
}

Status JournalWriter::append(std::span<const std::byte> frame) {
  std::uint64_t offset = 0;
  {
    const std::scoped_lock lock(mutex_);
    offset = offset_;
    offset_ += frame.size();
    ++frames_;
  }
  return file_->pwrite(offset, frame);
}

Status JournalWriter::seal(const CheckpointState& before, const CheckpointState& after) {
  const std::string states = concat(state_to_json(before), state_to_json(after));
  Footer footer;
  footer.states_offset = offset_;
  footer.states_bytes = states.size();
  footer.frames = frames_;
  const Hash128 hash = footer_hash(states, footer);
  footer.hash_high = hash.high;
  footer.hash_low = hash.low;
  std::memcpy(footer.magic.data(), kEndMagic.data(), kEndMagic.size());
  DRIFTLESS_RETURN_IF_ERROR(file_->pwrite(offset_, bytes_of(states)));
  offset_ += states.size();
  DRIFTLESS_RETURN_IF_ERROR(file_->pwrite(offset_, std::as_bytes(std::span(&footer, 1))));
  offset_ += sizeof(footer);
  return file_->sync();
}

Status JournalWriter::decide() {
  DRIFTLESS_RETURN_IF_ERROR(fs_->rename_file(temporary_path(), path_));
  committed_ = true;
  return fs_->sync_directory(path_.substr(0, path_.rfind('/') + 1));
}

Result<Journal> Journal::open(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(MappedFile file, fs.map(path));
  DRIFTLESS_ASSIGN_OR_RETURN(Journal journal, parse(file.bytes(), path));
  journal.file_ = std::move(file);
  return journal;
}

Result<Journal> Journal::parse(std::span<const std::byte> bytes, std::string_view what) {
  Footer footer;
  if (bytes.size() < kBeginMagic.size() + sizeof(footer)) return damaged(what, "too short");
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof(footer), sizeof(footer));
  const std::uint64_t body_bytes = bytes.size() - sizeof(footer);
  if (std::memcmp(bytes.data(), kBeginMagic.data(), kBeginMagic.size()) != 0 ||
      std::memcmp(footer.magic.data(), kEndMagic.data(), kEndMagic.size()) != 0 ||
      footer.states_offset < kBeginMagic.size() || footer.states_offset > body_bytes ||
      footer.states_bytes != body_bytes - footer.states_offset) {
    return damaged(what, "its first or last bytes are wrong");
  }
  const std::string_view states(reinterpret_cast<const char*>(bytes.data()) + footer.states_offset,
                                footer.states_bytes);
  if (footer_hash(states, footer) != Hash128{footer.hash_high, footer.hash_low}) {
    return damaged(what, "the footer's hash does not fit");
  }
  Journal journal;
  const std::size_t line = states.find('\n');
  if (line == std::string_view::npos) return damaged(what, "a state is missing");
  DRIFTLESS_ASSIGN_OR_RETURN(journal.before_, parse_state(states.substr(0, line), what));
  DRIFTLESS_ASSIGN_OR_RETURN(journal.after_, parse_state(states.substr(line + 1), what));
  std::span<const std::byte> rest =
      bytes.subspan(kBeginMagic.size(), footer.states_offset - kBeginMagic.size());
  while (!rest.empty()) {
    const Result<FrameInfo> frame = read_frame_header(rest);
    if (!frame.ok()) return damaged(what, frame.status().message());
    if (frame->frame_bytes == 0 || frame->frame_bytes > rest.size())
      return damaged(what, "a frame is cut off");
    journal.frames_.push_back(rest.subspan(0, frame->frame_bytes));
    rest = rest.subspan(frame->frame_bytes);
  }
  if (journal.frames_.size() != footer.frames) return damaged(what, "frames are missing");
  return journal;
}

std::string sync_path(const std::string& checkpoint, std::string_view name) {
  return join_path(join_path(checkpoint, kSyncDirectory), name);
}

std::string state_to_json(const CheckpointState& state) {
  nlohmann::ordered_json json;
  json["version"] = version_string(state.version);
  if (!state.run.is_zero()) json["run"] = to_hex(state.run);
  if (!state.layout.is_zero()) json["weight_layout"] = to_hex(state.layout);
  if (!state.files.is_zero()) json["files"] = to_hex(state.files);
  if (state.digest) json["digest"] = to_hex(*state.digest);
  if (!state.left_alone.empty()) json["left_alone"] = state.left_alone;
  if (!state.copies.empty()) json["copies"] = state.copies;
  return json.dump() + "\n";
}

namespace {

Status read_others(const Json& json, std::string_view what, CheckpointState& state) {
  const auto name_of = [&](const Json& name) -> Result<std::string> {
    if (!name.is_string()) {
      return error(StatusCode::kCorrupt, what, ": a tensor's name must be a string, found ",
                   name.type_name());
    }
    DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(name.get<std::string>()).with_context(what));
    return name.get<std::string>();
  };
  if (json.contains("left_alone")) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Json* names, json_array(json, "left_alone", what));
    for (const Json& each : *names) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::string name, name_of(each));
      state.left_alone.push_back(std::move(name));
    }
  }
  if (!json.contains("copies")) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* copies, json_object(json, "copies", what));
  for (const auto& [copy, source] : copies->get_ref<const Json::object_t&>()) {
    DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(copy).with_context(what));
    DRIFTLESS_ASSIGN_OR_RETURN(state.copies[copy], name_of(source));
  }
  return {};
}

}  // namespace

Result<CheckpointState> parse_state(std::string_view text, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  CheckpointState state;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string version, json_string(json, "version", what));
  const Result<std::uint64_t> number = parse_version_string(version);
  if (!number.ok()) return number.status().with_context(what);
  state.version = *number;
  if (json.contains("run")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.run, json_hash128(json, "run", what));
  }
  if (json.contains("files")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.files, json_hash128(json, "files", what));
  }
  if (json.contains("weight_layout")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.layout, json_hash128(json, "weight_layout", what));
  }
  if (json.contains("digest")) {
    DRIFTLESS_ASSIGN_OR_RETURN(state.digest, json_digest(json, "digest", what));
  }
  DRIFTLESS_RETURN_IF_ERROR(read_others(json, what, state));
  return state;
}

Result<CheckpointState> load_state(FileSystem& fs, const std::string& checkpoint) {
  const std::string path = sync_path(checkpoint, kStateName);
  if (!exists(fs, path)) return CheckpointState();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, path, kMaxStateBytes));
  return parse_state(text, path);
}

Status save_state(FileSystem& fs, const std::string& checkpoint, const CheckpointState& state) {
  return replace_text(fs, sync_path(checkpoint, kStateName), state_to_json(state));
}

Status check_no_journal(FileSystem& fs, const std::string& checkpoint) {
  const std::string path = sync_path(checkpoint, kJournalName);
  if (!exists(fs, path)) return {};
  return error(StatusCode::kBusy, path,
               ": an apply was interrupted here, or is running; run 'driftless apply' on ",
               checkpoint, " again to finish it");
}

Result<std::vector<Frame>> decode_journal(const Journal& journal, const WeightLayout& layout,
                                          unsigned threads) {
  std::vector<Frame> frames(journal.frames().size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames.size(), threads, [&](std::size_t task, unsigned) -> Status {
        DRIFTLESS_ASSIGN_OR_RETURN(frames[task],
                                   Frame::decode(journal.frames()[task], layout, kMaxFrameBytes));
        if (frames[task].dense()) return error(StatusCode::kCorrupt, "a full frame in a journal");
        return {};
      }));
  return frames;
}

Status replay_journal(FileSystem& fs, std::span<const Frame> frames, const Checkpoint& checkpoint,
                      unsigned threads) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<File>> files,
                             open_files(fs, checkpoint));
  std::vector<StretchWriter> writers(std::max(1U, threads));
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames.size(), threads, [&](std::size_t task, unsigned worker) {
        return visit_frame(frames[task], checkpoint,
                           [&](std::uint32_t tensor, const DeltaView& delta) {
                             for (const TensorLocation& at : places(checkpoint, tensor)) {
                               DRIFTLESS_RETURN_IF_ERROR(
                                   writers[worker].write(*files[at.file], at.file_offset, delta));
                             }
                             return Status();
                           });
      }));
  return parallel_for(files.size(), threads,
                      [&](std::size_t file, unsigned) { return files[file]->sync(); });
}

Result<Digest> journal_change(std::span<const Frame> frames, const Checkpoint& checkpoint,
                              unsigned threads) {
  std::vector<Digest> sums(std::max(1U, threads));
  std::vector<std::vector<std::byte>> values(sums.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames.size(), threads, [&](std::size_t task, unsigned worker) {
        return visit_frame(
            frames[task], checkpoint, [&](std::uint32_t tensor, const DeltaView& delta) -> Status {
              const HostKernels& kernels = host_kernels();
              const TensorView now = checkpoint.tensor(tensor);
              values[worker].resize(delta.offsets.size() * delta.unit_bytes);
              kernels.gather(now.data + delta.origin * delta.unit_bytes, delta.unit_bytes,
                             delta.offsets.data(), delta.offsets.size(), values[worker].data());
              sums[worker] += kernels.digest_change(
                  digest_tensor_key(now.spec->name), delta.unit_bytes, delta.origin,
                  delta.offsets.data(), delta.offsets.size(), values[worker].data(), delta.values);
              return {};
            });
      }));
  Digest change;
  for (const Digest& sum : sums) change += sum;
  return change;
}

namespace {

constexpr std::string_view kMeantToStay =
    " since this process opened it, so no version is written or labelled there; if the new files "
    "are meant to stay, remove the checkpoint's .weight_sync directory, then start again";

// An index that is new is a change, too: it decides which files belong to the checkpoint.
Status check_same_index(FileSystem& fs, const Checkpoint& checkpoint) {
  if (checkpoint.directory().empty()) return {};
  const std::string path = join_path(checkpoint.directory(), kCheckpointIndexName);
  const Result<std::string> text = read_text(fs, path, kMaxCheckpointIndexBytes);
  const bool gone = text.status().code() == StatusCode::kNotFound;
  if (!text.ok() && !gone && text.status().code() != StatusCode::kCorrupt) return text.status();
  const auto now = text.ok() ? std::optional(xxh3_128(*text)) : std::nullopt;
  if (now == checkpoint.index_hash() && (text.ok() || gone)) return {};
  return error(StatusCode::kMismatch, path, gone ? ": was removed" : ": was written or replaced",
               kMeantToStay);
}

}  // namespace

Status check_same_files(FileSystem& fs, const Checkpoint& checkpoint) {
  DRIFTLESS_RETURN_IF_ERROR(check_same_index(fs, checkpoint));
  for (const SafetensorsFile& safetensors : checkpoint.files()) {
    const MappedFile& mapped = safetensors.file();
    const Result<FileInfo> now = fs.info(mapped.path());
    const bool gone = now.status().code() == StatusCode::kNotFound;
    if (!now.ok() && !gone) return now.status();
    const bool same =
        !gone && now->identity == mapped.identity() && now->size_bytes == mapped.bytes().size();
    if (same && safetensors.header_unchanged()) continue;
    if (same) {
      return error(StatusCode::kMismatch, mapped.path(), ": another process wrote into its header",
                   kMeantToStay);
    }
    return error(StatusCode::kMismatch, mapped.path(), ": ",
                 gone ? std::string("was removed")
                      : concat("was replaced by another file, or changed its size from ",
                               mapped.bytes().size(), " to ", now->size_bytes, " bytes,"),
                 kMeantToStay);
  }
  return {};
}

Status check_patchable(FileSystem& fs, const Checkpoint& checkpoint) {
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::string& path = file.file().path();
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
    if (info.kind != FileKind::kFile) {
      return error(
          StatusCode::kInvalidArgument, path,
          ": not a regular file, so it is not patched in place; copy the checkpoint (cp -rL)");
    }
    if (info.hard_links > 1) {
      return error(StatusCode::kInvalidArgument, path, ": the file has ", info.hard_links,
                   " names (hard links), and patching it would change every one; copy the "
                   "checkpoint instead of linking it");
    }
  }
  const Result<std::vector<std::unique_ptr<File>>> files = open_files(fs, checkpoint);
  return files.ok() ? Status() : files.status();
}

}  // namespace driftless
