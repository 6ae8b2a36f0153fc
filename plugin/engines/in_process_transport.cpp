// SPDX-License-Identifier: Apache-2.0
// Drives an engine in this process through one function.
#include <nlohmann/json.hpp>

#include "plugin/engines/engine_transport.h"

namespace driftless {
namespace {

class InProcessTransport final : public EngineTransport {
 public:
  explicit InProcessTransport(InProcessCall call) : call_(std::move(call)) {}

  [[nodiscard]] const std::string& name() const override { return name_; }

  EngineAnswer carry(const EngineCall& call) override {
    switch (call.op) {
      case EngineOp::kAsk:
      case EngineOp::kLook: return ask("driftless_status", Json::object());
      case EngineOp::kOpen: {
        Json asked = open_arguments(call);
        if (call.source.empty()) asked["source"] = Json();
        return ask("driftless_open", std::move(asked));
      }
      case EngineOp::kClose: return ask("driftless_close", Json::object());
      case EngineOp::kStage:
        return ask("driftless_stage", {{"timeout_s", call.timeout_s}, {"ticket", call.ticket}});
      case EngineOp::kRollback: return ask("driftless_rollback", {{"version", call.version}});
      case EngineOp::kShares: return ask("driftless_shares", {{"sweep", call.sweep}});
      case EngineOp::kRead: return ask("driftless_read", read_arguments(call));
      default: return carry_out(call);
    }
  }

 private:
  [[nodiscard]] Result<Json> request(const std::string& operation, const Json& arguments) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, call_(operation, arguments.dump()));
    return parse_json(text, concat("the engine's answer to ", operation));
  }

  [[nodiscard]] EngineAnswer ask(std::string_view method, Json arguments) {
    const auto call = [&](const std::string& asked, const Json& given) {
      return request("rpc", {{"method", asked}, {"kwargs", given}});
    };
    Result<std::vector<RankReply>> replies =
        ask_ranks(call, method, std::move(arguments), "the engine");
    if (!replies.ok()) return {.status = replies.status()};
    return {.ranks = std::move(*replies)};
  }

  [[nodiscard]] EngineAnswer carry_out(const EngineCall& call) {
    Json arguments = Json::object();
    if (call.op == EngineOp::kWrite) {
      arguments = {{"version", call.version}, {"ticket", call.ticket}, {"nonce", new_nonce()}};
    }
    if (!call.label.empty()) arguments["label"] = call.label;
    const Result<Json> answer = request(std::string(to_string(call.op)), arguments);
    if (!answer.ok()) return {.status = answer.status()};
    return {.label = answer->is_string() ? answer->get<std::string>() : std::string()};
  }

  InProcessCall call_;
  std::string name_ = "the engine of this process";
};

}  // namespace

std::unique_ptr<EngineTransport> make_in_process_transport(InProcessCall call) {
  return std::make_unique<InProcessTransport>(std::move(call));
}

}  // namespace driftless
