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

// Makes the device of one tensor current, as long as this object lives.
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
      fail(StatusCode::kInvalidArgument, "tensor '", name, "' is on ", ref.device_name,
           ", expected cuda:", number_);
    }
    check_memory(ref, name);
    return ref;
  }
  [[nodiscard]] TensorRef result(DType dtype, std::uint64_t count,
                                 std::shared_ptr<std::byte> memory) const {
    std::byte* const data = memory.get();
    TensorRef ref =
        TensorRef::of(take(TensorSpec::make("result", dtype, {count})), data, std::move(memory));
    ref.set_cuda(number_);
    return ref;
  }

 private:
  static const DeviceTable* load(const TensorRef& first, std::string_view name) {
    const Result<const DeviceTable*> table = device_table();
    if (table.ok()) return *table;
    fail(table.status().code(), "tensor '", name, "' is on ", first.device_name, ": ",
         table.status().message(), "; pass tensors in host memory");
  }
  void check_memory(const TensorRef& ref, std::string_view name) const {
    if (ref.size_bytes == 0) return;
    check(with_name(table_->check_memory(ref.data, number_), ref, name));
    if (reinterpret_cast<std::uintptr_t>(ref.data) % unit_bytes(ref.dtype) == 0) return;
    fail(StatusCode::kInvalidArgument, "tensor '", name,
         "' is not aligned to its elements: copy it");
  }

  KeepThreadGpu keep_;
  int number_;
  const DeviceTable* table_;
};

DevicePositions positions_of(const TensorRef& ref) {
  const bool wide = ref.dtype == DType::kI64 || ref.dtype == DType::kU64;
  if (!wide && ref.dtype != DType::kI32) {
    fail(StatusCode::kInvalidArgument, "positions have dtype ", info(ref.dtype).name,
         ", expected I64 or I32");
  }
  return {ref.data, units_of(ref), wide ? 8U : 4U};
}

}  // namespace

void check_values(const TensorRef& values, const TensorRef& to, std::uint64_t count) {
  if (unit_bytes(values.dtype) == unit_bytes(to.dtype) && units_of(values) == count) return;
  fail(StatusCode::kInvalidArgument, "values: ", units_of(values), " of ", info(values.dtype).name,
       ", expected ", count, " of ", info(to.dtype).name);
}

py::tuple diff_on_device(const TensorRef& before, const py::object& after,
                         const StreamNumber& stream) {
  const OnDevice device(before, "old");
  const TensorRef then = device.other(after, "new");
  check_alike(before, then, "new");
  DeviceChanges found;
  if (before.size_bytes > 0) {
    found = take(without_gil(
        [&] { return device.table().diff(units(before), then.data, stream_of(stream)); }));
  }
  return py::make_tuple(
      device.result(DType::kI64, found.count, std::move(found.positions_dev)),
      device.result(unit_type(then.dtype), found.count, std::move(found.values_dev)));
}

TensorRef gather_on_device(const TensorRef& from, const py::object& positions,
                           const StreamNumber& stream) {
  const OnDevice device(from, "tensor");
  const TensorRef where = device.other(positions, "positions");
  const DevicePositions all = positions_of(where);
  const std::uint64_t bytes = all.count * unit_bytes(from.dtype);
  std::shared_ptr<std::byte> values =
      take(without_gil([&] { return device.table().allocate(bytes); }));
  check(without_gil(
      [&] { return device.table().gather(units(from), all, values.get(), stream_of(stream)); }));
  return device.result(unit_type(from.dtype), all.count, std::move(values));
}

void scatter_on_device(const TensorRef& to, const py::object& positions, const py::object& values,
                       const StreamNumber& stream) {
  const OnDevice device(to, "tensor");
  check(check_writable(to, "tensor"));
  const TensorRef where = device.other(positions, "positions");
  const TensorRef what = device.other(values, "values");
  const DevicePositions all = positions_of(where);
  check_values(what, to, all.count);
  check(without_gil(
      [&] { return device.table().scatter(units(to), all, what.data, stream_of(stream)); }));
}

std::uint64_t masked_overwrite_on_device(const TensorRef& to, const py::object& source,
                                         std::uint64_t sentinel, const StreamNumber& stream) {
  const OnDevice device(to, "target");
  check(check_writable(to, "target"));
  const TensorRef from = device.other(source, "source");
  check_alike(to, from, "source");
  return take(without_gil([&] {
    return device.table().masked_overwrite(units(to), from.data, sentinel, stream_of(stream));
  }));
}

Digest digest_on_device(const std::string& name, const TensorRef& tensor,
                        const StreamNumber& stream) {
  const OnDevice device(tensor, name);
  return take(without_gil([&] {
    return device.table().digest(name, {tensor.data, tensor.size_bytes}, stream_of(stream));
  }));
}

}  // namespace driftless::python
