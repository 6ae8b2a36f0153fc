// SPDX-License-Identifier: Apache-2.0
// The files kept beside a local checkpoint: its state, and the journal of an apply. The journal
// holds the new bits of everything that one version changes. It is written and synced before the
// first byte of the checkpoint changes, and then written out into the checkpoint's files.
//
// The journal is written as journal.tmp and renamed to journal once complete. So a file named
// journal always means: continue to the new version. Replaying it, any number of times, gives the
// new version. Without it the checkpoint is unchanged at the old version.
// docs/formats/apply.md explains the whole procedure.
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

// The version that a local checkpoint directory holds: <checkpoint>/.weight_sync/state.json. The
// state file and the lock beside it are the same ones that other tools of the hf_delta family use;
// those tools read "version" and ignore our other keys.
struct CheckpointState {
  std::uint64_t version = 0;
  Hash128 run;      // zero: unknown (none of our versions was applied yet)
  Hash128 layout;   // zero: unknown
  Hash128 files{};  // hash of the version's files, if it has no manifest; zero: unknown
  std::optional<Digest> digest;  // of all weights that the run publishes, if known
  // Tensors that are stored here but not published by the run: copies of published tensors, which
  // are written together with them, and tensors left as they are, ascending.
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
// Restricts `checkpoint` to the tensors that the run publishes. The state names the other stored
// tensors, which become others().
[[nodiscard]] Status leave_others(const CheckpointState& state, Checkpoint& checkpoint);
// kBusy if an interrupted apply left a journal: then the weights may be between two versions.
[[nodiscard]] Status check_no_journal(FileSystem& fs, const std::string& checkpoint);

inline constexpr std::string_view kJournalName = "journal";

// Writes a journal. append() may be called by several threads.
class JournalWriter {
 public:
  // Replaces `path`.tmp if an earlier writer left an unfinished one.
  [[nodiscard]] static Result<std::unique_ptr<JournalWriter>> create(FileSystem& fs,
                                                                     const std::string& path);
  ~JournalWriter();  // removes the temporary file if decide() was not reached

  [[nodiscard]] Status append(std::span<const std::byte> frame);
  // Adds the states and the footer, and syncs. Then the journal is complete, but not yet decided.
  [[nodiscard]] Status seal(const CheckpointState& before, const CheckpointState& after);
  // Renames the journal and syncs the directory. From then on the version is decided.
  [[nodiscard]] Status decide();
  // The journal's path until decide().
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

// A journal that was read back. open() finds every frame and checks its header; decoding checks the
// frames themselves.
class Journal {
 public:
  // kCorrupt if the journal is damaged: then the checkpoint's version is unknown, and it must be
  // restored from a full version.
  [[nodiscard]] static Result<Journal> open(FileSystem& fs, const std::string& path);
  // Parses a journal from memory; `what` names it in errors.
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

// Returns every frame of the journal, verified by its hash. Call it once, before the frames are
// used. They point into the journal. kCorrupt if a frame is damaged.
[[nodiscard]] Result<std::vector<Frame>> decode_journal(const Journal& journal,
                                                        const WeightLayout& layout,
                                                        unsigned threads);

// Writes every frame's values to their places and to those of stored copies, in parallel, and syncs
// the files. Idempotent: after a failure or a crash call it again; the result is the same. It
// writes only stretches that contain changes. kMismatch, with nothing written, if a file was
// replaced (check_same_files()).
[[nodiscard]] Status replay_journal(FileSystem& fs, std::span<const Frame> frames,
                                    const Checkpoint& checkpoint, unsigned threads);

// The change that a replay of the journal would make to the digest of the present weights. The sum
// of both is the digest after a replay, known before anything is written. Reads the places that the
// journal changes, whatever they contain.
[[nodiscard]] Result<Digest> journal_change(std::span<const Frame> frames,
                                            const Checkpoint& checkpoint, unsigned threads);

// kMismatch, naming the file, if a file of the checkpoint is no longer the mapped one: it was
// replaced, its size or header changed, or the index changed. Then the mapping no longer shows what
// a reader of the path finds. Reads headers and the index, no weights.
[[nodiscard]] Status check_same_files(FileSystem& fs, const Checkpoint& checkpoint);

// Ok if every file of the checkpoint is still the mapped one and can be patched in place: a
// regular, writable file without a second hard link, through which another checkpoint would change,
// too.
[[nodiscard]] Status check_patchable(FileSystem& fs, const Checkpoint& checkpoint);

}  // namespace driftless
