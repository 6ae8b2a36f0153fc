// SPDX-License-Identifier: Apache-2.0
// Attempts: parts that do not belong to what receivers see. They are removed, but never while their
// publication could still appear: a publisher that was stopped before its last request may send it
// at any time. A publication is decided once its name is taken: by another attempt, or for good by
// an empty object. The leader's; one thread.
#pragma once

#include <set>

#include "collectives/object_store/medium.h"

namespace driftless::object_store {

class Attempts {
 public:
  Attempts(std::shared_ptr<ObjectStore> store, unsigned streams)
      : store_(std::move(store)), streams_(streams) {}

  // What publishers that died left: uploads, and parts of attempts that are decided. Others are
  // remembered.
  [[nodiscard]] Status clear(const Deadline& deadline);
  // An attempt that nobody will seal any more (`certain`), or perhaps: its parts go at once, or
  // with decided().
  [[nodiscard]] Status give_up(const Attempt& attempt, bool certain, const Deadline& deadline);
  // `winner` was sealed: the parts of the others that are remembered go.
  [[nodiscard]] Status decided(const Attempt& winner, const Deadline& deadline);
  // Takes the names of publications up to `version` that were never decided, so that they cannot
  // appear any more, and removes their parts.
  [[nodiscard]] Status forbid_up_to(std::uint64_t version, const Deadline& deadline);
  // Removes the parts of one.
  [[nodiscard]] Status remove_parts(const Attempt& attempt, const Deadline& deadline);

 private:
  [[nodiscard]] Status remove_below(const std::string& prefix, const Deadline& deadline);

  const std::shared_ptr<ObjectStore> store_;
  const unsigned streams_;
  std::set<Attempt> open_;  // not decided, or late parts of them may have come
};

}  // namespace driftless::object_store
