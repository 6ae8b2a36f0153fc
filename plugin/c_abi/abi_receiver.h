// SPDX-License-Identifier: Apache-2.0
// AbiReceiver: the object behind a driftless_receiver*. The C functions translate types; this class
// has the rules of the C ABI around a Receiver: in which order and from which thread calls may
// come.
//
// One call at a time: a second one, also from a callback, is kBusy. look() may be called at any
// time.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "plugin/c_abi/abi_tickets.h"
#include "plugin/c_abi/driftless.h"
#include "plugin/job/joined_road.h"
#include "plugin/job/on_demand/device_access.h"

namespace driftless::c_abi {

// The tensors that a caller registered, each checked, and the target that is made of them.
class TensorSet {
 public:
  // Errors name the tensor. kUnsupported if it cannot be written here (driftless_register()).
  [[nodiscard]] Status add(const driftless_tensor& tensor);

  // Ok if they can be a target: there is at least one, and none shares memory with another.
  [[nodiscard]] Status check() const;
  // A target over the tensors. Without `initial` it holds no version.
  [[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_target(std::optional<VersionId> initial,
                                                                  unsigned threads) const;
  // Waits for what the engine has queued on the tensors' streams. Does nothing for host tensors.
  [[nodiscard]] Status wait_for_streams() const;
  // Null if no tensor is on a GPU.
  [[nodiscard]] const DeviceTable* device() const { return device_; }
  // Sets the configuration's GPU to the tensors' GPU, if they are on one.
  void choose_gpu(Config& config) const {
    if (device_ != nullptr) config.use_gpu(device_number_);
  }

 private:
  struct Held {
    TensorSpec spec;
    std::byte* data = nullptr;
    StridedMap map;  // plain if contiguous, or not held
  };
  [[nodiscard]] Status check_place(const driftless_tensor& tensor);

  std::map<std::string, Held, std::less<>> tensors_;  // in the order of a layout
  std::optional<std::string> first_;  // a held tensor; all others are in the same memory
  int32_t place_ = DRIFTLESS_HOST;
  int32_t device_number_ = 0;
  const DeviceTable* device_ = nullptr;
  std::vector<void*> streams_;
};

// Drops settings of the trainer's side and of receiver.target, so that they need no backend here.
void forget_what_is_not_ours(Config& config);

struct AbiOptions {
  std::optional<std::string> id;
  Launch launch;
  unsigned threads = 0;  // 0: from the configuration
};

// The state that look() returns.
struct AbiView {
  TargetState state;
  Hash128 run;
  bool started = false;
  bool staged = false;
  bool proven = false;
  unsigned rank = 0;
  ReceiverCounts counts;
  std::optional<UpdateReport> last;
};

class AbiReceiver {
 public:
  using Wait = std::chrono::milliseconds;

  [[nodiscard]] static Result<std::shared_ptr<AbiReceiver>> open(
      const std::string& config_path, std::span<const std::string> overrides,
      const AbiOptions& options);
  AbiReceiver(Config config, AbiOptions options)
      : config_(std::move(config)), options_(std::move(options)) {}
  AbiReceiver(const AbiReceiver&) = delete;
  AbiReceiver& operator=(const AbiReceiver&) = delete;

  // Calls `work` with the receiver, once started, as the only call at that time.
  template <typename Work>
  auto with_receiver(const Work& work) -> decltype(work(std::declval<Receiver&>())) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Turn turn, Turn::take(*this));
    DRIFTLESS_RETURN_IF_ERROR(check_started());
    return work(*receiver_);
  }
  // The contracts are in driftless.h. Without a wait: deadlines.connect.
  [[nodiscard]] Status set_callbacks(const driftless_callbacks& callbacks);
  [[nodiscard]] Status add(const driftless_tensor& tensor);
  [[nodiscard]] Status start(const std::optional<VersionId>& holds, std::optional<Wait> wait);
  [[nodiscard]] Result<UpdateReport> commit();
  // `closed`: whether the receiver is closed now, even if the call failed. If it is not, the call
  // had no effect.
  [[nodiscard]] Status close(std::optional<Wait> wait, bool& closed);

  [[nodiscard]] AbiView look() const;

 private:
  enum class Phase : unsigned char { kOpen, kStarted, kBroken, kClosed };
  // A call's exclusive use of the receiver; at its end, look() is updated.
  class Turn {
   public:
    [[nodiscard]] static Result<Turn> take(AbiReceiver& of);
    Turn(Turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    explicit Turn(AbiReceiver& of) : of_(&of) {}
    AbiReceiver* of_;
  };

  [[nodiscard]] Status check_started() const;
  [[nodiscard]] Status join(const Deadline& deadline);
  [[nodiscard]] Status meet(const Deadline& deadline);
  [[nodiscard]] Status pause();
  [[nodiscard]] Status resume();
  [[nodiscard]] bool collective() const;
  void show() noexcept;

  Config config_;
  AbiOptions options_;
  driftless_callbacks callbacks_{};
  TensorSet tensors_;
  Phase phase_ = Phase::kOpen;
  Status broken_;  // the reason for kBroken
  std::thread::id starter_;
  std::unique_ptr<WeightTarget> target_;  // outlives the receiver
  std::shared_ptr<JobProcess> process_;
  std::optional<JoinedRoad> joined_;
  std::unique_ptr<Receiver> receiver_;
  std::optional<UpdateReport> last_;
  std::atomic_flag in_use_ = ATOMIC_FLAG_INIT;

  mutable std::mutex view_mutex_;
  AbiView view_;
};

using ReceiverTickets = Tickets<driftless_receiver, AbiReceiver>;

}  // namespace driftless::c_abi
