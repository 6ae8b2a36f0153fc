// vLLM as it comes: its workers load the checkpoint again.
#include "core/stopwatch.h"
#include "plugin/engines/engine_session.h"
#include "plugin/engines/vllm_calls.h"

namespace driftless {
namespace {

class VllmDiskSession final : public EngineSession {
 public:
  VllmDiskSession(EngineLink link, DiskVersions& versions)
      : link_(std::move(link)), calls_(link_), versions_(versions) {}

  Result<std::uint64_t> update(std::uint64_t, EngineTimes& times) override {
    Stopwatch watch;
    DRIFTLESS_RETURN_IF_ERROR(calls_.settle());
    DRIFTLESS_ASSIGN_OR_RETURN(const auto reading, versions_.reading(link_));
    const std::uint64_t version = versions_.version;
    times.stage_ms = watch.lap_ms();
    DRIFTLESS_RETURN_IF_ERROR(calls_.pause());
    times.pause_ms = watch.lap_ms();
    const Json reload = {{"method", "reload_weights"},
                         {"kwargs", {{"weights_path", versions_.checkpoint}}}};
    const Status loaded = link_.must_post("/collective_rpc", reload).status();
    calls_.dirty();
    times.apply_ms = watch.lap_ms();
    const Status settled = calls_.settle();
    times.resume_ms = watch.lap_ms();
    DRIFTLESS_RETURN_IF_ERROR(loaded.with_context(
        "reloading failed, so that the engine may hold parts of two versions until it succeeds"));
    DRIFTLESS_RETURN_IF_ERROR(settled);
    DRIFTLESS_RETURN_IF_ERROR(calls_.confirm(version));
    return version;
  }

  Status close() override { return calls_.settle(); }

 private:
  EngineLink link_;
  VllmCalls calls_;
  DiskVersions& versions_;
};

}  // namespace

std::unique_ptr<EngineSession> make_vllm_disk_session(EngineLink link, DiskVersions& versions) {
  return std::make_unique<VllmDiskSession>(std::move(link), versions);
}

}  // namespace driftless
