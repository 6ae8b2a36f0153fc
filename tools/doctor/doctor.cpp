// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/doctor.h"

#include <array>
#include <filesystem>

#include "core/url_text.h"
#include "plugin/job/job_process.h"

namespace driftless::doctor {
namespace {

constexpr std::array<std::string_view, 9> kGroups = {
    "configuration", "mpi", "cuda", "nccl", "nixl", "road", "host", "engine", "python"};

constexpr const char* kNoteRoad = "look whether the file system or the store answers at all";
constexpr const char* kNoteEngine = "look at the engine's log: it accepts calls and answers none";

}  // namespace

std::span<const std::string_view> all_groups() { return kGroups; }

const Road* Context::road() const {
  if (!configured) return nullptr;
  const std::string name = config.road_row();
  const auto at = std::ranges::find(roads->roads, name, &Road::name);
  return at == roads->roads.end() ? nullptr : &*at;
}

bool Context::needs_mpi() const {
  const Road* const row = road();
  return row != nullptr && row->needs_mpi != nullptr;
}

bool Context::needs_gpu() const {
  return configured &&
         (!config.kind().gpu_library.empty() || config.target == TargetKind::kDevice ||
          config.frames_on_device() || config.gpu.snapshot == SnapshotPlace::kPinned ||
          config.gpu.snapshot == SnapshotPlace::kDevice);
}

bool Context::needs(std::string_view backend) const {
  if (backend == "cuda") return needs_gpu();
  if (backend == "engines") return !engines.empty();
  const Road* const row = road();
  return row != nullptr && row->name == backend;
}

std::string Context::why_not(std::string_view backend) const {
  const auto at = std::ranges::find(backends, backend, &Backend::name);
  if (at == backends.end()) return "this build does not know it";
  return at->why_not;
}

bool Context::in_build(std::string_view backend) const {
  const auto road = std::ranges::find(roads->roads, backend, &Road::name);
  if (road != roads->roads.end()) return road->at.why_not.empty();
  const auto part = std::ranges::find(roads->parts, backend, &Part::name);
  return part != roads->parts.end() && part->why_not.empty();
}

std::uint64_t Context::checkpoint_bytes() const {
  if (!configured) return 0;
  for (const std::string& path :
       {config.publisher.assets_dir, config.of_road<SharedFsOptions>().foreign_base,
        filled_in(config.checkpoint_dir, "rollout", 0),
        filled_in(config.agent.checkpoint_dir, "agent", 0)}) {
    std::error_code problem;
    std::uint64_t bytes = 0;
    if (path.empty()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(path, problem)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::uintmax_t size = entry.file_size(problem);
      if (!problem) bytes += size;
    }
    if (bytes > 0) return bytes;
  }
  return 0;
}

std::vector<Check> all_checks(const Context& context, std::span<const std::string> only) {
  std::vector<Check> checks = {
      {"configuration", check_configuration},
      {"mpi", check_mpi, unless_needed(context.needs_mpi(), FindingState::kWarn),
       "start a small job by hand: mpirun -n 2 hostname"},
      {"cuda", check_cuda, unless_needed(context.needs_gpu(), FindingState::kWarn),
       "look at the driver: nvidia-smi"},
      {"nccl", check_nccl, unless_needed(context.needs_gpu(), FindingState::kWarn)},
      {"nixl", check_nixl, FindingState::kWarn},
      {"road", check_road, FindingState::kFail, kNoteRoad},
      {"host", check_host},
      {"python", check_python, FindingState::kWarn, "name another one by --python"}};
  for (const EngineEndpoint& engine : context.engines) {
    checks.push_back(
        {concat("engine ", public_url(engine.url)),
         [engine](const Context& at, const Report& report) { check_engine(engine, at, report); },
         FindingState::kFail, kNoteEngine});
  }
  if (only.empty()) return checks;
  // A wrong configuration is reported even if `only` does not name its group: the other results
  // depend on it.
  const bool wrong = !context.config_status.ok();
  std::erase_if(checks, [&](const Check& check) {
    const std::string word = check.group.substr(0, check.group.find(' '));
    return std::ranges::find(only, word) == only.end() && !(wrong && word == kGroups.front());
  });
  return checks;
}

}  // namespace driftless::doctor
