// SPDX-License-Identifier: Apache-2.0
// NotifiedTransport: drives an engine that reads published files itself and is notified of each
// version by SGLang's calls (engine_notifier.h). The engine's label identifies what it holds, if
// this transport set the label. Internal to engines/.
#pragma once

#include <map>

#include "plugin/engines/engine_notifier.h"
#include "plugin/engines/one_rank_transport.h"

namespace driftless {

class NotifiedTransport final : public OneRankTransport {
 public:
  // `engine` has an action. `options` outlive the transport.
  NotifiedTransport(EngineEndpoint engine, const NotifyOptions& options, const HttpFunction& http);
  NotifiedTransport(const NotifiedTransport&) = delete;
  NotifiedTransport& operator=(const NotifiedTransport&) = delete;

  // The next request is about `newest`, one of `versions`; both outlive it. All calls end by the
  // deadline; all but the one that resumes the engine end somewhat earlier.
  void prepare(const PublishedVersions& versions, std::uint64_t newest, const Deadline& deadline);
  // Waits are cut short once the time for the work (work_) is over.
  [[nodiscard]] bool stopping() const override { return work_.expired(); }
  // Whether kPause really pauses the engine: it may not have the call, or the user may not want it.
  [[nodiscard]] bool pauses() const { return pauses_; }
  EngineAnswer carry(const EngineCall& call) override;

 private:
  Status look(bool must) override;
  Status stage() override;
  Status write() override;
  EngineAnswer server_call(const EngineCall& call) override;

  // Makes one HTTP call, with retries, until it is answered or the retries or the time are used up.
  [[nodiscard]] HttpAnswer http(const HttpCall& call, std::chrono::milliseconds timeout,
                                const std::atomic<bool>* stop);
  [[nodiscard]] EngineIdentity identity(std::uint64_t version) const;
  [[nodiscard]] Result<std::vector<std::uint64_t>> missed() const;
  [[nodiscard]] Status post_missed();
  [[nodiscard]] Status take_fresh_label();
  [[nodiscard]] Json load_body(const std::string& dir, std::uint64_t version) const;
  [[nodiscard]] Status load(std::uint64_t version, std::string_view path, const Json& body,
                            bool same_server);
  [[nodiscard]] Status flush_paused(const EngineCall& call);
  // The engine's weight_version; nothing if it keeps none.
  [[nodiscard]] Result<std::optional<std::string>> ask_label(bool must);
  [[nodiscard]] Status post(std::string_view path, const Json& body, bool same_server) const;

  const EngineEndpoint engine_;
  const NotifyOptions& options_;
  const HttpFunction http_;
  const PublishedVersions* versions_ = nullptr;
  std::uint64_t newest_ = 0;
  Deadline all_ = Deadline::after({}), work_ = all_;
  const Deadline* until_ = &work_;  // the deadline of the call under way
  std::optional<Deadline> flush_;   // for the cache of a paused engine
  bool pauses_ = true;
  bool resumes_ = false;                    // the driver asked to resume the engine
  bool sent_ = false;                       // a request was sent since this was set to false
  std::string label_;                       // the engine's last reported label
  std::string model_;                       // the model_path beside it; empty: not reported
  std::optional<std::string> known_model_;  // model_path after this transport's last load or look
  std::optional<std::string> fresh_model_;  // model_path when the label was first the base's
  // The version on which posted deltas may build: the engine holds it, or a failed post of such a
  // delta left the engine torn, and the delta is posted again. None: unknown.
  std::optional<std::uint64_t> base_;
  std::optional<std::uint64_t> posted_;      // the last version posted, whatever the result
  std::string posted_model_, model_before_;  // its directory; model_ before that post
  bool label_differed_ = false;              // that post changed the engine's label
  bool kept_ = false;  // the connection on which it reported its label is still open
};

}  // namespace driftless
