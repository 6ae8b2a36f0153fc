// SPDX-License-Identifier: Apache-2.0
// receivers/<id>: what one receiver says, in a file that it locks as long as it lives; and how the
// sender reads them all. Nobody waits for anybody: the sender only ever tries a lock, and whose
// lock it gets is dead.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectives/host_shm/medium.h"
#include "collectives/host_shm/record.h"
#include "core/deadline.h"

namespace driftless::host_shm {

// The receiver's end. One thread at a time. Dropped without leave() it is as if the process died.
class ReportSlot {
 public:
  // kBusy, at the deadline, where another receiver that lives has this id.
  [[nodiscard]] Status say(const HostShmOptions& options, const ReceiverReport& report,
                           const Deadline& deadline);
  [[nodiscard]] Status leave();

 private:
  [[nodiscard]] Status take(const HostShmOptions& options, const std::string& id,
                            const Deadline& deadline);

  std::optional<Directory> directory_;  // of the file
  std::string id_;                      // empty: none is open
  Descriptor file_;                     // locked
  std::uint64_t beat_ = 0;
};

// The sender's view. Alive is who holds its lock and spoke within `patience` of our own clock.
class ReportWatch {
 public:
  explicit ReportWatch(std::chrono::milliseconds patience) : patience_(patience) {}
  // Removes the files of the dead.
  [[nodiscard]] Result<std::vector<ReceiverReport>> look(const Directory& directory);

 private:
  struct Seen {
    Report last;
    Deadline::Clock::time_point at;
  };
  std::chrono::milliseconds patience_;
  std::map<std::string, Seen> seen_;  // by file name
};

}  // namespace driftless::host_shm
