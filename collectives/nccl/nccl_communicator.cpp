// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_communicator.h"

#include "collectives/nccl/nccl_status.h"
#include "core/deadline.h"

namespace driftless::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarewell{200};

}  // namespace

Result<std::unique_ptr<Communicator>> NcclCommunicator::connect(int device, const ncclUniqueId& id,
                                                                unsigned rank, unsigned size) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(device));
  DRIFTLESS_RETURN_IF_ERROR(made->start(id, rank, size));
  return std::unique_ptr<Communicator>(std::move(made));
}

Status NcclCommunicator::start(const ncclUniqueId& id, unsigned rank, unsigned size) {
  const DeviceGuard guard(device_);
  DRIFTLESS_RETURN_IF_ERROR(
      cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"));
  DRIFTLESS_RETURN_IF_ERROR(
      cuda_status(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming), "making an event"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return nccl_status(ncclCommInitRankConfig(&communicator_, static_cast<int>(size), id,
                                            static_cast<int>(rank), &config),
                     "connecting");
}

NcclCommunicator::~NcclCommunicator() {
  const DeviceGuard guard(device_);
  if (communicator_ != nullptr) {
    if (state_ == State::kIdle && !lost_ && ncclCommFinalize(communicator_) == ncclInProgress) {
      const Deadline farewell = Deadline::after(kFarewell);
      Backoff backoff(std::chrono::microseconds(100), milliseconds(5));
      while (true) {
        const Result<bool> gone = async_done();
        if (!gone.ok() || *gone || !backoff.sleep(farewell)) break;
      }
    }
    ncclCommAbort(communicator_);
  }
  if (ended_ != nullptr) cudaEventDestroy(ended_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Result<bool> NcclCommunicator::async_done() {
  ncclResult_t now = ncclSuccess;
  const Status asked =
      nccl_status(ncclCommGetAsyncError(communicator_, &now), "asking how far it is");
  const Status told = asked.ok() ? nccl_status(now, "a communicator", communicator_) : asked;
  if (!told.ok()) {
    lost_ = true;
    return told;
  }
  return now != ncclInProgress;
}

Result<bool> NcclCommunicator::poll() {
  const DeviceGuard guard(device_);
  DRIFTLESS_ASSIGN_OR_RETURN(const bool ready, async_done());
  if (!ready) return false;
  if (state_ == State::kConnecting) state_ = State::kIdle;
  if (state_ == State::kLaunching) {
    DRIFTLESS_RETURN_IF_ERROR(cuda_status(cudaEventRecord(ended_, stream_), "a broadcast"));
    state_ = State::kRunning;
  }
  if (state_ == State::kRunning) {
    const cudaError_t ended = cudaEventQuery(ended_);
    if (ended == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    DRIFTLESS_RETURN_IF_ERROR(cuda_status(ended, "a broadcast"));
    state_ = State::kIdle;
  }
  return true;
}

Status NcclCommunicator::broadcast(std::span<const Block> pieces) {
  if (state_ != State::kIdle) {
    return error(StatusCode::kInternal, "nccl: a broadcast before the last one has ended");
  }
  const DeviceGuard guard(device_);
  state_ = State::kLaunching;
  DRIFTLESS_RETURN_IF_ERROR(nccl_status(ncclGroupStart(), "a broadcast"));
  ncclResult_t failure = ncclSuccess;
  for (const Block& piece : pieces) {
    if (piece.size == 0) continue;
    const ncclResult_t code =
        ncclBroadcast(piece.data, piece.data, piece.size, ncclUint8, 0, communicator_, stream_);
    if (code != ncclSuccess && code != ncclInProgress) failure = code;
  }
  const ncclResult_t ended = ncclGroupEnd();
  DRIFTLESS_RETURN_IF_ERROR(nccl_status(failure, "a broadcast", communicator_));
  return nccl_status(ended, "a broadcast", communicator_);
}

}  // namespace driftless::nccl
