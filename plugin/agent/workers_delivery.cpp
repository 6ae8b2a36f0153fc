// SPDX-License-Identifier: Apache-2.0
// Delivery without bytes: each worker reads the road with a receiver of its own, and this agent
// reads only manifests, to know which digests the workers must confirm.
#include "collectives/host_shm/host_shm_road.h"
#include "formats/receiver_needs.h"
#include "plugin/agent/delivery.h"
#include "plugin/receive/version_fetcher.h"

namespace driftless {
namespace {

// The source that the engine's operator set at its start
// (megatron_bridge/driftless/engines/allowed.py).
constexpr std::string_view kEngineConfigSource = "own";

class WorkersDelivery final : public Delivery {
 public:
  WorkersDelivery(Config config, ReceiveRoad& road, RunInfo run)
      : config_(std::move(config)),
        road_(road),
        run_(std::move(run)),
        fetcher_(road, run_.run, config_.receiver) {
    seen_.id.run = run_.run;
    seen_.valid = true;
    digests_->note(0, run_.base_digest);
  }

  // Workers take the newest version. Notes the digests of the versions between, too, because a rank
  // may need several commits to reach it.
  Result<std::optional<DeliveryReport>> step(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool news, fetcher_.wait(seen_, deadline));
    if (!news) return std::optional<DeliveryReport>();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, newer());
    std::optional<DeliveryReport> newest;
    for (const PublicationId& id : ids) {
      const Result<FoundManifest> found =
          fetcher_.fetch_manifest(id, Deadline::after(config_.receiver.fetch_deadline));
      const StatusCode code = found.status().code();
      if (code == StatusCode::kNotFound) continue;  // pruned meanwhile
      if (!found.ok()) return found.status();
      digests_->note(id.version, found->manifest.digest);
      newest = DeliveryReport{report_of(*found)};
    }
    if (newest) seen_.id.version = newest->update.version;
    return newest;
  }

  [[nodiscard]] std::uint64_t version() const override { return seen_.id.version; }
  Result<bool> has_newer() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, newer());
    return !ids.empty();
  }
  [[nodiscard]] std::optional<Digest> digest(std::uint64_t version) const override {
    return digests_->find(version);
  }
  // Each worker asks for what it needs.
  [[nodiscard]] bool wants_anchor() const override { return false; }
  [[nodiscard]] std::string needs() const override {
    ReceiverNeeds needs = unknown_needs(run_.run);
    needs.old_values = needs.ranges = true;
    needs.layout = run_.layout.signature();
    needs.tensors.assign(run_.layout.size(), {.kind = TensorNeed::Kind::kNothing});
    const Result<std::string> text = needs_to_text(needs, kMaxNeedsBytes);
    return text.ok() ? *text : std::string();
  }
  // None: the workers report to the trainer, and their engines confirm versions to this agent.
  [[nodiscard]] std::vector<HostReceiver> workers() const override { return {}; }
  Status publish_end(std::string_view) override { return {}; }
  [[nodiscard]] const Hash128& run() const override { return run_.run; }
  Result<std::unique_ptr<EngineSession>> session(EngineKind kind, EngineLink link) override {
    return make_worker_session(config_, kind, std::move(link),
                               {to_hex(run_.run), std::string(kEngineConfigSource),
                                config_.agent.stage_timeout, digests_, config_.agent.take_over});
  }

 private:
  [[nodiscard]] Result<std::vector<PublicationId>> newer() {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PublicationId> ids,
                               road_.list(Deadline::after(config_.receiver.report_deadline)));
    std::erase_if(ids, [this](const PublicationId& id) { return id.version <= version(); });
    return ids;
  }
  [[nodiscard]] UpdateReport report_of(const FoundManifest& found) const {
    const Manifest& manifest = found.manifest;
    UpdateReport report;
    report.run = run_.run;
    report.from_version = manifest.base_version;
    report.version = found.id.version;
    report.versions = 1;
    report.anchor = !is_version(found.id);
    report.created = manifest.created;
    report.digest = manifest.digest;
    report.changed_units = manifest.changed_units;
    report.full_bytes = manifest.full_bytes;
    report.delta_bytes = manifest.payload_bytes;
    report.wire_bytes = found.size_bytes;
    return report;
  }

  const Config config_;
  ReceiveRoad& road_;
  const RunInfo run_;
  VersionFetcher fetcher_;
  TargetState seen_;  // the newest version whose manifest was read
  std::shared_ptr<VersionDigests> digests_ = std::make_shared<VersionDigests>();
};

}  // namespace

Result<std::unique_ptr<EngineSession>> make_worker_session(const Config& config, EngineKind kind,
                                                           EngineLink link,
                                                           EngineSessionOptions options) {
  if (kind == EngineKind::kVllm) {
    return make_engine_session(make_vllm_transport(std::move(link)), std::move(options));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineTransport> transport,
      make_sglang_transport(std::move(link), config.agent.sglang_loader,
                            config.engine_calls.timeout, config.of_road<HostShmOptions>().dir));
  return make_engine_session(std::move(transport), std::move(options));
}

Result<std::unique_ptr<Delivery>> make_workers_delivery(const Config& config, ReceiveRoad& road,
                                                        const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(Announcement announcement,
                             read_announcement(road, config.receiver.fetch_deadline, deadline));
  return std::unique_ptr<Delivery>(
      std::make_unique<WorkersDelivery>(config, road, std::move(announcement.run)));
}

}  // namespace driftless
