// SPDX-License-Identifier: Apache-2.0
// Stand-ins for engines: they speak vLLM's and SGLang's HTTP, have no weights, and fail at any
// call. A rank holds only a version number; the test sets the faults.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "support/http_server.h"

namespace driftless::testing {

class VllmStandIn {
 public:
  struct Rank {
    std::int64_t version = 0;  // -1: torn
    std::optional<std::int64_t> before;
    std::optional<std::uint64_t> staged;
    std::string state = "closed", error, run, before_run, follows, ticket;
    // The digest that its receiver reports for its weights; empty: none yet.
    [[nodiscard]] std::string digest() const {
      if (state == "closed" && run.empty()) return "";
      return version < 0 ? "" : digest_of(run, version);
    }
  };
  // The manifest's digest of a version: 32 hex digits that differ by run and version.
  static std::string digest_of(const std::string& run, std::int64_t version) {
    const std::string number = std::to_string(version);
    const char fill = version == 0 || run.empty() ? '0' : run.front();
    return "0" + number + std::string(15 - number.size(), fill) + "0" + std::string(15, fill);
  }

  explicit VllmStandIn(std::size_t ranks)
      : ranks_(ranks), server_([this](const HttpRequest& request) { return answer(request); }) {}

  [[nodiscard]] std::string url() const { return server_.url(); }
  // The paths of all calls in order, without the query; RPCs as "rpc:method".
  [[nodiscard]] std::vector<std::string> calls() const {
    const std::scoped_lock lock(mutex_);
    return calls_;
  }
  [[nodiscard]] std::vector<Rank> ranks() const {
    const std::scoped_lock lock(mutex_);
    return ranks_;
  }
  [[nodiscard]] bool paused() const {
    const std::scoped_lock lock(mutex_);
    return paused_;
  }
  [[nodiscard]] std::string weight_version() const {
    const std::scoped_lock lock(mutex_);
    return weight_version_;
  }
  [[nodiscard]] std::size_t count(const std::string& call) const {
    const std::vector<std::string> made = calls();
    return static_cast<std::size_t>(std::ranges::count(made, call));
  }

  // The server was killed and started again: it has the base's weights and follows no run.
  void restart() {
    const std::scoped_lock lock(mutex_);
    restart_now();
  }
  void restart_now() {
    ranks_ = std::vector<Rank>(ranks_.size());
    paused_ = session_ = false;
    weight_version_ = "default";
    ++process_;
  }
  void set_rank(std::size_t rank, const std::function<void(Rank&)>& change) {
    const std::scoped_lock lock(mutex_);
    change(ranks_[rank]);
  }
  void set_paused(bool paused) {
    const std::scoped_lock lock(mutex_);
    paused_ = paused;
  }

  // Set these before the engine is driven, or from within these functions.
  std::function<bool(const std::string& call)> restarts;              // before the call is answered
  std::string run = std::string(32, 'a');                             // that the road carries
  std::uint64_t published = 1;                                        // what staging finds
  std::function<std::optional<HttpResponse>(const std::string&)> on;  // by call, before it acts
  std::function<bool(std::size_t rank, const std::string& what)> fails;  // "stage", "commit", ...
  std::function<nlohmann::json(std::size_t rank)> shares;                // none if not set
  int slips = 0;              // this many RPCs return the reply of the RPC before
  bool stuck = false;         // all RPCs return one old reply
  bool session_known = true;  // its workers commit inside vLLM's own session

 private:
  HttpResponse answer(const HttpRequest& request) {
    const std::scoped_lock lock(mutex_);
    const std::size_t begin = request.line.find(' ') + 1;
    std::string path = request.line.substr(begin, request.line.find(' ', begin) - begin);
    path = path.substr(0, path.find('?'));
    const auto body =
        request.body.empty() ? nlohmann::json::object() : nlohmann::json::parse(request.body);
    const std::string call =
        path == "/collective_rpc" ? "rpc:" + body.at("method").get<std::string>() : path;
    calls_.push_back(call);
    if (restarts && restarts(call)) restart_now();
    if (on) {
      if (auto instead = on(call)) return *instead;
    }
    if (path == "/collective_rpc") return rpc(body);
    if (path == "/pause") paused_ = true;
    if (path == "/resume") paused_ = false;
    // Older servers take a start without is_checkpoint_format for the start of a whole reload.
    if (path == "/start_weight_update" && (session_ || body.value("is_checkpoint_format", true))) {
      return {500, R"({"error":"active, or of a reload"})", {}, ""};
    }
    if (path == "/start_weight_update") session_ = true;
    if (path == "/update_weights") commit(body.at("update_info"));
    if (path == "/finish_weight_update") {
      if (!session_) return {500, R"({"error":"no update is active"})", {}, ""};
      session_ = false;
      if (body.contains("weight_version")) weight_version_ = body.at("weight_version");
    }
    if (path == "/update_weight_version") weight_version_ = body.at("new_version");
    if (path == "/weight_info") return ok({{"weight_version", weight_version_}});
    if (path == "/reset_prefix_cache") return ok({{"success", true}});
    return ok({{"status", "ok"}});
  }

