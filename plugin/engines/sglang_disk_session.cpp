// SGLang as it comes: changed tensors from disk.
#include "core/stopwatch.h"
#include "plugin/engines/engine_session.h"
#include "plugin/engines/sglang_calls.h"

namespace driftless {
namespace {

class SglangDiskSession final : public EngineSession {
 public:
  SglangDiskSession(EngineLink link, DiskVersions& versions,
                    std::function<Status(const std::string&)> check)
      : link_(std::move(link)), calls_(link_), versions_(versions), check_(std::move(check)) {}

  Result<std::uint64_t> update(std::uint64_t, EngineTimes& times) override {
    Stopwatch watch;
    DRIFTLESS_RETURN_IF_ERROR(calls_.settle());
    DRIFTLESS_ASSIGN_OR_RETURN(const Json info, link_.get("/model_info"));
    DRIFTLESS_RETURN_IF_ERROR(check_model(info));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto reading, versions_.reading(link_));
    const std::uint64_t version = versions_.version;
    const std::string holds = json_text(info, "weight_version");
    if (holds == std::to_string(version)) return version;
    // Only to the version before the changed tensors are all that differs.
    const bool little =
        !versions_.changed.empty() && holds == std::to_string(versions_.changed_from);
    times.stage_ms = watch.lap_ms();
    DRIFTLESS_RETURN_IF_ERROR(calls_.pause());
    times.pause_ms = watch.lap_ms();
    const std::string& directory = little ? versions_.changed : versions_.checkpoint;
    const Json body = {{"model_path", directory},
                       {"weight_version", std::to_string(version)},
                       {"flush_cache", false},  // with requests it fails, although it was loaded
                       {"abort_all_requests", false}};
    const Status loaded = calls_.post("/update_weights_from_disk", body);
    calls_.dirty();
    times.apply_ms = watch.lap_ms();
    const Status settled = calls_.settle();
    times.resume_ms = watch.lap_ms();
    DRIFTLESS_RETURN_IF_ERROR(loaded.with_context(directory));
    DRIFTLESS_RETURN_IF_ERROR(settled);
    DRIFTLESS_RETURN_IF_ERROR(calls_.confirm(version));
    return version;
  }

  Status close() override { return calls_.settle(); }

 private:
  // A tensor of another shape ends the server.
  [[nodiscard]] Status check_model(const Json& info) {
    if (checked_) return {};
    const std::string path = json_text(info, "model_path");
    DRIFTLESS_RETURN_IF_ERROR(
        check_(path).with_context(concat(link_.url(), " serves ", shown(path))));
    checked_ = true;
    return {};
  }

  EngineLink link_;
  SglangCalls calls_;
  DiskVersions& versions_;
  std::function<Status(const std::string&)> check_;
  bool checked_ = false;
};

}  // namespace

std::unique_ptr<EngineSession> make_sglang_disk_session(
    EngineLink link, DiskVersions& versions, std::function<Status(const std::string&)> check) {
  return std::make_unique<SglangDiskSession>(std::move(link), versions, std::move(check));
}

}  // namespace driftless
