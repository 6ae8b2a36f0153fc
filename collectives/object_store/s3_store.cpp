// SPDX-License-Identifier: Apache-2.0
// An S3-compatible store over HTTP. Requests with temporary failures (no answer, 408, 429, 5xx) are
// retried until the deadline, with growing waits.
#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <pugixml.hpp>

#include "collectives/object_store/credentials.h"
#include "collectives/object_store/http_client.h"
#include "collectives/object_store/object_store.h"
#include "collectives/object_store/s3_answers.h"
#include "core/environment.h"

namespace driftless {
namespace {

using namespace object_store;
using std::chrono::milliseconds;

constexpr long kPastTheEnd = 416;  // a range past the object's end
constexpr std::size_t kMaxListText = std::size_t{16} << 20;
constexpr std::size_t kMaxListed = 1'000'000;  // objects; stops a server that lists forever

// One request to the store.
struct S3Call {
  std::string method;
  std::string key = {};  // below the prefix; empty with `bucket`
  bool bucket = false;
  NameValues query = {};
  NameValues headers = {};
  std::span<const std::byte> body = {};
  bool hash_body = false;  // signs the hash of the body; otherwise only the rest of the request
  std::span<std::byte> into = {};
  std::uint64_t skip = 0;
  std::size_t max_text = std::size_t{1} << 20;
};

// Codes of temporary errors whose status is not a temporary one.
bool code_may_pass(const std::string& code) {
  constexpr std::string_view kCodes[] = {
      "RequestTimeout", "IncompleteBody",   "BadDigest",     "XAmzContentSHA256Mismatch",
      "SlowDown",       "OperationAborted", "InternalError", "ConditionalRequestConflict"};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}
bool expired(long status, const std::string& code) {
  return status / 100 == 4 && (code == "ExpiredToken" || code == "RequestTimeTooSkewed");
}

class S3Store final : public ObjectStore {
 public:
  explicit S3Store(const S3Options& options)
      : options_(options),
        name_(concat("s3://", options.bucket, options.prefix.empty() ? "" : "/", options.prefix)),
        credentials_(options.profile),
        http_(options.ca_file) {
    endpoint_ = s3_endpoint(options);
    host_ = endpoint_.substr(endpoint_.find("://") + 3);
  }

  [[nodiscard]] const std::string& name() const override { return name_; }

  Status put(const std::string& key, std::span<const std::byte> bytes, bool only_new,
             const Deadline& deadline) override {
    S3Call call{.method = "PUT", .key = key, .body = bytes, .hash_body = true};
    if (only_new) call.headers.emplace_back("if-none-match", "*");
    return send(call, deadline).status();
  }

  Status replace(const std::string& key, std::span<const std::byte> bytes, const std::string& tag,
                 const Deadline& deadline) override {
    S3Call call{.method = "PUT", .key = key, .body = bytes, .hash_body = true};
    call.headers.emplace_back("if-match", tag);
    return send(call, deadline).status();
  }

  Result<std::unique_ptr<Upload>> upload(const std::string& key, const Deadline& deadline) override;
  Status drop_uploads(const std::string& prefix, const Deadline& deadline) override;

  Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) override {
    S3Call call{.method = "GET", .key = key, .into = bytes, .skip = offset};
    call.headers.emplace_back("range", range_header(offset, bytes.size()));
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, send(call, deadline));
    return range_size(reply, offset, path_of(key));
  }

  Result<std::uint64_t> size(const std::string& key, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply,
                               send({.method = "HEAD", .key = key}, deadline));
    return content_length(reply, path_of(key));
  }

  Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                const Deadline& deadline) override {
    const S3Call call{.method = "GET", .key = key, .max_text = max_bytes};
    DRIFTLESS_ASSIGN_OR_RETURN(HttpReply reply, send(call, deadline));
    return TaggedText{std::move(reply.text), std::string(reply.header("etag").value_or(""))};
  }

  Result<std::vector<ObjectInfo>> list(const std::string& prefix, const std::string& after,
                                       const Deadline& deadline) override;

  Status remove(const std::string& key, const Deadline& deadline) override {
    const Status removed = send({.method = "DELETE", .key = key}, deadline).status();
    return removed.code() == StatusCode::kNotFound ? Status() : removed;
  }

  Result<Presigned> presign(std::span<const std::string> keys, std::chrono::seconds valid,
                            const Deadline& deadline) override;

  // Returns an answer 2xx or kPastTheEnd; others become a status. Retries temporary failures.
  [[nodiscard]] Result<HttpReply> send(const S3Call& call, const Deadline& deadline);

 private:
  class S3Upload;

  [[nodiscard]] std::string full_key(const std::string& key) const {
    return options_.prefix.empty() ? key : concat(options_.prefix, "/", key);
  }
  [[nodiscard]] std::string path_of(const std::string& key) const {
    return concat(name_, "/", key);
  }
  [[nodiscard]] std::string url_path(const std::string& full_key) const;
  [[nodiscard]] Result<HttpReply> send_once(const S3Call& call, const Deadline& deadline);
  [[nodiscard]] Status judge(const S3Call& call, const HttpReply& reply) const;

  const S3Options options_;
  const std::string name_;
  std::string endpoint_, host_;
  CredentialChain credentials_;
  HttpClient http_;
};

