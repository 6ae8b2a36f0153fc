// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/notified_transport.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/line_log.h"
#include "plugin/engines/server_calls.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestRetryWait{10'000};
constexpr milliseconds kFirstFlushWait{50}, kLongestFlushWait{1'000};
// The label of a server that never received one.
constexpr std::string_view kFreshLabel = "default";
constexpr std::string_view kUnprovenLabel = "unproven";
constexpr std::string_view kName = "/update_weight_version";
constexpr std::string_view kLoad = "/update_weights_from_disk";

Json name_body(std::string_view label) {
  return {{"new_version", label}, {"abort_all_requests", false}};
}

}  // namespace

NotifiedTransport::NotifiedTransport(EngineEndpoint engine, const NotifyOptions& options,
                                     const HttpFunction& http)
    : OneRankTransport(EngineLink(
          engine, options.timeout, nullptr,
          [this](const HttpCall& call, milliseconds timeout, const std::atomic<bool>* stop) {
            return this->http(call, timeout, stop);
          })),
      engine_(std::move(engine)),
      options_(options),
      http_(http ? http : http_session()) {}

void NotifiedTransport::prepare(const PublishedVersions& versions, std::uint64_t newest,
                                const Deadline& deadline) {
  const milliseconds left = deadline.remaining();
  versions_ = &versions;
  newest_ = newest;
  all_ = deadline;
  work_ = deadline.sooner(left - std::min(options_.timeout, left / 4));
  pauses_ = options_.pause;
  resumes_ = false;
  flush_.reset();
  staged_.reset();
}

// Limits the time of a sequence of calls: the driver repeats the calls that follow a load, and
// http() retries each of them. All calls after a failed load together get the time of one call with
// its retries, and so do all calls that resume the engine.
EngineAnswer NotifiedTransport::carry(const EngineCall& call) {
  const milliseconds one_call = (options_.timeout + options_.retry_wait) * (options_.retries + 1);
  const bool resumes = call.op == EngineOp::kResume;
  if (resumes && !std::exchange(resumes_, true)) all_ = all_.sooner(one_call);
  until_ = resumes ? &all_ : &work_;
  EngineAnswer answer = OneRankTransport::carry(call);
  if (call.op == EngineOp::kWrite && !answer.status.ok()) {
    work_ = work_.sooner(one_call);
    // Pause again: a server that was restarted after the pause would serve what the load left.
    static_cast<void>(server_call({.op = EngineOp::kPause, .must = true}));
  }
  return answer;
}

HttpAnswer NotifiedTransport::http(const HttpCall& call, milliseconds timeout,
                                   const std::atomic<bool>* stop) {
  Backoff backoff(options_.retry_wait, std::max(options_.retry_wait, kLongestRetryWait));
  HttpAnswer answer;
  for (unsigned tries = 0;; ++tries) {
    if (Status late = until_->check(without_users(call.url)); !late.ok()) {
      if (tries == 0) answer.status = std::move(late);
      return answer;
    }
    answer = http_(call, std::min(timeout, until_->remaining()), stop);
    sent_ = sent_ || answer.status.code() != StatusCode::kIncomplete;
    const bool again = answer.status.ok() ? answer.number >= 500 : answer.again;
    if (!again || tries >= options_.retries || !backoff.sleep(*until_)) return answer;
  }
}

EngineIdentity NotifiedTransport::identity(std::uint64_t version) const {
  const PublishedVersion& published = versions_->at(version);
  return {published.run, static_cast<std::int64_t>(version), published.digest};
}

// --- what it holds -----------------------------------------------------------------------------

Result<std::optional<std::string>> NotifiedTransport::ask_label(bool must) {
  const EngineReply info = link_.call("/model_info", nullptr, link_.timeout(), must);
  kept_ = info.kept;
  const Status known = known_call(info.status);
  if (known.code() == StatusCode::kUnsupported) return std::optional<std::string>();
  DRIFTLESS_RETURN_IF_ERROR(known.with_context("its version"));
  DRIFTLESS_ASSIGN_OR_RETURN(const Json reply, parse_json(info.body, "/model_info"));
  std::string label = json_text(reply, "weight_version");
  model_ = json_text(reply, "model_path");
  if (!known_model_ && label == label_) known_model_ = model_;
  return label.empty() ? std::optional<std::string>() : std::optional(std::move(label));
}

