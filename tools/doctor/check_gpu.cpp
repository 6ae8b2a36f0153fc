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

  // False if the library lacks one of them.
  bool load(void* library) {
    const auto find = [library](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      return function != nullptr;
    };
    return find(init, "cuInit") && find(version, "cuDriverGetVersion") &&
           find(count, "cuDeviceGetCount") && find(device, "cuDeviceGet") &&
           find(name, "cuDeviceGetName") && find(memory, "cuDeviceTotalMem_v2") &&
           find(attribute, "cuDeviceGetAttribute") && find(peer, "cuDeviceCanAccessPeer");
  }
};

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

void report_driver(const Driver& driver, bool needed, const Report& report) {
  int version = 0;
  if (driver.version(&version) != 0) {
    return report({"driver", unless_needed(needed, kWarn), "it does not report its release"});
  }
  const int toolkit = toolkit_version();
  const std::string text = concat("the driver supports CUDA ", version_text(version),
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
}

void report_device(const Driver& driver, int number, bool needed, const Report& report) {
  int device = 0, major = 0, minor = 0;
  std::array<char, 256> name{};
  std::size_t bytes = 0;
  const bool told = driver.device(&device, number) == 0 &&
                    driver.name(name.data(), static_cast<int>(name.size()) - 1, device) == 0 &&
                    driver.memory(&bytes, device) == 0 &&
                    driver.attribute(&major, kMajorAttribute, device) == 0 &&
                    driver.attribute(&minor, kMinorAttribute, device) == 0;
  const std::string check = concat("GPU ", number);
  if (!told) {
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
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return report(
        {"driver", unless_needed(needed, kSkip), "no driver: libcuda.so.1 is not there",
         needed ? "install NVIDIA's driver, or set snapshot: host and another road" : ""});
  }
  Driver driver;
  if (!driver.load(library)) {
    return report({"driver", unless_needed(needed, kWarn), "libcuda.so.1 lacks calls of CUDA 11",
                   "install a newer driver"});
  }
  report_driver(driver, needed, report);
  int devices = 0;
  const int begun = driver.init(0);
  if (begun != 0 || driver.count(&devices) != 0 || devices == 0) {
    return report({"GPUs", unless_needed(needed, kWarn), concat("none (cuInit: ", begun, ")"),
                   "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"});
  }
  devices = std::min(devices, kMaxDevices);
  for (int number = 0; number < devices; ++number) report_device(driver, number, needed, report);
  const auto chosen = static_cast<int>(context.config.gpu.device);
  if (needed && chosen >= devices) {
    report({"gpu.device", kFail, concat("number ", chosen, " of ", devices, " GPUs"),
            "lower gpu.device, or show more of them by CUDA_VISIBLE_DEVICES"});
  }
  report_peers(driver, devices, report);
}

void check_nccl(const Context& context, const Report& report) {
  const bool needed = context.configured && context.config.road == "nccl";
  if (const std::string why = context.why_not("nccl"); !why.empty()) {
    report({"built", unless_needed(needed, kSkip), concat("NCCL is not in this build: ", why),
            needed ? "set NCCL_ROOT and build again" : ""});
  }
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  const auto version = library == nullptr
                           ? nullptr
                           : reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int number = 0;
  if (version == nullptr || version(&number) != 0) {
    return report({"library", unless_needed(needed, kSkip), "libnccl.so.2 is not there",
                   needed ? "install NCCL, or add its folder to LD_LIBRARY_PATH" : ""});
  }
  Dl_info file{};
  const char* const path =
      dladdr(reinterpret_cast<void*>(version), &file) != 0 ? file.dli_fname : "libnccl.so.2";
  report({"library", kOk,
          concat(path, ": ", number / 10000, ".", number / 100 % 100, ".", number % 100)});
}

}  // namespace driftless::doctor
