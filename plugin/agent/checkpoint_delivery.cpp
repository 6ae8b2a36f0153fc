// SPDX-License-Identifier: Apache-2.0
// Delivery into a checkpoint directory.
#include <unistd.h>

#include <map>
#include <mutex>

#include "collectives/forwarding_receive_road.h"
#include "core/stopwatch.h"
#include "core/version.h"
#include "formats/checkpoint.h"
#include "plugin/agent/changed_tensors.h"
#include "plugin/agent/delivery.h"
#include "plugin/receive/target_needs.h"

namespace driftless {
namespace {

constexpr std::string_view kLockSuffix = ".agent.lock";
constexpr std::string_view kHolderSuffix = ".agent.pid";
constexpr std::uint64_t kMaxHolderBytes = 64;

constexpr std::string_view kChangedSuffix = ".changed";

// The whole checkpoint that an engine's model path belongs to. An engine that loaded only changed
// tensors reports their directory, <checkpoint>.changed/v000007. That directory may not exist any
// more, and an agent of an earlier run may have made it from another checkpoint.
std::string whole_checkpoint_of(const std::string& path) {
  const std::size_t at = path.rfind(concat(kChangedSuffix, "/v"));
  return at == std::string::npos ? path : path.substr(0, at);
}

// Keeps the receiver's report instead of sending it: the agent reports for its whole host, and
// reports what the engines hold, not what is ready for them.
class QuietRoad final : public ForwardingReceiveRoad {
 public:
  using ForwardingReceiveRoad::ForwardingReceiveRoad;
  [[nodiscard]] const ReceiverReport& last_report() const { return last_report_; }
  [[nodiscard]] Status report(const ReceiverReport& report, const Deadline&) override {
    last_report_ = report;
    return {};
  }
  [[nodiscard]] Status leave(const Deadline&) override { return {}; }

 private:
  ReceiverReport last_report_;
};

class CheckpointDelivery final : public Delivery {
 public:
  CheckpointDelivery(Config config, const std::string& checkpoint, WeightTarget& target,
                     ReceiveRoad& road)
      : config_(std::move(config)),
        road_(road),
        target_(target),
        changed_root_(concat(checkpoint, kChangedSuffix)) {
    versions_.checkpoint = checkpoint;
    versions_.check = [this] { return check_files(); };
  }
  CheckpointDelivery(const CheckpointDelivery&) = delete;
  CheckpointDelivery& operator=(const CheckpointDelivery&) = delete;
  ~CheckpointDelivery() override {
    const Status ignored = remove_tree(posix_file_system(), changed_root_);
  }

  [[nodiscard]] Status open(const Deadline& deadline) {
    DRIFTLESS_RETURN_IF_ERROR(remove_tree(posix_file_system(), changed_root_));
    parts_wanted_ = std::ranges::find(config_.engines, EngineKind::kSglang,
                                      &EngineEndpoint::kind) != config_.engines.end();
    ReceiverOptions options = config_.receiver;
    options.id = "agent";
    options.take_over = config_.agent.take_over;
    DRIFTLESS_ASSIGN_OR_RETURN(receiver_, Receiver::open(options, road_, target_, deadline));
    const TargetState state = target_.state();
    const bool foreign = !state.id.run.is_zero() && state.id.run != receiver_->run();
    if (state.valid && !foreign) note(state.id.version, state.digest);
    return keep_files();
  }

  Result<std::optional<DeliveryReport>> step(const Deadline& deadline) override {
    if (!staged_) {
      const Result<bool> news = receiver_->stage(deadline);
      const StatusCode code = news.status().code();
      // An anchor helps, and the receiver's report asks for it.
      const bool stranded = code == StatusCode::kWrongBase || code == StatusCode::kMismatch;
      if (stranded) {
        static_cast<void>(Backoff(kLook, kLook).sleep(deadline));
        return std::optional<DeliveryReport>();
      }
      if (!news.ok()) return news.status();
      staged_ = *news;
      if (!staged_) return std::optional<DeliveryReport>();
    }
    // Wait for processes that read the checkpoint: none may read parts of two versions.
    versions_.writer_waits = true;
    const std::unique_lock writing(versions_.lock, kLook);
    if (!writing.owns_lock()) return std::optional<DeliveryReport>();
    versions_.writer_waits = false;
    staged_ = false;
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport report, receiver_->commit());
    Stopwatch watch;
    DRIFTLESS_RETURN_IF_ERROR(keep_files());
    DRIFTLESS_RETURN_IF_ERROR(offer_changed(report));
    note(report.version, report.digest);
    DeliveryReport delivered{report, 0, report.fetch_ms + report.stage_ms};
    delivered.process_ms += watch.lap_ms();
    return std::optional<DeliveryReport>(delivered);
  }

