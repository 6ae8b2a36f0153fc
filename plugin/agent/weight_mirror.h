// SPDX-License-Identifier: Apache-2.0
// WeightMirror: all weights of the run in an agent's memory, so that what is coded given the old
// values can be decoded once per host, for workers that do not hold what it needs. It follows what
// the agent hands over, as a worker does, and reports to nobody.
//
// One thread at a time.
#pragma once

#include "plugin/receive/receiver.h"

namespace driftless {

class WeightMirror {
 public:
  // `base`: the checkpoint that the run started from; it is read. `road`: that the agent hands over
  // on, from its other end. Fails as Receiver::open() does.
  [[nodiscard]] static Result<std::unique_ptr<WeightMirror>> open(const std::string& base,
                                                                  std::unique_ptr<ReceiveRoad> road,
                                                                  const ReceiverOptions& options,
                                                                  const Deadline& deadline);
  ~WeightMirror();

  // Takes what was handed over since. After a failure it holds what it held, and may be asked
  // again.
  [[nodiscard]] Status follow();
  // That it holds; none: it needs a full one.
  [[nodiscard]] std::optional<std::uint64_t> version() const;
  [[nodiscard]] std::uint64_t size_bytes() const;

  // A version in `compact` that follows the one that it holds, as frames of `deltas`: rank 0's,
  // numbered from 0. Proven by the manifest's digests, of all weights and of each tensor: kMismatch
  // if they do not lead there. If that is the mirror's fault it holds no version any more.
  [[nodiscard]] Result<std::vector<std::vector<std::byte>>> plain_frames(FetchedVersion version);

 private:
  explicit WeightMirror(unsigned threads) : threads_(threads) {}

  const unsigned threads_;
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<MappedTarget> target_;
  std::unique_ptr<Receiver> receiver_;  // last: it uses the others
};

}  // namespace driftless
