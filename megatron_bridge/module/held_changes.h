// SPDX-License-Identifier: Apache-2.0
// TensorChanges by names, and into tensors of Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/layout.h"
#include "plugin/targets/masked_write.h"
#include "plugin/targets/tensor_changes.h"

namespace driftless::python {

class HeldChanges {
 public:
  HeldChanges(std::shared_ptr<const TensorChanges> changes,
              std::shared_ptr<const WeightLayout> layout);

  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool whole() const { return changes_->whole(); }
  [[nodiscard]] std::uint64_t changed(const std::string& name) const;
  [[nodiscard]] std::optional<std::uint64_t> absent(const std::string& name) const;
  void write(const std::string& name, const pybind11::object& into,
             std::optional<std::uint64_t> only) const;
  // The changes of the tensor that the map has, into memory.
  [[nodiscard]] MaskedWrite overwrite(const std::string& name, const StridedMap& map,
                                      std::uint64_t target, const std::string& dtype,
                                      unsigned threads) const;

  [[nodiscard]] const TensorSpec& spec(const std::string& name) const {
    return (*layout_)[index(name)];
  }
  [[nodiscard]] std::span<const DeltaPiece> pieces(const std::string& name) const {
    return changes_->pieces(index(name));
  }

 private:
  [[nodiscard]] std::uint32_t index(const std::string& name) const;
  std::shared_ptr<const TensorChanges> changes_;
  std::shared_ptr<const WeightLayout> layout_;
};

// A map into memory at an address, as units of a type that values of `from` are converted to.
[[nodiscard]] WeightMap masked_target(const StridedMap& map, std::uint64_t address, DType from,
                                      const std::string& dtype);

}  // namespace driftless::python
