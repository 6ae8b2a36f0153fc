// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/quantized_weights.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "kernels/quantize_parts.h"
#include "plugin/publish/batch_memory.h"

namespace driftless {
namespace {

constexpr std::uint64_t kCopiedBytes = std::uint64_t{64} << 20;

// The layout of a rank's offers, each tensor once.
Result<WeightLayout> layout_of(const WeightSource& trainer) {
  std::set<std::string_view> names;
  std::vector<TensorSpec> tensors;
  for (const TensorSpec& tensor : trainer.tensors()) {
    if (names.insert(tensor.name).second) tensors.push_back(tensor);
  }
  return WeightLayout::make(std::move(tensors));
}

// The box of each tensor that a source offers; empty for a whole tensor.
Result<std::vector<TensorBox>> offered_boxes(const WeightSource& trainer) {
  std::vector<TensorBox> boxes(trainer.boxes().begin(), trainer.boxes().end());
  boxes.resize(trainer.tensors().size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(trainer.tensors()[i], boxes[i]));
    if (place.units == trainer.tensors()[i].units()) boxes[i] = {};
  }
  return boxes;
}

TensorBox box_of(std::uint64_t row, std::uint64_t column, std::uint64_t rows,
                 std::uint64_t columns) {
  return {{row, column}, {rows, columns}};
}

}  // namespace

BoxOfBlock box_of_block(const MatrixPart& part, std::uint64_t block) {
  const std::uint64_t i = block / part.blocks_wide(), j = block % part.blocks_wide();
  const auto cut = [](std::uint64_t number, std::uint64_t first, std::uint64_t count) {
    const std::uint64_t begin = number == 0 ? 0 : number * kQuantizeBlock - first;
    return std::pair(begin, std::min((number + 1) * kQuantizeBlock - first, count) - begin);
  };
  const auto [row, rows] = cut(i, part.row, part.rows);
  const auto [column, columns] = cut(j, part.column, part.columns);
  return {row, column, rows, columns};
}

Result<std::unique_ptr<QuantizedWeights>> QuantizedWeights::make(
    FileSystem& fs, const Checkpoint& base, const WeightSource& trainer,
    const QuantizeSettings& settings, unsigned threads, PublisherDevice* device) {
  DRIFTLESS_ASSIGN_OR_RETURN(const WeightLayout layout, layout_of(trainer));
  DRIFTLESS_ASSIGN_OR_RETURN(const QuantizedAs as, needs_quantization(fs, base, layout, settings));
  std::unique_ptr<QuantizedWeights> made;
  if (!as.quantized) return made;
  made.reset(new QuantizedWeights(base, as, threads, device));
  DRIFTLESS_ASSIGN_OR_RETURN(made->trainer_boxes_, offered_boxes(trainer));
  made->trainer_tensors_.assign(trainer.tensors().begin(), trainer.tensors().end());
  for (std::size_t i = 0; i < made->trainer_tensors_.size(); ++i) {
    DRIFTLESS_RETURN_IF_ERROR(made->add(made->trainer_tensors_[i], made->trainer_boxes_[i], i));
  }
  made->find_joint_blocks();
  return made;
}

Status QuantizedWeights::check(const WeightSource& trainer) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<TensorBox> boxes, offered_boxes(trainer));
  if (std::ranges::equal(trainer.tensors(), trainer_tensors_) && boxes == trainer_boxes_) return {};
  return error(StatusCode::kWrongLayout,
               "the weights offered are not those that the publisher was opened with: other "
               "tensors, or other blocks of them");
}

Status QuantizedWeights::add(const TensorSpec& spec, const TensorBox& box, std::size_t from) {
  const WeightLayout& base = base_->layout();
  if (as_.int4_group > 0) {
    const std::optional<std::uint32_t> packed = base.find(concat(spec.name, kPackedSuffix));
    if (packed) return add_groups(spec, *packed, box, from);
  }
  const std::optional<std::uint32_t> at = base.find(spec.name);
  if (!at) {
    return error(StatusCode::kWrongLayout, base_->path(), ": has no tensor '", spec.name,
                 "', which the trainer publishes");
  }
  const std::optional<std::uint32_t> scales = base.find(concat(spec.name, kScaleSuffix));
  const TensorSpec& there = base[*at];
  const DType wanted = scales ? DType::kBF16 : there.dtype;
  if (spec.shape != there.shape || spec.dtype != wanted) {
    return error(StatusCode::kWrongLayout, "tensor '", spec.name, "' of the trainer is ",
                 info(spec.dtype).name, " ", spec.shape_string(), "; ", base_->path(), " has ",
                 info(there.dtype).name, " ", there.shape_string(),
                 scales ? " with scales: BF16 is expected" : " without scales");
  }
  if (scales) return add_matrix(*at, *scales, box, from);
  places_.push_back({{}, tensors_.size()});
  tensors_.push_back(spec);
  boxes_.push_back(box);
  return {};
}

