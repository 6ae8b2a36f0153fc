// SPDX-License-Identifier: Apache-2.0
// QuantizedWeights: quantizes the bfloat16 weights of one publisher rank as the tensors of a base
// with FP8 blocks. For each matrix whose scales the base has, the rank offers a box of codes and a
// box of scales instead of its box of weights; a block's scale is offered by the rank that has the
// block's first weight. Other tensors are offered unchanged.
//
// For a base in INT4, the rank offers a box of packed codes and one of scales, and the rank with
// the matrix' first weight also offers its shape. Boxes hold whole groups of a row, so no group is
// shared.
//
// A block that several boxes share has one scale: measure() finds the maximum of this rank's part,
// and the ranks agree on the largest (block_maxima.h) before anything is quantized.
#pragma once

#include <map>

#include "kernels/quantize.h"
#include "plugin/checkpoint/quantization.h"
#include "plugin/publish/block_maxima.h"
#include "plugin/publish/publisher_device.h"
#include "plugin/publish/weight_source.h"

namespace driftless {

// The place and size of the part of a block that lies in this box.
struct BoxOfBlock {
  std::uint64_t row, column, rows, columns;
};
[[nodiscard]] BoxOfBlock box_of_block(const MatrixPart& part, std::uint64_t block);

// One thread at a time.
class QuantizedWeights {
 public:
  // A box of a matrix.
  struct Matrix {
    std::size_t from = 0;      // index in the trainer's tensors
    std::uint32_t tensor = 0;  // index in the base's layout
    MatrixPart part;
    std::uint64_t first_row = 0, first_column = 0;  // of the blocks it touches, in the matrix
    std::uint64_t matrix_rows = 0, matrix_columns = 0;
    std::size_t codes = 0;              // index in tensors()
    std::optional<std::size_t> scales;  // likewise; none: no block begins in this box
    // The blocks that begin in this box. The box may touch others, which begin in another box.
    std::uint64_t scale_row = 0, scale_column = 0, scale_rows = 0, scale_columns = 0;
    // The known largest magnitude of each block that the box touches, row after row; 0 for blocks
    // that no other box has a part of.
    std::vector<std::uint16_t> known;
    std::vector<std::uint32_t> joint;  // entries of `known`: blocks shared with other boxes

    // INT4: weights per group; 0 with FP8. The next two are set if the box has the matrix' first
    // weight.
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

  // `trainer`: the trainer's source; it, the base and the device outlive this. Weights on a GPU
  // need the device; otherwise it may be null. Returns null if nothing is to be quantized
  // (needs_quantization()). kWrongLayout, by name, if a tensor does not fit the base.
  [[nodiscard]] static Result<std::unique_ptr<QuantizedWeights>> make(
      FileSystem& fs, const Checkpoint& base, const WeightSource& trainer,
      const QuantizeSettings& settings, unsigned threads, PublisherDevice* device = nullptr);

