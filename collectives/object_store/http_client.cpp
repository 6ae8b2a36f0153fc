// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/http_client.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <system_error>

#include "core/curl_easy.h"

namespace driftless::object_store {
namespace {

// A transfer this slow for this long counts as dead, whatever the deadline.
constexpr long kSlowBytesPerSecond = 1;
constexpr long kSlowSeconds = 30;
// Limits for one answer, because a server could send headers forever.
constexpr std::size_t kMostHeaders = 256, kMaxHeaderBytes = std::size_t{64} << 10;

// One transfer in progress: the state of libcurl's callbacks.
struct Transfer {
  const HttpRequest& request;
  HttpReply& reply;
  CURL* easy;
  std::uint64_t sent = 0;
  std::uint64_t skipped = 0;
  bool too_long = false;
  bool enough = false;  // the rest of the body is not needed

  // Some servers send a range with status 200.
  [[nodiscard]] bool ranged() const {
    return reply.header("content-range") ||
           reply.header("content-length") == std::to_string(request.into.size());
  }
};

std::size_t send_body(char* to, std::size_t size, std::size_t count, void* data) {
  auto& transfer = *static_cast<Transfer*>(data);
  const std::size_t more = std::min(size * count, transfer.request.body.size() - transfer.sent);
  std::memcpy(to, transfer.request.body.data() + transfer.sent, more);
  transfer.sent += more;
  return more;
}

// libcurl rewinds a body to send it again on another connection.
int seek_body(void* data, curl_off_t offset, int origin) {
  auto& transfer = *static_cast<Transfer*>(data);
  if (origin != SEEK_SET || offset < 0 ||
      static_cast<std::uint64_t>(offset) > transfer.request.body.size()) {
    return CURL_SEEKFUNC_CANTSEEK;
  }
  transfer.sent = static_cast<std::uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::size_t take_body(char* bytes, std::size_t size, std::size_t count, void* data) {
  auto& transfer = *static_cast<Transfer*>(data);
  const std::size_t all = size * count;
  std::span<const char> rest(bytes, all);
  long status = 0;
  (void)curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &status);
  const std::span<std::byte> into = transfer.request.into;
  if (into.empty() || status / 100 != 2) {
    if (rest.size() > transfer.request.max_text - transfer.reply.text.size()) {
      transfer.too_long = true;
      return 0;
    }
    transfer.reply.text.append(rest.data(), rest.size());
    return all;
  }
  if (status == 200 && !transfer.ranged() && transfer.skipped < transfer.request.skip) {
    const auto skip =
        std::min<std::uint64_t>(rest.size(), transfer.request.skip - transfer.skipped);
    transfer.skipped += skip;
    rest = rest.subspan(skip);
  }
  const std::uint64_t room = into.size() - transfer.reply.received;
  const std::size_t taken = std::min<std::uint64_t>(rest.size(), room);
  std::memcpy(into.data() + transfer.reply.received, rest.data(), taken);
  transfer.reply.received += taken;
  if (taken == rest.size()) return all;
  // If a server answers a range with the whole object, the rest is not needed.
  transfer.enough = status == 200;
  transfer.too_long = !transfer.enough;
  return 0;
}

std::size_t take_header(char* bytes, std::size_t size, std::size_t count, void* data) {
  auto& transfer = *static_cast<Transfer*>(data);
  auto& reply = transfer.reply;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) reply.headers.clear();  // a final status after a 100
  if (reply.headers.size() == kMostHeaders || line.size() > kMaxHeaderBytes) {
    transfer.too_long = true;
    return 0;
  }
  if (const auto colon = line.find(':'); colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    std::string_view value = line.substr(colon + 1);
    const auto first = value.find_first_not_of(" \t");
    const auto last = value.find_last_not_of(" \t\r\n");
    value = first == std::string_view::npos ? "" : value.substr(first, last - first + 1);
    reply.headers.emplace_back(std::move(name), value);
  }
  return line.size();
}

bool prepare(CURL* easy, Transfer& transfer, curl_slist* headers, const std::string& ca_file,
             const Deadline& deadline) {
  const HttpRequest& request = transfer.request;
  bool ok = true;
  set_curl_common(easy, ok);
  set_curl(easy, ok, CURLOPT_URL, request.url.c_str());
  set_curl(easy, ok, CURLOPT_PATH_AS_IS, 1L);  // as signed
  set_curl(easy, ok, CURLOPT_HTTPHEADER, headers);
  set_curl(easy, ok, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  set_curl(easy, ok, CURLOPT_LOW_SPEED_TIME, kSlowSeconds);
  set_curl(easy, ok, CURLOPT_BUFFERSIZE, 256L << 10);
  set_curl(easy, ok, CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
  set_curl(
      easy, ok, CURLOPT_TIMEOUT_MS,
      static_cast<long>(std::max<std::chrono::milliseconds::rep>(1, deadline.remaining().count())));
  set_curl(easy, ok, CURLOPT_HEADERFUNCTION, take_header);
  set_curl(easy, ok, CURLOPT_HEADERDATA, &transfer);
  set_curl(easy, ok, CURLOPT_WRITEFUNCTION, take_body);
  set_curl(easy, ok, CURLOPT_WRITEDATA, &transfer);
  if (!ca_file.empty()) set_curl(easy, ok, CURLOPT_CAINFO, ca_file.c_str());
  if (request.direct) set_curl(easy, ok, CURLOPT_PROXY, "");
  if (request.method == "HEAD") {
    set_curl(easy, ok, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    set_curl(easy, ok, CURLOPT_UPLOAD, 1L);
    set_curl(easy, ok, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    set_curl(easy, ok, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set_curl(easy, ok, CURLOPT_READFUNCTION, send_body);
    set_curl(easy, ok, CURLOPT_READDATA, &transfer);
    set_curl(easy, ok, CURLOPT_SEEKFUNCTION, seek_body);
    set_curl(easy, ok, CURLOPT_SEEKDATA, &transfer);
  } else {
    set_curl(easy, ok, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  return ok;
}

// Decodes "%2e" to '.'; keeps a '%' without two hexadecimal digits.
std::string percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool coded = text[i] == '%' && i + 2 < text.size() &&
                       std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += coded ? static_cast<char>(byte) : text[i];
    if (coded) i += 2;
  }
  return out;
}

// The system's reason for a failed connection, "Connection refused"; empty if there is none.
std::string system_cause(CURL* easy) {
  long number = 0;
  (void)curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &number);
  if (number == 0) return {};
  return concat(": ", std::error_code(static_cast<int>(number), std::system_category()).message());
}

}  // namespace

struct HttpClient::Handle {
  CurlHandle easy{curl_easy_init()};
};

HttpClient::HttpClient(std::string ca_file) : ca_file_(std::move(ca_file)) {}
HttpClient::~HttpClient() = default;

std::string_view without_query(std::string_view url) { return url.substr(0, url.find('?')); }

Status check_dot_segments(std::string_view path, std::string_view what) {
  const std::string decoded = percent_decode(path);
  for (std::size_t begin = 0; begin <= decoded.size();) {
    const std::size_t end = std::min(decoded.find('/', begin), decoded.size());
    const std::string segment = decoded.substr(begin, end - begin);
    if (segment == "." || segment == "..") {
      return error(StatusCode::kInvalidArgument, what, ": '", segment,
                   "' in a path leads elsewhere: write the path without it");
    }
    begin = end + 1;
  }
  return {};
}

Status check_segments(std::string_view path, std::string_view what) {
  if (path.find("//") != std::string_view::npos) {
    return error(StatusCode::kInvalidArgument, what, ": '//': a part of the path is empty");
  }
  return check_dot_segments(path, what);
}

std::string range_header(std::uint64_t offset, std::uint64_t size) {
  return concat("bytes=", offset, "-", offset + size - 1);
}

Result<std::uint64_t> range_size(const HttpReply& reply, std::uint64_t offset,
                                 std::string_view what) {
  if (reply.status == 416) return std::uint64_t{0};  // no bytes there
  // "bytes 100-199/1234"
  const auto range = reply.header("content-range");
  if (!range || range->starts_with(concat("bytes ", offset, "-"))) return reply.received;
  return error(StatusCode::kCorrupt, what, ": bytes from ", offset,
               " on were asked for, and others came");
}

namespace {

Result<std::uint64_t> parse_size(std::string_view text, std::string_view what) {
  std::uint64_t size = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (code == std::errc() && end == text.data() + text.size()) return size;
  return error(StatusCode::kCorrupt, what, ": the answer does not say how long the object is");
}

}  // namespace

Result<std::uint64_t> content_length(const HttpReply& reply, std::string_view what) {
  return parse_size(reply.header("content-length").value_or(""), what);
}

Result<std::uint64_t> whole_size(const HttpReply& reply, std::string_view what) {
  // "bytes 0-0/1234"; a server without ranges sends everything, or begins to.
  const auto range = reply.header("content-range");
  if (!range) return content_length(reply, what);
  return parse_size(range->substr(std::min(range->rfind('/'), range->size() - 1) + 1), what);
}

std::optional<std::string_view> HttpReply::header(std::string_view name) const {
  for (const auto& [header_name, value] : headers) {
    if (header_name == name) return value;
  }
  return std::nullopt;
}

std::unique_ptr<HttpClient::Handle> HttpClient::take() {
  const std::scoped_lock lock(mutex_);
  if (idle_.empty()) return std::make_unique<Handle>();
  std::unique_ptr<Handle> handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

void HttpClient::give_back(std::unique_ptr<Handle> handle) {
  curl_easy_reset(handle->easy.get());  // keeps the handle's connections
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(handle));
}

Result<HttpReply> HttpClient::call(const HttpRequest& request, const Deadline& deadline) {
  const std::string what = concat(request.method, " ", without_query(request.url));
  DRIFTLESS_RETURN_IF_ERROR(init_curl());
  DRIFTLESS_RETURN_IF_ERROR(check_dot_segments(without_query(request.url), what));
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(what));
  std::unique_ptr<Handle> handle = take();
  HttpReply reply;
  CURL* const easy = handle->easy.get();
  Transfer transfer{request, reply, easy};
  CurlHeaders headers;
  bool ok = easy != nullptr && headers.add("Expect:");
  for (const auto& [name, value] : request.headers) {
    ok = ok && headers.add(concat(name, ": ", value));
  }
  if (!ok || !prepare(easy, transfer, headers.get(), ca_file_, deadline)) {
    return error(StatusCode::kInternal, what, ": libcurl refuses an option");
  }
  const CURLcode code = curl_easy_perform(easy);
  (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &reply.status);
  const std::string cause = code == CURLE_COULDNT_CONNECT ? system_cause(easy) : "";
  give_back(std::move(handle));
  if (code == CURLE_OK || transfer.enough) return reply;
  if (transfer.too_long) {
    return error(StatusCode::kCorrupt, what, ": the answer is longer than expected");
  }
  if (code == CURLE_OPERATION_TIMEDOUT && deadline.expired()) {
    return deadline.check(what).with_context("no whole answer");
  }
  // These errors are permanent.
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    return error(StatusCode::kInvalidArgument, what, ": ", curl_easy_strerror(code),
                 "; road.object_store.ca_file is the CA bundle for https");
  }
  return error(StatusCode::kIo, what, ": ", curl_easy_strerror(code), cause);
}

}  // namespace driftless::object_store
