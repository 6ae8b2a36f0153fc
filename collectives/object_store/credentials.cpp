// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/credentials.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/file_system.h"

namespace driftless::object_store {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;
constexpr seconds kRenewBefore{300};  // before they expire
// The address is link-local: a service there answers at once, or does not exist.
constexpr std::chrono::milliseconds kInstanceWait{1000};
constexpr std::string_view kInstanceHost = "http://169.254.169.254";
constexpr std::string_view kContainerHost = "http://169.254.170.2";

std::string environment_text(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::string file_path() {
  std::string path = environment_text("AWS_SHARED_CREDENTIALS_FILE");
  if (path.empty()) path = join_path(environment_text("HOME"), ".aws/credentials");
  return path;
}

struct Answer {
  Credentials credentials;
  std::optional<seconds> left;
};

// Parses the answer of a container's endpoint or an instance.
Result<Answer> parse_answer(const std::string& text, std::string_view who) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto field = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string()
               ? json[name].get<std::string>()
               : std::string();
  };
  Answer answer{{field("AccessKeyId"), field("SecretAccessKey"), field("Token")},
                left_until(field("Expiration"))};
  if (answer.credentials.access_key.empty() || answer.credentials.secret_key.empty()) {
    return error(StatusCode::kCorrupt, who, ": its answer holds no credentials");
  }
  return answer;
}

Result<std::string> fetch(HttpClient& http, std::string method, std::string url, NameValues headers,
                          const Deadline& deadline) {
  HttpRequest request;
  request.method = std::move(method);
  request.url = std::move(url);
  request.headers = std::move(headers);
  request.direct = true;
  DRIFTLESS_ASSIGN_OR_RETURN(HttpReply reply, http.call(request, deadline));
  if (reply.status == 200) return std::move(reply.text);
  return error(StatusCode::kNotFound, without_query(request.url), ": status ", reply.status);
}

}  // namespace

std::optional<seconds> left_until(const std::string& text) {
  std::tm parts{};
  if (strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr) return std::nullopt;
  return seconds(timegm(&parts) - std::time(nullptr));
}

Result<std::optional<Credentials>> parse_credentials_file(std::string_view text,
                                                          std::string_view profile) {
  Credentials found;
  bool inside = false;
  std::size_t number = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      inside = line.back() == ']' && trimmed(line.substr(1, line.size() - 2)) == profile;
      continue;
    }
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) {
      return error(StatusCode::kCorrupt, "line ", number, " is no 'name = value'");
    }
    if (!inside) continue;
    const std::string_view name = trimmed(line.substr(0, equals));
    const std::string_view value = trimmed(line.substr(equals + 1));
    if (name == "aws_access_key_id") found.access_key = value;
    if (name == "aws_secret_access_key") found.secret_key = value;
    if (name == "aws_session_token") found.session_token = value;
  }
  if (found.access_key.empty() || found.secret_key.empty()) return std::optional<Credentials>();
  return std::optional(std::move(found));
}

Result<std::optional<CredentialChain::Found>> CredentialChain::from_file() const {
  const std::string path = file_path();
  const Result<std::string> text = read_text(posix_file_system(), path, kMaxFileBytes);
  if (text.status().code() == StatusCode::kNotFound) return std::optional<Found>();
  DRIFTLESS_RETURN_IF_ERROR(text.status());
  std::string profile = profile_.empty() ? environment_text("AWS_PROFILE") : profile_;
  if (profile.empty()) profile = "default";
  Result<std::optional<Credentials>> found = parse_credentials_file(*text, profile);
  if (!found.ok()) return found.status().with_context(path);
  if (!*found) return std::optional<Found>();
  return std::optional(Found{std::move(**found), std::nullopt});
}

Result<std::optional<CredentialChain::Found>> CredentialChain::from_container(
    HttpClient& http, const Deadline& deadline) const {
  std::string url = environment_text("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (const std::string path = environment_text("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
      url.empty() && !path.empty()) {
    url = concat(kContainerHost, path);
  }
  if (url.empty()) return std::optional<Found>();
  NameValues headers;
  std::string token = environment_text("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = environment_text("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
      token.empty() && !file.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(token, read_text(posix_file_system(), file, kMaxFileBytes));
    token = trimmed(token.substr(0, token.find('\n')));
  }
  if (!token.empty()) headers.emplace_back("authorization", token);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, fetch(http, "GET", url, headers, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(Answer answer, parse_answer(text, without_query(url)));
  Found found{std::move(answer.credentials), std::nullopt};
  if (answer.left) found.renew_at = Deadline::Clock::now() + *answer.left - kRenewBefore;
  return std::optional(std::move(found));
}

Result<std::optional<CredentialChain::Found>> CredentialChain::from_instance(
    HttpClient& http, const Deadline& deadline) const {
  if (environment_text("AWS_EC2_METADATA_DISABLED") == "true") return std::optional<Found>();
  const Deadline soon = deadline.sooner(kInstanceWait);
  std::string host = environment_text("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (host.empty()) host = kInstanceHost;
  while (host.ends_with('/')) host.pop_back();
  const Result<std::string> token =
      fetch(http, "PUT", concat(host, "/latest/api/token"),
            {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}}, soon);
  if (!token.ok()) return std::optional<Found>();  // not an EC2 instance
  const NameValues headers{{"x-aws-ec2-metadata-token", *token}};
  const std::string roles = concat(host, "/latest/meta-data/iam/security-credentials/");
  const Result<std::string> role = fetch(http, "GET", roles, headers, soon);
  if (!role.ok()) return std::optional<Found>();  // the instance has no role
  const std::string name(trimmed(role->substr(0, role->find('\n'))));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                             fetch(http, "GET", concat(roles, name), headers, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(Answer answer, parse_answer(text, "the instance's role"));
  Found found{std::move(answer.credentials), std::nullopt};
  if (answer.left) found.renew_at = Deadline::Clock::now() + *answer.left - kRenewBefore;
  return std::optional(std::move(found));
}

Result<CredentialChain::Found> CredentialChain::look(HttpClient& http,
                                                     const Deadline& deadline) const {
  Credentials named{environment_text("AWS_ACCESS_KEY_ID"),
                    environment_text("AWS_SECRET_ACCESS_KEY"),
                    environment_text("AWS_SESSION_TOKEN")};
  if (!named.access_key.empty() && !named.secret_key.empty()) {
    return Found{std::move(named), std::nullopt};
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::optional<Found> found, from_file());
  if (!found) {
    DRIFTLESS_ASSIGN_OR_RETURN(found, from_container(http, deadline));
  }
  if (!found) {
    DRIFTLESS_ASSIGN_OR_RETURN(found, from_instance(http, deadline));
  }
  if (found) return std::move(*found);
  return error(StatusCode::kInvalidArgument,
               "no credentials for the object store: not in AWS_ACCESS_KEY_ID and "
               "AWS_SECRET_ACCESS_KEY, not in ",
               file_path(), ", no container endpoint, no role of the instance; set one of them");
}

Result<Credentials> CredentialChain::get(HttpClient& http, const Deadline& deadline) {
  const std::scoped_lock lock(mutex_);
  const bool fresh = found_ && (!found_->renew_at || Deadline::Clock::now() < *found_->renew_at);
  if (!fresh) {
    Result<Found> found = look(http, deadline);
    // Credentials that will expire soon are better than none.
    if (!found.ok() && !found_) return found.status();
    if (found.ok()) found_ = std::move(*found);
  }
  return found_->credentials;
}

void CredentialChain::forget() {
  const std::scoped_lock lock(mutex_);
  found_.reset();
}

}  // namespace driftless::object_store