// Compares the label with the one that this transport set. A label with another number may stem
// from an earlier run, so the weights are unknown. Every run has a version of each number, so the
// label counts as ours only while the server also reports the directory of our load. A server that
// still has its first label started with the base. Its weights count as unknown: a load that failed
// earlier may have left parts of a version in it.
Status NotifiedTransport::look(bool must) {
  const bool deltas = engine_.action == EngineAction::kUpdateFlush;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> label, ask_label(must));
  if (!label) {  // it may have been restarted: trust our last load, but not as a base for deltas
    label_.clear();
    if (deltas) base_.reset();
    return {};
  }
  if (*label == label_ && known_model_ == model_ && (holds_ || base_)) return {};
  known_model_ = model_;
  if (posted_ && label_differed_ && *label == std::to_string(*posted_) &&
      (model_ == posted_model_ || model_ == model_before_) && versions_->contains(*posted_)) {
    holds_ = identity(*posted_);  // the post succeeded, but its answer was lost
    base_ = posted_;
  } else {
    holds_.reset();
    base_.reset();
    if (deltas && *label == kFreshLabel) {  // a load without a label leaves this one, too
      if (!fresh_model_) fresh_model_ = model_;
      if (*fresh_model_ == model_) base_ = 0;
    }
  }
  label_ = *label;
  return {};
}

// --- loading -----------------------------------------------------------------------------------

// Runs before the pause.
Status NotifiedTransport::stage() {
  staged_.reset();
  if (newest_ > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return error(StatusCode::kInvalidArgument, "version ", newest_, " is too large");
  }
  const PublishedVersion& version = versions_->at(newest_);
  switch (*engine_.action) {
    case EngineAction::kPullWeights: {
      const Json pull = {{"local_checkpoint_dir", engine_.local_checkpoint_dir},
                         {"source_dir", version.source_dir},
                         {"target_version", newest_}};
      const Status pulled = known_call(post("/pull_weights", pull, false));
      const bool unknown = pulled.code() == StatusCode::kUnsupported;
      DRIFTLESS_RETURN_IF_ERROR(unknown ? pulled.with_context("has no /pull_weights") : pulled);
      break;
    }
    case EngineAction::kUpdateFromDisk: {
      const auto patched = version.patched.find(engine_.local_checkpoint_dir);
      if (patched != version.patched.end()) DRIFTLESS_RETURN_IF_ERROR(patched->second);
      break;
    }
    case EngineAction::kUpdateFlush: DRIFTLESS_RETURN_IF_ERROR(missed().status()); break;
  }
  staged_ = identity(newest_);
  return {};
}

Status NotifiedTransport::write() {
  if (!staged_) return error(StatusCode::kInternal, "nothing is staged");
  staged_.reset();
  if (engine_.action != EngineAction::kUpdateFlush) {
    return load(newest_, kLoad, load_body(engine_.local_checkpoint_dir, newest_), false);
  }
  // A delta goes to the same server process that reported its label, if the server keeps
  // connections open: a restarted server would apply the delta to other weights.
  for (unsigned tries = 0;; ++tries) {
    const Status posted = post_missed();
    if (posted.code() != StatusCode::kIncomplete || tries >= options_.retries) return posted;
  }
}

// Posts each version from the engine's to the newest one, in order.
Status NotifiedTransport::post_missed() {
  DRIFTLESS_RETURN_IF_ERROR(look(true));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, missed());
  if (label_ == kFreshLabel) DRIFTLESS_RETURN_IF_ERROR(take_fresh_label());
  for (const std::uint64_t number : numbers) {
    const PublishedVersion& version = versions_->at(number);
    const std::string label = std::to_string(number);
    if (version.files.empty() && !version.full) {  // nothing changes: set only the label
      DRIFTLESS_RETURN_IF_ERROR(load(number, kName, name_body(label), kept_));
    } else {
      Json body = load_body(version.version_dir, number);
      if (!version.full) {
        body["load_format"] = "delta";
        body["files"] = version.files;
      }
      DRIFTLESS_RETURN_IF_ERROR(
          load(number, kLoad, body, kept_).with_context(concat("version ", number)));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> found, ask_label(true));
    if (!found || *found == label) continue;
    holds_ = torn(identity(number));
    base_.reset();
    label_.clear();  // it may have been restarted: the next look reads its label
    return error(StatusCode::kMismatch, link_.url(), ": reports that it serves version ",
                 shown(*found), ", expected ", label);
  }
  return {};
}

// Before the first load, replaces the label of a server that holds the base. Otherwise, if that
// load failed midway, the server would hold parts of two versions under the label of the base, and
// the next run would post its deltas to it.
Status NotifiedTransport::take_fresh_label() {
  const Status named = known_call(post(kName, name_body(kUnprovenLabel), kept_));
  if (named.code() == StatusCode::kUnsupported) return {};
  DRIFTLESS_RETURN_IF_ERROR(named);
  label_ = kUnprovenLabel;
  return {};
}