Status QuantizedWeights::add_matrix(std::uint32_t tensor, std::uint32_t scales,
                                    const TensorBox& box, std::size_t from) {
  const WeightLayout& base = base_->layout();
  Matrix matrix;
  matrix.from = from;
  matrix.tensor = tensor;
  matrix.matrix_rows = base[tensor].shape[0];
  matrix.matrix_columns = base[tensor].shape[1];
  const std::uint64_t row = box.whole() ? 0 : box.offsets[0];
  const std::uint64_t column = box.whole() ? 0 : box.offsets[1];
  matrix.part.rows = box.whole() ? matrix.matrix_rows : box.sizes[0];
  matrix.part.columns = box.whole() ? matrix.matrix_columns : box.sizes[1];
  matrix.part.stride = matrix.part.columns;
  matrix.part.row = row % kQuantizeBlock;
  matrix.part.column = column % kQuantizeBlock;
  matrix.first_row = row / kQuantizeBlock;
  matrix.first_column = column / kQuantizeBlock;
  matrix.codes = tensors_.size();
  tensors_.push_back(base[tensor]);
  boxes_.push_back(box);
  // The blocks whose first weight is here.
  matrix.scale_row = matrix.part.row == 0 ? 0 : 1;
  matrix.scale_column = matrix.part.column == 0 ? 0 : 1;
  matrix.scale_rows =
      matrix.part.blocks_high() - std::min(matrix.scale_row, matrix.part.blocks_high());
  matrix.scale_columns =
      matrix.part.blocks_wide() - std::min(matrix.scale_column, matrix.part.blocks_wide());
  if (box.whole() || matrix.scale_count() > 0) {
    matrix.scales = tensors_.size();
    tensors_.push_back(base[scales]);
    boxes_.push_back(box.whole() ? TensorBox()
                                 : box_of(matrix.first_row + matrix.scale_row,
                                          matrix.first_column + matrix.scale_column,
                                          matrix.scale_rows, matrix.scale_columns));
  }
  matrix.known.resize(matrix.part.blocks_high() * matrix.part.blocks_wide());
  places_.push_back({matrices_.size(), 0});
  matrices_.push_back(std::move(matrix));
  return {};
}

Status QuantizedWeights::add_groups(const TensorSpec& spec, std::uint32_t packed,
                                    const TensorBox& box, std::size_t from) {
  const WeightLayout& base = base_->layout();
  const unsigned group = as_.int4_group;
  const std::vector<std::uint64_t> there = {base[packed].shape[0],
                                            base[packed].shape[1] * kInt4InWord};
  if (spec.dtype != DType::kBF16 || spec.shape != there) {
    return error(StatusCode::kWrongLayout, "tensor '", spec.name, "' of the trainer is ",
                 info(spec.dtype).name, " ", spec.shape_string(), "; ", base_->path(),
                 " has codes of a matrix of ", there[0], " rows and ", there[1],
                 " columns: BF16 is expected");
  }
  Matrix matrix;
  matrix.group = group;
  matrix.from = from;
  matrix.tensor = packed;
  matrix.matrix_rows = there[0];
  matrix.matrix_columns = there[1];
  const std::uint64_t row = box.whole() ? 0 : box.offsets[0];
  const std::uint64_t column = box.whole() ? 0 : box.offsets[1];
  matrix.part.rows = box.whole() ? there[0] : box.sizes[0];
  matrix.part.columns = matrix.part.stride = box.whole() ? there[1] : box.sizes[1];
  if (column % group != 0 || matrix.part.columns % group != 0) {
    return error(StatusCode::kUnsupported, "tensor '", spec.name, "': the box ", box.to_string(),
                 " of a rank cuts groups of ", group,
                 " weights of a row, which have one scale in INT4: offer whole groups (whole rows, "
                 "or columns in multiples of ",
                 group, "), or use a base with FP8 blocks");
  }
  matrix.scale_rows = matrix.part.rows;
  matrix.scale_columns = matrix.part.columns / group;
  const auto add = [&](std::uint32_t tensor, const TensorBox& part) {
    tensors_.push_back(base[tensor]);
    boxes_.push_back(part);
    return tensors_.size() - 1;
  };
  const auto box_in = [&](std::uint64_t weights) {  // of one element
    if (box.whole()) return TensorBox();
    return box_of(row, column / weights, matrix.part.rows, matrix.part.columns / weights);
  };
  matrix.codes = add(packed, box_in(kInt4InWord));
  matrix.scales = add(*base.find(concat(spec.name, kGroupScaleSuffix)), box_in(group));
  if (row == 0 && column == 0) {
    const std::uint32_t shape = *base.find(concat(spec.name, kShapeSuffix));
    matrix.shape = add(shape, {});
    matrix.shape_bytes = int4_shape_bytes(spec, base[shape].dtype);
  }
  places_.push_back({matrices_.size(), 0});
  matrices_.push_back(std::move(matrix));
  return {};
}

