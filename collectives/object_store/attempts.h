// SPDX-License-Identifier: Apache-2.0
// Attempts: cleans up parts that belong to no visible publication. Such parts are never removed
// while their publication could still appear: a publisher that was stopped before its last request
// may send it at any time. A publication is decided once its name is taken: by a sealed attempt, or
// permanently by an empty object. Used by the leader; one thread.
#pragma once

#include <set>

#include "collectives/object_store/medium.h"

namespace driftless::object_store {

class Attempts {
 public:
  Attempts(std::shared_ptr<ObjectStore> store, unsigned streams)
      : store_(std::move(store)), streams_(streams) {}

  // Removes what dead publishers left: uploads, and parts of decided attempts. Remembers the other
  // attempts.
  [[nodiscard]] Status clear(const Deadline& deadline);
  // Gives up an attempt. If nobody can seal it any more (`certain`), removes its parts at once,
  // otherwise in decided().
  [[nodiscard]] Status give_up(const Attempt& attempt, bool certain, const Deadline& deadline);
  // `winner` was sealed: removes the parts of the other remembered attempts of that publication.
  [[nodiscard]] Status decided(const Attempt& winner, const Deadline& deadline);
  // Takes the names of publications up to `version` that were never decided, so that they cannot
  // appear any more, and removes their parts.
  [[nodiscard]] Status forbid_up_to(std::uint64_t version, const Deadline& deadline);
  // Removes the parts of one attempt.
  [[nodiscard]] Status remove_parts(const Attempt& attempt, const Deadline& deadline);

 private:
  [[nodiscard]] Status remove_below(const std::string& prefix, const Deadline& deadline);

  const std::shared_ptr<ObjectStore> store_;
  const unsigned streams_;
  std::set<Attempt> open_;  // not decided, or late parts of them may still arrive
};

}  // namespace driftless::object_store
