// SPDX-License-Identifier: Apache-2.0
// Copies: of what a publisher put on a store without conditions, if another one that it overtook
// may still put the same name, long after its last look. A copy lies at kCopiesPrefix + key, which
// nobody else writes. What is not like its copy any more was written over, and is put back. The
// leader's; one thread.
#pragma once

#include <map>
#include <set>

#include "collectives/object_store/medium.h"

namespace driftless::object_store {

inline constexpr std::string_view kCopiesPrefix = "sealed/";

class Copies {
 public:
  // `store` outlives it.
  explicit Copies(ObjectStore& store) : store_(store) {}

  // Those of publishers before this one; puts back what was written over since.
  [[nodiscard]] Status load(const Deadline& deadline);
  // A run begins: what lies there is of another one that was here before.
  [[nodiscard]] Status clear(const Deadline& deadline);
  // The object holds `text`, and should go on so.
  [[nodiscard]] Status keep(const std::string& key, const std::string& text,
                            const Deadline& deadline);
  // It was removed, and stays so: the object is empty. Of others than those that are kept nothing.
  [[nodiscard]] Status removed(const std::string& key, const Deadline& deadline);
  // Puts back what of this publisher's was written over.
  [[nodiscard]] Status check(const Deadline& deadline);
  // kIncomplete: another publisher wrote over something, which was put back. Said once.
  [[nodiscard]] Status take_report();

 private:
  [[nodiscard]] Status put_back(const std::string& key, const std::string& text,
                                const Deadline& deadline);

  ObjectStore& store_;
  std::set<std::string> known_;             // keys that have a copy
  std::map<std::string, std::string> own_;  // by key
  std::string report_;
};

}  // namespace driftless::object_store
