#include "plugin/engine_notifier.h"

#include <algorithm>
#include <string_view>

namespace driftless {
namespace {

bool is_version_name(std::string_view name) {
  for (const std::string_view prefix : {"weight_v", "anchor_v"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view digits = name.substr(prefix.size());
    return digits.size() >= 6 &&
           std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  }
  return false;
}

}  // namespace

bool all_acknowledged(const std::vector<EngineResult>& results) {
  return std::ranges::all_of(results,
                             [](const EngineResult& result) { return result.status.ok(); });
}

Status cleanup_version(FileSystem& fs, const std::string& version_directory) {
  std::string path = version_directory;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (!is_version_name(name)) {
    return error(StatusCode::kInvalidArgument, version_directory,
                 ": is no directory of a version (weight_v000007), so it is not removed");
  }
  // Hidden first: nobody finds half of a version. One that a crash left there goes, too.
  const std::string hidden = join_path(parent, concat(".", name, ".removed"));
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  if (!exists(fs, path)) return {};
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_directory(path, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(parent));
  return remove_tree(fs, hidden);
}

}  // namespace driftless
