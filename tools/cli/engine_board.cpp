#include "tools/cli/engine_board.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "formats/version_dir.h"
#include "plugin/job/config_values.h"

namespace driftless::cli {
namespace {

constexpr std::uint64_t kMaxTokenBytes = 64 << 10;

}  // namespace

Result<std::string> read_token(const std::string& path) {
  if (path.empty()) return std::string();
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token,
                             read_text(posix_file_system(), path, kMaxTokenBytes));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) {
    token.pop_back();
  }
  return token;
}

Result<std::unique_ptr<EngineBoard>> EngineBoard::open(const Config& config) {
  if (config.engines.empty()) return std::unique_ptr<EngineBoard>();
  NotifyOptions options = config.notify;
  options.engines.clear();
  for (const EngineConfig& engine : config.engines) {
    EngineEndpoint endpoint = engine.endpoint;
    DRIFTLESS_ASSIGN_OR_RETURN(endpoint.token, read_token(engine.token_file));
    options.engines.push_back(std::move(endpoint));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineNotifier> notifier,
                             EngineNotifier::create(std::move(options)));
  // The engines have another working directory.
  std::error_code failed;
  const std::string dir = std::filesystem::absolute(config.shared_fs.dir, failed).string();
  if (failed) return errno_status(failed.value(), config.shared_fs.dir);
  return std::unique_ptr<EngineBoard>(
      new EngineBoard(dir, longest(config), config.publisher.layout, std::move(notifier)));
}

std::chrono::milliseconds EngineBoard::longest(const Config& config) {
  using std::chrono::milliseconds;
  if (config.engines.empty()) return milliseconds(0);
  // Two calls at most, each tried retries + 1 times; the waits double. Retries are at most 10.
  const double tries = config.notify.retries + 1.0;
  const double waits = static_cast<double>(1U << config.notify.retries) - 1;
  const double ms = 2 * (static_cast<double>(config.notify.timeout.count()) * tries +
                         static_cast<double>(config.notify.retry_wait.count()) * waits);
  return std::min(kMaxDuration, milliseconds(static_cast<std::int64_t>(ms)));
}

std::string EngineBoard::version_dir(std::uint64_t version) const {
  return join_path(dir_, version_directory_name(version));
}

std::vector<EngineResult> EngineBoard::notify(std::uint64_t version) {
  PublishedVersion published{dir_, version_dir(version), version, {}, 0, false};
  if (layout_ == DirectoryLayout::kFlush) {
    Result<PublishedVersion> read = read_published_version(posix_file_system(), dir_, version);
    if (!read.ok()) {
      acknowledged_ = false;
      return {{"engines", read.status(), 0, 0, "", 0}};
    }
    published = std::move(*read);
  }
  std::vector<EngineResult> results = notifier_->notify(published, Deadline::after(longest_));
  acknowledged_ = all_acknowledged(results);
  return results;
}

Status EngineBoard::cleanup(std::uint64_t version) const {
  return cleanup_version(posix_file_system(), version_dir(version));
}

}  // namespace driftless::cli