void QuantizedWeights::find_joint_blocks() {
  std::set<std::pair<std::uint32_t, TensorBox>> seen;  // a box may be offered twice
  std::map<BlockKey, std::uint64_t> weights;           // held here, by block
  for (std::uint32_t m = 0; m < matrices_.size(); ++m) {
    Matrix& matrix = matrices_[m];
    const bool again = !seen.emplace(matrix.tensor, boxes_[matrix.codes]).second;
    const std::uint64_t wide = quantize_blocks(matrix.matrix_columns);
    for (std::uint32_t block = 0; block < matrix.known.size(); ++block) {
      const std::uint64_t i = matrix.first_row + block / matrix.part.blocks_wide();
      const std::uint64_t j = matrix.first_column + block % matrix.part.blocks_wide();
      const BoxOfBlock here = box_of_block(matrix.part, block);
      const std::uint64_t all =
          std::min(kQuantizeBlock, matrix.matrix_rows - i * kQuantizeBlock) *
          std::min(kQuantizeBlock, matrix.matrix_columns - j * kQuantizeBlock);
      const std::uint64_t local_units = here.rows * here.columns;
      if (local_units == all) continue;
      const BlockKey key{matrix.tensor, static_cast<std::uint32_t>(i * wide + j)};
      Joint& joint = joint_[key];
      joint.places.emplace_back(m, block);
      joint.sizes.push_back(0);
      matrix.joint.push_back(block);
      std::uint64_t& sum = weights[key];
      if (!again) sum += local_units;
      joint.shared = sum < all;
    }
  }
  shares_ = std::ranges::any_of(joint_, [](const auto& each) { return each.second.shared; });
}

void QuantizedWeights::measured(std::size_t matrix, std::size_t block, std::uint16_t size) {
  const Matrix& in = matrices_[matrix];
  const std::uint64_t i = in.first_row + block / in.part.blocks_wide();
  const std::uint64_t j = in.first_column + block % in.part.blocks_wide();
  Joint& joint = joint_.at(
      {in.tensor, static_cast<std::uint32_t>(i * quantize_blocks(in.matrix_columns) + j)});
  const auto at = std::ranges::find(joint.places, std::pair(static_cast<std::uint32_t>(matrix),
                                                            static_cast<std::uint32_t>(block)));
  joint.sizes[static_cast<std::size_t>(at - joint.places.begin())] = size;
  joint.local = std::ranges::max(joint.sizes);
}

Status QuantizedWeights::measure(WeightSource& weights) {
  DRIFTLESS_RETURN_IF_ERROR(check(weights));
  if (joint_.empty()) return {};
  return weights.visit([&](std::span<const OfferedTensor> batch) -> Status {
    for (const OfferedTensor& offered : batch) {
      if (offered.tensor >= places_.size()) continue;  // refused below
      const std::optional<std::size_t> number = places_[offered.tensor].matrix;
      if (!number || matrices_[*number].joint.empty()) continue;
      const Matrix& matrix = matrices_[*number];
      DRIFTLESS_RETURN_IF_ERROR(check_memory(matrix, offered.memory));
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint16_t> sizes,
                                 sizes_of(matrix, matrix.joint, offered.data, offered.memory));
      for (std::size_t i = 0; i < sizes.size(); ++i) measured(*number, matrix.joint[i], sizes[i]);
    }
    return {};
  });
}

