// SPDX-License-Identifier: Apache-2.0
// What is kept beside a local checkpoint: its state, and the journal of an apply: the new bits of
// everything that one version changes, written and synced before the first byte of the checkpoint
// is touched; and writing it out into the files.
//
// It is written as journal.tmp and renamed to journal once whole. A file named journal therefore
// always says "go on to the new version", and writing it out again, any number of times, ends
// there; without it the checkpoint is untouched at the old version. docs/formats/apply.md tells the
// whole story.
//
//   "DRIFTLSJ" | native frames (formats/frame.h) | JSON: states before and after | footer (48
//   bytes)
#pragma once

#include <map>
#include <mutex>

#include "formats/checkpoint.h"
#include "formats/frame.h"

namespace driftless {

inline constexpr std::string_view kSyncDirectory = ".weight_sync";

// Which version a local checkpoint directory holds: <checkpoint>/.weight_sync/state.json. The file
// and the lock beside it are the ones that other tools of the hf_delta family use; they read
// "version" and pass over our further keys.
struct CheckpointState {
  std::uint64_t version = 0;
  Hash128 run;                   // zero: unknown (no version of ours was applied yet)
  Hash128 layout;                // zero: unknown
  Hash128 files{};               // of the version, if it has no manifest; zero: unknown
  std::optional<Digest> digest;  // of all weights that the run publishes, where known
  // What is stored here and the run does not publish: copies of published tensors, which are
  // written with them, and what is left alone, ascending.
  std::map<std::string, std::string> copies{};
  std::vector<std::string> left_alone{};

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

[[nodiscard]] std::string sync_path(const std::string& checkpoint, std::string_view name);
[[nodiscard]] std::string state_to_json(const CheckpointState& state);
[[nodiscard]] Result<CheckpointState> parse_state(std::string_view text, std::string_view what);
// A checkpoint without a state file is version 0 of an unknown run.
[[nodiscard]] Result<CheckpointState> load_state(FileSystem& fs, const std::string& checkpoint);
// Replaces the state file; durable once it returns ok.
[[nodiscard]] Status save_state(FileSystem& fs, const std::string& checkpoint,
                                const CheckpointState& state);
// Keeps what the run publishes, as the state tells; the rest of what is stored is others().
[[nodiscard]] Status leave_others(const CheckpointState& state, Checkpoint& checkpoint);
// kBusy if an interrupted apply left a journal: the weights may be between two versions.
[[nodiscard]] Status check_no_journal(FileSystem& fs, const std::string& checkpoint);

inline constexpr std::string_view kJournalName = "journal";

// Writes a journal. append() may be called from several threads.
class JournalWriter {
 public:
  // Replaces what an earlier, unfinished writer left as `path`.tmp.
  [[nodiscard]] static Result<std::unique_ptr<JournalWriter>> create(FileSystem& fs,
                                                                     const std::string& path);
  ~JournalWriter();  // removes the temporary file if decide() was not reached

  [[nodiscard]] Status append(std::span<const std::byte> frame);
  // Adds the states and the footer, and syncs. The journal is whole, and nobody acts on it yet.
  [[nodiscard]] Status seal(const CheckpointState& before, const CheckpointState& after);
  // Renames and syncs the directory. After that the version is decided.
  [[nodiscard]] Status decide();
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
  // kCorrupt if it is damaged: then nobody can say which version the checkpoint holds, and it
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

// Every frame of the journal, verified by its hash: once, before anything is done with them. They
// point into the journal. kCorrupt if one is damaged.
[[nodiscard]] Result<std::vector<Frame>> decode_journal(const Journal& journal,
                                                        const WeightLayout& layout,
                                                        unsigned threads);

// Writes every frame's values to their places, and to those of stored copies, in parallel, and
// syncs the files. Idempotent: after a failure or a crash it is called again, and ends the same.
// Only stretches that hold changes are written. kMismatch, with nothing written, if a file was
// replaced (check_same_files()).
[[nodiscard]] Status replay_journal(FileSystem& fs, std::span<const Frame> frames,
                                    const Checkpoint& checkpoint, unsigned threads);

// The digest after replaying the journal, less the digest of the weights as they are now: the
// places that it touches are read, whatever they hold. So `digest now + this` is the digest that
// replaying ends with, known before anything is written.
[[nodiscard]] Result<Digest> journal_change(std::span<const Frame> frames,
                                            const Checkpoint& checkpoint, unsigned threads);

// kMismatch, naming the file, if a file of the checkpoint is not the one that is mapped any more:
// it was replaced by another, or changed its size, or its header, or the index was changed. What
// was read through the mapping, and where, then says nothing about what a reader of the path finds.
// Reads headers and the index, no weights.
[[nodiscard]] Status check_same_files(FileSystem& fs, const Checkpoint& checkpoint);

// Ok if every file of the checkpoint is the one that is mapped and can be patched in place:
// a regular file, writable, with no further hard link through which another checkpoint would change
// too.
[[nodiscard]] Status check_patchable(FileSystem& fs, const Checkpoint& checkpoint);

}  // namespace driftless
