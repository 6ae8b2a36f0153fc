// SPDX-License-Identifier: Apache-2.0
#include "module/device_kernels.h"

#include <utility>

#include "core/thread_gpu.h"
#include "module/errors.h"
#include "plugin/job/on_demand/device_access.h"

namespace driftless::python {
namespace {

DeviceUnits units(const TensorRef& ref) { return {ref.data, units_of(ref), unit_bytes(ref.dtype)}; }

Status with_name(const Status& status, const TensorRef& ref, std::string_view name) {
  return status.with_context(concat("tensor '", name, "' is on ", ref.device_name));
}

// The device of one tensor, current as long as this lives.
class OnDevice {
 public:
  OnDevice(const TensorRef& first, std::string_view name)
      : number_(first.device_number), table_(load(first, name)) {
    check(with_name(table_->check(number_), first, name));
    check_memory(first, name);
  }
  [[nodiscard]] const DeviceTable& table() const { return *table_; }

  // Another tensor, on the same device.
  [[nodiscard]] TensorRef other(const py::object& object, std::string_view name) const {
    TensorRef ref = tensor_ref(object, name);
    if (ref.device != DeviceKind::kCuda || ref.device_number != number_) {
      throw StatusError(error(StatusCode::kInvalidArgument, "tensor '", name, "' is on ",
                              ref.device_name, ", expected cuda:", number_));
    }
    check_memory(ref, name);
    return ref;
  }
  [[nodiscard]] TensorRef result(DType dtype, std::uint64_t count,
                                 std::shared_ptr<std::byte> memory) const {
    TensorRef ref;
    ref.dtype = dtype;
    ref.shape = {count};
    ref.size_bytes = count * unit_bytes(dtype);
    ref.device = DeviceKind::kCuda;
    ref.device_number = number_;
    ref.device_name = concat("cuda:", number_);
    ref.data = memory.get();
    ref.memory = std::move(memory);
    return ref;
  }

 private:
  static const DeviceTable* load(const TensorRef& first, std::string_view name) {
    const Result<const DeviceTable*> table = device_table();
    if (table.ok()) return *table;
    throw StatusError(error(table.status().code(), "tensor '", name, "' is on ", first.device_name,
                            ": ", table.status().message(), "; pass tensors in host memory"));
  }
  void check_memory(const TensorRef& ref, std::string_view name) const {
    if (ref.size_bytes == 0) return;
    check(with_name(table_->check_memory(ref.data, number_), ref, name));
    if (reinterpret_cast<std::uintptr_t>(ref.data) % unit_bytes(ref.dtype) == 0) return;
    throw StatusError(error(StatusCode::kInvalidArgument, "tensor '", name,
                            "' is not aligned to its elements: copy it"));
  }

  KeepThreadGpu keep_;
  int number_;
  const DeviceTable* table_;
};

DType value_type(DType dtype) { return info(dtype).bits < 8 ? DType::kU8 : dtype; }

DevicePositions positions_of(const TensorRef& ref) {
  const bool wide = ref.dtype == DType::kI64 || ref.dtype == DType::kU64;
  if (!wide && ref.dtype != DType::kI32) {
    throw StatusError(error(StatusCode::kInvalidArgument, "positions have dtype ",
                            info(ref.dtype).name, ", expected I64 or I32"));
  }
  return {ref.data, units_of(ref), wide ? 8U : 4U};
}

// Without the GIL; what it returns is raised with it.
template <typename Call>
auto run(const Call& call) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return call();
  }();
  return take(std::move(result));
}

// The same for what returns no value.
template <typename Call>
void run_status(const Call& call) {
  Status status = [&] {
    const py::gil_scoped_release released;
    return call();
  }();
  check(std::move(status));
}

}  // namespace

py::tuple diff_on_device(const TensorRef& before, const py::object& after,
                         const StreamNumber& stream) {
  const OnDevice device(before, "old");
  const TensorRef then = device.other(after, "new");
  check_alike(before, then, "new");
  DeviceChanges found;
  if (before.size_bytes > 0) {
    found = run([&] { return device.table().diff(units(before), then.data, stream_of(stream)); });
  }
  return py::make_tuple(
      device.result(DType::kI64, found.count, std::move(found.positions_dev)),
      device.result(value_type(then.dtype), found.count, std::move(found.values_dev)));
}

TensorRef gather_on_device(const TensorRef& from, const py::object& positions,
                           const StreamNumber& stream) {
  const OnDevice device(from, "tensor");
  const TensorRef where = device.other(positions, "positions");
  const DevicePositions all = positions_of(where);
  const std::uint64_t bytes = all.count * unit_bytes(from.dtype);
  std::shared_ptr<std::byte> values = run([&] { return device.table().allocate(bytes); });
  run_status(
      [&] { return device.table().gather(units(from), all, values.get(), stream_of(stream)); });
  return device.result(value_type(from.dtype), all.count, std::move(values));
}

void scatter_on_device(const TensorRef& to, const py::object& positions, const py::object& values,
                       const StreamNumber& stream) {
  const OnDevice device(to, "tensor");
  check(check_writable(to, "tensor"));
  const TensorRef where = device.other(positions, "positions");
  const TensorRef what = device.other(values, "values");
  const DevicePositions all = positions_of(where);
  if (unit_bytes(what.dtype) != unit_bytes(to.dtype) || units_of(what) != all.count) {
    throw StatusError(error(StatusCode::kInvalidArgument, "values: ", units_of(what), " of ",
                            info(what.dtype).name, ", expected ", all.count, " of ",
                            info(to.dtype).name));
  }
  run_status([&] { return device.table().scatter(units(to), all, what.data, stream_of(stream)); });
}

std::uint64_t masked_overwrite_on_device(const TensorRef& to, const py::object& source,
                                         std::uint64_t sentinel, const StreamNumber& stream) {
  const OnDevice device(to, "target");
  check(check_writable(to, "target"));
  const TensorRef from = device.other(source, "source");
  check_alike(to, from, "source");
  return run([&] {
    return device.table().masked_overwrite(units(to), from.data, sentinel, stream_of(stream));
  });
}

Digest digest_on_device(const std::string& name, const TensorRef& tensor,
                        const StreamNumber& stream) {
  const OnDevice device(tensor, name);
  return run([&] {
    return device.table().digest(name, {tensor.data, tensor.size_bytes}, stream_of(stream));
  });
}

}  // namespace driftless::python