  [[nodiscard]] std::uint64_t version() const override { return version_; }
  Result<bool> has_newer() override {
    if (staged_) return true;
    const Status there = road_.wait_beyond(version_, Deadline::after(std::chrono::milliseconds(0)));
    if (there.code() == StatusCode::kDeadlineExceeded) return false;
    DRIFTLESS_RETURN_IF_ERROR(there);
    return true;
  }
  [[nodiscard]] std::optional<Digest> digest(std::uint64_t version) const override {
    return digests_->find(version);
  }
  [[nodiscard]] bool wants_anchor() const override {
    return road_.last_report().proof == kAnchorWanted;
  }
  [[nodiscard]] std::vector<HostReceiver> workers() const override { return {}; }
  [[nodiscard]] std::string needs() const override {
    ReceiverNeeds needs = unknown_needs(receiver_->run());
    announce_checkpoint(target_, needs);
    const Result<std::string> text = needs_to_text(needs, kMaxNeedsBytes);
    return text.ok() ? *text : std::string();
  }
  Status publish_end(std::string_view) override { return {}; }
  [[nodiscard]] const Hash128& run() const override { return receiver_->run(); }

  Result<std::unique_ptr<EngineSession>> session(EngineKind kind, EngineLink link) override {
    EngineSessionOptions options{to_hex(receiver_->run()), "", config_.agent.stage_timeout,
                                 digests_};
    if (kind == EngineKind::kVllm) {
      return make_engine_session(make_vllm_disk_transport(std::move(link), versions_),
                                 std::move(options));
    }
    const auto check = [this](const std::string& path) {
      return check_same_shapes(posix_file_system(), whole_checkpoint_of(path), *target_.layout());
    };
    return make_engine_session(make_sglang_disk_transport(std::move(link), versions_, check),
                               std::move(options));
  }

 private:
  static constexpr auto kLook = std::chrono::milliseconds(200);

  void note(std::uint64_t version, const Digest& digest) {
    version_ = version;
    versions_.holds = {to_hex(receiver_->run()), static_cast<std::int64_t>(version),
                       to_hex(digest)};
    digests_->note(version, digest);
  }

  // Remembers the files. Call it while the checkpoint is at its version and no process reads it.
  [[nodiscard]] Status keep_files() {
    FileSystem& fs = posix_file_system();
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint weights,
                               Checkpoint::open(fs, versions_.checkpoint));
    files_.clear();
    for (const SafetensorsFile& file : weights.files()) {
      DRIFTLESS_ASSIGN_OR_RETURN(files_[file.file().path()], fs.info(file.file().path()));
    }
    return {};
  }

  // kMismatch if a file was overwritten or replaced: no engine may be asked to load it then.
  [[nodiscard]] Status check_files() const {
    for (const auto& [path, before] : files_) {
      DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo now, posix_file_system().info(path));
      if (now == before) continue;
      return error(StatusCode::kMismatch, path,
                   ": another process wrote to it or replaced it after version ",
                   versions_.holds.version,
                   " was written into it, so no engine loads it; stop the process that writes "
                   "there, then start the agent again");
    }
    return {};
  }

  // Call it while the checkpoint is at the new version and no process reads it.
  [[nodiscard]] Status offer_changed(const UpdateReport& report) {
    versions_.changed.clear();
    if (!parts_wanted_) return {};
    FileSystem& fs = posix_file_system();
    DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, changed_root_));
    if (report.anchor) return {};
    DRIFTLESS_RETURN_IF_ERROR(make_directories(fs, changed_root_));
    const std::string directory =
        join_path(changed_root_, concat("v", version_string(report.version)));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const bool written,
        write_changed_tensors(fs, versions_.checkpoint, report.tensors, directory));
    if (written) versions_.changed = directory;
    versions_.changed_from = report.from_version;
    return {};
  }

  const Config config_;
  QuietRoad road_;
  WeightTarget& target_;
  std::unique_ptr<Receiver> receiver_;
  DiskVersions versions_;
  std::string changed_root_;
  std::map<std::string, FileInfo> files_;  // by path, at the last commit
  bool parts_wanted_ = false;
  bool staged_ = false;
  std::uint64_t version_ = 0;
  std::shared_ptr<VersionDigests> digests_ = std::make_shared<VersionDigests>();
};

}  // namespace

Result<std::unique_ptr<FileLock>> lock_checkpoint_for_agent(const std::string& checkpoint) {
  FileSystem& fs = posix_file_system();
  const std::string holder = concat(checkpoint, kHolderSuffix);
  auto lock = fs.lock(concat(checkpoint, kLockSuffix), std::chrono::milliseconds(0));
  if (lock.status().code() == StatusCode::kBusy) {
    const auto pid = read_text(fs, holder, kMaxHolderBytes);
    return error(StatusCode::kBusy, checkpoint, ": an agent hands over there already, ",
                 pid.ok() ? concat("process ", *pid) : std::string("another process"),
                 "; stop it, or use another agent.checkpoint_dir");
  }
  if (lock.ok()) DRIFTLESS_RETURN_IF_ERROR(replace_text(fs, holder, std::to_string(::getpid())));
  return lock;
}

Result<std::unique_ptr<Delivery>> make_checkpoint_delivery(const Config& config,
                                                           const std::string& checkpoint,
                                                           WeightTarget& target, ReceiveRoad& road,
                                                           const Deadline& deadline) {
  auto delivery = std::make_unique<CheckpointDelivery>(config, checkpoint, target, road);
  DRIFTLESS_RETURN_IF_ERROR(delivery->open(deadline));
  return std::unique_ptr<Delivery>(std::move(delivery));
}

}  // namespace driftless
