// SPDX-License-Identifier: Apache-2.0
// ToldTransport: an engine that reads published files itself, and is told of each version by
// SGLang's calls (engine_notifier.h). What it holds is what its label says, if this transport gave
// it the label. Internal to engines/.
#pragma once

#include <map>

#include "plugin/engines/engine_notifier.h"
#include "plugin/engines/one_rank_transport.h"

namespace driftless {

class ToldTransport final : public OneRankTransport {
 public:
  // `engine` has an action. `options` outlive it.
  ToldTransport(EngineEndpoint engine, const NotifyOptions& options, const HttpFunction& http);
  ToldTransport(const ToldTransport&) = delete;
  ToldTransport& operator=(const ToldTransport&) = delete;

  // The next request is about `newest`, one of `versions`, which outlive it. Its calls end by the
  // deadline, all but the one that lets the engine go on somewhat earlier.
  void prepare(const PublishedVersions& versions, std::uint64_t newest, const Deadline& deadline);
  // Waits that nobody depends on end with the time for the work.
  [[nodiscard]] bool stopping() const override { return work_.expired(); }
  // Whether the engine is paused by a pause: it may not know the call, or the user not want it.
  [[nodiscard]] bool pauses() const { return pauses_; }
  EngineAnswer carry(const EngineCall& call) override;

 private:
  Status look(bool must) override;
  Status stage() override;
  Status write() override;
  EngineAnswer server_call(const EngineCall& call) override;

  // Makes one HTTP call until it is answered, as often and as long as it may.
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
  // Its weight_version; nothing if it keeps none.
  [[nodiscard]] Result<std::optional<std::string>> ask_label(bool must);
  [[nodiscard]] Status post(std::string_view path, const Json& body, bool same_server) const;

  const EngineEndpoint engine_;
  const NotifyOptions& options_;
  const HttpFunction http_;
  const PublishedVersions* versions_ = nullptr;
  std::uint64_t newest_ = 0;
  Deadline all_ = Deadline::after({}), work_ = all_;
  const Deadline* until_ = &work_;  // of the call that is being carried
  std::optional<Deadline> flush_;   // for the cache of a paused engine
  bool pauses_ = true;
  bool resumes_ = false;                    // it was asked to go on
  bool said_ = false;                       // anything, since this was set to false
  std::string label_;                       // that it said last
  std::string model_;                       // the model_path beside it; empty: it does not tell
  std::optional<std::string> own_model_;    // likewise, after this transport's last load or look
  std::optional<std::string> fresh_model_;  // likewise, when its label was first that of the base
  std::optional<std::uint64_t> base_;    // a delta of it can be posted: it holds it, or is torn by
                                         // one that is posted again; none: nobody knows
  std::optional<std::uint64_t> posted_;  // last, whatever came of it
  std::string posted_model_, model_before_;  // the directory in that post; model_ before it
  bool told_apart_ = false;                  // its label was another before that post
  bool kept_ = false;                        // the connection on which it said its label
};

}  // namespace driftless
