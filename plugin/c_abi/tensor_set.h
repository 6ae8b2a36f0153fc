// SPDX-License-Identifier: Apache-2.0
// The tensors that a caller registered, checked one by one, and the target that they become.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "core/version.h"
#include "kernels/strided_map.h"
#include "plugin/c_abi/driftless.h"
#include "plugin/job/on_demand/device_access.h"
#include "plugin/targets/weight_target.h"

namespace driftless::c_abi {

class TensorSet {
 public:
  // Errors name the tensor. kUnsupported for what cannot be written here (driftless_register()).
  [[nodiscard]] Status add(const driftless_tensor& tensor);

  // Whether they can be a target: there are some, and none shares memory with another.
  [[nodiscard]] Status check() const;
  // A target over them that holds `initial`, or nothing.
  [[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_target(std::optional<VersionId> initial,
                                                                  unsigned threads) const;
  // Waits for what the engine has queued on the tensors' streams. Nothing on the host.
  [[nodiscard]] Status wait_for_streams() const;
  // Null where no tensor is on a GPU.
  [[nodiscard]] const DeviceTable* device() const { return device_; }

 private:
  struct Held {
    TensorSpec spec;
    std::byte* data = nullptr;
    StridedMap map;  // plain where it is contiguous, or not held
  };
  [[nodiscard]] Status check_place(const driftless_tensor& tensor);

  std::map<std::string, Held, std::less<>> tensors_;  // in the order of a layout
  std::optional<std::string> first_;                  // that is held: the others lie where it does
  int32_t place_ = DRIFTLESS_HOST;
  int32_t device_number_ = 0;
  const DeviceTable* device_ = nullptr;
  std::vector<void*> streams_;
};

}  // namespace driftless::c_abi
