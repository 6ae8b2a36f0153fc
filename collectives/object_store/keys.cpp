// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/object_store/object_store_options.h"
#include "collectives/road_kind.h"

namespace driftless {
namespace object_store {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(ObjectStoreOptions, field)

struct StoreUrl : setting::Text {
  // A refused value is not shown, because it may be a secret.
  static Result<std::string> parse(std::string_view value) {
    const auto scheme = value.find("://");
    const std::string_view rest =
        scheme == std::string_view::npos ? value : value.substr(scheme + 3);
    const bool query = value.starts_with("s3://") && rest.find('?') != std::string_view::npos;
    if (!query && rest.substr(0, rest.find_first_of("/?")).find('@') == std::string_view::npos) {
      return Text::parse(value);
    }
    return error(StatusCode::kInvalidArgument,
                 "expected s3://bucket/prefix or http(s)://host/path, without a user or a key: "
                 "credentials come from the environment, the shared file or the instance's role");
  }
  // The query of a signed URL is a secret.
  static std::string text(const std::string& value) {
    const auto question = value.find('?');
    return question == std::string::npos ? value : value.substr(0, question) + "?(not shown)";
  }
};

struct StoreEndpoint : setting::Text {
  static Result<std::string> parse(std::string_view value) {
    const bool known =
        value.empty() || value.starts_with("http://") || value.starts_with("https://");
    if (known && value.find_first_of("@?") == std::string_view::npos) return Text::parse(value);
    return error(StatusCode::kInvalidArgument,
                 "expected http://host:port or https://host:port, without a user or a query");
  }
};

constexpr std::array kKeys = {
    Rows::key<StoreUrl, DRIFTLESS_FIELD(url)>(
        "road.object_store.url",
        "s3://bucket/prefix, hf://user/bucket/prefix, or for rollouts http(s)://host/path",
        "Where versions are. What follows a '?' is sent with every request, and not shown")
        .once("road.url"),
    Rows::key<StoreEndpoint, DRIFTLESS_FIELD(endpoint)>(
        "road.object_store.endpoint", "http(s)://host:port",
        "The server of an S3 store other than AWS; empty: the server of AWS for the region")
        .once("road.endpoint"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(region)>("road.object_store.region", "a name",
                                                      "The region to sign for")
        .once("road.region"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(ca_file)>("road.object_store.ca_file", setting::kPath,
                                                       "CA bundle for https; empty: the system's")
        .once("road.ca_file"),
    Rows::key<setting::DurationOrNone, DRIFTLESS_FIELD(presign)>(
        "road.object_store.presign",
        "For trainers: index.json holds presigned links for rollouts without credentials, valid "
        "for this time")
        .once("road.presign"),
    Rows::key<setting::Count<1, 256>, DRIFTLESS_FIELD(streams)>(
        "road.object_store.streams", "Uploads or downloads at a time, of 8 MiB each")
        .once("road.streams"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(spool_dir)>(
        "road.object_store.spool_dir", setting::kPath,
        "Where parts of more than 8 MiB lie while they are uploaded; empty: TMPDIR, or /tmp")
        .once("road.spool_dir"),
    poll_first<DRIFTLESS_FIELD(poll_first)>(),
    poll_longest<DRIFTLESS_FIELD(poll_longest)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
};
#undef DRIFTLESS_FIELD

template <typename... Parts>
Status refuse(const Parts&... parts) {
  return error(StatusCode::kInvalidArgument, parts...);
}

Status check(const RoadOptions& given, const RoadUse& use) {
  const auto& options = options_in<ObjectStoreOptions>(given);
  constexpr std::chrono::hours kLongestPresign{7 * 24};
  if (options.presign.count() != 0 &&
      (options.presign < std::chrono::seconds(1) || options.presign > kLongestPresign)) {
    return refuse("road.object_store.presign: a store signs for 1s to 168h (7 days)");
  }
  if ((!use.chosen && !use.fallback) || options.store != nullptr) return {};
  if (options.url.empty()) {
    return refuse(
        "road.object_store.url is missing: object_store needs s3://bucket/prefix (or "
        "--set road.object_store.url=URL)");
  }
  // hf:// needs Python, which provides the store.
  for (const std::string_view scheme : {"s3://", "http://", "https://", "hf://"}) {
    if (options.url.starts_with(scheme) && options.url.size() > scheme.size()) return {};
  }
  return refuse("road.object_store.url: '", options.url.substr(0, options.url.find('?')),
                "' is neither s3://bucket/prefix nor http(s)://host/path");
}

}  // namespace
}  // namespace object_store

constinit const RoadKind kObjectStoreKind{
    .name = "object_store",
    .defaults = [] { return RoadOptions(ObjectStoreOptions()); },
    .keys = object_store::kKeys,
    .check = object_store::check,
    .keeps = true,
    .place_key = "road.object_store.url"};

}  // namespace driftless
