// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/weight_mirror.h"

#include <mutex>

#include "collectives/forwarding_receive_road.h"
#include "core/parallel.h"
#include "plugin/targets/version_stager.h"

namespace driftless {
namespace {

// Nobody need know of the mirror: it is no worker.
class SilentRoad final : public ForwardingReceiveRoad {
 public:
  using ForwardingReceiveRoad::ForwardingReceiveRoad;
  Status report(const ReceiverReport&, const Deadline&) override { return {}; }
  Status leave(const Deadline&) override { return {}; }
};

WeightView view_of(const MappedTarget& target) {
  WeightView view;
  view.name = "the agent's mirror";
  view.layout = target.layout();
  view.held = [](std::size_t) { return HeldShare::kAll; };
  view.bytes = [&target](std::size_t tensor, std::uint64_t offset, std::span<std::byte>) {
    return Result<const std::byte*>(target.tensor(tensor).data() + offset);
  };
  return view;
}

// The stager numbers no frames.
Status number_frame(std::span<const std::byte> bytes, const WeightLayout& layout,
                    std::uint32_t index, std::vector<std::byte>& out) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Frame frame,
                             Frame::decode(bytes, layout, max_frame_body_bytes(layout)));
  FrameContext context = frame.info().context;
  context.index = index;
  return encode_frame(context, frame.bucket(), out);
}

}  // namespace

WeightMirror::~WeightMirror() = default;

Result<std::unique_ptr<WeightMirror>> WeightMirror::open(const std::string& base,
                                                         std::unique_ptr<ReceiveRoad> road,
                                                         const ReceiverOptions& options,
                                                         const Deadline& deadline) {
  const unsigned threads = options.threads == 0 ? default_threads() : options.threads;
  std::unique_ptr<WeightMirror> mirror(new WeightMirror(threads));
  mirror->road_ = std::make_unique<SilentRoad>(std::shared_ptr<ReceiveRoad>(std::move(road)));
  DRIFTLESS_ASSIGN_OR_RETURN(mirror->target_,
                             make_owned_target(posix_file_system(), base, threads));
  DRIFTLESS_ASSIGN_OR_RETURN(mirror->receiver_,
                             Receiver::open(options, *mirror->road_, *mirror->target_, deadline));
  return mirror;
}

Status WeightMirror::follow() {
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool news,
                               receiver_->stage(Deadline::after(std::chrono::milliseconds(0))));
    if (!news) return {};
    DRIFTLESS_RETURN_IF_ERROR(receiver_->commit().status());
  }
}

std::optional<std::uint64_t> WeightMirror::version() const {
  const TargetState state = target_->state();
  return state.valid ? std::optional(state.id.version) : std::nullopt;
}

std::uint64_t WeightMirror::size_bytes() const { return target_->layout()->total_bytes(); }

Result<std::vector<std::vector<std::byte>>> WeightMirror::plain_frames(FetchedVersion version) {
  const WeightLayout& layout = *target_->layout();
  const TargetState state = target_->state();
  const Digest expected = version.manifest.digest;
  const std::string source = version.source;
  std::vector<FetchedVersion> chain;
  chain.push_back(std::move(version));
  DRIFTLESS_RETURN_IF_ERROR(check_chain(state, layout, chain));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<VersionSource> sources,
      open_chain(posix_file_system(), std::move(chain), layout, {}, threads_));
  // Frames of one tensor come in their order, from one thread.
  std::vector<std::vector<std::byte>> frames;
  std::mutex mutex;
  const auto keep = [&](std::span<const std::byte> bytes) -> Status {
    const std::scoped_lock lock(mutex);
    const auto index = static_cast<std::uint32_t>(frames.size());
    return number_frame(bytes, layout, index, frames.emplace_back());
  };
  StageOptions options;
  options.threads = threads_;
  const Result<StagedVersion> staged = stage_version(view_of(*target_), sources, options, keep);
  if (staged.status().code() == StatusCode::kMismatch) {
    const Status swept = target_->sweep().status();  // it holds no version then, or it does
  }
  DRIFTLESS_RETURN_IF_ERROR(staged.status());
  const Digest reached = state.digest + staged->digest_change;
  if (reached == expected) return frames;
  return error(StatusCode::kMismatch, source,
               ": decoded with the agent's mirror it leads to digest ", to_hex(reached),
               ", the manifest says ", to_hex(expected));
}

}  // namespace driftless
