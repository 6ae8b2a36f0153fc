// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "module/array_formats.h"
#include "module/dlpack.h"
#include "module/errors.h"

namespace driftless::python {
namespace {

// Takes the tensor out of a capsule: renames the capsule, and calls the producer's deleter when the
// result is destroyed.
template <typename Managed>
py::capsule consume(const py::object& capsule, Managed* managed, const char* used) {
  if (PyCapsule_SetName(capsule.ptr(), used) != 0) throw py::error_already_set();
  return py::capsule(managed, [](void* held) {
    auto* const theirs = static_cast<Managed*>(held);
    if (theirs->deleter != nullptr) theirs->deleter(theirs);
  });
}

// Null if the object is not a capsule with this name.
template <typename Managed>
Managed* content(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return nullptr;
  return static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
}

py::object ask(const py::object& producer) {
  const py::object method = producer.attr("__dlpack__");
  try {
    return method(py::arg("max_version") = py::make_tuple(dlpack::kMajor, dlpack::kMinor));
  } catch (py::error_already_set& failure) {
    if (!failure.matches(PyExc_TypeError)) throw;  // TypeError: it does not know max_version
  }
  return method();
}

void describe(TensorRef& ref, const dlpack::Tensor& tensor, std::string_view name) {
  const auto refuse = [&](std::string_view what) {
    fail(StatusCode::kInvalidArgument, "tensor '", name, "' ", what);
  };
  const Result<DType> dtype = dtype_of_dlpack(tensor.type);
  if (!dtype.ok()) refuse(dtype.status().message());
  ref.dtype = *dtype;
  if (tensor.dimensions < 0 || (tensor.dimensions > 0 && tensor.shape == nullptr)) {
    refuse("has no shape in its DLPack capsule");
  }
  const auto dimensions = static_cast<std::size_t>(tensor.dimensions);
  for (std::size_t i = 0; i < dimensions; ++i) {
    if (tensor.shape[i] < 0) refuse("has a negative size in its DLPack capsule");
    ref.shape.push_back(static_cast<std::uint64_t>(tensor.shape[i]));
  }
  if (tensor.strides != nullptr && !contiguous(ref.shape, {tensor.strides, dimensions}, 1)) {
    refuse("is not contiguous: pass a contiguous copy");
  }
  ref.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  ref.device_number = tensor.device.number;
  switch (tensor.device.kind) {
    case dlpack::kCpu:
    case dlpack::kCudaHost: ref.device = DeviceKind::kCpu; break;
    case dlpack::kCuda:
    case dlpack::kCudaManaged: ref.device = DeviceKind::kCuda; break;
    default: ref.device = DeviceKind::kOther;
  }
  if (ref.device == DeviceKind::kCuda) ref.set_cuda(ref.device_number);
  if (ref.device == DeviceKind::kOther) {
    ref.device_name = concat("DLPack device ", tensor.device.kind, ":", ref.device_number);
  }
}

// The content of a capsule that we export. Its consumer calls release(), with or without the GIL.
template <typename Managed>
struct Exported {
  Managed managed{};
  std::vector<std::int64_t> shape;
  py::object self;

  static void release(Managed* managed) {
    const py::gil_scoped_acquire acquired;
    delete static_cast<Exported*>(managed->owner);
  }
};

template <typename Managed>
py::capsule export_tensor(const py::object& self, const dlpack::Type& type, const char* name) {
  const auto& ref = self.cast<const TensorRef&>();
  auto exported = std::make_unique<Exported<Managed>>();
  exported->self = self;
  exported->shape.assign(ref.shape.begin(), ref.shape.end());
  Managed& managed = exported->managed;
  managed.tensor.data = ref.data;
  managed.tensor.device = {dlpack_device(ref), ref.device_number};
  managed.tensor.dimensions = static_cast<std::int32_t>(ref.shape.size());
  managed.tensor.type = type;
  managed.tensor.shape = exported->shape.data();
  managed.owner = exported.get();
  managed.deleter = &Exported<Managed>::release;
  if constexpr (std::is_same_v<Managed, dlpack::Versioned>) {
    managed.major = dlpack::kMajor;
    managed.minor = dlpack::kMinor;
    managed.flags = ref.read_only ? dlpack::kReadOnly : 0;
  }
  // A capsule that was not consumed frees its tensor. A consumed one has been renamed.
  PyObject* const made = PyCapsule_New(&exported.release()->managed, name, [](PyObject* capsule) {
    const char* const capsule_name =
        std::is_same_v<Managed, dlpack::Versioned> ? dlpack::kVersionedName : dlpack::kPlainName;
    auto* const left = content<Managed>(capsule, capsule_name);
    if (left != nullptr) left->deleter(left);
  });
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::capsule>(made);
}

}  // namespace

TensorRef from_dlpack(const py::object& producer, std::string_view name) {
  const py::object answer = ask(producer);
  TensorRef ref;
  if (auto* const managed = content<dlpack::Versioned>(answer.ptr(), dlpack::kVersionedName)) {
    if (managed->major != dlpack::kMajor) {
      fail(StatusCode::kUnsupported, "tensor '", name, "' is exported by DLPack ", managed->major,
           ".", managed->minor, ": expected major version 1");
    }
    ref.owner = consume(answer, managed, dlpack::kVersionedUsed);
    ref.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    describe(ref, managed->tensor, name);
    return ref;
  }
  if (auto* const managed = content<dlpack::Plain>(answer.ptr(), dlpack::kPlainName)) {
    ref.owner = consume(answer, managed, dlpack::kPlainUsed);
    describe(ref, managed->tensor, name);
    return ref;
  }
  fail(StatusCode::kInvalidArgument, "tensor '", name,
       "': its __dlpack__() returned no DLPack capsule, or a used one");
}

std::int32_t dlpack_device(const TensorRef& ref) {
  return ref.device == DeviceKind::kCuda ? dlpack::kCuda : dlpack::kCpu;
}

py::capsule to_dlpack(const py::object& self, const py::kwargs& options) {
  const auto& ref = self.cast<const TensorRef&>();
  const auto option = [&](const char* name) -> py::object {
    return options.contains(name) ? py::object(options[name]) : py::object(py::none());
  };
  if (!option("copy").is_none() && option("copy").cast<bool>()) {
    fail(StatusCode::kUnsupported, "__dlpack__: copy=True is not supported");
  }
  const py::object device = option("dl_device");
  if (!device.is_none() &&
      device.cast<std::pair<int, int>>() != std::pair(int{dlpack_device(ref)}, ref.device_number)) {
    fail(StatusCode::kUnsupported, "__dlpack__: the tensor is on ", ref.device_name,
         ", and is not copied to another device");
  }
  const dlpack::Type type = take(dlpack_of(ref.dtype));
  const py::object version = option("max_version");
  if (!version.is_none() && py::tuple(version)[0].cast<std::uint32_t>() >= dlpack::kMajor) {
    return export_tensor<dlpack::Versioned>(self, type, dlpack::kVersionedName);
  }
  return export_tensor<dlpack::Plain>(self, type, dlpack::kPlainName);
}

}  // namespace driftless::python