  [[nodiscard]] const Checkpoint& base() const { return *base_; }
  [[nodiscard]] QuantizeRule rule() const { return as_.rule; }  // of FP8 blocks
  [[nodiscard]] const QuantizedAs& as() const { return as_; }
  [[nodiscard]] unsigned threads() const { return threads_; }
  // Ok if the source offers the same tensors and boxes as the source that this was made for.
  [[nodiscard]] Status check(const WeightSource& trainer) const;
  // The tensors of the base that this rank offers.
  [[nodiscard]] std::span<const TensorSpec> tensors() const { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const { return boxes_; }
  [[nodiscard]] std::span<const Matrix> matrices() const { return matrices_; }
  // For each of the trainer's tensors: its matrix, or, if it is not quantized, its number in
  // tensors().
  struct Place {
    std::optional<std::size_t> matrix;
    std::size_t kept = 0;
  };
  [[nodiscard]] const Place& place(std::size_t from) const { return places_[from]; }
  [[nodiscard]] std::size_t offered() const { return places_.size(); }  // trainer's tensors

  // Whether this rank and another one have parts of the same block.
  [[nodiscard]] bool shares() const { return shares_; }
  [[nodiscard]] bool has_joint_blocks() const { return !joint_.empty(); }
  // Measures this rank's parts of the blocks that boxes share.
  [[nodiscard]] Status measure(WeightSource& weights);
  // Sets the largest magnitude of one block of Matrix::joint, instead of measuring it.
  void measured(std::size_t matrix, std::size_t block, std::uint16_t size);
  // The largest magnitudes of these blocks, or of all, in the part that the matrix has.
  [[nodiscard]] Result<std::vector<std::uint16_t>> sizes_of(const Matrix& matrix,
                                                            std::span<const std::uint32_t> blocks,
                                                            const std::byte* weights,
                                                            MemoryKind memory) const;
  [[nodiscard]] Result<std::vector<std::uint16_t>> sizes_of_all(const Matrix& matrix,
                                                                const std::byte* weights,
                                                                MemoryKind memory) const;
  // The maxima to send to the other ranks: those that changed since the last take_maxima(), or all
  // of them after forget().
  [[nodiscard]] MaximaMessage maxima_to_send() const;
  void take_maxima(const MaximaMessage& merged);
  void forget() { reported_all_ = false; }
  // Sets the maxima of blocks that no other rank shares: they need no message.
  void agree_alone();

  // Quantizes a matrix by the known magnitudes, and returns those of its blocks in `largest`. Codes
  // and scales lie in host memory; `scales` may be null.
  [[nodiscard]] Status quantize(const Matrix& matrix, const std::byte* weights, MemoryKind memory,
                                std::vector<std::uint16_t>& largest, std::byte* codes,
                                std::byte* scales) const;
  // The same for several matrices on a GPU; the codes stay there (PublisherDevice::quantize()).
  [[nodiscard]] Status quantize_there(std::span<DeviceMatrix> boxes) const {
    return device_->quantize(as_.rule, boxes, true);
  }
  // INT4: the same for matrices that are groups.
  [[nodiscard]] DeviceGroups groups_of(const Matrix& matrix, const std::byte* weights) const {
    return {matrix.scale_count(), weights, nullptr, nullptr};
  }
  [[nodiscard]] Status quantize_groups_there(std::span<DeviceGroups> boxes) const {
    return device_->quantize_groups(as_.int4_group, boxes);
  }
  // Writes the scales of blocks with these largest magnitudes.
  void make_scales(const Matrix& matrix, std::span<const std::uint16_t> largest,
                   std::byte* scales) const;
  // Ok if weights in this memory can be quantized.
  [[nodiscard]] Status check_memory(const Matrix& matrix, MemoryKind memory) const;

 private:
  struct Joint {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> places;  // matrix, and its block
    bool shared = false;                                          // with other ranks
    std::uint16_t local = 0;                                      // the largest over `places`
    std::uint16_t sent = 0;
    std::vector<std::uint16_t> sizes;  // by place
  };
  QuantizedWeights(const Checkpoint& base, const QuantizedAs& as, unsigned threads,
                   PublisherDevice* device)
      : base_(&base), as_(as), threads_(threads), device_(device) {}
  [[nodiscard]] Status add(const TensorSpec& spec, const TensorBox& box, std::size_t from);
  [[nodiscard]] Status add_matrix(std::uint32_t tensor, std::uint32_t scales, const TensorBox& box,
                                  std::size_t from);
  // The same for INT4.
  [[nodiscard]] Status add_groups(const TensorSpec& spec, std::uint32_t packed,
                                  const TensorBox& box, std::size_t from);
  [[nodiscard]] Status quantize_groups(const Matrix& matrix, const std::byte* weights,
                                       MemoryKind memory, std::byte* packed,
                                       std::byte* scales) const;
  void find_joint_blocks();
  void set_known(const Joint& joint, std::uint16_t size);

  const Checkpoint* base_;
  QuantizedAs as_;
  unsigned threads_;
  PublisherDevice* device_;
  std::vector<TensorSpec> trainer_tensors_;  // the trainer's
  std::vector<TensorBox> trainer_boxes_;     // likewise
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<Matrix> matrices_;
  std::vector<Place> places_;
  std::map<BlockKey, Joint> joint_;
  bool shares_ = false;
  bool reported_all_ = false;
};

// Offers tensors of a quantized run, or boxes of them, with the base checkpoint's bytes.
class QuantizedBase final : public WeightSource {
 public:
  QuantizedBase(const QuantizedWeights& weights, const WeightSource& trainer)
      : QuantizedBase(weights.base(), weights.tensors(), weights.boxes(), trainer) {}
  // For a rank of which nothing is quantized. The checkpoint has all tensors of the trainer.
  QuantizedBase(const Checkpoint& base, const WeightSource& trainer)
      : QuantizedBase(base, trainer.tensors(), trainer.boxes(), trainer) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return tensors_; }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return boxes_; }
  [[nodiscard]] std::span<const std::string> left_to_others() const override { return left_; }
  [[nodiscard]] std::string companions_dir() const override { return base_->directory(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override;

 private:
  QuantizedBase(const Checkpoint& base, std::span<const TensorSpec> tensors,
                std::span<const TensorBox> boxes, const WeightSource& trainer)
      : base_(&base),
        tensors_(tensors.begin(), tensors.end()),
        boxes_(boxes.begin(), boxes.end()),
        left_(trainer.left_to_others().begin(), trainer.left_to_others().end()) {
    boxes_.resize(tensors_.size());
  }

  const Checkpoint* base_;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorBox> boxes_;
  std::vector<std::string> left_;
};

// Offers the trainer's weights, quantized in visit() where they lie; scales of FP8 blocks are
// offered in host memory. Holds kBatchBytes of codes and scales (kDeviceBytes of codes on a GPU),
// or those of one box if they are larger.
class QuantizingSource final : public WeightSource {
 public:
  QuantizingSource(const QuantizedWeights& weights, WeightSource& trainer)
      : weights_(&weights), source_(&trainer) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return weights_->tensors(); }
  [[nodiscard]] std::span<const TensorBox> boxes() const override { return weights_->boxes(); }
  [[nodiscard]] std::string companions_dir() const override { return weights_->base().directory(); }
  // Call it after measure() of the same weights, and once ranks agreed.
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override;

  static constexpr std::uint64_t kBatchBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kDeviceBytes = std::uint64_t{256} << 20;

 private:
  class Batch;

  const QuantizedWeights* weights_;
  WeightSource* source_;
};

}  // namespace driftless
