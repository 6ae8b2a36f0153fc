// SPDX-License-Identifier: Apache-2.0
// Checks CUDA's driver and its GPUs, and NCCL. Both libraries are loaded here, on demand.
#include <dlfcn.h>

#include <array>
#include <charconv>

#include "core/disk_space.h"
#include "doctor/cuda_build.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;

constexpr int kMajorAttribute = 75, kMinorAttribute = 76;  // of a CUdevice
constexpr int kMaxDevices = 64;
constexpr const char* kCudaLibrary = "libcuda.so.1";
constexpr const char* kNcclLibrary = "libnccl.so.2";
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

// A library that was loaded, or the loader's reason.
struct Library {
  void* handle = nullptr;
  bool there = true;  // false: the loader found no file of this name
  std::string why;

  explicit Library(const char* name) : handle(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle != nullptr) return;
    const char* const text = dlerror();  // NOLINT(concurrency-mt-unsafe)
    why = text == nullptr ? "" : text;
    there = !why.starts_with(concat(name, ": cannot open shared object file"));
  }
  // Its file, by one of its functions.
  [[nodiscard]] static std::string path_of(const void* function, const char* otherwise) {
    Dl_info file{};
    return dladdr(function, &file) != 0 ? file.dli_fname : otherwise;
  }
};

// The driver functions used here, by their names in cuda.h.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(std::size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*peer)(int*, int, int) = nullptr;
  int (*error_name)(int, const char**) = nullptr;  // null in a driver before CUDA 6

  // False if the library lacks one of them.
  bool load(void* library) {
    const auto find = [library](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      return function != nullptr;
    };
    find(error_name, "cuGetErrorName");
    return find(init, "cuInit") && find(version, "cuDriverGetVersion") &&
           find(count, "cuDeviceGetCount") && find(device, "cuDeviceGet") &&
           find(name, "cuDeviceGetName") && find(memory, "cuDeviceTotalMem_v2") &&
           find(attribute, "cuDeviceGetAttribute") && find(peer, "cuDeviceCanAccessPeer");
  }
  // "CUDA_ERROR_NO_DEVICE (100)"
  [[nodiscard]] std::string name_of(int code) const {
    const char* text = nullptr;
    const bool named = error_name != nullptr && error_name(code, &text) == 0 && text != nullptr;
    return named ? concat(text, " (", code, ")") : concat("error ", code);
  }
  [[nodiscard]] std::string path() const {
    return Library::path_of(reinterpret_cast<const void*>(init), kCudaLibrary);
  }
};

// What to do if cuInit returns this code, or if there is no device.
std::string next_of(int code, const Driver& driver, bool chosen) {
  switch (code) {
    case 0:
    case 100:  // CUDA_ERROR_NO_DEVICE
      return chosen ? concat("set ", kVisible, " to numbers that nvidia-smi -L lists, or unset it")
                    : "give this process a GPU: nvidia-smi -L; a container needs --gpus all";
    case 34:  // CUDA_ERROR_STUB_LIBRARY
      return concat(driver.path(),
                    " is the toolkit's stub: remove its folder from LD_LIBRARY_PATH");
    case 802:  // CUDA_ERROR_SYSTEM_NOT_READY
      return "start nvidia-fabricmanager, and wait until it is active";
    case 803:  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
      return concat("use a ", driver.path(),
                    " of the same release as the kernel's driver: restart after an update, or "
                    "mount the host's library");
    default: return "look at nvidia-smi, and at the kernel's log: dmesg";
  }
}

int number_at(std::string_view& text) {
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(code == std::errc() ? static_cast<std::size_t>(end - text.data()) : 0);
  return number;
}

// The toolkit's version as a number: 13000 for "13.0.88".
int toolkit_version() {
  std::string_view text = kCudaToolkit;
  const int major = number_at(text);
  if (!text.empty()) text.remove_prefix(1);
  return major * 1000 + number_at(text) * 10;
}

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

// Whether code of this build runs on a GPU. kCudaArchitectures has CMake's form:
// "80-real;90-real;120-virtual". Machine code runs on GPUs of the same major number and at least
// the minor one, PTX on any later GPU.
bool runs_on(int major, int minor) {
  const int gpu = major * 10 + minor;
  for (std::string_view rest = kCudaArchitectures; !rest.empty();) {
    std::string_view one = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const int built = number_at(one);
    const bool code = !one.ends_with("-virtual") && built / 10 == major && built <= gpu;
    const bool ptx = !one.ends_with("-real") && built <= gpu;
    if (code || ptx) return true;
  }
  return false;
}

// False if the driver does not report its release.
bool report_driver(const Driver& driver, bool needed, const Report& report) {
  int version = 0;
  if (const int code = driver.version(&version); code != 0) {
    report({"driver", unless_needed(needed, kWarn),
            concat(driver.path(), ": does not report its release: ", driver.name_of(code)),
            next_of(code, driver, false)});
    return false;
  }
  const int toolkit = toolkit_version();
  const std::string text = concat(driver.path(), ": supports CUDA ", version_text(version),
                                  toolkit == 0 ? "" : ", this build was made with ",
                                  toolkit == 0 ? "" : version_text(toolkit));
  // Within one major release, an older driver runs machine code but does not compile PTX.
  const bool too_old = version / 1000 < toolkit / 1000;
  const bool older = version < toolkit;
  report({"driver", too_old ? unless_needed(needed, kWarn) : (older ? kWarn : kOk), text,
          older ? concat("install a driver for CUDA ", version_text(toolkit),
                         " or later, or build "
                         "with an older toolkit")
                : ""});
  return true;
}