Status QuantizedWeights::check_memory(const Matrix& matrix, MemoryKind memory) const {
  if (memory == MemoryKind::kHost) return {};
  if (device_ != nullptr) return {};
  return error(StatusCode::kUnsupported, "tensor '", tensors_[matrix.codes].name,
               "' lies on a GPU, and this publisher quantizes in host memory: set snapshot to "
               "pinned, device or none");
}

Result<std::vector<std::uint16_t>> QuantizedWeights::sizes_of(const Matrix& matrix,
                                                              std::span<const std::uint32_t> blocks,
                                                              const std::byte* weights,
                                                              MemoryKind memory) const {
  const MatrixPart& part = matrix.part;
  std::vector<std::uint16_t> sizes(blocks.size());
  std::vector<DeviceMatrix> boxes;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BoxOfBlock here = box_of_block(part, blocks[i]);
    const MatrixPart box_part{here.rows, here.columns, part.stride,
                              (part.row + here.row) % kQuantizeBlock,
                              (part.column + here.column) % kQuantizeBlock};
    const std::byte* const at =
        weights + (here.row * part.stride + here.column) * sizeof(std::uint16_t);
    if (memory == MemoryKind::kHost) {
      quantizer().part(as_.rule, box_part, at, &sizes[i], nullptr);
    } else {
      boxes.push_back({box_part, at, {&sizes[i], 1}, nullptr});
    }
  }
  if (!boxes.empty()) DRIFTLESS_RETURN_IF_ERROR(device_->quantize(as_.rule, boxes, false));
  return sizes;
}

Result<std::vector<std::uint16_t>> QuantizedWeights::sizes_of_all(const Matrix& matrix,
                                                                  const std::byte* weights,
                                                                  MemoryKind memory) const {
  std::vector<std::uint16_t> sizes(matrix.known.size());
  if (memory == MemoryKind::kHost) {
    DRIFTLESS_RETURN_IF_ERROR(quantize_part(quantizer(), as_.rule, matrix.part, weights, threads_,
                                            sizes.data(), nullptr));
    return sizes;
  }
  DeviceMatrix box{matrix.part, weights, sizes, nullptr};
  DRIFTLESS_RETURN_IF_ERROR(device_->quantize(as_.rule, {&box, 1}, false));
  return sizes;
}

MaximaMessage QuantizedWeights::maxima_to_send() const {
  MaximaMessage mine;
  mine.all = !reported_all_;
  for (const auto& [key, joint] : joint_) {
    if (joint.shared && (mine.all || joint.local != joint.sent)) {
      mine.maxima.push_back({key, joint.local});
    }
  }
  return mine;
}

void QuantizedWeights::set_known(const Joint& joint, std::uint16_t size) {
  for (const auto& [matrix, block] : joint.places) matrices_[matrix].known[block] = size;
}

void QuantizedWeights::take_maxima(const MaximaMessage& merged) {
  for (const auto& [key, size] : merged.maxima) {
    const auto at = joint_.find(key);
    if (at != joint_.end()) set_known(at->second, size);
  }
  for (auto& [key, joint] : joint_) joint.sent = joint.local;
  agree_alone();
  reported_all_ = true;
}

void QuantizedWeights::agree_alone() {
  for (const auto& [key, joint] : joint_) {
    if (!joint.shared) set_known(joint, joint.local);
  }
}

Status QuantizedWeights::quantize(const Matrix& matrix, const std::byte* weights, MemoryKind memory,
                                  std::vector<std::uint16_t>& largest, std::byte* codes,
                                  std::byte* scales) const {
  largest = matrix.known;
  if (matrix.group > 0) return quantize_groups(matrix, weights, memory, codes, scales);
  if (memory == MemoryKind::kHost) {
    DRIFTLESS_RETURN_IF_ERROR(quantize_part(quantizer(), as_.rule, matrix.part, weights, threads_,
                                            largest.data(), codes));
  } else if (!largest.empty()) {
    DeviceMatrix box{matrix.part, weights, largest, nullptr};
    DRIFTLESS_RETURN_IF_ERROR(quantize_there({&box, 1}));
    DRIFTLESS_RETURN_IF_ERROR(
        device_->copy(codes, box.codes, matrix.part.rows * matrix.part.columns));
  }
  if (scales != nullptr) make_scales(matrix, largest, scales);
  return {};
}

