// SPDX-License-Identifier: Apache-2.0
// Proves that two sets of weights are equal, bit for bit, or finds the first place where they
// differ.
#pragma once

#include <map>

#include "kernels/tensor_ops.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

// The digest of a checkpoint's weights, computed by `threads` threads. Reads every byte of its
// files once.
[[nodiscard]] Digest digest_checkpoint(const Checkpoint& checkpoint, unsigned threads,
                                       const Progress& progress = {});

// The digest of each tensor at the version of this manifest, as far as it is known. It comes from
// this manifest, from those of earlier versions, or from the run's announcement, which lie beside
// it on a file system (<dir>/weight_v000007/manifest.json, <dir>/run.json).
[[nodiscard]] std::map<std::string, Digest> tensor_digests_at(FileSystem& fs,
                                                              const std::string& directory,
                                                              Manifest manifest);

// The first tensor, by name, whose digest is not the expected one. Reads only tensors with an
// expected digest.
[[nodiscard]] std::optional<std::string> first_different(
    const Checkpoint& checkpoint, const std::map<std::string, Digest>& expected, unsigned threads);

struct Difference {
  std::string tensor;
  std::uint64_t position = 0;  // index of the unit
  std::string value;           // in the first checkpoint: bits, and the number if the type has one
  std::string other_value;     // in the other one
  std::uint64_t units = 0;     // differing units in all tensors
  std::uint64_t tensors = 0;   // tensors that differ
};

// Runs diff_tensors() on all tensors of two checkpoints with one layout, with old values. Releases
// the pages that it has read.
[[nodiscard]] Status diff_checkpoints(const Checkpoint& before, const Checkpoint& after,
                                      unsigned threads, const Progress& progress,
                                      const std::function<Status(const DiffPiece&)>& in_parallel,
                                      const std::function<Status(const DiffPiece&)>& in_order);

// Absent if the weights are identical. kWrongLayout if the checkpoints have different tensors.
[[nodiscard]] Result<std::optional<Difference>> compare_weights(const Checkpoint& checkpoint,
                                                                const Checkpoint& other,
                                                                unsigned threads,
                                                                const Progress& progress);

// Prepares a comparison of two checkpoints: if only one of them stores a tied tensor's copy
// (lm_head.weight), the copy is left out there. kWrongLayout if the copy's bits differ from the
// tensor to which it is tied. Other differences remain for the comparison. Returns one note for
// each copy.
[[nodiscard]] Result<std::vector<std::string>> leave_out_copies(FileSystem& fs, Checkpoint& a,
                                                                Checkpoint& b);
// The same for copies that `one` stores and `other` does not.
[[nodiscard]] Result<std::vector<std::string>> leave_out_copies(FileSystem& fs, Checkpoint& one,
                                                                const WeightLayout& other);
// Finds tensors of others() that are stored copies of a kept tensor to which they are tied, and
// marks them. A copy is recognized by the names that models tie and by equal bits, unless the
// configuration says that nothing is tied.
void mark_copies(FileSystem& fs, Checkpoint& checkpoint);

// The differences between the files beside the weights (configuration, tokenizer) of two
// directories. `not_compared`: messages about the files that open_companions() leaves out.
struct CompanionDifferences {
  std::vector<std::string> others, here_alone, there_alone, not_compared;
};
[[nodiscard]] CompanionDifferences compare_companions(FileSystem& fs, const std::string& here,
                                                      const std::string& there);

// One unit as text: "0x3f80 (1)".
[[nodiscard]] std::string describe_unit(DType dtype, const std::byte* unit);

}  // namespace driftless
