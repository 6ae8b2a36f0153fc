// SPDX-License-Identifier: Apache-2.0
// HostFabric between processes: a communicator is a directory, and a broadcast is a file in it. As
// with NCCL, nobody is notified if a peer dies or stops: the others wait on.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/host_fabric.h"

namespace driftless::testing {

class ProcessCommunicator final : public nccl::Communicator {
 public:
  ProcessCommunicator(std::string directory, unsigned rank, unsigned size,
                      std::shared_ptr<FabricFaults> faults)
      : directory_(std::move(directory)), rank_(rank), size_(size), faults_(std::move(faults)) {
    std::filesystem::create_directories(directory_);
    leave_sign(concat("there.", rank_));
  }

  Result<bool> poll() override {
    for (unsigned rank = 0; rank < size_; ++rank) {
      if (!has(concat("there.", rank))) return false;
    }
    if (!busy_) return true;
    if (rank_ != 0) {
      if (!has(concat("round.", round_))) return false;
      take();
    }
    for (unsigned rank = 1; rank < size_ && rank_ == 0; ++rank) {
      if (!has(concat("done.", round_, ".", rank))) return false;
    }
    busy_ = false;
    return true;
  }

  Status broadcast(std::span<const nccl::Block> pieces) override {
    if (faults_->stalls.exchange(false)) return error(StatusCode::kIo, "the network is gone");
    ++round_;
    busy_ = true;
    pieces_.assign(pieces.begin(), pieces.end());
    if (rank_ != 0) return {};
    const std::string name = concat("round.", round_);
    std::ofstream file(join_path(directory_, name + ".tmp"), std::ios::binary);
    for (const nccl::Block& piece : pieces_) {
      file.write(reinterpret_cast<const char*>(piece.data),
                 static_cast<std::streamsize>(piece.size));
    }
    file.close();
    std::filesystem::rename(join_path(directory_, name + ".tmp"), join_path(directory_, name));
    return {};
  }

 private:
  [[nodiscard]] bool has(const std::string& name) const {
    return ::access(join_path(directory_, name).c_str(), F_OK) == 0;
  }
  void leave_sign(const std::string& name) const { std::ofstream(join_path(directory_, name)); }
  void take() {
    std::ifstream file(join_path(directory_, concat("round.", round_)), std::ios::binary);
    for (const nccl::Block& piece : pieces_) {
      file.read(reinterpret_cast<char*>(piece.data), static_cast<std::streamsize>(piece.size));
    }
    leave_sign(concat("done.", round_, ".", rank_));
  }

  const std::string directory_;
  const unsigned rank_, size_;
  const std::shared_ptr<FabricFaults> faults_;
  std::uint64_t round_ = 0;
  bool busy_ = false;
  std::vector<nccl::Block> pieces_;
};

// Of the faults it supports only `stalls`: the next broadcast fails.
class ProcessFabric final : public HostFabric {
 public:
  ProcessFabric(std::string directory, std::shared_ptr<FabricFaults> faults)
      : HostFabric(nullptr, faults), directory_(std::move(directory)), faults_(std::move(faults)) {}
  Result<std::string> new_meeting() override { return concat(::getpid(), ".", ++last_); }
  Result<std::unique_ptr<nccl::Communicator>> connect(std::string_view meeting, unsigned rank,
                                                      unsigned size) override {
    return std::unique_ptr<nccl::Communicator>(
        std::make_unique<ProcessCommunicator>(join_path(directory_, meeting), rank, size, faults_));
  }

 private:
  const std::string directory_;
  const std::shared_ptr<FabricFaults> faults_;
  std::uint64_t last_ = 0;
};

}  // namespace driftless::testing
