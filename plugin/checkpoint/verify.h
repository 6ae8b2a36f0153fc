// SPDX-License-Identifier: Apache-2.0
// Proof that two sets of weights are the same, bit for bit, or the first place where they are not.
#pragma once

#include <map>

#include "kernels/tensor_ops.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

// The digest of a checkpoint's weights, on `threads` threads: every byte of its files is read once.
[[nodiscard]] Digest digest_checkpoint(const Checkpoint& checkpoint, unsigned threads,
                                       const Progress& progress = {});

// The digest of each tensor of the version whose manifest this is, as far as it says, or the
// manifests of the versions before it, or the run's announcement, which lie beside it on a file
// system (<dir>/weight_v000007/manifest.json, <dir>/run.json).
[[nodiscard]] std::map<std::string, Digest> tensor_digests_at(FileSystem& fs,
                                                              const std::string& directory,
                                                              Manifest manifest);

// The first tensor, by name, whose digest is not the expected one. Reads those that are expected.
[[nodiscard]] std::optional<std::string> first_different(
    const Checkpoint& checkpoint, const std::map<std::string, Digest>& expected, unsigned threads);

struct Difference {
  std::string tensor;
  std::uint64_t position = 0;  // unit
  std::string value;           // here: bits, and the number if the type has one
  std::string other_value;     // there
  std::uint64_t units = 0;     // differing units of all tensors
  std::uint64_t tensors = 0;   // differing tensors
};

// diff_tensors() of all tensors of two checkpoints with one layout, old values included. The pages
// go once they were seen.
[[nodiscard]] Status diff_checkpoints(const Checkpoint& before, const Checkpoint& after,
                                      unsigned threads, const Progress& progress,
                                      const std::function<Status(const DiffPiece&)>& in_parallel,
                                      const std::function<Status(const DiffPiece&)>& in_order);

// Absent: identical. kWrongLayout if the tensors are not the same ones.
[[nodiscard]] Result<std::optional<Difference>> compare_weights(const Checkpoint& checkpoint,
                                                                const Checkpoint& other,
                                                                unsigned threads,
                                                                const Progress& progress);

// For a comparison of two checkpoints: a tied tensor's copy (lm_head.weight) that only one of them
// stores is left out there, if it has the bits of the tensor that it is tied to; kWrongLayout if it
// has not. Other differences stay for the comparison. Returns notes, one for each copy.
[[nodiscard]] Result<std::vector<std::string>> leave_out_copies(FileSystem& fs, Checkpoint& a,
                                                                Checkpoint& b);
// The same of copies that `one` stores and `other` does not have.
[[nodiscard]] Result<std::vector<std::string>> leave_out_copies(FileSystem& fs, Checkpoint& one,
                                                                const WeightLayout& other);
// Of others(), marks those that are stored copies of a tied tensor which is kept: by the names that
// models tie and the same bits, unless the configuration says that nothing is tied.
void mark_copies(FileSystem& fs, Checkpoint& checkpoint);

// How the files beside the weights (configuration, tokenizer) of two directories differ.
// `not_compared`: messages about those that open_companions() leaves out.
struct CompanionDifferences {
  std::vector<std::string> others, here_alone, there_alone, not_compared;
};
[[nodiscard]] CompanionDifferences compare_companions(FileSystem& fs, const std::string& here,
                                                      const std::string& there);

// One unit for people: "0x3f80 (1)".
[[nodiscard]] std::string describe_unit(DType dtype, const std::byte* unit);

}  // namespace driftless
