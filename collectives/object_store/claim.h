// SPDX-License-Identifier: Apache-2.0
// Claim: which publisher the prefix belongs to. publisher.json names the newest session; an older
// one that looks there is fenced. Also whether the store honours If-Match. The leader's; one
// thread.
#pragma once

#include <map>

#include "collectives/object_store/medium.h"

namespace driftless::object_store {

inline constexpr std::string_view kNobody = "nobody";  // no session

class Claim {
 public:
  explicit Claim(std::shared_ptr<ObjectStore> store);

  // Finds out what the store can do, by an object that is put twice. kUnsupported, naming the
  // store, if it ignores If-None-Match.
  [[nodiscard]] Status probe(const Deadline& deadline);
  // From now on every other session is fenced.
  [[nodiscard]] Status take(const Deadline& deadline);
  // kWrongRun, naming the other process, if another session took it. Ok before take().
  [[nodiscard]] Status check(const Deadline& deadline);
  // Keeps the name for this session: no other can put a version there any more, also one that was
  // overtaken in the middle of it. False if a version is there, or was. Without replaces() nothing
  // is kept.
  [[nodiscard]] Result<bool> reserve(const PublicationId& id, const Deadline& deadline);
  // Puts a version's object under its name, if it is free or kept for this session. Without
  // replaces() nothing keeps the name from a publisher that was overtaken, so it looks for a
  // successor first. kWrongRun: fenced, and the object is not there.
  [[nodiscard]] Status put_version(const PublicationId& id, const std::string& text,
                                   const Deadline& deadline);
  // An object is replaced only by who knows its tag: names can be reserved.
  [[nodiscard]] bool replaces() const { return replaces_; }
  // Fenced for good, and says why.
  [[nodiscard]] Status fence(std::string_view why);
  [[nodiscard]] const Status& fenced() const { return fenced_; }
  [[nodiscard]] const std::string& session() const { return session_; }
  // As publisher.json has it: kNobody before take().
  [[nodiscard]] std::string_view named_session() const { return taken_ ? session_ : kNobody; }

 private:
  [[nodiscard]] Status probe_once(const Deadline& deadline);
  [[nodiscard]] Result<bool> probe_replace(const std::string& key, const Deadline& deadline);

  const std::shared_ptr<ObjectStore> store_;
  const std::string session_;
  bool taken_ = false;
  bool replaces_ = false;
  Status fenced_;
  std::map<PublicationId, std::string> kept_;  // names, by the tags of their reservations
};

// The session and the process that publisher.json names; kNobody if there is none.
struct NamedPublisher {
  std::string session, process;
};
[[nodiscard]] Result<NamedPublisher> read_publisher(ObjectStore& store, const Deadline& deadline);
[[nodiscard]] Result<std::string> read_session(ObjectStore& store, const Deadline& deadline);

}  // namespace driftless::object_store
