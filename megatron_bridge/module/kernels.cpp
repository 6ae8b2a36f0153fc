// SPDX-License-Identifier: Apache-2.0
// Operations on elements (diff, gather, scatter, masked overwrite, digest) in host memory. CUDA
// tensors are passed to device_kernels.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/host_kernels.h"
#include "kernels/tensor_ops.h"
#include "module/bindings.h"
#include "module/device_kernels.h"
#include "module/errors.h"
#include "module/tensor_ref.h"

namespace driftless::python {
namespace {

constexpr std::uint64_t kMostOffset = std::numeric_limits<std::uint32_t>::max() - 1;

TensorRef host_tensor(const py::object& object, std::string_view name) {
  TensorRef ref = tensor_ref(object, name);
  check(check_on_host(ref, name));
  return ref;
}

bool on_device(const TensorRef& ref) { return ref.device == DeviceKind::kCuda; }

struct Found {
  std::vector<std::uint64_t> positions;
  std::vector<std::byte> values;
};

Result<Found> find_changes(const TensorPair& pair, unsigned threads) {
  Found found;
  const std::vector<TensorPair> pairs{pair};
  DiffOptions options;
  options.threads = threads;
  DRIFTLESS_RETURN_IF_ERROR(
      diff_tensors(host_kernels(), pairs, options, {}, [&](const DiffPiece& piece) -> Status {
        try {
          for (const std::uint32_t offset : piece.delta.offsets) {
            found.positions.push_back(piece.delta.origin + offset);
          }
          const auto values = piece.delta.value_bytes();
          found.values.insert(found.values.end(), values.begin(), values.end());
          return {};
        } catch (const std::bad_alloc&) {
          return error(StatusCode::kNoSpace, "diff: no memory for the result");
        }
      }));
  return found;
}

// Returns (positions as I64, new values) of the units that differ.
py::tuple diff(const py::object& old_tensor, const py::object& new_tensor, unsigned threads,
               const StreamNumber& stream) {
  const TensorRef before = tensor_ref(old_tensor, "old");
  if (on_device(before)) return diff_on_device(before, new_tensor, stream);
  check(check_on_host(before, "old"));
  const TensorRef after = host_tensor(new_tensor, "new");
  check_alike(before, after, "new");
  const TensorPair pair{0, unit_bytes(before.dtype), units_of(before), before.data, after.data};
  const Found changes =
      take(without_gil([&] { return find_changes(pair, threads_or_default(threads)); }));
  const std::uint64_t count = changes.positions.size();
  TensorRef positions = allocate_tensor(DType::kI64, {count});
  TensorRef values = allocate_tensor(unit_type(after.dtype), {count});
  if (count > 0) {
    std::memcpy(positions.data, changes.positions.data(), positions.size_bytes);
    std::memcpy(values.data, changes.values.data(), values.size_bytes);
  }
  return py::make_tuple(std::move(positions), std::move(values));
}

// Checks that positions are 64-bit, within the tensor, and ascending if that is required.
std::span<const std::int64_t> positions_in(const TensorRef& positions, const TensorRef& tensor,
                                           bool ascending) {
  if (positions.dtype != DType::kI64 && positions.dtype != DType::kU64) {
    fail(StatusCode::kInvalidArgument, "positions have dtype ", info(positions.dtype).name,
         ", expected I64");
  }
  if (reinterpret_cast<std::uintptr_t>(positions.data) % alignof(std::int64_t) != 0) {
    fail(StatusCode::kInvalidArgument, "positions are not aligned: copy them");
  }
  const std::span<const std::int64_t> all(reinterpret_cast<const std::int64_t*>(positions.data),
                                          units_of(positions));
  const auto units = static_cast<std::int64_t>(units_of(tensor));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool wrong_order = ascending && i > 0 && all[i] <= all[i - 1];
    if (all[i] >= 0 && all[i] < units && !wrong_order) continue;
    fail(StatusCode::kInvalidArgument, "positions[", i, "] is ", all[i],
         wrong_order ? ": expected ascending positions" : ": expected below ",
         wrong_order ? "" : std::to_string(units));
  }
  return all;
}

// Calls `use` for each stretch of positions that fits a common base, because the kernels take
// 32-bit offsets.
template <typename Use>
void by_stretches(std::span<const std::int64_t> positions, const Use& use) {
  constexpr std::size_t kMost = 1 << 16;
  std::vector<std::uint32_t> offsets;
  for (std::size_t begin = 0; begin < positions.size();) {
    const auto base = static_cast<std::uint64_t>(positions[begin]);
    offsets.clear();
    std::size_t end = begin;
    for (; end < positions.size() && offsets.size() < kMost; ++end) {
      const auto position = static_cast<std::uint64_t>(positions[end]);
      if (position < base || position - base > kMostOffset) break;
      offsets.push_back(static_cast<std::uint32_t>(position - base));
    }
    use(base, begin, offsets);
    begin = end;
  }
}

TensorRef gather(const py::object& tensor, const py::object& positions,
                 const StreamNumber& stream) {
  const TensorRef from = tensor_ref(tensor, "tensor");
  if (on_device(from)) return gather_on_device(from, positions, stream);
  check(check_on_host(from, "tensor"));
  const TensorRef where = host_tensor(positions, "positions");
  const unsigned unit = unit_bytes(from.dtype);
  TensorRef values = allocate_tensor(unit_type(from.dtype), {units_of(where)});
  const py::gil_scoped_release released;
  const std::span<const std::int64_t> all = positions_in(where, from, false);
  by_stretches(all, [&](std::uint64_t base, std::size_t begin, const auto& offsets) {
    host_kernels().gather(from.data + base * unit, unit, offsets.data(), offsets.size(),
                          values.data + begin * unit);
  });
  return values;
}

void scatter(const py::object& tensor, const py::object& positions, const py::object& values,
             const StreamNumber& stream) {
  const TensorRef to = tensor_ref(tensor, "tensor");
  if (on_device(to)) return scatter_on_device(to, positions, values, stream);
  check(check_on_host(to, "tensor"));
  const TensorRef where = host_tensor(positions, "positions");
  const TensorRef what = host_tensor(values, "values");
  check(check_writable(to, "tensor"));
  const unsigned unit = unit_bytes(to.dtype);
  const py::gil_scoped_release released;
  const std::span<const std::int64_t> all = positions_in(where, to, true);
  check_values(what, to, all.size());
  by_stretches(all, [&](std::uint64_t base, std::size_t begin, const auto& offsets) {
    host_kernels().scatter(to.data + base * unit, unit, offsets.data(), offsets.size(),
                           what.data + begin * unit);
  });
}

std::uint64_t masked_overwrite(const py::object& target, const py::object& source,
                               std::uint64_t sentinel, const StreamNumber& stream) {
  const TensorRef to = tensor_ref(target, "target");
  if (on_device(to)) return masked_overwrite_on_device(to, source, sentinel, stream);
  check(check_on_host(to, "target"));
  const TensorRef from = host_tensor(source, "source");
  check(check_writable(to, "target"));
  check_alike(to, from, "source");
  const py::gil_scoped_release released;
  return host_kernels().masked_overwrite(to.data, from.data, units_of(to), unit_bytes(to.dtype),
                                         sentinel);
}

Digest digest_of(const std::string& name, const py::object& tensor, unsigned threads,
                 const StreamNumber& stream) {
  const TensorRef ref = tensor_ref(tensor, name);
  check(check_tensor_name(name));
  if (on_device(ref)) return digest_on_device(name, ref, stream);
  check(check_on_host(ref, name));
  const py::gil_scoped_release released;
  return digest_tensor(host_kernels(), digest_tensor_key(name), {ref.data, ref.size_bytes},
                       threads_or_default(threads));
}

std::string digest_all(const py::iterable& tensors, unsigned threads, const StreamNumber& stream) {
  Digest sum;
  for (const py::handle entry : tensors) {
    const auto pair = entry.cast<py::tuple>();
    if (pair.size() != 2) throw py::value_error("digest() takes pairs of (name, tensor)");
    sum += digest_of(pair[0].cast<std::string>(), pair[1], threads, stream);
  }
  return to_hex(sum);
}

}  // namespace

