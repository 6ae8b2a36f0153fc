// SPDX-License-Identifier: Apache-2.0
// Claim: which publisher owns the prefix. publisher.json names the newest session; an older one
// that reads it is fenced. Also records whether the store honours If-Match. Used by the leader; one
// thread.
#pragma once

#include <map>

#include "collectives/object_store/medium.h"

namespace driftless::object_store {

inline constexpr std::string_view kNobody = "nobody";  // no session

class Claim {
 public:
  explicit Claim(std::shared_ptr<ObjectStore> store);

  // Determines the store's abilities by putting an object twice. kUnsupported, naming the store, if
  // it ignores If-None-Match.
  [[nodiscard]] Status probe(const Deadline& deadline);
  // Takes the prefix over; from now on every other session is fenced.
  [[nodiscard]] Status take(const Deadline& deadline);
  // kWrongRun, naming the other process, if another session has taken the prefix over. Ok before
  // take().
  [[nodiscard]] Status check(const Deadline& deadline);
  // Reserves the name for this session: no other session can put a version there any more, not even
  // one that was fenced during its put. False if a version is or was there. Without replaces() it
  // reserves nothing.
  [[nodiscard]] Result<bool> reserve(const PublicationId& id, const Deadline& deadline);
  // Puts a version's object under its name, if the name is free or reserved for this session.
  // Without replaces() nothing protects the name from a fenced publisher, so the call first looks
  // for a successor. kWrongRun: this session is fenced, and the object was not put.
  [[nodiscard]] Status put_version(const PublicationId& id, const std::string& text,
                                   const Deadline& deadline);
  // Whether the store replaces an object only for a request with the object's tag; then names can
  // be reserved.
  [[nodiscard]] bool replaces() const { return replaces_; }
  // Fences this session permanently; returns kWrongRun with `why`.
  [[nodiscard]] Status fence(std::string_view why);
  [[nodiscard]] const Status& fenced() const { return fenced_; }
  [[nodiscard]] const std::string& session() const { return session_; }
  // The session that publisher.json names: kNobody before take().
  [[nodiscard]] std::string_view named_session() const { return taken_ ? session_ : kNobody; }

 private:
  [[nodiscard]] Status probe_once(const Deadline& deadline);
  [[nodiscard]] Result<bool> probe_replace(const std::string& key, const Deadline& deadline);

  const std::shared_ptr<ObjectStore> store_;
  const std::string session_;
  bool taken_ = false;
  bool replaces_ = false;
  Status fenced_;
  std::map<PublicationId, std::string> kept_;  // reserved names, with the tags of the reservations
};

// The session and the process that publisher.json names; kNobody if there is none.
struct NamedPublisher {
  std::string session, process;
};
[[nodiscard]] Result<NamedPublisher> read_publisher(ObjectStore& store, const Deadline& deadline);
[[nodiscard]] Result<std::string> read_session(ObjectStore& store, const Deadline& deadline);

}  // namespace driftless::object_store
