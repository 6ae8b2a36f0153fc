// SPDX-License-Identifier: Apache-2.0
// Transports for engines that load the agent's checkpoint. They load only the changed tensors if
// this transport itself brought the same server process to the version before, otherwise the whole
// checkpoint.
#include <thread>

#include "plugin/engines/one_rank_transport.h"
#include "plugin/engines/server_calls.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

class DiskTransport : public OneRankTransport {
 public:
  DiskTransport(EngineLink link, DiskVersions& versions)
      : OneRankTransport(std::move(link)), versions_(versions) {}

  // If the driver resumes the engine, clears its cache or reads its label, it no longer writes what
  // is staged: release the checkpoint.
  EngineAnswer carry(const EngineCall& call) override {
    const bool given_up = call.op == EngineOp::kResume || call.op == EngineOp::kClearCache ||
                          call.op == EngineOp::kReadLabel;
    if (given_up) release();
    return OneRankTransport::carry(call);
  }

  void ended() override {
    release();
    // The server does not report its process, so another process may answer the next request.
    if (process_.empty() && holds_ && holds_->version >= 0) holds_.reset();
  }

 protected:
  // `little`: the engine holds the version before, so the changed tensors suffice.
  [[nodiscard]] virtual Status load(const EngineIdentity& version, bool little) = 0;

  DiskVersions& versions_;

 private:
  // Lets a waiting writer go first. Otherwise the retries of one engine would keep the next version
  // from all others.
  [[nodiscard]] Status stage() final {
    release();
    std::shared_lock held(versions_.lock, std::defer_lock);
    while (versions_.writer_waits || !held.try_lock_for(10ms)) {
      if (link_.stopping()) return error(StatusCode::kIncomplete, "stopped");
      std::this_thread::sleep_for(2ms);
    }
    reading_ = std::move(held);
    staged_ = versions_.holds;
    return {};
  }

  void release() {
    staged_.reset();
    if (reading_.owns_lock()) reading_.unlock();
  }

  [[nodiscard]] Status write() final {
    if (!staged_) return error(StatusCode::kInternal, "nothing is staged");
    const auto check = [this] { return versions_.check ? versions_.check() : Status(); };
    DRIFTLESS_RETURN_IF_ERROR(check());
    const EngineIdentity version = *staged_;
    const bool little = holds_ && !process_.empty() && !versions_.changed.empty() &&
                        holds_->run == version.run &&
                        holds_->version == static_cast<std::int64_t>(versions_.changed_from);
    holds_ = torn(version);
    Status loaded = load(version, little);
    if (loaded.ok()) loaded = check();
    release();
    if (loaded.ok()) holds_ = version;
    return loaded.with_context(
        "loading failed, so that the engine may hold parts of two versions until it succeeds");
  }

  std::shared_lock<std::shared_timed_mutex> reading_;
};

class VllmDiskTransport final : public DiskTransport {
 public:
  using DiskTransport::DiskTransport;

 private:
  Status look(bool) override { return {}; }  // the server does not report its process
  EngineAnswer server_call(const EngineCall& call) override {
    return vllm_server_call(link_, call);
  }
  Status load(const EngineIdentity&, bool) override {
    const Json reload = {{"method", "reload_weights"},
                         {"kwargs", {{"weights_path", versions_.checkpoint}}}};
    return link_.post("/collective_rpc", reload, true).status();
  }
};

class SglangDiskTransport final : public DiskTransport {
 public:
  SglangDiskTransport(EngineLink link, DiskVersions& versions,
                      std::function<Status(const std::string&)> check)
      : DiskTransport(std::move(link), versions), check_(std::move(check)) {}

 private:
  Status look(bool must) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const Json info, link_.get("/model_info", must));
    DRIFTLESS_ASSIGN_OR_RETURN(const Json server, link_.get("/server_info", must));
    const std::string process = sglang_process(server);
    if (process != process_) {
      holds_.reset();
      checked_ = false;
      process_ = process;
    }
    DRIFTLESS_RETURN_IF_ERROR(
        check_model(json_text(info, "model_path"), json_text(server, "model_path")));
    // Another client has loaded something since.
    const bool whole = holds_ && holds_->version >= 0;
    if (whole && (json_text(info, "weight_version") != std::to_string(holds_->version) ||
                  json_text(info, "model_path") != loaded_)) {
      holds_.reset();
    }
    return {};
  }
  EngineAnswer server_call(const EngineCall& call) override {
    return sglang_server_call(link_, call);
  }
  Status load(const EngineIdentity& version, bool little) override {
    const std::string& directory = little ? versions_.changed : versions_.checkpoint;
    loaded_ = directory;
    const Json body = {{"model_path", directory},
                       {"weight_version", std::to_string(version.version)},
                       // With requests running the flush fails, and the load is reported as failed.
                       {"flush_cache", false},
                       {"abort_all_requests", false}};
    return sglang_load(link_, body).with_context(directory);
  }

  // A tensor of another shape ends the server. Updates keep the shapes, so the path that the server
  // was `started` with is checked, too: the path `given` last may be gone, or contain only some
  // tensors. Older releases do not report `started`, and a model from the hub is not a directory.
  [[nodiscard]] Status check_model(const std::string& given, const std::string& started) {
    if (checked_) return {};
    Status same = check_(given).with_context(concat("serves ", shown(given)));
    if (!started.empty() && started != given) {
      const Status first =
          check_(started).with_context(concat("was started with ", shown(started)));
      if (first.ok() || first.code() == StatusCode::kWrongLayout || !same.ok()) same = first;
    }
    DRIFTLESS_RETURN_IF_ERROR(same);
    checked_ = true;
    return {};
  }

  std::function<Status(const std::string&)> check_;
  std::string loaded_;  // the path of the last load
  bool checked_ = false;
};

}  // namespace

std::unique_ptr<EngineTransport> make_vllm_disk_transport(EngineLink link, DiskVersions& versions) {
  return std::make_unique<VllmDiskTransport>(std::move(link), versions);
}

std::unique_ptr<EngineTransport> make_sglang_disk_transport(
    EngineLink link, DiskVersions& versions, std::function<Status(const std::string&)> check) {
  return std::make_unique<SglangDiskTransport>(std::move(link), versions, std::move(check));
}

}  // namespace driftless