void report_device(const Driver& driver, int number, bool needed, const Report& report) {
  int device = 0, major = 0, minor = 0;
  std::array<char, 256> name{};
  std::size_t bytes = 0;
  const bool described = driver.device(&device, number) == 0 &&
                         driver.name(name.data(), static_cast<int>(name.size()) - 1, device) == 0 &&
                         driver.memory(&bytes, device) == 0 &&
                         driver.attribute(&major, kMajorAttribute, device) == 0 &&
                         driver.attribute(&minor, kMinorAttribute, device) == 0;
  const std::string check = concat("GPU ", number);
  if (!described) {
    return report({check, unless_needed(needed, kWarn), "the driver does not describe it",
                   "look at it: nvidia-smi"});
  }
  const std::string text =
      concat(name.data(), ", ", about(bytes), ", compute capability ", major, ".", minor);
  const bool compiled = kCudaArchitectures.empty() || runs_on(major, minor);
  report({check, compiled ? kOk : unless_needed(needed, kWarn),
          concat(text, compiled ? "" : concat("; compiled for ", kCudaArchitectures)),
          compiled ? ""
                   : concat("build with -DDRIFTLESS_CUDA_ARCHITECTURES=", major, minor, "-real")});
}

void report_peers(const Driver& driver, int devices, const Report& report) {
  if (devices < 2) return;
  int reach = 0, pairs = 0;
  std::string apart;
  for (int from = 0; from < devices; ++from) {
    for (int to = 0; to < devices; ++to) {
      int can = 0;
      if (from == to) continue;
      ++pairs;
      if (driver.peer(&can, from, to) == 0 && can != 0) {
        ++reach;
      } else {
        apart += concat(apart.empty() ? "" : ", ", from, "-", to);
      }
    }
  }
  report({"peers", reach == pairs ? kOk : kWarn,
          concat(reach, " of ", pairs, " pairs of GPUs reach each other's memory",
                 apart.empty() ? "" : concat("; not ", apart)),
          reach == pairs ? "" : "NCCL goes through host memory there: nvidia-smi topo -p2p r"});
}

}  // namespace

void check_cuda(const Context& context, const Report& report) {
  const bool needed = context.needs_gpu();
  if (const std::string why = context.why_not("cuda"); !why.empty()) {
    report({"built", unless_needed(needed, kSkip), concat("CUDA is not in this build: ", why),
            needed ? "build where nvcc is" : ""});
  }
  const Library library(kCudaLibrary);
  if (library.handle == nullptr) {
    const std::string next = "install NVIDIA's driver, or set snapshot: host and another road";
    if (!library.there) {
      return report({"driver", unless_needed(needed, kSkip),
                     concat("no driver: ", kCudaLibrary, " is not there"), needed ? next : ""});
    }
    return report({"driver", unless_needed(needed, kWarn), library.why,
                   concat("look at LD_LIBRARY_PATH: the driver's own library is another file; "
                          "else ",
                          next)});
  }
  Driver driver;
  if (!driver.load(library.handle)) {
    return report({"driver", unless_needed(needed, kWarn),
                   concat(kCudaLibrary, " lacks calls of CUDA 11"), "install a newer driver"});
  }
  if (!report_driver(driver, needed, report)) return;
  int devices = 0;
  const int begun = driver.init(0);
  if (begun != 0 || driver.count(&devices) != 0 || devices == 0) {
    const auto visible = context.variables(kVisible);
    const std::string reason = begun == 0 ? "" : concat(": cuInit returns ", driver.name_of(begun));
    return report(
        {"GPUs", unless_needed(needed, kWarn),
         concat("none", reason, visible ? concat("; ", kVisible, " is '", *visible, "'") : ""),
         next_of(begun, driver, visible.has_value())});
  }
  devices = std::min(devices, kMaxDevices);
  for (int number = 0; number < devices; ++number) report_device(driver, number, needed, report);
  const auto chosen = static_cast<int>(context.config.gpu.device);
  if (needed && chosen >= devices) {
    report({"gpu.device", kFail,
            concat("there is no GPU ", chosen, ", only ",
                   devices == 1 ? "GPU 0" : concat("GPU 0 to ", devices - 1)),
            concat("set another gpu.device, or show more GPUs by ", kVisible)});
  }
  report_peers(driver, devices, report);
}

void check_nccl(const Context& context, const Report& report) {
  const bool needed = context.configured && context.config.kind().gpu_library == "NCCL";
  const bool built = context.in_build("nccl");
  const std::string unusable = context.why_not("nccl");
  if (!built) {
    report({"built", unless_needed(needed, kSkip), concat("NCCL is not in this build: ", unusable),
            needed ? "set NCCL_ROOT and build again" : ""});
  }
  const Library library(kNcclLibrary);
  const std::string install =
      "pip install nvidia-nccl-cu13, install the package libnccl2, or add its folder to "
      "LD_LIBRARY_PATH";
  if (library.handle == nullptr) {
    return report({"library", unless_needed(needed, library.there ? kWarn : kSkip),
                   library.there ? library.why : concat(kNcclLibrary, " is not there"),
                   needed || library.there ? install : ""});
  }
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library.handle, "ncclGetVersion"));
  int number = 0;
  if (version == nullptr || version(&number) != 0) {
    return report({"library", unless_needed(needed, kWarn),
                   concat(kNcclLibrary, " does not report its release"), install});
  }
  const std::string found =
      concat(Library::path_of(reinterpret_cast<const void*>(version), kNcclLibrary), ": ",
             number / 10000, ".", number / 100 % 100, ".", number % 100);
  if (built && !unusable.empty()) {
    return report(
        {"library", unless_needed(needed, kWarn), concat(found, "; ", unusable), install});
  }
  report({"library", kOk, found});
}

}  // namespace driftless::doctor
