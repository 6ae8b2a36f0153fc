// SPDX-License-Identifier: Apache-2.0
// Reads the endpoint of a publisher or an agent: GET /status.json.
#include <map>

#include "tools/status/status_reader.h"

namespace driftless {
namespace {

Status refusal(const std::string& url, long number) {
  switch (number) {
    case 401:
    case 403:
      return error(StatusCode::kInvalidArgument, url, ": HTTP ", number,
                   ": it wants the token of monitor.token_file: --token-file FILE");
    case 404:
      return error(StatusCode::kNotFound, url,
                   ": HTTP 404: no publisher or agent with monitor.address answers there");
    default: return error(StatusCode::kIo, url, ": HTTP ", number);
  }
}

class EndpointReader final : public StatusReader {
 public:
  EndpointReader(std::string url, std::string token, HttpFunction http)
      : url_(std::move(url)), token_(std::move(token)), http_(std::move(http)) {}

  Result<Sighting> look(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(RunStatus status, ask(deadline));
    if (status.run != run_ && !versions_.empty()) {  // it is another run: request all its versions
      versions_.clear();
      DRIFTLESS_ASSIGN_OR_RETURN(status, ask(deadline));
    }
    remember(status);
    const RecordOrigin& by = status.origin;
    const std::string why =
        concat("as ", by.role, " ", by.rank, " on ", by.host, " reports",
               status.trainer_seen.empty() ? "" : ", seen ", status.trainer_seen);
    return Sighting{std::move(status), why};
  }

 private:
  // The request asks only for versions that are not known yet, and for the newest, which may have
  // become an anchor.
  [[nodiscard]] std::string since() const {
    if (versions_.empty() || versions_.rbegin()->first < 2) return "";
    return concat("?since=", versions_.rbegin()->first - 1);
  }

  [[nodiscard]] Result<RunStatus> ask(const Deadline& deadline) const {
    const std::string url = concat(url_, "/status.json", since());
    const HttpAnswer answer = http_({.url = url, .body = {}, .token = token_, .get = true},
                                    deadline.remaining(), nullptr);
    DRIFTLESS_RETURN_IF_ERROR(answer.status);
    if (answer.number != 200) return refusal(url_, answer.number);
    return parse_run_status(answer.body, url_);
  }

  void remember(RunStatus& status) {
    run_ = status.run;
    for (VersionRecord& version : status.versions) {
      versions_[version.version] = std::move(version);
    }
    while (versions_.size() > kAllVersions) versions_.erase(versions_.begin());
    status.versions.clear();
    for (const auto& [number, version] : versions_) status.versions.push_back(version);
  }

  const std::string url_, token_;
  const HttpFunction http_;
  Hash128 run_;
  std::map<std::uint64_t, VersionRecord> versions_;
};

}  // namespace

std::unique_ptr<StatusReader> make_endpoint_reader(std::string url, std::string token,
                                                   HttpFunction http) {
  return std::make_unique<EndpointReader>(std::move(url), std::move(token), std::move(http));
}

}  // namespace driftless
