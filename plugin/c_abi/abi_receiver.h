// SPDX-License-Identifier: Apache-2.0
// AbiReceiver: what a driftless_receiver* stands for. The C functions translate; here are the rules
// of the C ABI around a ReceiverSession: which calls may come when, and from which thread.
//
// One call at a time: a second one, also from a callback, is kBusy. look() may be called any time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "core/status.h"
#include "plugin/c_abi/driftless.h"
#include "plugin/c_abi/tensor_set.h"
#include "plugin/job/config.h"
#include "plugin/job/receiver_session.h"

namespace driftless::c_abi {

struct AbiOptions {
  std::optional<std::string> id;
  bool launched = false;
  unsigned threads = 0;  // 0: by the configuration
};

// What look() sees.
struct AbiView {
  TargetState state;
  Hash128 run;
  bool started = false;
  bool staged = false;
  unsigned rank = 0;
  SessionCounts counts;
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
  ~AbiReceiver();

  // driftless.h has the contracts. Without a wait: deadlines.connect.
  [[nodiscard]] Status set_callbacks(const driftless_callbacks& callbacks);
  [[nodiscard]] Status add(const driftless_tensor& tensor);
  [[nodiscard]] Status start(const std::optional<VersionId>& holds, std::optional<Wait> wait);
  [[nodiscard]] Result<ReceiverSession::Newest> poll(Wait wait);
  [[nodiscard]] Result<bool> stage(Wait wait);
  [[nodiscard]] Result<UpdateReport> commit();
  [[nodiscard]] Status rollback();
  [[nodiscard]] Status keep_alive();
  [[nodiscard]] Result<std::optional<EndOfRun>> look_for_end();
  // `closed`: whether it is, whatever is returned; else nothing happened.
  [[nodiscard]] Status close(std::optional<Wait> wait, bool& closed);

  [[nodiscard]] AbiView look() const;

 private:
  enum class Phase : unsigned char { kOpen, kStarted, kBroken, kClosed };
  // A call's hold on the receiver; when it ends, look() sees what it did.
  class Turn;

  [[nodiscard]] Status check_started() const;
  [[nodiscard]] Status join(const Deadline& deadline);
  [[nodiscard]] Status make_session(const Deadline& deadline);
  [[nodiscard]] Status pause();
  [[nodiscard]] Status resume();
  [[nodiscard]] bool collective() const;
  void show() noexcept;
  void drop();

  Config config_;
  AbiOptions options_;
  driftless_callbacks callbacks_{};
  TensorSet tensors_;
  Phase phase_ = Phase::kOpen;
  Status broken_;  // why
  std::thread::id starter_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<ReceiverSession> session_;
  std::optional<UpdateReport> last_;
  std::atomic_flag in_use_ = ATOMIC_FLAG_INIT;

  mutable std::mutex view_mutex_;
  AbiView view_;
};

}  // namespace driftless::c_abi
