// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/stage_ahead.h"

#include <exception>

#include "plugin/targets/tensor_changes.h"
#include "plugin/targets/weight_sums.h"

namespace driftless {

StageAhead::StageAhead(std::shared_ptr<const MappedWeights> weights, bool sweep)
    : weights_(std::move(weights)), state_(weights_->state), sweep_(sweep) {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::exception&) {
    return;  // without a thread nothing is done ahead
  }
}

StageAhead::~StageAhead() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void StageAhead::add(const MappedFile& part) {
  const std::scoped_lock lock(mutex_);
  parts_.push_back(part);
  changed_.notify_all();
}

void StageAhead::finish() {
  {
    const std::scoped_lock lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void StageAhead::work() {
  if (sweep_) {
    try {
      swept_ = check_sums(*weights_, *weights_->sums).ok();
    } catch (const std::exception&) {
      swept_ = false;
    }
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return over_ || finishing_ || done_ < parts_.size(); });
    if (over_ || done_ == parts_.size()) return;
    const MappedFile& part = parts_[done_];
    lock.unlock();
    decode(part);
    lock.lock();
    ++done_;
  }
}

// Leaves out a part in which a block does not decode.
void StageAhead::decode(const MappedFile& part) {
  try {
    const Status decoded = decode_ahead(weights_, part, decoded_);
    static_cast<void>(decoded);  // stage() finds the error again and reports it
  } catch (const std::exception&) {
    return;
  }
}

bool StageAhead::same(const MappedWeights& weights) const {
  return &weights == weights_.get() && weights.state == state_;
}

bool StageAhead::swept(const MappedWeights& weights) const { return swept_ && same(weights); }

DecodedBlocks StageAhead::take_decoded(const MappedWeights& weights) {
  return same(weights) ? std::exchange(decoded_, {}) : DecodedBlocks();
}

}  // namespace driftless
