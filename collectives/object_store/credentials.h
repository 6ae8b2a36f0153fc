// SPDX-License-Identifier: Apache-2.0
// Finds credentials for an S3 store, in this order: the environment (AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), the shared file (AWS_SHARED_CREDENTIALS_FILE, or
// ~/.aws/credentials), the container's endpoint (AWS_CONTAINER_CREDENTIALS_FULL_URI or
// _RELATIVE_URI), the role of the instance. Fetches expiring credentials again in time.
// Thread-safe.
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
  // `profile` selects a profile of the shared file; empty: AWS_PROFILE, or "default".
  explicit CredentialChain(std::string profile) : profile_(std::move(profile)) {}

  // kInvalidArgument, naming the places searched, if there are none.
  [[nodiscard]] Result<Credentials> get(HttpClient& http, const Deadline& deadline);
  // Call it if the store reports that the credentials have expired: the next get() searches again.
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

// The time until "2030-01-01T00:00:00Z", negative if that has passed; empty if the text is not a
// time.
[[nodiscard]] std::optional<std::chrono::seconds> left_until(const std::string& text);

// The credentials of one profile in the text of a shared file; empty if the file does not contain
// it. kCorrupt names the line, not its content.
[[nodiscard]] Result<std::optional<Credentials>> parse_credentials_file(std::string_view text,
                                                                        std::string_view profile);

}  // namespace driftless::object_store
