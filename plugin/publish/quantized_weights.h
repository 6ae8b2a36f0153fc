// SPDX-License-Identifier: Apache-2.0
// QuantizedWeights: what one publisher rank makes of its bfloat16 weights for a base with FP8
// blocks. Of each matrix whose scales the base has, or of the box of it that the rank offers, the
// tensors of the base are a box of codes and a box of scales: a block's scale is offered with the
// block's first weight. Other tensors are offered as they are.
//
// With a base in INT4 these are a box of packed codes and one of scales, and with the matrix' first
// weight its shape. Boxes have whole groups of a row, so nothing is shared.
//
// A block that several boxes share has one scale: measure() finds what this rank has of each, and
// ranks agree on the largest (block_maxima.h) before anything is quantized.
#pragma once

#include <map>

#include "kernels/quantize.h"
#include "plugin/checkpoint/quantization.h"
#include "plugin/publish/block_maxima.h"
#include "plugin/publish/publisher_device.h"
#include "plugin/publish/weight_source.h"

namespace driftless {

// Of a block of a part: what is in the part.
struct BoxOfBlock {
  std::uint64_t row, column, rows, columns;
};
[[nodiscard]] BoxOfBlock box_of_block(const MatrixPart& part, std::uint64_t block);

// One thread at a time.
class QuantizedWeights {
 public:
  // A box of a matrix.
  struct Matrix {
    std::size_t from = 0;      // in the trainer's tensors
    std::uint32_t tensor = 0;  // in the base's layout
    MatrixPart part;
    std::uint64_t first_row = 0, first_column = 0;  // of the blocks that it touches, in the matrix
    std::uint64_t matrix_rows = 0, matrix_columns = 0;
    std::size_t codes = 0;              // in tensors()
    std::optional<std::size_t> scales;  // likewise; none: no block begins here
    // Of the blocks that it touches those that begin here.
    std::uint64_t scale_row = 0, scale_column = 0, scale_rows = 0, scale_columns = 0;
    // Of the blocks that it touches, row after row: the largest magnitude that is known of those
    // that other boxes have a part of; 0 for the others.
    std::vector<std::uint16_t> known;
    std::vector<std::uint32_t> joint;  // of `known`: the entries that other boxes have a part of

    // INT4: the weights of a group, 0 with FP8; and with the first weight of the matrix its shape.
    unsigned group = 0;
    std::optional<std::size_t> shape;  // in tensors()
    std::vector<std::byte> shape_bytes;

    [[nodiscard]] std::uint64_t scale_count() const { return scale_rows * scale_columns; }
    [[nodiscard]] std::uint64_t code_bytes() const {
      return part.rows * part.columns / (group > 0 ? 2 : 1);
    }
    [[nodiscard]] std::uint64_t scale_bytes() const {
      return scale_count() * (group > 0 ? sizeof(std::uint16_t) : sizeof(float));
    }
  };

  // `own`: the trainer's; it, the base and the device outlive this. Weights on a GPU need the
  // device, which is null without one. Null if nothing is to be quantized (needs_quantization()).
  // kWrongLayout, by name, if a tensor does not fit the base.
  [[nodiscard]] static Result<std::unique_ptr<QuantizedWeights>> make(
      FileSystem& fs, const Checkpoint& base, const WeightSource& own,
      const QuantizeSettings& settings, unsigned threads, PublisherDevice* device = nullptr);

