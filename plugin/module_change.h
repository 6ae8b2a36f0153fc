// Changes to a module's parameters, worked out beforehand: part of the module target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/module_target.h"
#include "plugin/version_source.h"

namespace driftless {

// What a module target and the changes made for it share.
struct ModuleWeights {
  struct Tensor {
    std::uint32_t first_map = 0, maps = 0;
    bool external = false;
    bool complete = false;    // the counted maps have every unit once
    std::string why_refused;  // empty: it is not
    DigestTensorKey key;
  };
  WeightLayout layout;
  std::vector<Tensor> tensors;
  std::vector<ModuleMap> maps;  // by tensor
  std::vector<bool> counted;    // per map: its units are the tensor's, none twice
  std::shared_ptr<ExternalWriter> writer;
  std::shared_ptr<ModuleMemory> memory;
  TargetState state;
  bool proven = false;
  bool summed = false;  // the state's digest is of the complete tensors' own bits
  unsigned threads = 1;

  // All, or those that hold its own units.
  [[nodiscard]] std::vector<const ModuleMap*> maps_of(std::uint32_t tensor,
                                                      bool counted_only) const {
    std::vector<const ModuleMap*> found;
    const Tensor& own = tensors[tensor];
    for (std::uint32_t m = own.first_map; m < own.first_map + own.maps; ++m) {
      if (counted[m] || !counted_only) found.push_back(&maps[m]);
    }
    return found;
  }
};

// Adjoining deltas in positional encodings.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_module_deltas(
    std::shared_ptr<ModuleWeights> weights, std::vector<VersionSource> chain);
// One full version.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_module_full(
    std::shared_ptr<ModuleWeights> weights, VersionSource source);

// The digest of the complete tensors, as they are. O(parameters).
[[nodiscard]] Result<Digest> digest_of(const ModuleWeights& weights);

// The writer's part of a commit: forgotten, where it was not taken back, with this.
class ExternalCommit {
 public:
  explicit ExternalCommit(std::shared_ptr<ExternalWriter> writer) : writer_(std::move(writer)) {}
  ExternalCommit(const ExternalCommit&) = delete;
  ExternalCommit& operator=(const ExternalCommit&) = delete;
  ~ExternalCommit() {
    if (used_ && writer_) writer_->drop();
  }
  [[nodiscard]] Status stage(std::shared_ptr<const TensorNews> news) {
    if (!writer_ || news->tensors().empty()) return {};
    used_ = true;
    return writer_->stage(std::move(news));
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

}  // namespace driftless
