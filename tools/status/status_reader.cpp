// SPDX-License-Identifier: Apache-2.0
#include "tools/status/status_reader.h"

#include <filesystem>

#include "core/secret_file.h"
#include "core/url_text.h"

namespace driftless {
namespace {

bool is_url(std::string_view source) {
  return source.starts_with("http://") || source.starts_with("https://");
}

// The "http://host:port" of an endpoint, without its path; empty: the URL is not an endpoint.
std::string endpoint_of(const std::string& url) {
  const std::size_t slash = url.find('/', url.find("://") + 3);
  const std::string path = slash == std::string::npos ? "" : url.substr(slash);
  if (!path.empty() && path != "/" && path != "/status.json") return {};
  return url.substr(0, slash);
}

Status refuse(std::string_view source, std::string_view why) {
  return error(StatusCode::kInvalidArgument, source, ": ", why);
}

Result<std::unique_ptr<StatusReader>> open_url(const std::string& source,
                                               const StatusOptions& options) {
  const std::string endpoint = is_url(source) ? endpoint_of(source) : std::string();
  if (endpoint.empty()) {
    if (!options.token_file.empty()) {
      return refuse(public_url(source), "--token-file is for an endpoint");
    }
    return make_road_reader(false, source, options.set, options.most_versions);
  }
  if (has_user(source)) {
    return refuse(public_url(source), "a token in a URL stands in logs: --token-file FILE");
  }
  if (!options.set.empty()) return refuse(source, "an endpoint has no keys to --set");
  DRIFTLESS_RETURN_IF_ERROR(check_http());
  std::string token;
  if (!options.token_file.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(token, read_token_file(options.token_file));
  }
  return make_endpoint_reader(endpoint, token, http_session());
}

}  // namespace

Result<std::unique_ptr<StatusReader>> open_status(const StatusOptions& options) {
  if (options.sources.empty()) return refuse("status", "needs a source");
  const std::string& first = options.sources.front();
  if (first.starts_with("hf://")) return refuse(first, "is read by the Python package alone");
  if (options.sources.size() == 1 && (is_url(first) || first.starts_with("s3://"))) {
    return open_url(first, options);
  }
  if (!options.token_file.empty()) return refuse(first, "--token-file is for an endpoint");
  for (const std::string& source : options.sources) {
    std::error_code failed;
    const auto kind = std::filesystem::status(source, failed).type();
    if (kind == std::filesystem::file_type::not_found) {
      return error(StatusCode::kNotFound, source, ": there is no such file or directory");
    }
    if (failed) return error(StatusCode::kIo, source, ": ", failed.message());
    if (kind == std::filesystem::file_type::directory && options.sources.size() == 1) {
      return make_road_reader(true, source, options.set, options.most_versions);
    }
    if (kind != std::filesystem::file_type::regular) {
      return refuse(source, "several sources must all be metrics files");
    }
  }
  if (!options.set.empty()) return refuse(first, "a metrics file has no keys to --set");
  return make_metrics_reader(options.sources);
}

}  // namespace driftless
