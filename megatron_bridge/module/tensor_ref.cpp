// SPDX-License-Identifier: Apache-2.0
#include "module/tensor_ref.h"

#include <pybind11/stl.h>

#include <bit>
#include <new>

#include "module/array_formats.h"
#include "module/bindings.h"

namespace driftless::python {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are little-endian bytes");

std::vector<std::uint64_t> shape_of(const py::handle& shape) {
  std::vector<std::uint64_t> result;
  for (const py::handle size : shape) result.push_back(size.cast<std::uint64_t>());
  return result;
}

// Sets size_bytes, by the checked arithmetic of TensorSpec.
void set_size(TensorRef& ref, std::string_view name) {
  ref.size_bytes = take(TensorSpec::make(std::string(name), ref.dtype, ref.shape)).size_bytes;
}

[[noreturn]] void refuse(std::string_view name, std::string_view what) {
  fail(StatusCode::kInvalidArgument, "tensor '", name, "' ", what);
}

void set_device(TensorRef& ref, const std::string& kind, int number) {
  ref.device = kind == "cpu"    ? DeviceKind::kCpu
               : kind == "cuda" ? DeviceKind::kCuda
                                : DeviceKind::kOther;
  ref.device_number = number;
  ref.device_name = ref.on_host() ? kind : concat(kind, ":", number);
}

bool is_torch_tensor(const py::object& object) {
  return py::hasattr(object, "data_ptr") && py::hasattr(object, "element_size") &&
         py::hasattr(object, "is_contiguous");
}

// torch counts pairs of 4-bit elements; safetensors counts elements.
void unpack_pairs(TensorRef& ref) {
  if (ref.dtype == DType::kF4 && !ref.shape.empty()) ref.shape.back() *= 2;
}

TensorRef from_torch(const py::object& tensor, std::string_view name) {
  TensorRef ref;
  const py::object device = tensor.attr("device");
  const py::object number = device.attr("index");
  set_device(ref, device.attr("type").cast<std::string>(),
             number.is_none() ? 0 : number.cast<int>());
  const auto layout = py::str(tensor.attr("layout")).cast<std::string>();
  if (layout != "torch.strided") refuse(name, concat("is ", layout, ": pass a dense tensor"));
  if (!tensor.attr("is_contiguous")().cast<bool>()) {
    refuse(name, "is not contiguous: pass tensor.contiguous()");
  }
  if (tensor.attr("is_conj")().cast<bool>() || tensor.attr("is_neg")().cast<bool>()) {
    refuse(name, "is a lazy conjugate or negative: resolve it first");
  }
  auto type = py::str(tensor.attr("dtype")).cast<std::string>();
  type.erase(0, type.find('.') + 1);
  const Result<DType> dtype = parse_torch_dtype(type);
  if (!dtype.ok())
    refuse(name, concat("has dtype torch.", type, ", which safetensors does not have"));
  ref.dtype = *dtype;
  ref.shape = shape_of(tensor.attr("shape"));
  unpack_pairs(ref);
  set_size(ref, name);
  ref.data = memory_at(tensor.attr("data_ptr")().cast<std::uint64_t>());
  ref.owner = tensor;
  return ref;
}

// __array_interface__ (numpy) and __cuda_array_interface__ have the same keys.
TensorRef from_interface(const py::object& array, const py::dict& interface,
                         std::string_view name) {
  TensorRef ref;
  ref.shape = shape_of(interface["shape"]);
  const auto type = interface["typestr"].cast<std::string>();
  const py::object dtype = py::getattr(array, "dtype", py::none());
  const auto type_name = py::str(py::getattr(dtype, "name", py::str(""))).cast<std::string>();
  const Result<DType> found = dtype_of_typestr(type, type_name);
  if (!found.ok()) refuse(name, found.status().message());
  ref.dtype = *found;
  ref.plain_bits = type.size() > 1 && type[1] == 'u';
  set_size(ref, name);
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    std::vector<std::int64_t> strides;
    for (const py::handle step : interface["strides"]) strides.push_back(step.cast<std::int64_t>());
    if (!contiguous(ref.shape, strides, unit_bytes(ref.dtype))) {
      refuse(name, "is not contiguous: pass numpy.ascontiguousarray(tensor)");
    }
  }
  const py::tuple data = interface["data"];
  ref.data = memory_at(data[0].cast<std::uint64_t>());
  ref.read_only = data[1].cast<bool>();
  ref.owner = array;
  return ref;
}

py::module_ arrays() { return py::module_::import("driftless.arrays"); }