  [[nodiscard]] const Checkpoint& base() const { return *base_; }
  [[nodiscard]] QuantizeRule rule() const { return as_.rule; }  // of FP8 blocks
  [[nodiscard]] const QuantizedAs& as() const { return as_; }
  [[nodiscard]] unsigned threads() const { return threads_; }
  // Ok if a source offers what the one offered that this was made for.
  [[nodiscard]] Status check(const WeightSource& own) const;
  // What this rank offers of the base.
  [[nodiscard]] std::span<const TensorSpec> tensors() const { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const { return boxes_; }
  [[nodiscard]] std::span<const Matrix> matrices() const { return matrices_; }
  // Of each of the trainer's tensors: its matrix, or the number in tensors() of what stays.
  struct Place {
    std::optional<std::size_t> matrix;
    std::size_t kept = 0;
  };
  [[nodiscard]] const Place& place(std::size_t from) const { return places_[from]; }
  [[nodiscard]] std::size_t offered() const { return places_.size(); }  // the trainer's

  // Whether another rank has a part of a block that this one has a part of.
  [[nodiscard]] bool shares() const { return shares_; }
  [[nodiscard]] bool has_joint_blocks() const { return !joint_.empty(); }
  // Finds the largest magnitudes of the blocks that boxes share, as far as this rank has them.
  [[nodiscard]] Status measure(WeightSource& weights);
  // The same of one block, whose size() is known. Only of Matrix::joint.
  void measured(std::size_t matrix, std::size_t block, std::uint16_t size);
  // The largest magnitudes in these blocks, or in all, as far as they are in the matrix.
  [[nodiscard]] Result<std::vector<std::uint16_t>> sizes_of(const Matrix& matrix,
                                                            std::span<const std::uint32_t> blocks,
                                                            const std::byte* weights,
                                                            MemoryKind memory) const;
  [[nodiscard]] Result<std::vector<std::uint16_t>> sizes_of_all(const Matrix& matrix,
                                                                const std::byte* weights,
                                                                MemoryKind memory) const;
  // What other ranks must hear since the last time that heard() was called; all after forget().
  [[nodiscard]] MaximaMessage to_tell() const;
  void heard(const MaximaMessage& merged);
  void forget() { told_ = false; }
  // Without other ranks.
  void agree_alone();

  // Of a matrix, by what is known; `largest` are those of its blocks then. Codes and scales lie in
  // host memory; `scales` may be null.
  [[nodiscard]] Status quantize(const Matrix& matrix, const std::byte* weights, MemoryKind memory,
                                std::vector<std::uint16_t>& largest, std::byte* codes,
                                std::byte* scales) const;
  // The same, all on a GPU (PublisherDevice::quantize()), of some matrices.
  [[nodiscard]] Status quantize_there(std::span<DeviceMatrix> boxes) const {
    return device_->quantize(as_.rule, boxes, true);
  }
  // Writes the scales of blocks with these largest magnitudes.
  void make_scales(const Matrix& matrix, std::span<const std::uint16_t> largest,
                   std::byte* scales) const;
  // Ok if weights are quantized where these lie.
  [[nodiscard]] Status check_memory(const Matrix& matrix, MemoryKind memory) const;

 private:
  struct Joint {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> places;  // matrix, and block of it
    bool shared = false;                                          // with other ranks
    std::uint16_t own = 0;                                        // of all places
    std::uint16_t told = 0;
    std::vector<std::uint16_t> sizes;  // of each place
  };
  QuantizedWeights(const Checkpoint& base, const QuantizedAs& as, unsigned threads,
                   PublisherDevice* device)
      : base_(&base), as_(as), threads_(threads), device_(device) {}
  [[nodiscard]] Status add(const TensorSpec& own, const TensorBox& box, std::size_t from);
  [[nodiscard]] Status add_matrix(std::uint32_t tensor, std::uint32_t scales, const TensorBox& box,
                                  std::size_t from);
  // The same in INT4.
  [[nodiscard]] Status add_groups(const TensorSpec& own, std::uint32_t packed, const TensorBox& box,
                                  std::size_t from);
  void find_joint_blocks();
  void set_known(const Joint& joint, std::uint16_t size);

  const Checkpoint* base_;
  QuantizedAs as_;
  unsigned threads_;
  PublisherDevice* device_;
  std::vector<TensorSpec> own_tensors_;  // the trainer's
  std::vector<TensorBox> own_boxes_;     // likewise
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<Matrix> matrices_;
  std::vector<Place> places_;
  std::map<BlockKey, Joint> joint_;
  bool shares_ = false;
  bool told_ = false;
};

// What the base checkpoint has of QuantizedWeights::tensors(): its own bytes.
class QuantizedBase final : public WeightSource {
 public:
  QuantizedBase(const QuantizedWeights& weights, const WeightSource& own)
      : weights_(&weights), left_(own.left_to_others().begin(), own.left_to_others().end()) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return weights_->tensors(); }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return weights_->boxes(); }
  [[nodiscard]] std::span<const std::string> left_to_others() const override { return left_; }
  [[nodiscard]] std::string companions_dir() const override { return weights_->base().directory(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override;

 private:
  const QuantizedWeights* weights_;
  std::vector<std::string> left_;
};

// The trainer's weights, quantized on the way, where they lie; scales are offered in host memory.
// Holds kBatchBytes of codes and scales, of codes on a GPU kDeviceBytes, or those of one box if it
// has more.
class QuantizingSource final : public WeightSource {
 public:
  QuantizingSource(const QuantizedWeights& weights, WeightSource& own)
      : weights_(&weights), own_(&own) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return weights_->tensors(); }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return weights_->boxes(); }
  [[nodiscard]] std::string companions_dir() const override { return weights_->base().directory(); }
  // After measure() of the same weights, and once ranks agreed.
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override;

  static constexpr std::uint64_t kBatchBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kDeviceBytes = std::uint64_t{256} << 20;

 private:
  class Batch;

  const QuantizedWeights* weights_;
  WeightSource* own_;
};

}  // namespace driftless
