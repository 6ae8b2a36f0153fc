// SPDX-License-Identifier: Apache-2.0
// Objects at URLs, read without credentials.
#include <algorithm>
#include <mutex>

#include "collectives/object_store/http_client.h"
#include "collectives/object_store/index.h"

namespace driftless {
namespace {

using namespace object_store;

// Protocol, host and port of a URL.
std::string_view origin_of(std::string_view url) {
  const auto host = url.find("://");
  if (host == std::string_view::npos) return {};
  return url.substr(0, url.find_first_of("/?", host + 3));
}

class WebStore final : public ObjectStore {
 public:
  WebStore(std::string_view url, const std::string& ca_file) : url_(url), http_(ca_file) {
    const auto question = url.find('?');
    if (question != std::string_view::npos) query_ = url.substr(question);
    name_ = without_query(url);
    while (name_.ends_with('/')) name_.pop_back();
    const std::string index = concat("/", kIndexKey);
    linked_ = name_.ends_with(index);
    if (linked_) name_.resize(name_.size() - index.size());
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

  Result<Presigned> presign(std::span<const std::string>, std::chrono::seconds,
                            const Deadline&) override {
    return read_only();
  }

  Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, get_range(key, offset, bytes, deadline));
    return range_size(reply, offset, path(key));
  }