// bytes, bytearray, memoryview, array.array and their like.
TensorRef from_buffer(const py::object& object, std::string_view name) {
  auto view = std::make_shared<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_FULL_RO) != 0) {
    throw py::error_already_set();
  }
  // The last reference releases the buffer, on whichever thread.
  const py::capsule released(new std::shared_ptr<Py_buffer>(view), [](void* held) {
    auto* const buffer = static_cast<std::shared_ptr<Py_buffer>*>(held);
    PyBuffer_Release(buffer->get());
    delete buffer;
  });
  TensorRef ref;
  const std::string format = view->format == nullptr ? "B" : view->format;
  const Result<DType> dtype = dtype_of_format(format, static_cast<std::size_t>(view->itemsize));
  if (!dtype.ok()) refuse(name, dtype.status().message());
  ref.dtype = *dtype;
  ref.plain_bits = format.find_first_of("BHILQ") != std::string::npos;
  for (int i = 0; i < view->ndim; ++i) {
    ref.shape.push_back(static_cast<std::uint64_t>(view->shape[i]));
  }
  set_size(ref, name);
  if (PyBuffer_IsContiguous(view.get(), 'C') == 0) {
    refuse(name, "is not contiguous: pass a C-contiguous buffer");
  }
  ref.data = static_cast<std::byte*>(view->buf);
  ref.read_only = view->readonly != 0;
  ref.owner = released;
  return ref;
}

}  // namespace

void TensorRef::set_cuda(int number) { set_device(*this, "cuda", number); }

TensorRef TensorRef::of(const TensorSpec& spec, std::byte* data,
                        std::shared_ptr<const void> memory) {
  TensorRef ref;
  ref.data = data;
  ref.dtype = spec.dtype;
  ref.shape = spec.shape;
  ref.size_bytes = spec.size_bytes;
  ref.memory = std::move(memory);
  return ref;
}

TensorRef TensorRef::read_only_of(const TensorSpec& spec, const std::byte* data,
                                  std::shared_ptr<const void> memory) {
  TensorRef ref = of(spec, const_cast<std::byte*>(data), std::move(memory));
  ref.read_only = true;
  return ref;
}

TensorRef tensor_ref(const py::object& object, std::string_view name) {
  if (py::isinstance<TensorRef>(object)) {
    TensorRef ref = object.cast<TensorRef&>();
    ref.owner = object;
    return ref;
  }
  if (is_torch_tensor(object)) return from_torch(object, name);
  for (const char* key : {"__array_interface__", "__cuda_array_interface__"}) {
    if (!py::hasattr(object, key)) continue;
    TensorRef ref = from_interface(object, object.attr(key), name);
    if (key[2] == 'c') ref.set_cuda(0);
    return ref;
  }
  if (py::hasattr(object, "__dlpack__")) {
    TensorRef ref = from_dlpack(object, name);
    set_size(ref, name);
    return ref;
  }
  if (PyObject_CheckBuffer(object.ptr()) != 0) return from_buffer(object, name);
  fail(StatusCode::kInvalidArgument, "tensor '", name, "' is a ",
       py::str(py::type::of(object).attr("__name__")).cast<std::string>(),
       ": expected a torch tensor, a numpy array, or an object with __dlpack__, "
       "__cuda_array_interface__ or the buffer protocol");
}

Status check_on_host(const TensorRef& ref, std::string_view name) {
  if (ref.on_host()) return {};
  if (ref.device == DeviceKind::kCuda) {
    return error(StatusCode::kUnsupported, "tensor '", name, "' is on ", ref.device_name,
                 ": this takes tensors in host memory, pass tensor.cpu()");
  }
  return error(StatusCode::kUnsupported, "tensor '", name, "' is on ", ref.device_name,
               ": expected cpu");
}

Status check_writable(const TensorRef& ref, std::string_view name) {
  if (!ref.read_only) return {};
  return error(StatusCode::kInvalidArgument, "tensor '", name,
               "' is read-only: weights are written into it");
}

Status check_tensor(const TensorRef& ref, const TensorSpec& spec) {
  const bool bits_pass = ref.plain_bits && unit_bytes(ref.dtype) == unit_bytes(spec.dtype) &&
                         info(spec.dtype).bits >= 8;
  if (ref.dtype != spec.dtype && !bits_pass) {
    return error(StatusCode::kInvalidArgument, "tensor '", spec.name, "' has dtype ",
                 info(ref.dtype).name, ", expected ", info(spec.dtype).name);
  }
  if (ref.shape != spec.shape) {
    const TensorSpec found{spec.name, ref.dtype, ref.shape, ref.size_bytes};
    return error(StatusCode::kInvalidArgument, "tensor '", spec.name, "' has shape ",
                 found.shape_string(), ", expected ", spec.shape_string());
  }
  return ref.device == DeviceKind::kCuda ? Status() : check_on_host(ref, spec.name);
}

