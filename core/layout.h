// SPDX-License-Identifier: Apache-2.0
// The tensors of a policy: TensorSpec, TensorView, and WeightLayout with its signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/hash128.h"
#include "core/status.h"

namespace driftless {

// Name, type and shape of one tensor. make() refuses a tensor that cannot be addressed.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t size_bytes = 0;

  // kCorrupt if the tensor has 2^63 bits or more, if a sub-byte type does not fill its last byte,
  // or if check_tensor_name() refuses the name.
  [[nodiscard]] static Result<TensorSpec> make(std::string name, DType dtype,
                                               std::vector<std::uint64_t> shape);

  // Number of units (dtype.h): the range of this tensor's positions.
  [[nodiscard]] std::uint64_t units() const { return size_bytes / unit_bytes(dtype); }
  [[nodiscard]] std::string shape_string() const;  // "[2, 3]"
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// A tensor's name must not be empty, must not hold control characters (NUL included) and is at most
// 4096 bytes long.
[[nodiscard]] Status check_tensor_name(std::string_view name);

// A contiguous tensor in host memory, owned by somebody else.
struct TensorView {
  const TensorSpec* spec = nullptr;
  const std::byte* data = nullptr;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data, spec->size_bytes}; }
};

// The tensors of a policy in ascending order of their names. A tensor's index in this order is how
// frames and deltas refer to it. Immutable; safe to share between threads.
class WeightLayout {
 public:
  WeightLayout() = default;
  // Sorts the tensors. kCorrupt if two have the same name, or if all together reach 2^63 bytes.
  [[nodiscard]] static Result<WeightLayout> make(std::vector<TensorSpec> tensors);

  [[nodiscard]] std::span<const TensorSpec> tensors() const { return tensors_; }
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  [[nodiscard]] const TensorSpec& operator[](std::size_t index) const { return tensors_[index]; }
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  [[nodiscard]] std::uint64_t total_units() const { return total_units_; }
  // XXH3-128 over "name\0dtype\0d0,d1,...\n" of every tensor in order. Two layouts with equal
  // signatures hold the same tensors.
  [[nodiscard]] const Hash128& signature() const { return signature_; }

  // Ok if both are the same, otherwise kWrongLayout naming the first tensor that differs, with
  // `ours` and `theirs` as the words for the two sides.
  [[nodiscard]] Status check_same(const WeightLayout& other, std::string_view ours,
                                  std::string_view theirs) const;
  // The same, but this layout may hold more tensors.
  [[nodiscard]] Status check_has(const WeightLayout& other, std::string_view ours,
                                 std::string_view theirs) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t total_units_ = 0;
  Hash128 signature_;
};

}  // namespace driftless
