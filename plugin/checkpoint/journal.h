// SPDX-License-Identifier: Apache-2.0
// The journal of an apply: the new bits of everything that one version changes, written and synced
// before the first byte of the checkpoint is touched.
//
// It is written as journal.tmp and renamed to journal once whole. A file named journal therefore
// always says "go on to the new version", and writing it out again, any number of times, ends
// there; without it the checkpoint is untouched at the old version. docs/formats/apply.md tells the
// whole story.
//
//   "DRIFTLSJ" | native frames (formats/frame.h) | JSON: states before and after | footer (48
//   bytes)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/checkpoint/checkpoint_state.h"

namespace driftless {

inline constexpr std::string_view kJournalName = "journal";

// Writes a journal. append() may be called from several threads.
class JournalWriter {
 public:
  // Replaces what an earlier, unfinished writer left as `path`.tmp.
  [[nodiscard]] static Result<std::unique_ptr<JournalWriter>> create(FileSystem& fs,
                                                                     const std::string& path);
  ~JournalWriter();  // removes the temporary file where decide() was not reached

  [[nodiscard]] Status append(std::span<const std::byte> frame);
  // Adds the states and the footer, and syncs. The journal is whole, and nobody acts on it yet.
  [[nodiscard]] Status seal(const CheckpointState& before, const CheckpointState& after);
  // Renames and syncs the directory. After that the version is decided.
  [[nodiscard]] Status decide();
  // Both.
  [[nodiscard]] Status commit(const CheckpointState& before, const CheckpointState& after);
  [[nodiscard]] std::uint64_t size_bytes() const { return offset_; }
  // Where it is until decide().
  [[nodiscard]] std::string temporary_path() const { return path_ + ".tmp"; }

 private:
  JournalWriter(FileSystem& fs, std::string path) : fs_(&fs), path_(std::move(path)) {}

  FileSystem* fs_;
  std::string path_;
  std::unique_ptr<File> file_;
  std::mutex mutex_;
  std::uint64_t offset_ = 0;
  std::uint64_t frames_ = 0;
  bool committed_ = false;
};

// A journal read back. Every frame is found and its header checked; the frames themselves are
// checked when decoded.
class Journal {
 public:
  // kCorrupt where it is damaged: then nobody can say which version the checkpoint holds, and it
  // must be restored from a full one.
  [[nodiscard]] static Result<Journal> open(FileSystem& fs, const std::string& path);
  // The same from bytes, for `what`.
  [[nodiscard]] static Result<Journal> parse(std::span<const std::byte> bytes,
                                             std::string_view what);

  [[nodiscard]] const CheckpointState& before() const { return before_; }
  [[nodiscard]] const CheckpointState& after() const { return after_; }
  [[nodiscard]] std::span<const std::span<const std::byte>> frames() const { return frames_; }

 private:
  MappedFile file_;
  CheckpointState before_, after_;
  std::vector<std::span<const std::byte>> frames_;
};

}  // namespace driftless
