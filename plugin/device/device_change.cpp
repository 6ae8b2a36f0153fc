#include "plugin/device/device_change.h"

#include <algorithm>
#include <cstring>

namespace driftless {
namespace {

constexpr std::uint64_t kSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);
constexpr std::uint64_t kSumsRoom = 256;  // keeps what follows aligned

}  // namespace

Status DeviceWeights::reserve(DeviceRoom& held, std::uint64_t dev_bytes, std::uint64_t host_bytes,
                              const std::string& what) {
  if (options.max_staging_bytes != 0 && dev_bytes > options.max_staging_bytes) {
    return error(StatusCode::kNoSpace, what, " takes ", dev_bytes,
                 " bytes of the GPU's memory, at most ", options.max_staging_bytes,
                 " are allowed; publish smaller versions, or fold fewer of them");
  }
  DRIFTLESS_RETURN_IF_ERROR(held.dev.reserve(dev_bytes, MemoryKind::kDevice).with_context(what));
  DRIFTLESS_RETURN_IF_ERROR(held.host.reserve(host_bytes, MemoryKind::kHost).with_context(what));
  memory.device_bytes = held.dev.size();
  memory.pinned_bytes = held.host.size() + uploader.pinned_bytes();
  return {};
}

RoomLease::RoomLease(std::shared_ptr<DeviceWeights> weights)
    : weights_(std::move(weights)), room_(std::move(weights_->room)) {}

RoomLease::~RoomLease() {
  // Where even waiting fails the device is lost, and with it what worked there.
  static_cast<void>(weights_->stream.wait());
  if (room_.dev.size() >= weights_->room.dev.size()) weights_->room = std::move(room_);
}

DigestRoom digest_room(std::span<const cuda::DigestPiece> pieces) {
  const cuda::WorkspaceSize size = cuda::digest_workspace_size(pieces);
  return {kSumsRoom + size.dev_bytes, kSumsRoom + size.host_bytes};
}

Result<Digest> digest_on_device(const DeviceWeights& weights,
                                std::span<const cuda::DigestPiece> pieces,
                                std::span<std::byte> room_dev, std::span<std::byte> room_host) {
  if (pieces.empty()) return Digest();
  if (room_dev.size() < kSumsRoom || room_host.size() < kSumsRoom) {
    return error(StatusCode::kInternal, "no room for the sums of a digest");
  }
  const cuda::Workspace workspace{room_dev.data() + kSumsRoom, room_dev.size() - kSumsRoom,
                                  room_host.data() + kSumsRoom, room_host.size() - kSumsRoom};
  DRIFTLESS_RETURN_IF_ERROR(cuda::digest(
      pieces, workspace, reinterpret_cast<std::uint64_t*>(room_dev.data()), weights.stream.get()));
  DRIFTLESS_RETURN_IF_ERROR(weights.stream.copy(room_host.data(), room_dev.data(), kSumsBytes));
  DRIFTLESS_RETURN_IF_ERROR(weights.stream.wait());
  std::uint64_t sums[cuda::kDigestSums];
  std::memcpy(sums, room_host.data(), kSumsBytes);
  return cuda::digest_from_sums(sums);
}

Result<Digest> digest_of(const std::shared_ptr<DeviceWeights>& weights) {
  std::vector<cuda::DigestPiece> pieces;
  for (std::size_t i = 0; i < weights->layout.size(); ++i) {
    if (!weights->holds(i)) continue;
    pieces.push_back({weights->data[i], weights->layout[i].size_bytes, 0, weights->keys[i]});
  }
  RoomLease room(weights);
  const DigestRoom work = digest_room(pieces);
  DRIFTLESS_RETURN_IF_ERROR(
      weights->reserve(*room, work.dev_bytes, work.host_bytes, "reading the weights once"));
  return digest_on_device(*weights, pieces, room->dev_bytes(), room->host_bytes());
}

}  // namespace driftless
