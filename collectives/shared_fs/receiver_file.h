// SPDX-License-Identifier: Apache-2.0
// <dir>/.receivers/<id>.json: a receiver's last report; how the leader watches these files, and
// what it may remove.
//
//   {"beat": 17, "id": "host3-0", "needs": "...", "proof": "...", "version": 7}
//
// `beat` grows with every report and starts anywhere, so that the content changes with each sign of
// life, also after a restart. Each byte of id, proof and needs is stored as the code point of the
// same number.
#pragma once

#include <map>
#include <set>

#include "collectives/road.h"

namespace driftless::shared_fs {

inline constexpr std::uint64_t kMaxReceiverFileBytes = 65536;

[[nodiscard]] std::string receiver_file_name(std::string_view id);
[[nodiscard]] std::string receiver_to_json(const ReceiverReport& report, std::uint64_t heartbeat);
// kCorrupt if the text is not a report, or not that of receiver `id`.
[[nodiscard]] Result<ReceiverReport> receiver_from_json(std::string_view text, std::string_view id);

// The leader's view. A receiver is alive if its file changed within `patience` by the leader's
// monotonic clock; a file seen for the first time counts as changed then. One thread at a time.
class ReceiverWatch {
 public:
  ReceiverWatch(FileSystem& fs, std::string directory, std::chrono::milliseconds patience);

  struct Receiver {
    ReceiverReport report;
    bool readable = true;  // false: the file is damaged, so the receiver may need any version
  };
  // Reads all files; returns the receivers that are alive.
  [[nodiscard]] Result<std::vector<Receiver>> look();
  // Removes as many of the files as possible.
  void clear();
  // The ids of receivers that removed their files since the first look().
  [[nodiscard]] std::vector<std::string> left() const { return {left_.begin(), left_.end()}; }

 private:
  struct Seen {
    Hash128 content;
    Deadline::Clock::time_point at;
  };
  FileSystem* fs_;
  std::string directory_;
  std::chrono::milliseconds patience_;
  std::map<std::string, Seen> seen_;  // by file name
  std::set<std::string> left_;
};

// The publications of `there` that SendRoad::prune(version) may remove, ascending: the oldest
// first, so that an interrupted pruning leaves a chain.
[[nodiscard]] std::vector<PublicationId> prunable(
    const std::vector<PublicationId>& there, std::uint64_t version,
    const std::vector<ReceiverWatch::Receiver>& receivers);

}  // namespace driftless::shared_fs
