#include "plugin/engines/vllm_calls.h"

#include "core/deadline.h"
#include "core/hash128.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;
constexpr int kVllmTries = 4;

// What must be done is tried again, soon: somebody waits for the engine.
template <typename Call>
Status insist(const Call& call) {
  Backoff backoff(milliseconds(50), milliseconds(1'000));
  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  Status status;
  for (int i = 0; i < kVllmTries; ++i) {
    status = call();
    if (status.ok() || !backoff.sleep(deadline)) return status;
  }
  return status;
}

}  // namespace

Status VllmCalls::pause() {
  paused_ = true;
  const Status paused = link_->post("/pause?mode=keep&clear_cache=false").status();
  if (paused.ok()) return {};
  const Status resumed = settle();
  return resumed.ok()
             ? paused
             : error(paused.code(), paused.message(), "; and resuming failed: ", resumed.message());
}

bool VllmCalls::begin() {
  // Releases before 0.25 would prepare the model for a reload; later ones do not read this.
  const Json in_place = {{"is_checkpoint_format", false}};
  if (link_->must_post("/start_weight_update", in_place).ok()) return true;
  const Status ignored = link_->must_post("/finish_weight_update").status();
  return link_->must_post("/start_weight_update", in_place).ok();
}

Status VllmCalls::write(std::uint64_t version) {
  const std::string nonce = to_hex(random_hash128()).substr(0, 16);
  return link_
      ->must_post("/update_weights", {{"update_info", {{"version", version}, {"nonce", nonce}}}})
      .status();
}

Status VllmCalls::finish(std::uint64_t version) {
  const Json body = {{"weight_version", std::to_string(version)}};
  return insist([&] { return link_->must_post("/finish_weight_update", body).status(); });
}

Status VllmCalls::settle() {
  if (dirty_) {
    const Status cleared = insist([&]() -> Status {
      DRIFTLESS_ASSIGN_OR_RETURN(
          const Json done, link_->must_post("/reset_prefix_cache?reset_running_requests=true"));
      const auto success = done.find("success");
      if (success == done.end() || success->is_null() || *success == true) return {};
      return error(StatusCode::kBusy, link_->url(), ": the prefix cache was not cleared");
    });
    dirty_ = !cleared.ok();
  }
  if (paused_) {
    const Status resumed = insist([&] { return link_->must_post("/resume").status(); });
    DRIFTLESS_RETURN_IF_ERROR(resumed.with_context("the engine was not resumed"));
    paused_ = false;
  }
  if (!dirty_) return {};
  return error(StatusCode::kBusy, link_->url(),
               ": the prefix cache was not cleared and holds what the old weights made");
}

Status VllmCalls::confirm(std::uint64_t version) {
  const std::string wanted = std::to_string(version);
  std::string found;
  for (int i = 0; i < 2; ++i) {
    const Result<Json> info = link_->get("/weight_info");
    if (is_unknown_call(info.status())) return {};
    DRIFTLESS_RETURN_IF_ERROR(info.status());
    const auto said = info->find("weight_version");
    if (said != info->end() && said->is_string()) found = said->get<std::string>();
    if (found == wanted) return {};
    const Status told =
        link_->must_post("/update_weight_version", {{"new_version", wanted}}).status();
    if (!told.ok() && !is_unknown_call(told)) return told;
  }
  return error(StatusCode::kMismatch, link_->url(), ": says that it serves version ", shown(found),
               ", expected ", wanted);
}

}  // namespace driftless
