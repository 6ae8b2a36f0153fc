// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_factories.h"

#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

using Part = cuda::StridedPatch::Part;

class DeviceMasked final : public MaskedDevice {
 public:
  DeviceMasked(int device, DeviceStream stream, Uploader uploader)
      : device_(device), stream_(std::move(stream)), uploader_(std::move(uploader)) {}
  DeviceMasked(const DeviceMasked&) = delete;
  DeviceMasked& operator=(const DeviceMasked&) = delete;
  ~DeviceMasked() override {
    const OnDevice on(device_);
    static_cast<void>(on.status().ok() && stream_.wait().ok());
  }

  Status stage(std::span<const Tensor> tensors, std::uint64_t dense_bytes,
               std::span<const Dense> first) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device_));
    tensors_.assign(tensors.begin(), tensors.end());
    forgotten_ += writes_.size();
    writes_.clear();
    DRIFTLESS_RETURN_IF_ERROR(take_memory(dense_bytes).with_context("staging a masked overwrite"));
    DRIFTLESS_RETURN_IF_ERROR(places_.upload(offsets_, values_, uploader_, stream_));
    DRIFTLESS_RETURN_IF_ERROR(queue_fill(first, stream_.get()));
    return stream_.wait();
  }

  [[nodiscard]] std::shared_ptr<std::byte> dense() const override {
    return {dense_, dense_->data()};
  }

  Status fill(std::span<const Dense> dense, void* stream) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device_));
    return queue_fill(dense, stream);
  }

  Result<std::size_t> overwrite(std::size_t tensor, const WeightMap& into, void* stream) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device_));
    parts_.clear();
    const std::uint64_t old_units = add_parts(tensor, into, 0);
    Write write;
    if (!parts_.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(write.old, dev_.take(old_units * into.unit_bytes));
      DRIFTLESS_ASSIGN_OR_RETURN(write.patch, make_patch(into.unit_bytes, stream));
      DRIFTLESS_RETURN_IF_ERROR(write.patch->exchange_strided(values_, write.old, nullptr, stream));
    }
    writes_.push_back(write);
    return forgotten_ + writes_.size() - 1;
  }

  Status take_back(std::size_t write, void* stream) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device_));
    if (write < forgotten_ || write - forgotten_ >= writes_.size()) {
      return error(StatusCode::kInvalidArgument, "masked overwrite ", write,
                   " is of a version that is no longer staged");
    }
    const Write& entry = writes_[write - forgotten_];
    return entry.patch ? entry.patch->scatter_strided(entry.old, true, stream) : Status();
  }

 private:
  struct Write {
    std::optional<cuda::StridedPatch> patch;  // nothing: the map has no change
    std::byte* old = nullptr;
  };

  // Assumes that each tensor is copied to one place, in its own width.
  Status take_memory(std::uint64_t dense_bytes) {
    places_.clear();
    first_place_.clear();
    std::uint64_t old = 0, tables = 0, place = 0;
    for (const Tensor& tensor : tensors_) {
      first_place_.push_back(place);
      std::uint64_t units = 0;
      parts_.clear();
      for (const DeltaPiece& piece : tensor.pieces) {
        place = places_.add(piece, tensor.unit_bytes) + 1;
        units += piece.count;
        parts_.emplace_back().count = piece.count;
      }
      old += device_aligned(units * tensor.unit_bytes);
      tables += 2 * device_aligned(cuda::StridedPatch::workspace_size(parts_).dev_bytes);
    }
    dev_.reset();
    host_.reset();
    DRIFTLESS_RETURN_IF_ERROR(dev_.foresee(device_aligned(places_.offset_bytes()) +
                                           device_aligned(places_.value_bytes()) + old + tables));
    DRIFTLESS_RETURN_IF_ERROR(host_.foresee(tables));
    DRIFTLESS_ASSIGN_OR_RETURN(offsets_, dev_.take(places_.offset_bytes()));
    DRIFTLESS_ASSIGN_OR_RETURN(values_, dev_.take(places_.value_bytes()));
    // If tensors of the last version are still in use, they keep their memory.
    if (dense_.use_count() != 1) dense_ = std::make_shared<DeviceBuffer>();
    dense_bytes_ = dense_bytes;
    return dense_bytes == 0 ? Status() : dense_->reserve(dense_bytes, MemoryKind::kDevice);
  }

  // Adds the tensor's changes that the map may have to parts_; old values from unit `old_begin` on.
  std::uint64_t add_parts(std::size_t tensor, const WeightMap& into, std::uint64_t old_begin) {
    const Tensor& masked = tensors_[tensor];
    for (std::size_t i = 0; i < masked.pieces.size(); ++i) {
      const ChangePart found = part_of(masked.pieces[i], into);
      if (found.count == 0) continue;
      parts_.push_back(places_.part(first_place_[tensor] + i, found, old_begin));
      old_begin += found.count;
    }
    return old_begin;
  }

  Result<cuda::StridedPatch> make_patch(unsigned unit_bytes, void* stream) {
    const cuda::WorkspaceSize size = cuda::StridedPatch::workspace_size(parts_);
    DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const dev, dev_.take(size.dev_bytes));
    DRIFTLESS_ASSIGN_OR_RETURN(std::byte* const host, host_.take(size.host_bytes));
    return cuda::StridedPatch::make(parts_, unit_bytes,
                                    reinterpret_cast<const std::uint32_t*>(offsets_),
                                    {dev, size.dev_bytes, host, size.host_bytes}, stream);
  }

  [[nodiscard]] Status check_fits(const Dense& dense) const {
    const std::uint64_t size = dense_bytes_;
    if (dense.tensor < tensors_.size() && dense.offset % 256 == 0 && dense.offset <= size &&
        tensors_[dense.tensor].units * tensors_[dense.tensor].unit_bytes <= size - dense.offset) {
      return {};
    }
    return error(StatusCode::kInvalidArgument, "a full-shape tensor ", dense.tensor, " of ",
                 tensors_.size(), " at byte ", dense.offset, " does not fit the ", size,
                 " bytes that are there");
  }

  Status queue_fill(std::span<const Dense> all, void* stream) {
    for (const Dense& dense : all) DRIFTLESS_RETURN_IF_ERROR(check_fits(dense));
    for (const unsigned width : {1U, 2U, 4U, 8U}) {
      parts_.clear();
      for (const Dense& dense : all) {
        const Tensor& tensor = tensors_[dense.tensor];
        if (tensor.unit_bytes != width) continue;
        WeightMap into;
        into.data = dense_->data() + dense.offset;
        into.unit_bytes = width;
        into.map = StridedMap::whole(tensor.units);
        DRIFTLESS_RETURN_IF_ERROR(
            cuda::fill_units(into.data, tensor.units, width, dense.sentinel, stream));
        static_cast<void>(add_parts(dense.tensor, into, 0));
      }
      if (parts_.empty()) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, make_patch(width, stream));
      DRIFTLESS_RETURN_IF_ERROR(patch.scatter_strided(values_, false, stream));
    }
    return {};
  }

  int device_;
  DeviceStream stream_;  // for staging
  Uploader uploader_;
  DeviceArena dev_{MemoryKind::kDevice}, host_{MemoryKind::kHost};
  std::shared_ptr<DeviceBuffer> dense_ = std::make_shared<DeviceBuffer>();
  std::uint64_t dense_bytes_ = 0;  // used by this version's tensors
  std::vector<Tensor> tensors_;
  PiecePlaces places_;                    // of all pieces
  std::vector<std::size_t> first_place_;  // per tensor
  std::vector<Part> parts_;               // of the patch being made
  std::vector<Write> writes_;
  std::size_t forgotten_ = 0;  // in earlier versions: numbers are never reused
  std::byte* offsets_ = nullptr;
  std::byte* values_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<MaskedDevice>> make_masked_device(int device) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device));
  DRIFTLESS_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::make());
  DRIFTLESS_ASSIGN_OR_RETURN(Uploader uploader, Uploader::make());
  DRIFTLESS_RETURN_IF_ERROR(load_patch_kernels(stream));
  return std::unique_ptr<MaskedDevice>(
      std::make_unique<DeviceMasked>(device, std::move(stream), std::move(uploader)));
}

}  // namespace driftless