Status QuantizedWeights::quantize_groups(const Matrix& matrix, const std::byte* weights,
                                         MemoryKind memory, std::byte* packed,
                                         std::byte* scales) const {
  if (memory == MemoryKind::kHost) {
    return quantize_int4(quantizer(), matrix.group, weights, matrix.part.rows, matrix.part.columns,
                         threads_, packed, scales);
  }
  if (matrix.scale_count() == 0) return {};
  DeviceGroups box = groups_of(matrix, weights);
  DRIFTLESS_RETURN_IF_ERROR(quantize_groups_there({&box, 1}));
  DRIFTLESS_RETURN_IF_ERROR(device_->copy(packed, box.packed, matrix.code_bytes()));
  return device_->copy(scales, box.scales, matrix.scale_bytes());
}

void QuantizedWeights::make_scales(const Matrix& matrix, std::span<const std::uint16_t> largest,
                                   std::byte* scales) const {
  for (std::uint64_t i = 0; i < matrix.scale_rows; ++i) {
    for (std::uint64_t j = 0; j < matrix.scale_columns; ++j, scales += sizeof(float)) {
      const std::uint64_t block =
          (matrix.scale_row + i) * matrix.part.blocks_wide() + matrix.scale_column + j;
      const float scale = fp8_scale(as_.rule, largest[block]);
      std::memcpy(scales, &scale, sizeof(scale));
    }
  }
}

Status QuantizedBase::visit(const std::function<Status(std::span<const OfferedTensor>)>& use) {
  std::vector<std::vector<std::byte>> copies;  // of boxes that are not contiguous
  std::vector<OfferedTensor> batch;
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < tensors().size(); ++i) {
    const TensorSpec& spec = tensors()[i];
    const TensorView whole = base_->tensor(*base_->layout().find(spec.name));
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(spec, boxes()[i]));
    const unsigned unit = unit_bytes(spec.dtype);
    if (place.contiguous()) {
      batch.push_back({i, whole.data + place.first * unit});
      continue;
    }
    std::vector<std::byte>& copy = copies.emplace_back(place.units * unit);
    for (std::uint64_t at = 0; at < place.units; at += place.run) {
      std::memcpy(copy.data() + at * unit, whole.data + place.at(at) * unit, place.run * unit);
    }
    batch.push_back({i, copy.data()});
    copied += copy.size();
    if (copied < kCopiedBytes) continue;
    DRIFTLESS_RETURN_IF_ERROR(use(batch));
    batch.clear();
    copies.clear();
    copied = 0;
  }
  return batch.empty() ? Status() : use(batch);
}

// Collects what is passed on in one call, and quantizes it then: all matrices together.
class QuantizingSource::Batch {
 public:
  using Use = std::function<Status(std::span<const OfferedTensor>)>;
  // `made`: for codes and scales on the host.
  Batch(const QuantizedWeights& weights, const Use& use, BatchMemory& made)
      : weights_(weights), use_(use), made_(made) {}

  void keep(const OfferedTensor& as) { offered_.push_back(as); }

  Status add(std::size_t number, const OfferedTensor& offered) {
    const QuantizedWeights::Matrix& matrix = weights_.matrices()[number];
    DRIFTLESS_RETURN_IF_ERROR(weights_.check_memory(matrix, offered.memory));
    const bool host = offered.memory == MemoryKind::kHost;
    const std::uint64_t codes = matrix.code_bytes(), scales = matrix.scale_bytes();
    const std::uint64_t most_there = kDeviceBytes, most = kBatchBytes;
    const bool full = host ? bytes_ + codes + scales > most : bytes_there_ + codes > most_there;
    if (full) DRIFTLESS_RETURN_IF_ERROR(pass_on());
    if (!host) {
      bytes_there_ += codes;
      numbers_.push_back(number);
      if (matrix.group > 0) {
        groups_.push_back(weights_.groups_of(matrix, offered.data));
        return {};
      }
      largest_.push_back(matrix.known);
      boxes_.push_back({matrix.part, offered.data, largest_.back(), nullptr});
      return {};
    }
    bytes_ += codes + scales;
    std::byte* const codes_at = made_.take(codes);
    std::byte* const scales_at = made_.take(scales);
    offer(matrix, codes_at, MemoryKind::kHost, scales_at);
    if (matrix.group > 0) {
      std::vector<std::uint16_t> unused;
      return weights_.quantize(matrix, offered.data, offered.memory, unused, codes_at, scales_at);
    }
    std::vector<std::uint16_t>& largest = largest_here_.emplace_back(matrix.known);
    here_.push_back({matrix.part, offered.data, largest.data(), codes_at});
    if (matrix.scales) scales_here_.push_back({&matrix, &largest, scales_at});
    return {};
  }

