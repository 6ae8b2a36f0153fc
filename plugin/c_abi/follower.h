// Follower: what a driftless_receiver* stands for. The C functions translate; the rules are here.
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
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "plugin/c_abi/driftless.h"
#include "plugin/c_abi/tensor_set.h"
#include "plugin/job/config.h"
#include "plugin/job/metrics.h"
#include "plugin/job/roads.h"
#include "plugin/job/run_end.h"
#include "plugin/receive/receiver.h"

namespace driftless::c_abi {

struct FollowerOptions {
  std::optional<std::string> id;
  bool launched = false;
  unsigned threads = 0;  // 0: by the configuration
};

struct Polled {
  bool newer = false;
  std::uint64_t newest = 0;
};

// What look() sees.
struct FollowerView {
  TargetState state;
  Hash128 run;
  bool started = false;
  bool staged = false;
  unsigned rank = 0;
  driftless_metrics metrics{};
  std::optional<UpdateReport> last;
};

class Follower {
 public:
  using Wait = std::chrono::milliseconds;

  [[nodiscard]] static Result<std::shared_ptr<Follower>> open(
      const std::string& config_path, std::span<const std::string> overrides,
      const FollowerOptions& options);
  Follower(Config config, FollowerOptions options)
      : config_(std::move(config)), options_(std::move(options)) {}
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  ~Follower();

  // driftless.h has the contracts. Without a wait: deadlines.connect.
  [[nodiscard]] Status set_callbacks(const driftless_callbacks& callbacks);
  [[nodiscard]] Status add(const driftless_tensor& tensor);
  [[nodiscard]] Status start(const std::optional<VersionId>& holds, std::optional<Wait> wait);
  [[nodiscard]] Result<Polled> poll(Wait wait);
  [[nodiscard]] Result<bool> stage(Wait wait);
  [[nodiscard]] Result<UpdateReport> commit();
  [[nodiscard]] Status rollback();
  [[nodiscard]] Status keep_alive();
  [[nodiscard]] Result<std::optional<EndOfRun>> look_for_end();
  // `closed`: whether it is, whatever is returned; else nothing happened.
  [[nodiscard]] Status close(std::optional<Wait> wait, bool& closed);

  [[nodiscard]] FollowerView look() const;

 private:
  enum class Phase : unsigned char { kOpen, kStarted, kBroken, kClosed };
  // A call's hold on the follower; when it ends, look() sees what it did.
  class Turn;

  [[nodiscard]] Status check_started() const;
  [[nodiscard]] Status join(const Deadline& deadline);
  [[nodiscard]] Status make_road(const Deadline& deadline);
  [[nodiscard]] Status open_receiver(const std::optional<VersionId>& holds,
                                     const Deadline& deadline);
  [[nodiscard]] Status pause();
  [[nodiscard]] Status resume();
  [[nodiscard]] bool collective() const;
  void give_sign_of_life();
  void count(UpdateReport& report);
  void count_failure(const TargetState& before);
  void show() noexcept;
  void drop();

  Config config_;
  FollowerOptions options_;
  driftless_callbacks callbacks_{};
  TensorSet tensors_;
  Phase phase_ = Phase::kOpen;
  Status broken_;  // why
  std::thread::id starter_;
  std::unique_ptr<JobProcess> process_;
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
  std::optional<MetricsWriter> metrics_file_;
  std::optional<Deadline> alive_;           // until when the last sign of life lasts
  std::optional<Deadline> unreadable_end_;  // until when a last word that cannot be read is borne
  bool staged_ = false;
  bool paused_ = false;  // by the last call
  driftless_metrics metrics_{};
  std::optional<UpdateReport> last_;
  std::atomic_flag in_use_ = ATOMIC_FLAG_INIT;

  mutable std::mutex view_mutex_;
  FollowerView view_;
};

}  // namespace driftless::c_abi
