// SPDX-License-Identifier: Apache-2.0
// StageAhead: does the part of stage() that can be done while a version still arrives, so that a
// slow road and the decoding overlap. It reads weights in host memory on a thread of its own, and
// writes nothing. It reports no errors: stage() repeats the work that failed, and reports them.
//
// One thread at a time calls it. The destructor waits for the thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "plugin/targets/mapped_weights.h"
#include "plugin/targets/version_fold.h"

namespace driftless {

class StageAhead {
 public:
  // With `sweep` it first compares the weights with their sums.
  StageAhead(std::shared_ptr<const MappedWeights> weights, bool sweep);
  StageAhead(const StageAhead&) = delete;
  StageAhead& operator=(const StageAhead&) = delete;
  ~StageAhead();

  // Adds a part of the version that follows the weights' version. Its hash must have been compared
  // with the manifest's. The thread decodes its blocks in `compact`.
  void add(const MappedFile& part);
  // Waits until the sweep and all added parts are done.
  void finish();

  // Call the next two after finish(). Whether the sweep found the weights right, and their state
  // has not changed since.
  [[nodiscard]] bool swept(const MappedWeights& weights) const;
  // The decoded blocks; none if the weights' state has changed since they were decoded.
  [[nodiscard]] DecodedBlocks take_decoded(const MappedWeights& weights);

 private:
  void work();
  void decode(const MappedFile& part);
  [[nodiscard]] bool same(const MappedWeights& weights) const;

  const std::shared_ptr<const MappedWeights> weights_;
  const TargetState state_;  // of the weights when this began
  const bool sweep_;
  // Kept, because decoded blocks are keyed by the address of their tiles in them.
  std::deque<MappedFile> parts_;
  std::size_t done_ = 0;    // finished parts of parts_
  bool finishing_ = false;  // no more parts come
  bool over_ = false;       // the thread stops
  std::mutex mutex_;        // guards the four above
  std::condition_variable changed_;
  bool swept_ = false;
  DecodedBlocks decoded_;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace driftless
