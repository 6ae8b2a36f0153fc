// SPDX-License-Identifier: Apache-2.0
// A fabric of threads in one process, in place of CUDA and NCCL: parts lie in host memory, and a
// communicator is a place where threads meet. As with NCCL, nobody is notified if a peer fails: the
// others wait until they give up.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/nccl/fabric.h"

namespace driftless::testing {

// The state that the fabrics of one test share.
class HostMeetings {
 public:
  struct Round {
    std::vector<nccl::Block> root;
    bool posted = false;
    std::set<unsigned> copied;
  };
  struct Meeting {
    unsigned size = 0;
    std::set<unsigned> there;
    bool broken = false;
    std::map<std::uint64_t, Round> rounds;
  };

  std::mutex mutex;
  std::map<std::string, Meeting> meetings;
  std::uint64_t last = 0;
};

// The faults of one process of a test. Set from any thread.
struct FabricFaults {
  std::atomic<bool> stalls = false;    // communicators make no progress
  std::atomic<bool> corrupts = false;  // the next broadcast arrives with a flipped bit
  std::atomic<bool> full = false;      // no memory
  std::atomic<unsigned> connects = 0;  // counted: communicators made
};

class HostFabric : public nccl::Fabric {
 public:
  HostFabric(std::shared_ptr<HostMeetings> meetings, std::shared_ptr<FabricFaults> faults)
      : meetings_(std::move(meetings)), faults_(std::move(faults)) {}

  MemoryKind memory() const override { return MemoryKind::kHost; }
  Result<nccl::Block> allocate(std::uint64_t size) override {
    if (faults_->full) return error(StatusCode::kNoSpace, "no device memory");
    return allocate_host(size);
  }
  Result<nccl::Block> allocate_host(std::uint64_t size) override {
    const auto bytes = std::make_shared<std::vector<std::byte>>(size);
    return nccl::Block{bytes, bytes->data(), size};
  }
  Status copy(std::byte* to, const std::byte* from, std::uint64_t size) override {
    std::memcpy(to, from, size);
    return {};
  }
  Status zero(std::byte* at, std::uint64_t size) override {
    std::memset(at, 0, size);
    return {};
  }
  Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) override {
    std::vector<Hash128> hashes;
    for (const auto& stretch : stretches) hashes.push_back(xxh3_128(stretch));
    return hashes;
  }
  Result<std::string> new_meeting() override {
    const std::scoped_lock lock(meetings_->mutex);
    return concat("meeting ", ++meetings_->last);
  }
  Result<std::unique_ptr<nccl::Communicator>> connect(std::string_view meeting, unsigned rank,
                                                      unsigned size) override;

 private:
  std::shared_ptr<HostMeetings> meetings_;
  std::shared_ptr<FabricFaults> faults_;
};

class HostCommunicator final : public nccl::Communicator {
 public:
  HostCommunicator(std::shared_ptr<HostMeetings> meetings, std::shared_ptr<FabricFaults> faults,
                   std::string name, unsigned rank, unsigned size)
      : meetings_(std::move(meetings)),
        faults_(std::move(faults)),
        name_(std::move(name)),
        rank_(rank),
        size_(size) {
    const std::scoped_lock lock(meetings_->mutex);
    mine().size = size;
    mine().there.insert(rank);
  }
  ~HostCommunicator() override {
    const std::scoped_lock lock(meetings_->mutex);
    mine().broken = true;
  }

  Result<bool> poll() override {
    if (faults_->stalls) return false;
    const std::scoped_lock lock(meetings_->mutex);
    HostMeetings::Meeting& meeting = mine();
    if (meeting.there.size() < size_) return false;
    if (pieces_.empty() && !busy_) return true;
    HostMeetings::Round& round = meeting.rounds[round_];
    if (rank_ == 0) {
      busy_ = round.copied.size() + 1 < size_;
    } else if (round.posted && !meeting.broken) {
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (pieces_[i].size > 0) {
          std::memcpy(pieces_[i].data, round.root[i].data, pieces_[i].size);
          if (faults_->corrupts.exchange(false)) pieces_[i].data[0] ^= std::byte{1};
        }
      }
      round.copied.insert(rank_);
      busy_ = false;
    }
    if (busy_) return false;
    pieces_.clear();
    return true;
  }

  Status broadcast(std::span<const nccl::Block> pieces) override {
    const std::scoped_lock lock(meetings_->mutex);
    ++round_;
    busy_ = true;
    pieces_.assign(pieces.begin(), pieces.end());
    if (rank_ == 0) {
      mine().rounds[round_].root = pieces_;
      mine().rounds[round_].posted = true;
    }
    return {};
  }

 private:
  HostMeetings::Meeting& mine() { return meetings_->meetings[name_]; }

  std::shared_ptr<HostMeetings> meetings_;
  std::shared_ptr<FabricFaults> faults_;
  std::string name_;
  unsigned rank_, size_;
  std::uint64_t round_ = 0;
  bool busy_ = false;
  std::vector<nccl::Block> pieces_;
};

inline Result<std::unique_ptr<nccl::Communicator>> HostFabric::connect(std::string_view meeting,
                                                                       unsigned rank,
                                                                       unsigned size) {
  ++faults_->connects;
  return std::unique_ptr<nccl::Communicator>(
      std::make_unique<HostCommunicator>(meetings_, faults_, std::string(meeting), rank, size));
}

}  // namespace driftless::testing
