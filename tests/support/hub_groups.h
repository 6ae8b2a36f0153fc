// SPDX-License-Identifier: Apache-2.0
// Groups of trainers that the hub forms, on this host at a port that the system chooses. Each rank
// has a port of its own, as a process has.
#pragma once

#include "collectives/hub/hub_group.h"
#include "support/road_contract.h"
#include "support/tcp_hub.h"

namespace driftless::testing {

class HubPorts {
 public:
  HubPorts() {
    options_.address = "127.0.0.1:0";
    options_.token_file = write_token(dir_.file("token"), "a secret of a test's run");
    leader_ = hub::make_tcp_port(options_, &options_.address);
    auto held = leader_->serve("held");  // listens from now on: the address is known
    EXPECT_TRUE(is_ok(held));
    held_ = std::move(*held);
  }
  [[nodiscard]] const HubOptions& options() const { return options_; }
  // The port of the leading trainer, and that of another process.
  [[nodiscard]] const std::shared_ptr<hub::Port>& leader() const { return leader_; }
  [[nodiscard]] std::shared_ptr<hub::Port> other() const { return hub::make_tcp_port(options_); }
  [[nodiscard]] Result<std::unique_ptr<Group>> group(const hub::GroupPlace& place,
                                                     const Deadline& deadline = soon()) const {
    return hub::make_hub_group(place.rank == 0 ? leader_ : other(), place, deadline);
  }
  // Another process listens at this address: all links to the old one are closed.
  void start_again() {
    held_.reset();
    leader_ = hub::make_tcp_port(options_);
    auto held = leader_->serve("held");
    EXPECT_TRUE(is_ok(held));
    held_ = std::move(*held);
  }

 private:
  TempDir dir_;
  HubOptions options_;
  std::shared_ptr<hub::Port> leader_;
  std::unique_ptr<hub::Hub> held_;
};

// The groups of all ranks, made at once.
inline std::vector<std::unique_ptr<Group>> make_hub_groups(const HubPorts& ports, unsigned size,
                                                           const std::string& attempt = "",
                                                           const std::string& service = "group") {
  std::vector<std::unique_ptr<Group>> groups(size);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto made = ports.group({rank, size, attempt, service});
      EXPECT_TRUE(is_ok(made));
      if (made.ok()) groups[rank] = std::move(*made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return groups;
}

}  // namespace driftless::testing
