// Changes to a module's parameters, worked out beforehand: part of the module target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/targets/delta_pieces.h"
#include "plugin/targets/module_memory.h"
#include "plugin/targets/module_target.h"
#include "plugin/targets/version_source.h"

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

// What a change brings: pieces that go through the maps, and what the external writer gets.
class ModuleNews : public TensorNews {
 public:
  // No two touch the same unit. In the order of the tensors.
  [[nodiscard]] virtual std::span<const DeltaPiece> all_pieces() const = 0;
  [[nodiscard]] virtual std::uint64_t units() const = 0;  // of them
};

// The piece's changes that may lie in the map.
[[nodiscard]] ModulePart part_of(const DeltaPiece& piece, const ModuleMap& map);

// Makes `news` ready to be committed and taken back: the old values are read, and the writer has
// its part. With `prove`, the digest that the parameters then have is compared with after.digest.
// O(units). `source` is for messages.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> place_module_news(
    std::shared_ptr<ModuleWeights> weights, const std::string& source, const TargetState& after,
    std::shared_ptr<ModuleNews> news, bool prove);

// Adjoining deltas in positional encodings.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_module_deltas(
    std::shared_ptr<ModuleWeights> weights, std::vector<VersionSource> chain);
// One full version. Where the module holds one, only what differs from it is written, and can be
// taken back.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_module_full(
    const std::shared_ptr<ModuleWeights>& weights, VersionSource source);

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
