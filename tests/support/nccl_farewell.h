// SPDX-License-Identifier: Apache-2.0
// The contract of a leader of the nccl road that closes, or dies, before its receivers leave, over
// every rendezvous. The tests are in nccl/farewell_test.cpp.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "support/faulty_hub.h"
#include "support/faulty_link.h"
#include "support/host_nccl_world.h"

namespace driftless::testing {

struct FarewellCase {
  std::string name;
  // One link at a time.
  std::function<HostRendezvous(const TempDir&)> meet;
};
inline void PrintTo(const FarewellCase& farewell, std::ostream* out) { *out << farewell.name; }
inline std::string farewell_case_name(const ::testing::TestParamInfo<FarewellCase>& info) {
  return info.param.name;
}

class NcclFarewellTest : public ::testing::TestWithParam<FarewellCase> {
 protected:
  NcclFarewellTest() { options_.silence = std::chrono::minutes(10); }  // nothing here ends by it

  void start_leader(unsigned ranks, unsigned receivers) {
    options_.receivers = receivers;
    faults_ = std::make_shared<HubFaults>();
    auto hub = meet_.hub();
    ASSERT_OK(hub);
    auto made = nccl::make_leading_sender(options_, ranks, fabric(),
                                          std::make_unique<FaultyHub>(std::move(*hub), faults_),
                                          leaders_end_);
    ASSERT_OK(made);
    sender_ = std::move(*made);
  }

  void start_leader_and_receiver() {
    ASSERT_NO_FATAL_FAILURE(start_leader(1, 1));
    auto connector = meet_.connector();
    ASSERT_OK(connector);
    auto made = nccl::make_receiver(
        options_, fabric(), faulty_connector(std::move(*connector), link_faults_), receivers_end_);
    ASSERT_OK(made);
    receiver_ = std::move(*made);
    ASSERT_OK(receiver_->report({"r", 0, "there"}, soon()));
    ASSERT_OK(publish(step(1)));
  }

  Status publish(const PublicationId& id) {
    DRIFTLESS_RETURN_IF_ERROR(sender_->begin(id, soon()));
    DRIFTLESS_RETURN_IF_ERROR(write_part(*sender_, {"part", random_part(1'000, id.version)}));
    DRIFTLESS_RETURN_IF_ERROR(sender_->flush(soon()).status());
    return sender_->seal(manifest_of(id), soon());
  }

  std::shared_ptr<nccl::Fabric> fabric() {
    return std::make_shared<HostFabric>(meetings_, std::make_shared<FabricFaults>());
  }

  TempDir dir_{TempDir::Where::kMemory};
  HostRendezvous meet_ = GetParam().meet(dir_);
  NcclOptions options_;
  std::shared_ptr<HostMeetings> meetings_ = std::make_shared<HostMeetings>();
  std::shared_ptr<HubFaults> faults_;
  std::shared_ptr<LinkFaults> link_faults_ = std::make_shared<LinkFaults>();
  std::shared_ptr<nccl::EndNote> leaders_end_ = std::make_shared<nccl::EndNote>();
  std::shared_ptr<nccl::EndNote> receivers_end_ = std::make_shared<nccl::EndNote>();
  std::unique_ptr<SendRoad> sender_;
  std::unique_ptr<ReceiveRoad> receiver_;
};

}  // namespace driftless::testing
