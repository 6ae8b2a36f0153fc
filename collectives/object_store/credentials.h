// SPDX-License-Identifier: Apache-2.0
// Where credentials for an S3 store come from, in this order: the environment (AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), the shared file (AWS_SHARED_CREDENTIALS_FILE, or
// ~/.aws/credentials), the container's endpoint (AWS_CONTAINER_CREDENTIALS_FULL_URI or
// _RELATIVE_URI), the role of the instance. Those that expire are fetched again in time. Any
// thread.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/object_store/http_client.h"
#include "collectives/object_store/signature_v4.h"
#include "core/deadline.h"
#include "core/status.h"

namespace driftless::object_store {

class CredentialChain {
 public:
  // `profile`: of the shared file; empty: AWS_PROFILE, or "default".
  explicit CredentialChain(std::string profile) : profile_(std::move(profile)) {}

  // kInvalidArgument, saying where it looked, if there are none.
  [[nodiscard]] Result<Credentials> get(HttpClient& http, const Deadline& deadline);
  // The store says that they have expired: looked for again by the next get().
  void forget();

 private:
  struct Found {
    Credentials credentials;
    std::optional<Deadline::Clock::time_point> renew_at;
  };
  [[nodiscard]] Result<std::optional<Found>> from_file() const;
  [[nodiscard]] Result<std::optional<Found>> from_container(HttpClient& http,
                                                            const Deadline& deadline) const;
  [[nodiscard]] Result<std::optional<Found>> from_instance(HttpClient& http,
                                                           const Deadline& deadline) const;
  [[nodiscard]] Result<Found> look(HttpClient& http, const Deadline& deadline) const;

  const std::string profile_;
  std::mutex mutex_;
  std::optional<Found> found_;
};

// How long it is until "2030-01-01T00:00:00Z", which may be over; nothing if the text is no time.
[[nodiscard]] std::optional<std::chrono::seconds> left_until(const std::string& text);

// The credentials of one profile in the text of a shared file; nothing if it has none. kCorrupt
// names the line, not what is in it.
[[nodiscard]] Result<std::optional<Credentials>> parse_credentials_file(std::string_view text,
                                                                        std::string_view profile);

}  // namespace driftless::object_store