  Result<std::uint64_t> size(const std::string& key, const Deadline& deadline) override {
    if (!linked_) {
      HttpRequest request;
      request.method = "HEAD";
      DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, send(key, request, deadline));
      return content_length(reply, path(key));
    }
    // A link permits only GET.
    std::byte first[1];
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, get_range(key, 0, first, deadline));
    return whole_size(reply, path(key));
  }

  Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                const Deadline& deadline) override {
    HttpRequest request;
    request.max_text = max_bytes;
    DRIFTLESS_ASSIGN_OR_RETURN(HttpReply reply, send(key, request, deadline));
    return TaggedText{std::move(reply.text), ""};
  }

  // Reads the publisher's index, which lists only versions.
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, const std::string& after,
                                       const Deadline& deadline) override {
    if (prefix != kVersionsPrefix) return read_only();
    const Result<Index> index = read_index(deadline);
    if (index.status().code() == StatusCode::kNotFound) return std::vector<ObjectInfo>();
    DRIFTLESS_RETURN_IF_ERROR(index.status());
    std::vector<ObjectInfo> found;
    for (const PublicationId& id : index->versions) {
      if (version_key(id) > after) found.push_back({version_key(id), 1});
    }
    std::ranges::sort(found);
    return found;
  }

 private:
  [[nodiscard]] std::string path(const std::string& key) const { return concat(name_, "/", key); }
  [[nodiscard]] Status read_only() const {
    return error(StatusCode::kUnsupported, name_, ": can only be read; publishers use s3://");
  }

  [[nodiscard]] Result<HttpReply> get_range(const std::string& key, std::uint64_t offset,
                                            std::span<std::byte> bytes, const Deadline& deadline) {
    HttpRequest request;
    request.headers.emplace_back("range", range_header(offset, bytes.size()));
    request.into = bytes;
    request.skip = offset;
    return send(key, request, deadline);
  }

  // From now on the index's links are used, if it has any.
  [[nodiscard]] Result<Index> read_index(const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                               get_text(std::string(kIndexKey), kMaxTextBytes, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(Index index, parse_index(text, path(std::string(kIndexKey))));
    if (!linked_) return index;
    if (!index.links) {
      return error(
          StatusCode::kInvalidArgument, path(std::string(kIndexKey)),
          ": holds no links: set road.object_store.presign in the trainer's configuration, or run "
          "`driftless presign`");
    }
    const std::string what = concat("the links in ", path(std::string(kIndexKey)));
    DRIFTLESS_RETURN_IF_ERROR(check_dot_segments(index.links->signed_by.base, what));
    // The index's writer has no authority over other hosts, and https must not become http.
    if (origin_of(index.links->signed_by.base) != origin_of(url_)) {
      return error(
          StatusCode::kInvalidArgument, path(std::string(kIndexKey)),
          ": its links lead to another host, or by another protocol, than road.object_store.url");
    }
    const std::scoped_lock lock(mutex_);
    links_ = *std::exchange(index.links, std::nullopt);
    return index;
  }
  [[nodiscard]] std::optional<std::string> link_of(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    return links_.url(key);
  }
  [[nodiscard]] std::string links_expire() {
    const std::scoped_lock lock(mutex_);
    return links_.signed_by.expires;
  }

  [[nodiscard]] Result<HttpReply> send(const std::string& key, HttpRequest request,
                                       const Deadline& deadline) {
    if (!linked_ || key == kIndexKey) {
      request.url = linked_ ? url_ : concat(name_, "/", percent_encode(key, true), query_);
      return send(request, "has the signature in road.object_store.url expired?", deadline);
    }
    // Uses the known link; for a new object or an expired link reads the index for another one.
    std::optional<std::string> tried;
    for (;;) {
      const std::optional<std::string> link = link_of(key);
      if (tried && (!link || *link == *tried)) {
        return link
                   ? error(StatusCode::kInvalidArgument, path(key), ": refused; the link in ",
                           kIndexKey, " holds until ", links_expire(),
                           ": a trainer with road.object_store.presign renews it with its next "
                           "version, "
                           "and `driftless presign` renews it at once")
                   : error(StatusCode::kNotFound, path(key), ": ", kIndexKey, " has no link to it");
      }
      if (link) {
        request.url = *link;
        Result<HttpReply> reply = send(request, "has it expired?", deadline);
        if (reply.status().code() != StatusCode::kInvalidArgument) return reply;
      }
      tried = link.value_or("");
      DRIFTLESS_RETURN_IF_ERROR(read_index(deadline).status());
    }
  }

  [[nodiscard]] Result<HttpReply> send(const HttpRequest& request, std::string_view why_refused,
                                       const Deadline& deadline) {
    Backoff backoff(kFirstRetry, kLongestRetry);
    Status last;  // the last temporary failure
    for (;;) {
      Result<HttpReply> reply = http_.call(request, deadline);
      Status status = reply.status();
      if (reply.ok()) {
        if (reply->status / 100 == 2 || reply->status == 416) return reply;
        const std::string what =
            concat(request.method, " ", without_query(request.url), ": status ", reply->status);
        if (reply->status == 404) return error(StatusCode::kNotFound, what);
        const bool refused = reply->status / 100 == 4 && !may_pass(reply->status);
        if (refused && request.url.find('?') != std::string::npos) {
          return error(StatusCode::kInvalidArgument, what, ": refused; ", why_refused);
        }
        // Public buckets that may not be listed answer so for missing objects.
        if (reply->status == 403) return error(StatusCode::kNotFound, what);
        status = error(StatusCode::kIo, what);
        if (!may_pass(reply->status)) return status;
      } else if (status.code() != StatusCode::kIo) {
        return last.ok() ? status : gave_up(status, last);
      }
      last = status;
      if (!backoff.sleep(deadline)) return gave_up(status, last);
    }
  }

  const std::string url_;
  bool linked_ = false;  // the URL is that of an index with links
  std::mutex mutex_;
  Links links_;
  std::string name_, query_;
  HttpClient http_;
};

}  // namespace

Result<std::shared_ptr<ObjectStore>> make_web_store(const std::string& url,
                                                    const std::string& ca_file) {
  if (without_query(url).find('@') != std::string_view::npos) {
    return error(StatusCode::kInvalidArgument,
                 "road.object_store.url: expected http(s)://host/path without a user");
  }
  std::string_view path = without_query(url);
  path.remove_prefix(std::min(path.size(), path.find("://") + 3));
  while (path.ends_with('/')) path.remove_suffix(1);
  DRIFTLESS_RETURN_IF_ERROR(
      check_segments(path, concat("road.object_store.url: ", without_query(url))));
  return std::shared_ptr<ObjectStore>(std::make_shared<WebStore>(url, ca_file));
}

}  // namespace driftless
