// SPDX-License-Identifier: Apache-2.0
// Delivery through shared memory.
#include <algorithm>

#include "collectives/host_shm/host_shm_road.h"
#include "plugin/agent/delivery.h"
#include "plugin/agent/relay.h"
#include "plugin/engines/engine_session.h"
#include "plugin/receive/receiver.h"

namespace driftless {
namespace {

constexpr std::size_t kDigestDigits = 32;

// What the engine's workers follow, by the only name that they take from a caller.
std::string worker_source(const Config& config) {
  return concat("host_shm:", config.host_shm.name);
}

class ShmDelivery final : public Delivery {
 public:
  ShmDelivery(const Config& config, std::unique_ptr<SendRoad> sender)
      : config_(config), sender_(std::move(sender)) {}

  [[nodiscard]] Status open(ReceiveRoad& road, bool threads, const Deadline& deadline) {
    RelayOptions options;
    options.read_workers = threads ? config_.agent.read_workers : 1;
    options.read_bytes = config_.agent.read_bytes;
    options.versions = config_.host_shm.versions;
    options.fetch_deadline = config_.receiver.fetch_deadline;
    options.report_deadline = config_.receiver.report_deadline;
    DRIFTLESS_ASSIGN_OR_RETURN(relay_, Relay::open(options, road, *sender_, deadline));
    if (const std::optional<Digest> base = relay_->digest(0)) digests_->note(0, *base);
    return {};
  }

  Result<std::optional<DeliveryReport>> step(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::optional<RelayReport> report, relay_->help());
    if (!report) {
      DRIFTLESS_ASSIGN_OR_RETURN(report, relay_->follow(deadline));
    }
    if (!report) return std::optional<DeliveryReport>();
    digests_->note(report->id.version, report->digest);
    UpdateReport update;
    update.version = report->id.version;
    update.from_version = report->base_version;
    update.versions = 1;
    update.anchor = report->id.kind == PublicationKind::kAnchor;
    update.digest = report->digest;
    update.changed_units = report->changed_units;
    update.full_bytes = report->full_bytes;
    update.delta_bytes = report->delta_bytes;
    update.wire_bytes = report->wire_bytes;
    update.fetch_ms = report->fetch_ms;
    return std::optional<DeliveryReport>(
        DeliveryReport{std::move(update), report->plain_bytes, report->process_ms});
  }

  [[nodiscard]] std::uint64_t version() const override { return relay_->version(); }
  Result<bool> behind() override { return relay_->behind(); }
  [[nodiscard]] std::optional<Digest> digest(std::uint64_t version) const override {
    return relay_->digest(version);
  }
  [[nodiscard]] bool wants_anchor() const override { return relay_->wants_anchor(); }

  // One whose weights are not those of the version that it names holds nothing; nor does one whose
  // version this agent cannot compare.
  [[nodiscard]] std::vector<Worker> workers() const override {
    std::vector<Worker> found;
    for (const ReceiverReport& report : relay_->receivers()) {
      Worker& worker = found.emplace_back(Worker{report.id, std::nullopt});
      const std::optional<Digest> expected = relay_->digest(report.version);
      const std::string_view proof = std::string_view(report.proof).substr(0, kDigestDigits);
      if (expected && proof == to_hex(*expected)) worker.version = report.version;
    }
    return found;
  }

  Status tell_end(std::string_view text) override {
    return tell_host_shm_end(config_.host_shm, text);
  }
  [[nodiscard]] const Hash128& run() const override { return relay_->run(); }
  Result<std::unique_ptr<EngineSession>> session(EngineKind kind, EngineLink link) override {
    const AgentOptions& agent = config_.agent;
    EngineSessionOptions options{to_hex(relay_->run()), worker_source(config_), agent.stage_timeout,
                                 digests_};
    if (kind == EngineKind::kVllm) {
      return make_engine_session(make_vllm_transport(std::move(link)), std::move(options));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineTransport> transport,
                               make_sglang_transport(std::move(link), agent.sglang_loader,
                                                     agent.call_timeout, config_.host_shm.dir));
    return make_engine_session(std::move(transport), std::move(options));
  }

 private:
  const Config config_;
  std::unique_ptr<SendRoad> sender_;
  std::unique_ptr<Relay> relay_;
  std::shared_ptr<VersionDigests> digests_ = std::make_shared<VersionDigests>();
};

}  // namespace

Result<std::unique_ptr<Delivery>> make_shm_delivery(const Config& config, ReceiveRoad& road,
                                                    bool threads, const Deadline& deadline) {
  // Before anything is waited for: a second agent is told at once.
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<SendRoad> sender,
                             make_host_shm_sender(config.host_shm));
  auto delivery = std::make_unique<ShmDelivery>(config, std::move(sender));
  DRIFTLESS_RETURN_IF_ERROR(delivery->open(road, threads, deadline));
  return std::unique_ptr<Delivery>(std::move(delivery));
}

}  // namespace driftless
