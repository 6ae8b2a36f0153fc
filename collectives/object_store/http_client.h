// SPDX-License-Identifier: Apache-2.0
// HTTP for object stores, through libcurl. Reuses connections, reads and writes bodies in the
// caller's memory, and neither follows redirects nor repeats requests. Thread-safe.
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
  std::span<const std::byte> body;  // for PUT and POST
  // A body of status 2xx goes to this memory, whose size it must not exceed; if that is empty, to
  // HttpReply::text, up to max_text bytes. Bodies of other statuses always go to the text.
  std::span<std::byte> into;
  std::uint64_t skip = 0;  // bytes of a body of status 200 before the wanted ones
  std::size_t max_text = std::size_t{1} << 20;
  bool direct = false;  // bypasses proxies, because the answer is a secret
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
  // `ca_file`: CA bundle for https; empty: the system's.
  explicit HttpClient(std::string ca_file = {});
  ~HttpClient();
  // Ok for any HTTP answer. kIo: there was none, or it broke off; kDeadlineExceeded;
  // kInvalidArgument: the server's certificate is not trusted, or the path has dot segments (it is
  // sent as it is). Messages name the method and the URL without its query, which may contain a
  // signature.
  [[nodiscard]] Result<HttpReply> call(const HttpRequest& request, const Deadline& deadline);

 private:
  struct Handle;
  [[nodiscard]] std::unique_ptr<Handle> take();
  void give_back(std::unique_ptr<Handle> handle);

  const std::string ca_file_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

// Waits between retries of a request, growing from the first to the longest. may_pass() returns
// whether a status may be temporary.
inline constexpr std::chrono::milliseconds kFirstRetry{50}, kLongestRetry{5000};
[[nodiscard]] inline bool may_pass(long status) {
  return status == 408 || status == 429 || (status >= 500 && status != 501);
}

// The Range header of a GET of `size` bytes from `offset` on.
[[nodiscard]] std::string range_header(std::uint64_t offset, std::uint64_t size);
// The number of bytes in the answer to such a GET. kCorrupt, naming `what`, if they are from
// another range.
[[nodiscard]] Result<std::uint64_t> range_size(const HttpReply& reply, std::uint64_t offset,
                                               std::string_view what);
// The size from the answer to a HEAD. kCorrupt, naming `what`, if there is none.
[[nodiscard]] Result<std::uint64_t> content_length(const HttpReply& reply, std::string_view what);
// The size of the whole object, from the answer to a ranged GET of its beginning.
[[nodiscard]] Result<std::uint64_t> whole_size(const HttpReply& reply, std::string_view what);

// The final status of a request that was retried: the last failure with a cause, if the last try
// only reached the deadline.
[[nodiscard]] inline Status gave_up(const Status& now, const Status& last) {
  const bool over = now.code() == StatusCode::kDeadlineExceeded && !last.ok();
  return (over ? last : now).with_context("gave up");
}

// kInvalidArgument, naming `what`, if a segment of the path is "." or "..", percent-encoded or not:
// a server or a proxy would use another bucket or folder.
[[nodiscard]] Status check_dot_segments(std::string_view path, std::string_view what);
// The same, and refuses empty segments. The path must have no '/' at its ends.
[[nodiscard]] Status check_segments(std::string_view path, std::string_view what);

// The URL without its query.
[[nodiscard]] std::string_view without_query(std::string_view url);

}  // namespace driftless::object_store
