// SPDX-License-Identifier: Apache-2.0
// StageAhead: what of a stage() can be done while the version is still on its way, so that a slow
// road and the decoding overlap. Reads weights in host memory, writes nothing, on a thread of its
// own. Whatever it cannot do, or finds wrong, is left to stage(), which says so.
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
  // With `sweep` the weights are compared with what they add up to first.
  StageAhead(std::shared_ptr<const MappedWeights> weights, bool sweep);
  StageAhead(const StageAhead&) = delete;
  StageAhead& operator=(const StageAhead&) = delete;
  ~StageAhead();

  // A part of the version that follows the weights' own; it has the hash that the manifest says.
  // What of it is coded in `compact` is decoded.
  void add(const MappedFile& part);
  // Waits until all of it is done.
  void finish();

  // Of what is finished. Whether these weights, as they are now, were compared and found right.
  [[nodiscard]] bool swept(const MappedWeights& weights) const;
  // What was decoded with these weights, as they are now; else nothing.
  [[nodiscard]] DecodedBlocks take_decoded(const MappedWeights& weights);

 private:
  void work();
  void decode(const MappedFile& part);
  [[nodiscard]] bool same(const MappedWeights& weights) const;

  const std::shared_ptr<const MappedWeights> weights_;
  const TargetState state_;  // theirs when it began
  const bool sweep_;
  // Kept: decoded blocks are known by where their tiles lie in them.
  std::deque<MappedFile> parts_;
  std::size_t done_ = 0;    // of those
  bool finishing_ = false;  // nothing more comes
  bool over_ = false;       // nothing more is done
  std::mutex mutex_;        // for these four
  std::condition_variable changed_;
  bool swept_ = false;
  DecodedBlocks decoded_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace driftless
