// SPDX-License-Identifier: Apache-2.0
// Calls between the process that runs the contract suite and the processes that hold the road's
// ends.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/road.h"
#include "core/status.h"

namespace driftless::testing {

// Both sides are the same binary, so nothing is checked.
class Packer {
 public:
  Packer& number(std::uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Packer& text(std::string_view value) {
    number(value.size());
    bytes_.append(value);
    return *this;
  }
  Packer& status(const Status& value) {
    return number(static_cast<std::uint64_t>(value.code())).text(value.message());
  }
  Packer& receipt(const PartReceipt& part) {
    text(part.name).number(part.rank).number(part.size_bytes);
    return number(part.hash.high).number(part.hash.low).number(part.locator);
  }
  Packer& ids(const std::vector<PublicationId>& values) {
    number(values.size());
    for (const PublicationId& id : values) {
      number(id.version).number(static_cast<std::uint64_t>(id.kind));
    }
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  std::string text() {
    const std::size_t size = number();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  Status status() {
    const auto code = static_cast<StatusCode>(number());
    std::string message = text();
    return code == StatusCode::kOk ? Status() : Status(code, std::move(message));
  }
  PartReceipt receipt() {
    PartReceipt part;
    part.name = text();
    part.rank = static_cast<std::uint32_t>(number());
    part.size_bytes = number();
    part.hash.high = number();
    part.hash.low = number();
    part.locator = number();
    return part;
  }
  std::vector<PublicationId> ids() {
    std::vector<PublicationId> values(number());
    for (PublicationId& id : values) {
      id.version = number();
      id.kind = static_cast<PublicationKind>(number());
    }
    return values;
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

inline void send_bytes(MPI_Comm comm, int to, int tag, const std::string& bytes) {
  MPI_Send(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, comm);
}

// Sleeps while it waits: there are more processes than cores.
inline std::string receive_bytes(MPI_Comm comm, int from, int tag) {
  for (;;) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_Improbe(from, tag, comm, &found, &message, &status);
    if (found == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    std::string bytes(static_cast<std::size_t>(count), '\0');
    MPI_Mrecv(bytes.data(), count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    return bytes;
  }
}

inline constexpr int kCallTag = 1;
inline constexpr int kReplyTag = 2;

enum class Call : std::uint64_t {
  kQuit,
  kMakeWorld,
  kEndWorld,
  kAnnounce,
  kBegin,
  kCreatePart,
  kFlush,
  kSeal,
  kAbort,
  kPublished,
  kReceivers,
  kPrune,
  kHighestNumber,
  kWrite,
  kRead,
  kSync,
  kClose,
  kEpoch,
  kGather,
  kBroadcast,
  kMakeReceiver,
  kEndReceiver,
  kRunInfo,
  kList,
  kWaitBeyond,
  kFetchManifest,
  kFetchPart,
  kFetchRanges,
  kFetchesAtOnce,
  kReport,
  kLeave,
};

}  // namespace driftless::testing
