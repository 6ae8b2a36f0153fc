// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/journal.h"

#include <array>
#include <cstring>

namespace driftless {
namespace {

constexpr std::string_view kBeginMagic = "DRIFTLSJ";
constexpr std::string_view kEndMagic = "DRIFTLSE";

// The last bytes of a journal. The hash is of the JSON text and the fields before it; each frame
// has a hash of its own.
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
    return damaged(what, "its ends do not fit");
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

}  // namespace driftless
