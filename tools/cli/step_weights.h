// SPDX-License-Identifier: Apache-2.0
// The weights that `driftless trainer` publishes: one checkpoint for each step. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/checkpoint/quantization.h"
#include "plugin/publish/weight_source.h"

namespace driftless::cli {

// The checkpoints DIR/step_000000/ (the base), step_000001/, ... without a gap.
class RunSteps {
 public:
  // The first `steps` of them, or all. kNotFound if there are fewer.
  [[nodiscard]] static Result<RunSteps> replay(const std::string& directory,
                                               std::optional<std::uint64_t> steps);
  // The same directories, played forth and back (0 1 2 3 2 1 0 1 ...) up to `steps` versions, so
  // that a few checkpoints make any number of versions.
  [[nodiscard]] static Result<RunSteps> to_and_fro(const std::string& directory,
                                                   std::uint64_t steps);

  [[nodiscard]] std::uint64_t last() const { return last_; }
  // The checkpoint of a version from 0 to last().
  [[nodiscard]] std::string path(std::uint64_t version) const;

 private:
  // Finds the consecutive steps; kNotFound if not even the base exists.
  [[nodiscard]] static Result<RunSteps> find(const std::string& directory,
                                             std::optional<std::uint64_t> enough);
  [[nodiscard]] std::string step_path(std::uint64_t step) const;

  std::string directory_;
  std::uint64_t last_ = 0;
  std::uint64_t distinct_ = 0;  // directories after the base
};

// The steps' weights as the run publishes them: without copies of tied tensors that the base stores
// and the last step does not, and quantized if the base is.
class StepWeights {
 public:
  // `base`: the base instead of step 0; empty: step 0. Fails if the last step does not fit the
  // base.
  [[nodiscard]] static Result<StepWeights> open(RunSteps steps, std::string base,
                                                const QuantizeSettings& settings, unsigned threads);

  [[nodiscard]] std::uint64_t last() const { return steps_.last(); }
  // The checkpoint of a version: the base, or a step.
  [[nodiscard]] std::string path(std::uint64_t version) const {
    return version == 0 && !base_.empty() ? base_ : steps_.path(version);
  }
  // What the run publishes.
  [[nodiscard]] const WeightLayout& layout() const { return layout_; }
  // The rule by which the steps are quantized to the base's tensors; empty: they are not.
  [[nodiscard]] std::string quantize_rule() const;
  // A note for each tensor of the base that is not published.
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }

  [[nodiscard]] Result<Checkpoint> open_step(std::uint64_t step) const;
  // The weights of a step that stage `stage` of `stages` publishes. `weights`: the checkpoint of
  // the step; it must outlive the result.
  [[nodiscard]] Result<std::unique_ptr<WeightSource>> source_of(std::uint64_t step,
                                                                const Checkpoint& weights,
                                                                unsigned stage,
                                                                unsigned stages) const;
  [[nodiscard]] Result<Digest> digest(std::uint64_t step) const;
  // Reads what the source offers from the checkpoint's files into memory, where a training step
  // leaves its weights: reading the files is not a part of publishing.
  [[nodiscard]] Status bring_in(const Checkpoint& weights, const WeightSource& source) const;

 private:
  RunSteps steps_;
  std::string base_;
  unsigned threads_ = 1;
  WeightLayout layout_;
  std::string companions_dir_;  // the base's configuration and tokenizer
  QuantizedAs quantized_as_;
  std::vector<std::string> left_out_;
};

}  // namespace driftless::cli