std::string S3Store::url_path(const std::string& full_key) const {
  return percent_encode(concat("/", options_.bucket, "/", full_key), true);
}

Result<Presigned> S3Store::presign(std::span<const std::string> keys, std::chrono::seconds valid,
                                   const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Credentials credentials, credentials_.get(http_, deadline));
  const std::string time = signing_time();
  const NameValues query = presigned_query(credentials, options_.region, "s3", time, valid);
  Presigned links{.base = concat(endpoint_, url_path(full_key(""))),
                  .query = concat(canonical_query(query), "&X-Amz-Signature="),
                  .expires = time_text(std::time(nullptr) + valid.count(), "%Y-%m-%dT%H:%M:%SZ"),
                  .signatures = {}};
  links.signatures.reserve(keys.size());
  for (const std::string& key : keys) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::string signature,
                               presign_v4(host_, url_path(full_key(key)), query, credentials,
                                          options_.region, "s3", time));
    links.signatures.push_back(std::move(signature));
  }
  return links;
}

Result<HttpReply> S3Store::send_once(const S3Call& call, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Credentials credentials, credentials_.get(http_, deadline));
  const std::string path = url_path(call.bucket ? "" : full_key(call.key));
  RequestToSign to_sign{.method = call.method,
                        .host = host_,
                        .path = path,
                        .query = call.query,
                        .headers = call.headers,
                        .payload_hash = std::string(kUnsignedPayload)};
  if (call.hash_body || call.body.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(to_sign.payload_hash, sha256_hex(call.body));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const NameValues signature,
                             sign_v4(to_sign, credentials, options_.region, "s3", signing_time()));
  HttpRequest request;
  request.method = call.method;
  request.url = concat(endpoint_, path);
  if (!call.query.empty()) request.url += concat("?", canonical_query(call.query));
  request.headers = call.headers;
  request.headers.insert(request.headers.end(), signature.begin(), signature.end());
  request.body = call.body;
  request.into = call.into;
  request.skip = call.skip;
  request.max_text = call.max_text;
  return http_.call(request, deadline);
}

Status S3Store::judge(const S3Call& call, const HttpReply& reply) const {
  if (reply.status / 100 == 2 || reply.status == kPastTheEnd) return {};
  const std::string code = parse_error_code(reply.text);
  const std::string what = concat(call.method, " ", call.bucket ? name_ : path_of(call.key),
                                  ": status ", reply.status, code.empty() ? "" : ", ", code);
  switch (reply.status) {
    case 404:
      if (code == "NoSuchBucket") {
        return error(StatusCode::kInvalidArgument, what,
                     "; create the bucket, or correct road.object_store.url");
      }
      return error(StatusCode::kNotFound, what);
    case 412: return error(StatusCode::kAlreadyExists, what, ": an object of this name exists");
    case 501: return error(StatusCode::kUnsupported, what);
    case 301:
    case 307:
      return error(StatusCode::kInvalidArgument, what, "; is road.object_store.region right?");
    case 400:
    case 401:
    case 403:
      return error(
          StatusCode::kInvalidArgument, what,
          ": refused; check the credentials, their rights, road.object_store.region and the clock");
    default: return error(StatusCode::kIo, what);
  }
}

