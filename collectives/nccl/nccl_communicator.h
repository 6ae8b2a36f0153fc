// SPDX-License-Identifier: Apache-2.0
// One ncclComm_t and its stream.
//
// Non-blocking: NCCL's calls return at once, and ncclCommGetAsyncError tells how far they are, so
// that a peer that never comes can be given up. The destructor lets what has ended leave the
// machine (another receiver may still be served from here), shortly, and then aborts.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include "collectives/nccl/fabric.h"

namespace driftless::nccl {

class NcclCommunicator final : public Communicator {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(int device,
                                                                     const ncclUniqueId& id,
                                                                     unsigned rank, unsigned size);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override;

  [[nodiscard]] Result<bool> poll() override;
  [[nodiscard]] Status broadcast(std::span<const Block> pieces) override;

 private:
  // What poll() waits for: NCCL's own work (connecting, launching), then the GPU's.
  enum class State : unsigned char { kConnecting, kIdle, kLaunching, kRunning };
  explicit NcclCommunicator(int device) : device_(device) {}
  [[nodiscard]] Status start(const ncclUniqueId& id, unsigned rank, unsigned size);
  [[nodiscard]] Result<bool> async_done();

  const int device_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ended_ = nullptr;
  State state_ = State::kConnecting;
  bool lost_ = false;
};

}  // namespace driftless::nccl
