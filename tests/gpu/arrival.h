// SPDX-License-Identifier: Apache-2.0
// Parts that arrive in device memory, as over the nccl road, for tests without that road; and
// weights there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/road.h"
#include "gpu/device.h"
#include "plugin/targets/weight_target.h"
#include "support/shared_receive_road.h"
#include "support/weights.h"

namespace driftless::testing {

enum class Arrival : unsigned char {
  kHost,
  kDevice,
  kShifted,  // on the device, where streams are not aligned
};

[[nodiscard]] inline MappedFile land(MappedFile part, Arrival where) {
  if (where == Arrival::kHost) return part;
  const std::uint64_t shift = where == Arrival::kShifted ? 3 : 0;
  const auto held = std::make_shared<DeviceBytes>(part.bytes(), shift);
  must(cudaDeviceSynchronize());
  return MappedFile(part.path(), held, {held->data(), held->size()}, MemoryKind::kDevice);
}

[[nodiscard]] inline FetchedVersion land(FetchedVersion version, Arrival where) {
  for (MappedFile& part : version.parts) part = land(std::move(part), where);
  return version;
}

// Fetches over another road, and returns bytes whose hash was compared.
class ArrivalRoad final : public SharedReceiveRoad {
 public:
  ArrivalRoad(std::unique_ptr<ReceiveRoad> road, Arrival where)
      : SharedReceiveRoad(std::move(road)), where_(where) {}

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(MappedFile fetched,
                               SharedReceiveRoad::fetch_part(id, part, deadline));
    return land(std::move(fetched), where_);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> fetched,
                               SharedReceiveRoad::fetch_ranges(id, part, ranges, deadline));
    for (MappedFile& range : fetched) range = land(std::move(range), where_);
    return fetched;
  }

 private:
  Arrival where_;
};

// All tensors of some weights on the device, at unaligned addresses, each with a guard.
class DeviceModel {
 public:
  explicit DeviceModel(const Weights& weights) {
    std::uint64_t number = 0;
    for (const auto& [name, tensor] : weights) {
      const std::uint64_t shift = number++ % 3 * unit_bytes(tensor.dtype);
      tensors_.emplace_back(std::span<const std::byte>(tensor.bytes), shift);
    }
    must(cudaDeviceSynchronize());  // the target's stream waits for no other
  }

  [[nodiscard]] std::vector<std::byte*> pointers() const {
    std::vector<std::byte*> data;
    for (const DeviceBytes& tensor : tensors_) data.push_back(tensor.data());
    return data;
  }
  [[nodiscard]] std::byte* tensor(std::size_t index) const { return tensors_[index].data(); }
  // Whether the tensors are equal bit for bit, and the bytes around them unchanged.
  [[nodiscard]] bool holds(const Weights& weights) const {
    std::size_t index = 0;
    for (const auto& [name, tensor] : weights) {
      const DeviceBytes& held = tensors_[index++];
      if (held.copy() != tensor.bytes || !held.intact()) return false;
    }
    return true;
  }
  void flip(std::size_t tensor, std::uint64_t at) const {
    std::byte value{};
    must(cudaMemcpy(&value, tensors_[tensor].data() + at, 1, cudaMemcpyDeviceToHost));
    value ^= std::byte{0x40};
    must(cudaMemcpy(tensors_[tensor].data() + at, &value, 1, cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());
  }

 private:
  std::vector<DeviceBytes> tensors_;
};

}  // namespace driftless::testing
