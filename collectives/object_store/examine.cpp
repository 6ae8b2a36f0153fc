// SPDX-License-Identifier: Apache-2.0
#include <curl/curl.h>

#include <cmath>
#include <ctime>

#include "collectives/object_store/claim.h"
#include "collectives/object_store/http_client.h"
#include "core/counted.h"

namespace driftless::object_store {
namespace {

using enum FindingState;
using std::chrono::milliseconds;

constexpr milliseconds kCallWait{3'000};
// S3 refuses signatures older than 15 minutes.
constexpr double kRefusedSkewSeconds = 900, kWarnedSkewSeconds = 60;

bool read_only(const ObjectStoreOptions& options) { return options.url.starts_with("http"); }

// Sends a request without a signature: any answer suffices, and contains the server's time.
Result<HttpReply> knock(const ObjectStoreOptions& options, const Deadline& deadline) {
  HttpClient http(options.ca_file);
  HttpRequest request;
  request.url = read_only(options) ? options.url
                                   : concat(s3_endpoint({.bucket = {},
                                                         .prefix = {},
                                                         .endpoint = options.endpoint,
                                                         .region = options.region,
                                                         .profile = {},
                                                         .ca_file = {}}),
                                            "/");
  return http.call(request, deadline.sooner(kCallWait));
}

void examine_clock(const HttpReply& reply, std::vector<Finding>& findings) {
  const auto date = reply.header("date");
  const std::time_t store_time = date ? curl_getdate(std::string(*date).c_str(), nullptr) : -1;
  if (store_time < 0) {
    findings.push_back({"clock", kSkip, "the server's answer has no date"});
    return;
  }
  const double apart = std::difftime(store_time, std::time(nullptr));
  const double most = std::abs(apart);
  findings.push_back(
      {"clock", most > kRefusedSkewSeconds ? kFail : (most > kWarnedSkewSeconds ? kWarn : kOk),
       concat("the store's clock is ", static_cast<long>(apart), " s from this host's"),
       most > kWarnedSkewSeconds ? "set this host's clock by NTP: a store refuses signatures "
                                   "whose time is 15 minutes off"
                                 : ""});
}

bool examine_list(ObjectStore& store, const Deadline& deadline, std::vector<Finding>& findings) {
  const auto listed = store.list(std::string(kVersionsPrefix), "", deadline.sooner(kCallWait));
  if (listed.ok()) {
    const VersionList versions = version_list(*listed);
    findings.push_back(
        {"list", kOk,
         concat(store.name(), ": ",
                counted(versions.there.size(), "version or anchor", "versions and anchors"))});
    return true;
  }
  if (listed.status().code() == StatusCode::kNotFound) {
    findings.push_back({"list", kWarn, listed.status().to_string(),
                        "publish a run there, or correct road.object_store.url"});
    return true;
  }
  findings.push_back(failed("list", listed.status(),
                            "correct the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or "
                            "a profile), the bucket or the region"));
  return false;
}

Finding examine_condition(std::shared_ptr<ObjectStore> store, const Deadline& deadline) {
  Claim claim(std::move(store));
  const Status probed = claim.probe(deadline.sooner(kCallWait));
  if (probed.code() == StatusCode::kUnsupported) {
    return failed("conditional PUT", probed,
                  "use a store that honours If-None-Match: only that keeps two publishers apart");
  }
  if (!probed.ok()) {
    return failed("conditional PUT", probed,
                  "give these credentials the right to put, read and delete objects");
  }
  return {"conditional PUT", kOk,
          claim.replaces() ? "honoured (If-None-Match and If-Match)"
                           : "If-None-Match is honoured, If-Match is not"};
}

}  // namespace

std::vector<Finding> examine(const RoadOptions& given, std::uint64_t, const Deadline& deadline) {
  const auto& options = options_in<ObjectStoreOptions>(given);
  std::vector<Finding> findings;
  Result<std::shared_ptr<ObjectStore>> store = open_object_store(options);
  if (!store.ok()) {
    return {failed("address", store.status(), "correct road.object_store.url")};
  }
  const Result<HttpReply> reply = knock(options, deadline);
  if (!reply.ok()) {
    return {failed("reachable", reply.status(),
                   "start the store, or correct road.object_store.endpoint or the proxy")};
  }
  findings.push_back({"reachable", kOk, concat((*store)->name(), " answers")});
  examine_clock(*reply, findings);
  if (!examine_list(**store, deadline, findings)) return findings;
  if (read_only(options)) {
    findings.push_back({"conditional PUT", kSkip, "this address can only be read"});
  } else {
    findings.push_back(examine_condition(*store, deadline));
  }
  return findings;
}

}  // namespace driftless::object_store
