#include "plugin/engines/sglang_calls.h"

#include <utility>

#include "core/deadline.h"

namespace driftless {
namespace {

using std::chrono_literals::operator""ms;
constexpr int kTries = 4;

}  // namespace

std::string json_text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Status SglangCalls::post(std::string_view path, const Json& body) const {
  const Result<Json> answer = link_->must_post(path, body);
  // The one call that is answered in plain text; a page of somebody else's is no answer elsewhere.
  if (answer.status().code() == StatusCode::kCorrupt && path == "/flush_cache") return {};
  DRIFTLESS_RETURN_IF_ERROR(answer.status());
  const auto success = answer->find("success");
  if (success == answer->end() || !success->is_boolean() || success->get<bool>()) return {};
  return error(StatusCode::kIo, link_->url(), path,
               ": the engine refused: ", shown(json_text(*answer, "message"), 300));
}

Status SglangCalls::pause() {
  paused_ = true;
  first_ = false;
  const Status paused = post("/pause_generation", {{"mode", "retract"}});
  if (paused.ok()) return {};
  const Status resumed = settle();
  return resumed.ok()
             ? paused
             : error(paused.code(), paused.message(), "; and resuming failed: ", resumed.message());
}

Status SglangCalls::settle() {
  Status cleared, resumed;
  // With requests running it cannot be done, and then nothing is stale.
  if (std::exchange(first_, false)) const Status ignored = post("/flush_cache");
  Backoff backoff(50ms, 1'000ms);
  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  for (int i = 0; i < kTries && (dirty_ || paused_); ++i) {
    if (i > 0 && !backoff.sleep(deadline)) break;
    if (dirty_) cleared = post("/flush_cache");
    dirty_ = dirty_ && !cleared.ok();
    if (dirty_ && i + 1 < kTries) continue;
    if (paused_) resumed = post("/continue_generation");
    paused_ = paused_ && !resumed.ok();
  }
  if (paused_) return resumed.with_context("the engine was not resumed");
  return dirty_ ? cleared.with_context("the cache holds what the old weights made") : Status();
}

Result<std::string> SglangCalls::weight_version() const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json info, link_->get("/model_info"));
  return json_text(info, "weight_version");
}

Status SglangCalls::confirm(std::uint64_t version) const {
  const std::string wanted = std::to_string(version);
  DRIFTLESS_ASSIGN_OR_RETURN(std::string found, weight_version());
  if (found == wanted) return {};
  DRIFTLESS_RETURN_IF_ERROR(
      post("/update_weight_version", {{"new_version", wanted}, {"abort_all_requests", false}}));
  DRIFTLESS_ASSIGN_OR_RETURN(found, weight_version());
  if (found == wanted) return {};
  return error(StatusCode::kMismatch, link_->url(), ": says that it serves version ", shown(found),
               ", expected ", wanted);
}

}  // namespace driftless
