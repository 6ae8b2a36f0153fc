// SPDX-License-Identifier: Apache-2.0
// Claim: which publisher the prefix belongs to. publisher.json names the newest session; an older
// one that looks there is fenced. Also whether the store honours If-None-Match. The leader's; one
// thread.
#pragma once

#include "collectives/object_store/medium.h"

namespace driftless::object_store {

class Claim {
 public:
  Claim(std::shared_ptr<ObjectStore> store, bool single_writer);

  // Finds out what the store can do, by an object that is put twice. kUnsupported if it ignores
  // conditions, unless there is a single writer.
  [[nodiscard]] Status probe(const Deadline& deadline);
  // From now on every other session is fenced.
  [[nodiscard]] Status take(const Deadline& deadline);
  // kWrongRun, naming the other process, if another session took it. Ok before take().
  [[nodiscard]] Status check(const Deadline& deadline);
  // Of two that put the same name one wins.
  [[nodiscard]] bool conditional() const { return conditional_; }
  // Fenced for good, and says why.
  [[nodiscard]] Status fence(std::string_view why);
  [[nodiscard]] const Status& fenced() const { return fenced_; }
  [[nodiscard]] const std::string& session() const { return session_; }

 private:
  const std::shared_ptr<ObjectStore> store_;
  const bool single_writer_;
  const std::string session_;
  bool taken_ = false;
  bool conditional_ = true;
  Status fenced_;
};

}  // namespace driftless::object_store