std::uint64_t units_of(const TensorRef& ref) { return ref.size_bytes / unit_bytes(ref.dtype); }

void check_alike(const TensorRef& a, const TensorRef& b, std::string_view name) {
  if (unit_bytes(a.dtype) == unit_bytes(b.dtype) && a.size_bytes == b.size_bytes) return;
  fail(StatusCode::kInvalidArgument, "tensor '", name, "' has ", b.size_bytes, " bytes of ",
       info(b.dtype).name, ", expected ", a.size_bytes, " bytes of ", info(a.dtype).name);
}

DType unit_type(DType dtype) { return info(dtype).bits < 8 ? DType::kU8 : dtype; }

TensorRef allocate_tensor(DType dtype, std::vector<std::uint64_t> shape) {
  const TensorSpec spec = take(TensorSpec::make("result", dtype, std::move(shape)));
  const std::shared_ptr<std::byte[]> memory(new std::byte[spec.size_bytes + 1]());
  return TensorRef::of(spec, memory.get(), memory);
}

void bind_tensor_ref(py::module_& module) {
  py::class_<TensorRef> tensor(
      module, "TensorRef", py::buffer_protocol(),
      "A contiguous tensor in another object's memory, which it keeps alive. Made from a torch "
      "tensor, a numpy array, or an object with __dlpack__, __cuda_array_interface__ or the buffer "
      "protocol. Types have their names in safetensors, such as BF16.");
  def_fields(tensor, "dtype", &TensorRef::dtype, "size_bytes", &TensorRef::size_bytes, "device",
             &TensorRef::device_name, "read_only", &TensorRef::read_only);
  tensor
      .def(py::init([](const py::object& object, const std::string& name) {
             return tensor_ref(object, name);
           }),
           py::arg("tensor"), py::arg("name") = "tensor")
      .def_static(
          "from_pointer",
          [](std::uintptr_t data, const std::string& dtype, std::vector<std::uint64_t> shape,
             const std::string& device, bool read_only, const py::object& owner) {
            TensorRef ref;
            ref.data = memory_at(data);
            ref.dtype = take(parse_dtype(dtype));
            ref.shape = std::move(shape);
            set_size(ref, "from_pointer");
            const std::size_t colon = device.find(':');
            const bool numbered = colon != std::string::npos;
            set_device(ref, device.substr(0, colon),
                       numbered ? py::int_(py::str(device.substr(colon + 1))).cast<int>() : 0);
            ref.read_only = read_only;
            ref.owner = owner;
            if (data == 0 && ref.size_bytes > 0) refuse("from_pointer", "has a null pointer");
            return ref;
          },
          py::arg("data"), py::arg("dtype"), py::arg("shape"), py::arg("device") = "cpu",
          py::arg("read_only") = false, py::arg("owner") = py::none(),
          "A tensor at an address. The TensorRef keeps `owner` alive.")
      .def_property_readonly(
          "data_address",
          [](const TensorRef& ref) { return reinterpret_cast<std::uintptr_t>(ref.data); })
      .def_property_readonly("shape",
                             [](const TensorRef& ref) { return py::tuple(py::cast(ref.shape)); })
      .def("__dlpack_device__",
           [](const TensorRef& ref) {
             return py::make_tuple(dlpack_device(ref), ref.device_number);
           })
      .def("__dlpack__",
           [](const py::object& self, const py::kwargs& options) -> py::object {
             return to_dlpack(self, options);
           })
      .def(
          "numpy", [](const py::object& self) { return arrays().attr("to_numpy")(self); },
          "A view. Types that numpy does not have appear as unsigned integers of their width.")
      .def(
          "torch", [](const py::object& self) { return arrays().attr("to_torch")(self); },
          "A view. Do not write through it if the TensorRef is read-only.")
      .def("__repr__",
           [](const TensorRef& ref) {
             const TensorSpec spec{"", ref.dtype, ref.shape, ref.size_bytes};
             return concat("TensorRef(", info(ref.dtype).name, ", ", spec.shape_string(), ", ",
                           ref.device_name, ref.read_only ? ", read-only)" : ")");
           })
      .def_buffer([](TensorRef& ref) {
        check(check_on_host(ref, "buffer"));
        return buffer_of(ref);
      });
}

}  // namespace driftless::python