Result<HttpReply> S3Store::send(const S3Call& call, const Deadline& deadline) {
  Backoff backoff(kFirstRetry, kLongestRetry);
  bool renewed = false;
  Status last;  // the last temporary failure
  for (;;) {
    Result<HttpReply> reply = send_once(call, deadline);
    Status status = reply.status();
    if (reply.ok()) {
      status = judge(call, *reply);
      if (status.ok()) return reply;
      const std::string code = parse_error_code(reply->text);
      if (!renewed && expired(reply->status, code)) {
        renewed = true;
        credentials_.forget();
        continue;
      }
      if (!may_pass(reply->status) && !code_may_pass(code)) return status;
    } else if (status.code() != StatusCode::kIo) {
      return last.ok() ? status : gave_up(status, last);
    }
    last = status;
    if (!backoff.sleep(deadline)) return gave_up(status, last);
  }
}

// A multipart upload. finish() sends the tags of its pieces.
class S3Store::S3Upload final : public ObjectStore::Upload {
 public:
  S3Upload(S3Store& store, std::string key, std::string id)
      : store_(store), key_(std::move(key)), id_(std::move(id)) {}
  S3Upload(const S3Upload&) = delete;
  S3Upload& operator=(const S3Upload&) = delete;
  ~S3Upload() override { drop(); }

  Status put(std::uint32_t piece, std::span<const std::byte> bytes,
             const Deadline& deadline) override {
    const S3Call call{.method = "PUT",
                      .key = key_,
                      .query = {{"partNumber", std::to_string(piece + 1)}, {"uploadId", id_}},
                      .body = bytes};
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, store_.send(call, deadline));
    const auto tag = reply.header("etag");
    if (!tag) {
      return error(StatusCode::kCorrupt, store_.path_of(key_), ": piece ", piece,
                   " was taken without an ETag");
    }
    const std::scoped_lock lock(mutex_);
    tags_[piece] = *tag;
    return {};
  }

  Status finish(std::uint32_t pieces, const Deadline& deadline) override {
    pugi::xml_document document;
    pugi::xml_node root = document.append_child("CompleteMultipartUpload");
    {
      const std::scoped_lock lock(mutex_);
      for (std::uint32_t piece = 0; piece < pieces; ++piece) {
        const auto tag = tags_.find(piece);
        if (tag == tags_.end()) {
          return error(StatusCode::kInvalidArgument, store_.path_of(key_), ": piece ", piece,
                       " of ", pieces, " was never sent");
        }
        pugi::xml_node part = root.append_child("Part");
        part.append_child("PartNumber").text().set(piece + 1);
        part.append_child("ETag").text().set(tag->second.c_str());
      }
    }
    struct Writer final : pugi::xml_writer {
      std::string text;
      void write(const void* data, std::size_t size) override {
        text.append(static_cast<const char*>(data), size);
      }
    } writer;
    document.save(writer, "", pugi::format_raw);
    const S3Call call{.method = "POST",
                      .key = key_,
                      .query = {{"uploadId", id_}},
                      .body = bytes_of(writer.text),
                      .hash_body = true};
    Backoff backoff(kFirstRetry, kLongestRetry);
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, store_.send(call, deadline));
      // A failure may have status 200 if it occurs after the headers were sent.
      const std::string code = parse_error_code(reply.text);
      if (code.empty()) break;
      const Status failed =
          error(StatusCode::kIo, store_.path_of(key_), ": finishing the upload: ", code);
      if (!code_may_pass(code) || !backoff.sleep(deadline)) return failed;
    }
    done_ = true;
    return {};
  }

  void drop() override {
    if (std::exchange(done_, true)) return;
    const Status ignored =
        store_
            .send({.method = "DELETE", .key = key_, .query = {{"uploadId", id_}}},
                  Deadline::after(milliseconds(2000)))
            .status();
  }

 private:
  S3Store& store_;
  const std::string key_, id_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::string> tags_;
  bool done_ = false;
};

Result<std::unique_ptr<ObjectStore::Upload>> S3Store::upload(const std::string& key,
                                                             const Deadline& deadline) {
  const S3Call call{.method = "POST", .key = key, .query = {{"uploads", ""}}};
  DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, send(call, deadline));
  std::string id = parse_upload_id(reply.text);
  if (id.empty()) {
    return error(StatusCode::kCorrupt, path_of(key), ": the store began an upload without an id");
  }
  return std::unique_ptr<Upload>(std::make_unique<S3Upload>(*this, key, std::move(id)));
}

