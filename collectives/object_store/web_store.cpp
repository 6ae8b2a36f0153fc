// SPDX-License-Identifier: Apache-2.0
// Objects at URLs, read without credentials.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "collectives/object_store/http_client.h"
#include "collectives/object_store/medium.h"
#include "collectives/object_store/object_store.h"

namespace driftless {
namespace {

using namespace object_store;
class WebStore final : public ObjectStore {
 public:
  WebStore(std::string_view url, const std::string& ca_file) : http_(ca_file) {
    const auto question = url.find('?');
    if (question != std::string_view::npos) query_ = url.substr(question);
    name_ = without_query(url);
    while (name_.ends_with('/')) name_.pop_back();
  }

  [[nodiscard]] const std::string& name() const override { return name_; }

  Status put(const std::string&, std::span<const std::byte>, bool, const Deadline&) override {
    return read_only();
  }
  Status replace(const std::string&, std::span<const std::byte>, const std::string&,
                 const Deadline&) override {
    return read_only();
  }
  Result<std::unique_ptr<Upload>> upload(const std::string&, const Deadline&) override {
    return read_only();
  }
  Status drop_uploads(const std::string&, const Deadline&) override { return read_only(); }
  Status remove(const std::string&, const Deadline&) override { return read_only(); }

  Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) override {
    HttpRequest request = request_for(key);
    request.headers.emplace_back("range", range_header(offset, bytes.size()));
    request.into = bytes;
    request.skip = offset;
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, send(request, deadline));
    return range_size(reply, offset, concat(name_, "/", key));
  }

  Result<std::uint64_t> size(const std::string& key, const Deadline& deadline) override {
    HttpRequest request = request_for(key);
    request.method = "HEAD";
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, send(request, deadline));
    return content_length(reply, concat(name_, "/", key));
  }

  Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                const Deadline& deadline) override {
    HttpRequest request = request_for(key);
    request.max_text = max_bytes;
    DRIFTLESS_ASSIGN_OR_RETURN(HttpReply reply, send(request, deadline));
    return TaggedText{std::move(reply.text), ""};
  }

  // From the publisher's index; it knows versions alone.
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, const std::string& after,
                                       const Deadline& deadline) override {
    if (prefix != kVersionsPrefix) return read_only();
    Result<std::string> text = get_text(std::string(kIndexKey), kMaxTextBytes, deadline);
    if (text.status().code() == StatusCode::kNotFound) return std::vector<ObjectInfo>();
    DRIFTLESS_RETURN_IF_ERROR(text.status());
    const auto json = nlohmann::json::parse(*text, nullptr, false);
    if (!json.is_object() || !json.contains("versions") || !json["versions"].is_array()) {
      return error(StatusCode::kCorrupt, name_, "/", kIndexKey, ": not a publisher's index");
    }
    std::vector<ObjectInfo> found;
    for (const auto& each : json["versions"]) {
      if (!each.is_string()) continue;
      const auto id = parse_publication_name(each.get_ref<const std::string&>());
      if (id && version_key(*id) > after) found.push_back({version_key(*id), 1});
    }
    std::ranges::sort(found);
    return found;
  }

 private:
  [[nodiscard]] Status read_only() const {
    return error(StatusCode::kUnsupported, name_, ": can only be read; publishers use s3://");
  }
  [[nodiscard]] HttpRequest request_for(const std::string& key) const {
    HttpRequest request;
    request.url = concat(name_, "/", percent_encode(key, true), query_);
    return request;
  }
  [[nodiscard]] Result<HttpReply> send(const HttpRequest& request, const Deadline& deadline) {
    Backoff backoff(kFirstRetry, kLongestRetry);
    for (;;) {
      Result<HttpReply> reply = http_.call(request, deadline);
      Status status = reply.status();
      if (reply.ok()) {
        if (reply->status / 100 == 2 || reply->status == 416) return reply;
        const std::string what =
            concat(request.method, " ", without_query(request.url), ": status ", reply->status);
        if (reply->status == 404) return error(StatusCode::kNotFound, what);
        if (reply->status == 403 && !query_.empty()) {
          return error(StatusCode::kInvalidArgument, what,
                       ": refused; has the signature in road.url expired?");
        }
        // Public buckets that may not be listed say so of what is not there.
        if (reply->status == 403) return error(StatusCode::kNotFound, what);
        status = error(StatusCode::kIo, what);
        if (!may_pass(reply->status)) return status;
      } else if (status.code() != StatusCode::kIo) {
        return status;
      }
      if (!backoff.sleep(deadline)) return status.with_context("gave up");
    }
  }

  std::string name_, query_;
  HttpClient http_;
};

}  // namespace

Result<std::shared_ptr<ObjectStore>> make_web_store(const std::string& url,
                                                    const std::string& ca_file) {
  if (without_query(url).find('@') != std::string_view::npos) {
    return error(StatusCode::kInvalidArgument, "road.url: http(s)://host/path without a user");
  }
  return std::shared_ptr<ObjectStore>(std::make_shared<WebStore>(url, ca_file));
}

}  // namespace driftless