  static HttpResponse ok(const nlohmann::json& body) { return {200, body.dump(), {}, ""}; }

  [[nodiscard]] bool failing(std::size_t rank, const std::string& what) const {
    return fails && fails(rank, what);
  }

  void commit(const nlohmann::json& info) {
    const std::uint64_t version = info.at("version");
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (failing(i, "commit") || rank.staged != version || info.at("ticket") != rank.ticket) {
        rank.error = "commit refused";
        continue;
      }
      rank.before = rank.version;
      rank.before_run = rank.run;
      rank.version = failing(i, "tear") ? -1 : static_cast<std::int64_t>(version);
      rank.run = rank.follows;
      rank.staged.reset();
      rank.state = "committed";
    }
  }

  // False: the rank refuses.
  bool obey(Rank& rank, std::size_t number, const std::string& what, const nlohmann::json& given) {
    if (what != "status" && failing(number, what)) {
      rank.error = what + " failed";
      if (what == "stage") rank.state = "failed";
      return false;
    }
    if (what == "open") {
      if (rank.version > 0 && rank.run != run) {
        rank.error = "the weights are of another run";
        return false;
      }
      rank.state = "idle";
      rank.follows = run;
      rank.error.clear();
    } else if (what == "close") {
      rank.state = "closed";
      rank.follows.clear();
      rank.staged.reset();
    } else if (what == "stage") {
      const bool newer = static_cast<std::int64_t>(published) > rank.version;
      rank.staged = newer ? std::optional(published) : std::nullopt;
      rank.ticket = given.at("ticket");
      rank.state = "staged";
    } else if (what == "rollback") {
      rank.staged.reset();
      if (rank.version == given.at("version")) return true;
      if (rank.before != given.at("version")) return false;
      rank.version = *rank.before;
      rank.run = rank.before_run;
    }
    return true;
  }

  HttpResponse rpc(const nlohmann::json& body) {
    const std::string method = body.at("method");
    const auto& kwargs = body.at("kwargs");
    if (method == "reload_weights") return ok({{"results", std::vector<std::nullptr_t>(1)}});
    if (method == "driftless_commit") commit(kwargs);
    nlohmann::json results = nlohmann::json::array();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      const std::string what = method.substr(method.find('_') + 1);
      const bool good = what == "commit" || obey(rank, i, what, kwargs);
      const bool bad_state = rank.state == "failed";
      results.push_back(
          {{"nonce", kwargs.at("nonce")},
           {"rank", i},
           {"process", std::to_string(process_) + "-" + std::to_string(i)},
           {"ok", good && !bad_state},
           {"error", rank.error.empty() ? nlohmann::json() : nlohmann::json(rank.error)},
           {"state", rank.state},
           {"version", rank.version},
           {"staged_version", rank.staged ? nlohmann::json(*rank.staged) : nlohmann::json()},
           {"run", rank.run},
           {"follows", rank.follows},
           {"digest", rank.digest()},
           {"session", session_known}});
      if (what != "shares" || !good) continue;
      for (const char* key : {"shares", "unproven", "absent"}) {
        results.back()[key] = nlohmann::json::array();
      }
      if (shares) results.back()["shares"] = shares(i);
    }
    const nlohmann::json reply = {{"results", results}};
    if (stuck) return ok(last_);
    if (slips > 0 && !last_.is_null()) {
      --slips;
      return ok(std::exchange(last_, reply));
    }
    last_ = reply;
    return ok(reply);
  }

  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::vector<std::string> calls_;
  bool paused_ = false, session_ = false;
  int process_ = 1;
  std::string weight_version_ = "default";
  nlohmann::json last_;
  HttpServer server_;
};

}  // namespace driftless::testing
