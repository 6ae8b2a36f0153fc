// SPDX-License-Identifier: Apache-2.0
// Delivery through shared memory.
#include "collectives/host_shm/host_shm_road.h"
#include "formats/records.h"
#include "plugin/agent/relay.h"

namespace driftless {
namespace {

// The source that the engine's workers follow; it is the only name that they accept from a caller.
std::string worker_source(const Config& config) {
  return concat("host_shm:", config.of_road<HostShmOptions>().name);
}

class ShmDelivery final : public Delivery {
 public:
  ShmDelivery(Config config, std::unique_ptr<SendRoad> sender)
      : config_(std::move(config)), sender_(std::move(sender)) {}

  [[nodiscard]] Status open(ReceiveRoad& road, bool threads, const Deadline& deadline) {
    RelayOptions options;
    options.read_workers = threads ? config_.receiver.read_workers : 1;
    options.read_bytes = config_.agent.read_bytes;
    options.workers = config_.agent.workers;
    options.versions = config_.of_road<HostShmOptions>().versions;
    options.fetch_deadline = config_.receiver.fetch_deadline;
    options.report_deadline = config_.receiver.report_deadline;
    DRIFTLESS_ASSIGN_OR_RETURN(relay_, Relay::open(options, road, *sender_, deadline));
    return {};
  }

  Result<std::optional<DeliveryReport>> step(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::optional<DeliveryReport> anchor, relay_->help());
    if (anchor) return anchor;
    return relay_->follow(deadline);
  }

  [[nodiscard]] std::uint64_t version() const override { return relay_->version(); }
  Result<bool> has_newer() override { return relay_->has_newer(); }
  [[nodiscard]] std::optional<Digest> digest(std::uint64_t version) const override {
    return relay_->digests()->find(version);
  }
  [[nodiscard]] bool wants_anchor() const override { return relay_->wants_anchor(); }
  [[nodiscard]] std::string needs() const override { return relay_->needs(); }

  // A worker counts as holding a version only if its digest is that version's, and this agent knows
  // that digest.
  [[nodiscard]] std::vector<HostReceiver> workers() const override {
    std::vector<HostReceiver> found;
    for (const ReceiverReport& report : relay_->receivers()) {
      HostReceiver& worker = found.emplace_back(HostReceiver{report.id, std::nullopt});
      const std::optional<Digest> expected = relay_->digests()->find(report.version);
      if (expected && parse_proof(report.proof).digest == to_hex(*expected)) {
        worker.version = report.version;
      } else {
        worker.waits = why_not(report, expected);
      }
    }
    return found;
  }

  Status publish_end(std::string_view text) override {
    return publish_host_shm_end(config_.of_road<HostShmOptions>(), text);
  }
  [[nodiscard]] const Hash128& run() const override { return relay_->run(); }
  Result<std::unique_ptr<EngineSession>> session(EngineKind kind, EngineLink link) override {
    const AgentOptions& agent = config_.agent;
    EngineSessionOptions options{to_hex(relay_->run()), worker_source(config_), agent.stage_timeout,
                                 relay_->digests(), agent.take_over};
    return make_worker_session(config_, kind, std::move(link), std::move(options));
  }

 private:
  // Why a worker has no proven version, from its report.
  [[nodiscard]] static std::string why_not(const ReceiverReport& report,
                                           const std::optional<Digest>& expected) {
    if (report.proof == kAnchorWanted) {
      return "holds no version that the deltas on the road build on, and requests an anchor";
    }
    const std::string digest = parse_proof(report.proof).digest;
    if (digest.empty()) return "holds no version yet, and requests none";
    return concat("reports version ", report.version, " with digest ", digest,
                  expected ? concat(", which has ", to_hex(*expected))
                           : std::string(", which this agent did not hand over"));
  }

  const Config config_;
  std::unique_ptr<SendRoad> sender_;
  std::unique_ptr<Relay> relay_;
};

}  // namespace

Result<std::unique_ptr<Delivery>> make_shm_delivery(const Config& config, ReceiveRoad& road,
                                                    bool threads, const Deadline& deadline) {
  // First, so that a second agent fails at once instead of after a wait.
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<SendRoad> sender,
                             make_host_shm_sender(config.of_road<HostShmOptions>()));
  auto delivery = std::make_unique<ShmDelivery>(config, std::move(sender));
  DRIFTLESS_RETURN_IF_ERROR(delivery->open(road, threads, deadline));
  return std::unique_ptr<Delivery>(std::move(delivery));
}

}  // namespace driftless