// The versions to post, in order: the deltas that follow the engine's version, or a full version
// and the deltas that follow it.
Result<std::vector<std::uint64_t>> NotifiedTransport::missed() const {
  if (label_.empty() && !versions_->at(newest_).full) {
    return error(StatusCode::kUnsupported, link_.url(),
                 ": reports no weight_version (GET /model_info), so a restart would go unnoticed: "
                 "deltas are not posted to it; publish full versions, or set action: pull_weights");
  }
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t number = newest_; !base_ || number != *base_;) {
    const auto found = versions_->find(number);
    if (found == versions_->end()) {
      return error(StatusCode::kWrongBase, link_.url(), ": holds ",
                   base_ ? concat("version ", *base_) : concat("weights labelled ", shown(label_)),
                   ", version ", newest_, " needs version ", number,
                   ", which cannot be posted any more: publish a full version");
    }
    numbers.insert(numbers.begin(), number);
    if (found->second.full) break;
    number = found->second.base_version;
  }
  return numbers;
}

// A paused engine's cache is flushed by a separate call: SGLang reports a load as failed if it
// could not flush, although the weights were loaded.
Json NotifiedTransport::load_body(const std::string& dir, std::uint64_t version) const {
  Json body = {{"model_path", dir}, {"weight_version", std::to_string(version)}};
  if (pauses_) body["flush_cache"] = false;
  return body;
}

Status NotifiedTransport::load(std::uint64_t version, std::string_view path, const Json& body,
                               bool same_server) {
  const std::string label = std::to_string(version);
  const std::optional<EngineIdentity> before = holds_;
  posted_ = version;
  posted_model_ = json_text(body, "model_path");
  model_before_ = model_;
  label_differed_ = label_ != label;
  holds_ = torn(identity(version));
  sent_ = false;
  Status loaded = post(path, body, same_server);
  // Nothing was sent, or only a label: the weights are not torn.
  if (!sent_ || path != kLoad) holds_ = before;
  // SGLang answers when its first rank has loaded, and the files may be removed once this returns:
  // wait for all ranks.
  if (loaded.ok() && path == kLoad) loaded = sglang_meet(link_);
  DRIFTLESS_RETURN_IF_ERROR(loaded);
  holds_ = identity(version);
  base_ = version;
  label_ = label;
  if (path == kLoad) known_model_.reset();  // the next look reads it
  return {};
}

Status NotifiedTransport::post(std::string_view path, const Json& body, bool same_server) const {
  const EngineReply reply = link_.call(path, &body, link_.timeout(), true, same_server);
  DRIFTLESS_RETURN_IF_ERROR(reply.status);
  DRIFTLESS_ASSIGN_OR_RETURN(const Json answer, parse_json(reply.body, path));
  const auto success = answer.find("success");
  if (success == answer.end() || !success->is_boolean()) {
    return error(StatusCode::kCorrupt, link_.url(), path,
                 R"(: expected {"success":true|false,"message":...}, found )",
                 shown(reply.body, 300));
  }
  if (success->get<bool>()) return {};
  return error(StatusCode::kIo, link_.url(), path, ": the engine refused: ", reply.words);
}

// --- the rest ----------------------------------------------------------------------------------

// The engine refuses to flush until the requests in flight have ended.
Status NotifiedTransport::flush_paused(const EngineCall& call) {
  if (!flush_) flush_ = work_.sooner(options_.timeout);
  Backoff backoff(kFirstFlushWait, kLongestFlushWait);
  for (;;) {
    Status flushed = known_call(sglang_server_call(link_, call).status);
    const bool final = flushed.ok() || flushed.code() == StatusCode::kUnsupported;
    if (final || !backoff.sleep(*flush_)) return flushed;
  }
}

// An engine without these calls is not paused, and its cache is not cleared.
EngineAnswer NotifiedTransport::server_call(const EngineCall& call) {
  switch (call.op) {
    case EngineOp::kPause:
    case EngineOp::kClearCache:
    case EngineOp::kResume: {
      if (!pauses_) return {};
      const bool waits = call.op == EngineOp::kClearCache && call.pause == PauseState::kPaused;
      const Status done =
          waits ? flush_paused(call) : known_call(sglang_server_call(link_, call).status);
      const bool unknown = done.code() == StatusCode::kUnsupported;
      if (unknown && call.op == EngineOp::kPause) pauses_ = false;
      const bool in_any_words = done.code() == StatusCode::kCorrupt;  // not JSON, but a success
      return {.status = unknown || in_any_words ? Status() : done};
    }
    case EngineOp::kReadLabel: {
      Result<std::optional<std::string>> label = ask_label(call.must);
      if (!label.ok()) return {.status = label.status()};
      if (!*label) return {.status = error(StatusCode::kUnsupported, "it keeps no label")};
      return {.label = std::move(**label)};
    }
    default: return sglang_server_call(link_, call);
  }
}

}  // namespace driftless