// driftless/kernels.py exports these functions.
void bind_kernels(py::module_& module) {
  const auto stream = py::arg("stream") = py::none();
  module.def("digest", &digest_all, py::arg("tensors"), py::arg("threads") = 0, stream,
             "The digest of weights, given as (name, tensor) pairs, as publishers and receivers "
             "compute it.");
  module.def(
      "add_digests",
      [](const std::vector<std::string>& digests) {
        Digest sum;
        for (const std::string& each : digests) sum += take(digest_from_hex(each));
        return to_hex(sum);
      },
      py::arg("digests"), "The digest of all tensors together, from those of disjoint tensors.");
  module.def("diff", &diff, py::arg("old"), py::arg("new"), py::arg("threads") = 0, stream,
             "(positions as I64, new values) of the units whose bits differ.");
  module.def("gather", &gather, py::arg("tensor"), py::arg("positions"), stream);
  module.def("scatter", &scatter, py::arg("tensor"), py::arg("positions"), py::arg("values"),
             stream, "Writes the values; positions ascend.");
  module.def(
      "masked_overwrite", &masked_overwrite, py::arg("target"), py::arg("source"),
      py::arg("sentinel"), stream,
      "Copies the units of source that are not the sentinel; returns how many were written.");
  module.def(
      "digest_tensor",
      [](const std::string& name, const py::object& tensor, unsigned threads,
         const StreamNumber& on) { return to_hex(digest_of(name, tensor, threads, on)); },
      py::arg("name"), py::arg("tensor"), py::arg("threads") = 0, stream);
}

}  // namespace driftless::python
