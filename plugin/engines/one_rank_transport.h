// SPDX-License-Identifier: Apache-2.0
// OneRankTransport: presents an engine that reads files to the driver as one rank. The rank holds
// what this transport loaded into the engine; anything that others loaded is unknown, and a failed
// load leaves parts of two versions. Internal to engines/.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "plugin/engines/engine_transport.h"

namespace driftless {

class OneRankTransport : public EngineTransport {
 public:
  explicit OneRankTransport(EngineLink link) : link_(std::move(link)) {}

  [[nodiscard]] const std::string& name() const override { return link_.url(); }
  [[nodiscard]] bool stopping() const override { return link_.stopping(); }
  [[nodiscard]] bool has_sessions() const override { return false; }

  EngineAnswer carry(const EngineCall& call) override {
    switch (call.op) {
      case EngineOp::kAsk:
      case EngineOp::kRollback: {  // it cannot roll back: it reports what it holds
        if (Status seen = look(call.must); !seen.ok()) return {.status = std::move(seen)};
        return {.ranks = {reply()}};
      }
      case EngineOp::kLook: return {.ranks = {reply()}};
      case EngineOp::kStage: {
        Status staged = stage();
        return {.status = std::move(staged), .ranks = {reply()}};
      }
      case EngineOp::kWrite: return {.status = write()};
      default: return server_call(call);
    }
  }

 protected:
  // Asks the server for its process (process_) and clears holds_ if it no longer holds what was
  // loaded.
  [[nodiscard]] virtual Status look(bool must) = 0;
  // Prepares staged_.
  [[nodiscard]] virtual Status stage() = 0;
  // Loads staged_. If this is ok the engine holds staged_; otherwise it is torn, unless no request
  // was sent.
  [[nodiscard]] virtual Status write() = 0;
  [[nodiscard]] virtual EngineAnswer server_call(const EngineCall& call) = 0;

  [[nodiscard]] static EngineIdentity torn(const EngineIdentity& version) {
    return {version.run, kTornVersion, ""};
  }

  EngineLink link_;
  std::string process_;  // empty: the server does not report it
  // holds_: loaded by this transport into process_. staged_: to be loaded next.
  std::optional<EngineIdentity> holds_, staged_;

 private:
  [[nodiscard]] RankReply reply() const {
    RankReply reply;
    reply.ok = true;
    reply.process = process_;
    reply.state = staged_ ? "staged" : holds_ ? "idle" : "unknown";
    if (holds_) reply.holds = *holds_;
    if (staged_) reply.staged_version = static_cast<std::uint64_t>(staged_->version);
    reply.text = Json{{"version", reply.holds.version}, {"state", reply.state}}.dump();
    return reply;
  }
};

}  // namespace driftless
