// SPDX-License-Identifier: Apache-2.0
// StagedUpdate: versions made ready for a mapped target. It owns the states before and after, the
// proof between them, the commit (the writer first; then compare and write) and the way back.
// Deltas and full versions differ only in how it is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/status.h"
#include "plugin/targets/mapped_weights.h"
#include "plugin/targets/tensor_changes.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// The writer's part of an update: forgotten, if it was not taken back, with this.
class ExternalUpdate {
 public:
  explicit ExternalUpdate(std::shared_ptr<ExternalWriter> writer) : writer_(std::move(writer)) {}
  ExternalUpdate(const ExternalUpdate&) = delete;
  ExternalUpdate& operator=(const ExternalUpdate&) = delete;
  ~ExternalUpdate() {
    if (used_ && writer_) writer_->drop();
  }
  [[nodiscard]] Status stage(std::shared_ptr<const TensorChanges> changes) {
    if (!writer_ || changes->tensors().empty()) return {};
    used_ = true;
    return writer_->stage(std::move(changes));
  }
  [[nodiscard]] Status commit() {
    if (writer_) DRIFTLESS_RETURN_IF_ERROR(writer_->check());
    return used_ ? writer_->commit() : Status();
  }
  [[nodiscard]] Status undo() { return used_ ? writer_->undo() : Status(); }

 private:
  std::shared_ptr<ExternalWriter> writer_;
  bool used_ = false;
};

class StagedUpdate final : public StagedChange {
 public:
  // `versions`: adjoining deltas, or one full version. With `in_place` buckets are applied by the
  // memory, where they lie.
  [[nodiscard]] static Result<std::unique_ptr<StagedChange>> make(
      std::shared_ptr<MappedWeights> weights, std::vector<VersionSource> versions, bool in_place);

  [[nodiscard]] Result<CommitReport> commit() override;
  [[nodiscard]] Status undo() override;

 private:
  // What the digest must be once so many versions are in.
  struct Goal {
    Digest digest;
    std::string source;
  };
  StagedUpdate(std::shared_ptr<MappedWeights> weights, const std::vector<VersionSource>& versions);

  [[nodiscard]] Status fill_deltas(std::vector<VersionSource> versions);
  [[nodiscard]] Status fill_buckets(std::vector<VersionSource> versions);
  [[nodiscard]] Status fill_full(std::vector<VersionSource> versions);
  [[nodiscard]] Status place_pieces();
  [[nodiscard]] Status sum_pieces();
  [[nodiscard]] Status prove_full(const VersionSource& version);
  [[nodiscard]] Status prove(std::span<const Digest> changes, bool written);
  [[nodiscard]] Status write();
  [[nodiscard]] Status take_back();
  [[nodiscard]] Status not_the_old(const ChangePart& part) const;

  std::shared_ptr<MappedWeights> weights_;
  std::string source_;  // for messages
  std::vector<Goal> goals_;
  TargetState before_, after_;
  ExternalUpdate external_;
  std::shared_ptr<TensorChanges> changes_;  // null where buckets are applied in place
  std::vector<ChangePart> parts_;
  std::vector<std::byte> old_values_;  // of parts whose map is not counted
  std::unique_ptr<PlacedChanges> placed_;
  std::uint64_t units_ = 0;
  Digest staged_change_;    // what the first version adds to the digest, as staged
  bool used_ = false;       // commit() was called
  bool committed_ = false;  // and is in effect
};

}  // namespace driftless
