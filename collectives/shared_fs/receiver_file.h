// SPDX-License-Identifier: Apache-2.0
// <dir>/.receivers/<id>.json: what a receiver last said, how the leader watches these
// files, and what it may remove.
//
//   {"beat": 17, "id": "host3-0", "proof": "...", "version": 7}
//
// `beat` grows with every report and starts anywhere, so that the content changes with each sign of
// life, also across a restart. Bytes of id and proof stand for the code points of the same number.
#pragma once

#include <map>
#include <set>

#include "collectives/road.h"

namespace driftless::shared_fs {

inline constexpr std::uint64_t kMaxReceiverFileBytes = 65536;

[[nodiscard]] std::string receiver_file_name(std::string_view id);
[[nodiscard]] std::string receiver_to_json(const ReceiverReport& report, std::uint64_t heartbeat);
// kCorrupt where it is not one, or not that of receiver `id`.
[[nodiscard]] Result<ReceiverReport> receiver_from_json(std::string_view text, std::string_view id);

// The leader's view. Alive is who changed its file within `patience` of our own monotonic clock; a
// file seen for the first time counts as changed then. One thread at a time.
class ReceiverWatch {
 public:
  ReceiverWatch(FileSystem& fs, std::string directory, std::chrono::milliseconds patience);

  struct Receiver {
    ReceiverReport report;
    bool readable = true;  // false: the file is damaged, so it may need anything
  };
  // Looks at all files; those alive.
  [[nodiscard]] Result<std::vector<Receiver>> look();
  // Removes what there is, as far as it goes.
  void clear();
  // The ids of those that removed their files since the first look.
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

// Of `there`, what SendRoad::prune(version) may remove, ascending: oldest first, so that what an
// interrupted pruning leaves is still a chain.
[[nodiscard]] std::vector<PublicationId> prunable(
    const std::vector<PublicationId>& there, std::uint64_t version,
    const std::vector<ReceiverWatch::Receiver>& receivers);

}  // namespace driftless::shared_fs
