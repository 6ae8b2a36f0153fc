// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/record_sinks.h"

#include "core/secret_file.h"
#include "plugin/job/metrics.h"

namespace driftless {

Result<std::unique_ptr<RecordSinks>> RecordSinks::open(const Config& config,
                                                       const JobProcess& process,
                                                       std::string_view role, unsigned rank,
                                                       bool shows) {
  std::unique_ptr<RecordSinks> sinks(new RecordSinks);
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MetricsWriter> metrics,
                             MetricsWriter::open(config.metrics_file, role, rank));
  if (metrics != nullptr) sinks->records_.keep(std::move(metrics));
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<RecordSink> spans,
                             open_spans(config.monitor.spans_file, role, rank));
  if (spans != nullptr) sinks->records_.keep(std::move(spans));
  if (shows && !config.monitor.address.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(sinks->serve(config, process, role, rank));
  }
  return sinks;
}

Status RecordSinks::serve(const Config& config, const JobProcess& process, std::string_view role,
                          unsigned rank) {
  DRIFTLESS_ASSIGN_OR_RETURN(HttpAddress address, parse_http_address(config.monitor.address));
  StatusPages::Options options{.host = address.host, .max_lag = config.agent.max_lag};
  if (!config.monitor.token_file.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(options.token, read_token_file(config.monitor.token_file));
  }
  if (process.linked() == nullptr) {
    return error(StatusCode::kInternal, "monitor.address: the process did not join by join_job()");
  }
  const Result<const MonitorTable*> parts = monitor_of(*process.linked());
  if (!parts.ok()) return parts.status().with_context("monitor.address");
  auto metrics = (*parts)->make_metrics(record_origin(role, rank));
  if (metrics.ok()) {
    options.metrics = metrics->get();
    records_.keep(std::move(*metrics));
  } else {
    options.no_metrics = metrics.status().message();
  }
  auto view = std::make_unique<RunView>(role, rank);
  view_ = view.get();
  records_.keep(std::move(view));
  pages_ = std::make_unique<StatusPages>(*view_, std::move(options));
  Result<std::unique_ptr<HttpServer>> server = (*parts)->serve_http(
      address, [pages = pages_.get()](const HttpRequest& asked) { return pages->answer(asked); });
  if (!server.ok()) return server.status().with_context("monitor.address");
  server_ = std::move(*server);
  address.port = server_->port();
  environment().log(concat("status on http://", to_string(address), "/"));
  return {};
}

RolloutRecord record_of(const ReceiverReport& report) {
  const ReportProof proof = parse_proof(report.proof);
  return {.id = report.id,
          .run = reported_run(report.proof, report.needs),
          .version = report.version,
          .digest = proof.digest,
          .proven = !proof.digest.empty() && proof.unproven == 0,
          .unproven = proof.unproven,
          .idle = proof.digest.empty() && reports_idle(report.needs),
          .stage_ms = proof.stage_ms,
          .commit_ms = proof.commit_ms};
}

}  // namespace driftless