  Status pass_on() {
    DRIFTLESS_RETURN_IF_ERROR(
        quantize_parts(quantizer(), weights_.rule(), here_, weights_.threads()));
    for (const auto& [matrix, largest, at] : scales_here_) {
      weights_.make_scales(*matrix, *largest, at);
    }
    if (!boxes_.empty()) DRIFTLESS_RETURN_IF_ERROR(weights_.quantize_there(boxes_));
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      const QuantizedWeights::Matrix& matrix = weights_.matrices()[numbers_[i]];
      std::byte* const scales_at = made_.take(matrix.scale_count() * sizeof(float));
      if (matrix.scales) weights_.make_scales(matrix, boxes_[i].largest, scales_at);
      offer(matrix, boxes_[i].codes, MemoryKind::kDevice, scales_at);
    }
    if (!groups_.empty()) DRIFTLESS_RETURN_IF_ERROR(weights_.quantize_groups_there(groups_));
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      offer(weights_.matrices()[numbers_[i]], groups_[i].packed, MemoryKind::kDevice,
            groups_[i].scales, MemoryKind::kDevice);
    }
    if (!offered_.empty()) DRIFTLESS_RETURN_IF_ERROR(use_(offered_));
    offered_.clear();
    made_.reset();
    here_.clear();
    largest_here_.clear();
    scales_here_.clear();
    boxes_.clear();
    groups_.clear();
    numbers_.clear();
    largest_.clear();
    bytes_ = bytes_there_ = 0;
    return {};
  }

 private:
  void offer(const QuantizedWeights::Matrix& matrix, const std::byte* codes, MemoryKind memory,
             const std::byte* scales, MemoryKind scales_memory = MemoryKind::kHost) {
    offered_.push_back({matrix.codes, codes, memory});
    if (matrix.scales) offered_.push_back({*matrix.scales, scales, scales_memory});
    if (matrix.shape) offered_.push_back({*matrix.shape, matrix.shape_bytes.data()});
  }

  const QuantizedWeights& weights_;
  const Use& use_;
  BatchMemory& made_;
  std::vector<OfferedTensor> offered_;
  std::uint64_t bytes_ = 0, bytes_there_ = 0;
  // On the host: the matrices, the maxima of each, and where scales go.
  struct Scales {
    const QuantizedWeights::Matrix* matrix;
    const std::vector<std::uint16_t>* largest;
    std::byte* at;
  };
  std::vector<PartToQuantize> here_;
  std::deque<std::vector<std::uint16_t>> largest_here_;
  std::vector<Scales> scales_here_;
  // On a GPU: boxes_ in a run with FP8 blocks, groups_ in one with INT4.
  std::vector<DeviceMatrix> boxes_;
  std::vector<DeviceGroups> groups_;
  std::vector<std::size_t> numbers_;                // the matrix of each
  std::deque<std::vector<std::uint16_t>> largest_;  // of each of boxes_: its maxima
};

Status QuantizingSource::visit(const std::function<Status(std::span<const OfferedTensor>)>& use) {
  DRIFTLESS_RETURN_IF_ERROR(weights_->check(*source_));
  BatchMemory made(kBatchBytes + BatchMemory::kSlack);
  return source_->visit([&](std::span<const OfferedTensor> offered) -> Status {
    Batch batch(*weights_, use, made);
    for (const OfferedTensor& each : offered) {
      if (each.tensor >= weights_->offered()) {
        return error(StatusCode::kInvalidArgument, "the source offered tensor number ", each.tensor,
                     " of ", weights_->offered());
      }
      const QuantizedWeights::Place& place = weights_->place(each.tensor);
      if (place.matrix) {
        DRIFTLESS_RETURN_IF_ERROR(batch.add(*place.matrix, each));
      } else {
        batch.keep({place.kept, each.data, each.memory});
      }
    }
    return batch.pass_on();
  });
}

}  // namespace driftless