Status S3Store::drop_uploads(const std::string& prefix, const Deadline& deadline) {
  std::string key_marker, id_marker;
  for (;;) {
    S3Call call{.method = "GET", .bucket = true, .max_text = kMaxListText};
    call.query = {{"uploads", ""}, {"prefix", full_key(prefix)}};
    if (!key_marker.empty()) {
      call.query.emplace_back("key-marker", key_marker);
      call.query.emplace_back("upload-id-marker", id_marker);
    }
    const Result<HttpReply> reply = send(call, deadline);
    // Stores that have no multipart uploads, or cannot list them, answer so: there is nothing to
    // remove.
    const StatusCode code = reply.status().code();
    if (code == StatusCode::kNotFound || code == StatusCode::kUnsupported) return {};
    DRIFTLESS_RETURN_IF_ERROR(reply.status());
    const ListedUploads listed = parse_listed_uploads(reply->text);
    const std::size_t front = full_key("").size();
    for (const ListedUploads::Upload& each : listed.uploads) {
      if (each.key.size() <= front) continue;
      const Status dropped =
          send(
              {.method = "DELETE", .key = each.key.substr(front), .query = {{"uploadId", each.id}}},
              deadline)
              .status();
      if (!dropped.ok() && dropped.code() != StatusCode::kNotFound) return dropped;
    }
    if (!listed.more) return {};
    const std::string before = concat(key_marker, "\n", id_marker);
    key_marker = listed.next_key;
    id_marker = listed.next_id;
    if (key_marker.empty() || concat(key_marker, "\n", id_marker) == before) return {};
  }
}

Result<std::vector<ObjectInfo>> S3Store::list(const std::string& prefix, const std::string& after,
                                              const Deadline& deadline) {
  std::vector<ObjectInfo> found;
  std::string token;
  const std::size_t front = full_key("").size();
  do {
    S3Call call{.method = "GET", .bucket = true, .max_text = kMaxListText};
    call.query = {{"list-type", "2"}, {"prefix", full_key(prefix)}};
    if (!after.empty()) call.query.emplace_back("start-after", full_key(after));
    if (!token.empty()) call.query.emplace_back("continuation-token", token);
    DRIFTLESS_ASSIGN_OR_RETURN(const HttpReply reply, send(call, deadline));
    const Result<ListedObjects> listed = parse_listed_objects(reply.text);
    DRIFTLESS_RETURN_IF_ERROR(listed.status().with_context(name_));
    for (const ObjectInfo& each : listed->objects) {
      if (!each.key.starts_with(full_key(prefix))) continue;
      std::string key = each.key.substr(front);
      if (key > after) found.push_back({std::move(key), each.size_bytes});
    }
    if (found.size() > kMaxListed) {
      return error(StatusCode::kCorrupt, name_, "/", prefix, ": a list of more than ", kMaxListed,
                   " objects");
    }
    const std::string before = std::exchange(token, listed->more ? listed->next : "");
    if (listed->more && (token.empty() || token == before)) {
      return error(StatusCode::kCorrupt, name_,
                   ": a truncated list without a token for its next page");
    }
  } while (!token.empty());
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string s3_endpoint(const S3Options& options) {
  std::string endpoint = options.endpoint.empty()
                             ? concat("https://s3.", options.region, ".amazonaws.com")
                             : options.endpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint;
}

Result<std::shared_ptr<ObjectStore>> make_s3_store(const S3Options& options) {
  const bool named = !options.bucket.empty() && options.bucket.find('/') == std::string::npos;
  const bool edges = options.prefix.starts_with('/') || options.prefix.ends_with('/');
  if (!named || edges || options.region.empty()) {
    return error(StatusCode::kInvalidArgument, "s3://", options.bucket, "/", options.prefix,
                 ": a bucket, a prefix without '/' at its ends and a region are needed");
  }
  const std::string path = concat(options.bucket, "/", options.prefix);
  DRIFTLESS_RETURN_IF_ERROR(check_segments(path, concat("road.object_store.url: s3://", path)));
  if (!options.endpoint.empty() && !options.endpoint.starts_with("http://") &&
      !options.endpoint.starts_with("https://")) {
    return error(StatusCode::kInvalidArgument, "road.object_store.endpoint: '", options.endpoint,
                 "' begins with neither http:// nor https://");
  }
  return std::shared_ptr<ObjectStore>(std::make_shared<S3Store>(options));
}

}  // namespace driftless
