// SPDX-License-Identifier: Apache-2.0
// Maps the driver's calls to vLLM's HTTP requests.
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "plugin/engines/engine_transport.h"
#include "plugin/engines/server_calls.h"

namespace driftless {
namespace {

class VllmTransport final : public EngineTransport {
 public:
  explicit VllmTransport(EngineLink link) : link_(std::move(link)) {}

  [[nodiscard]] const std::string& name() const override { return link_.url(); }
  [[nodiscard]] bool stopping() const override { return link_.stopping(); }

  EngineAnswer carry(const EngineCall& call) override {
    switch (call.op) {
      case EngineOp::kAsk:
      case EngineOp::kLook: return ask("driftless_status", Json::object(), call.must);
      case EngineOp::kOpen: return ask("driftless_open", open_arguments(call), call.must);
      case EngineOp::kClose: return ask("driftless_close", Json::object(), call.must);
      case EngineOp::kStage:
        return ask("driftless_stage", {{"timeout_s", call.timeout_s}, {"ticket", call.ticket}},
                   call.must);
      case EngineOp::kRollback:
        return ask("driftless_rollback", {{"version", call.version}}, call.must);
      case EngineOp::kShares: return ask("driftless_shares", {{"sweep", call.sweep}}, call.must);
      case EngineOp::kRead: return ask("driftless_read", read_arguments(call), call.must);
      case EngineOp::kBegin: return begun(begin());
      case EngineOp::kWrite: return write(call);
      case EngineOp::kFinish: return {.status = finish(call.label)};
      default: return vllm_server_call(link_, call);
    }
  }

 private:
  // Our methods never raise. If vLLM reports that a worker failed, then an earlier call left that
  // failure in a rank's reply queue. The workers did receive our call, and the next replies report
  // its result.
  [[nodiscard]] EngineAnswer ask(std::string_view method, Json arguments, bool must) {
    Status raised;
    const auto call = [&](const std::string& asked, const Json& given) -> Result<Json> {
      const Json body = {{"method", asked}, {"kwargs", given}};
      const Result<Json> answer = link_.post("/collective_rpc", body, must);
      if (!answer.ok() && contains(answer.status(), "Worker failed with error")) {
        raised = answer.status();
        return Json(Json::array());
      }
      DRIFTLESS_RETURN_IF_ERROR(answer.status());
      const auto results = answer->find("results");
      return results == answer->end() ? Json() : *results;
    };
    Result<std::vector<RankReply>> replies =
        ask_ranks(call, method, std::move(arguments), "/collective_rpc");
    if (!replies.ok()) return {.status = raised.ok() ? replies.status() : raised};
    updating_.reset();
    for (const RankReply& reply : *replies) {
      if (reply.updating) updating_ = updating_.value_or(false) || *reply.updating;
    }
    return {.ranks = std::move(*replies)};
  }

  [[nodiscard]] static bool contains(const Status& status, std::string_view words) {
    return status.message().find(words) != std::string_view::npos;
  }

  // Relies on the ranks' reports: beginning an update while one is active, or finishing one while
  // none is, raises on all ranks, and then their reply queue slips.
  [[nodiscard]] Status begin() {
    // Releases before 0.25 would otherwise prepare the model for a reload; later ones ignore this.
    const Json in_place = {{"is_checkpoint_format", false}};
    const auto end_another = [&] {
      const Status ignored = link_.post("/finish_weight_update", Json::object(), true).status();
    };
    // An update that this transport began, and could not finish, continues.
    if (updating_.value_or(false) && ours_) {
      session_ = true;
      return {};
    }
    if (updating_.value_or(false)) end_another();
    Status begun = link_.post("/start_weight_update", in_place, true).status();
    if (contains(begun, "active")) {
      end_another();
      begun = link_.post("/start_weight_update", in_place, true).status();
    }
    session_ = ours_ = begun.ok();
    finish_failed_ = false;
    return begun;
  }

  [[nodiscard]] Status finish(const std::string& label) {
    if (finish_failed_) {
      const EngineAnswer asked = ask("driftless_status", Json::object(), true);
      if (asked.status.ok() && updating_ == false) {
        return error(StatusCode::kIncomplete,
                     "no update is active: it was finished, or the engine was started anew");
      }
    }
    Json body = Json::object();
    if (!label.empty()) body["weight_version"] = label;
    session_ = false;
    const Status finished = link_.post("/finish_weight_update", body, true).status();
    finish_failed_ = !finished.ok();
    if (finished.ok()) ours_ = false;
    return finished;
  }

  [[nodiscard]] EngineAnswer write(const EngineCall& call) {
    Json commit = {{"version", call.version}, {"ticket", call.ticket}};
    if (!session_) return {.status = ask("driftless_commit", std::move(commit), true).status};
    commit["nonce"] = new_nonce();
    return {.status = link_.post("/update_weights", {{"update_info", commit}}, true).status()};
  }

  EngineLink link_;
  bool session_ = false, finish_failed_ = false;
  bool ours_ = false;             // this transport began the active update
  std::optional<bool> updating_;  // whether an update is active, as the ranks reported last
};

}  // namespace

// The calls that every vLLM server takes, however its weights are written.
EngineAnswer vllm_server_call(const EngineLink& link, const EngineCall& call) {
  const Json none = Json::object();
  switch (call.op) {
    case EngineOp::kPause:
      return {.status = link.post("/pause?mode=keep&clear_cache=false", none, call.must).status()};
    case EngineOp::kResume: return {.status = link.post("/resume", none, true).status()};
    case EngineOp::kClearCache: {
      const Result<Json> done =
          link.post("/reset_prefix_cache?reset_running_requests=true", none, call.must);
      if (!done.ok()) return {.status = done.status()};
      const auto success = done->find("success");
      if (success == done->end() || success->is_null() || *success == true) return {};
      return {.status = error(StatusCode::kBusy, "the prefix cache was not cleared")};
    }
    case EngineOp::kReadLabel: {
      const Result<Json> info = link.get("/weight_info", call.must);
      if (!info.ok()) return {.status = known_call(info.status())};
      return {.label = json_text(*info, "weight_version")};
    }
    case EngineOp::kSetLabel:
      return {
          .status = known_call(
              link.post("/update_weight_version", {{"new_version", call.label}}, true).status())};
    default: return {.status = error(StatusCode::kUnsupported, "vLLM has no ", to_string(call.op))};
  }
}

std::unique_ptr<EngineTransport> make_vllm_transport(EngineLink link) {
  return std::make_unique<VllmTransport>(std::move(link));
}

}  // namespace driftless
