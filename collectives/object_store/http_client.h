// SPDX-License-Identifier: Apache-2.0
// HTTP for object stores, through libcurl: connections are kept and used again, bodies go from and
// to the caller's memory, nothing is followed or repeated here. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/object_store/signature_v4.h"
#include "core/deadline.h"
#include "core/status.h"

namespace driftless::object_store {

struct HttpRequest {
  std::string method = "GET";  // GET, HEAD, PUT, POST, DELETE
  std::string url;             // encoded
  NameValues headers;
  std::span<const std::byte> body;  // of PUT and POST
  // Where a body of status 2xx goes: this memory, which it must not exceed; or, if it is empty,
  // HttpReply::text, up to max_text bytes. Bodies of other statuses are text.
  std::span<std::byte> into;
  std::uint64_t skip = 0;  // bytes of a body of status 200 that come before what is wanted
  std::size_t max_text = std::size_t{1} << 20;
  bool direct = false;  // through no proxy: an answer that is a secret
};

struct HttpReply {
  long status = 0;
  NameValues headers;  // lower-case names
  std::string text;
  std::uint64_t received = 0;  // bytes in `into`

  [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
};

class HttpClient {
 public:
  // `ca_file`: certificates of those that https is believed; empty: the system's.
  explicit HttpClient(std::string ca_file = {});
  ~HttpClient();
  // Any answer is ok. kIo: none came, or it broke off; kDeadlineExceeded; kInvalidArgument: the
  // server's certificate is not believed, or the path has dot segments (it is sent as it is).
  // Messages name the method and the URL without its query, which may hold a signature.
  [[nodiscard]] Result<HttpReply> call(const HttpRequest& request, const Deadline& deadline);

 private:
  struct Handle;
  [[nodiscard]] std::unique_ptr<Handle> take();
  void give_back(std::unique_ptr<Handle> handle);

  const std::string ca_file_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

// Requests are sent again after waits of this length, growing; and whether an answer may be another
// one then.
inline constexpr std::chrono::milliseconds kFirstRetry{50}, kLongestRetry{5000};
[[nodiscard]] inline bool may_pass(long status) {
  return status == 408 || status == 429 || (status >= 500 && status != 501);
}

// The header of a GET of `size` bytes from `offset` on.
[[nodiscard]] std::string range_header(std::uint64_t offset, std::uint64_t size);
// How many bytes came in answer to one. kCorrupt, for `what`, if they are others.
[[nodiscard]] Result<std::uint64_t> range_size(const HttpReply& reply, std::uint64_t offset,
                                               std::string_view what);
// The size that the answer to a HEAD tells. kCorrupt, for `what`, if it does not.
[[nodiscard]] Result<std::uint64_t> content_length(const HttpReply& reply, std::string_view what);
// The size of the whole object, as the answer to a ranged GET from its beginning tells.
[[nodiscard]] Result<std::uint64_t> whole_size(const HttpReply& reply, std::string_view what);

// What a request that was sent again and again ends with: the last failure that has a cause, if
// only the deadline ended the last try.
[[nodiscard]] inline Status gave_up(const Status& now, const Status& last) {
  const bool over = now.code() == StatusCode::kDeadlineExceeded && !last.ok();
  return (over ? last : now).with_context("gave up");
}

// kInvalidArgument, for `what`, if a segment of the path is "." or "..", percent-encoded or not: a
// server or a proxy would go to another bucket or folder.
[[nodiscard]] Status check_dot_segments(std::string_view path, std::string_view what);
// The same, and none of them is empty. The path has no '/' at its ends.
[[nodiscard]] Status check_segments(std::string_view path, std::string_view what);

// The URL up to its query.
[[nodiscard]] std::string_view without_query(std::string_view url);

}  // namespace driftless::object_store
