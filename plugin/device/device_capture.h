// SPDX-License-Identifier: Apache-2.0
// DeviceCapture: captures changes of weights on a GPU as they are written
// (PublisherDevice::capture()). The comparison is queued on the trainer's own stream without a
// wait; the changes stay on the device until fetch() copies them to the host and sorts them.
// Private to plugin/device.
//
// Device memory: 2 bytes and two values per change, plus a quarter; 20 bytes per 32 KiB of weights.
// Pinned memory: kFetchBytes, and 4 bytes per 32 KiB.
#pragma once

#include <functional>
#include <vector>

#include "kernels/tensor_ops.h"
#include "plugin/device/device_memory.h"
#include "plugin/publish/change_store.h"

namespace driftless {

// One thread at a time.
class DeviceCapture {
 public:
  static constexpr std::uint64_t kFetchBytes = std::uint64_t{32} << 20;
  using UseChanges = std::function<void(std::uint32_t, std::uint64_t, PieceChanges&)>;

  // The first capture of the same tensors waits, to allocate room for their changes. Later captures
  // have room for a quarter more changes than the most so far, but never for more than
  // `limit_bytes` in all (4 bytes and two values per change).
  [[nodiscard]] Status capture(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                               const DeviceStream& trainer);
  // Waits until both sides of all pairs were read.
  [[nodiscard]] Status wait() const;
  // As PublisherDevice::fetch_captured().
  [[nodiscard]] Result<std::vector<std::uint32_t>> fetch(const DeviceStream& stream,
                                                         unsigned threads, const UseChanges& use);
  [[nodiscard]] std::uint64_t device_bytes() const;

 private:
  // One comparison of pairs of the same width and conversion. Versions mostly repeat the same ones.
  struct Run {
    std::vector<std::uint32_t> numbers;
    std::vector<std::uint64_t> units;
    unsigned unit_bytes = 1;
    ValueCast cast = ValueCast::kNone;
    DeviceWorkspace work;
    std::optional<cuda::CaptureBatch> batch;
    DeviceBuffer slots;
    std::uint64_t room = 0;  // changes that fit
    std::uint64_t most = 0;  // most changes found so far; 0: not known
    DeviceEvent done;

    [[nodiscard]] bool same(std::span<const TensorPair> pairs) const;
    [[nodiscard]] std::uint64_t limit_share() const { return 4 + 2 * std::uint64_t{unit_bytes}; }
    [[nodiscard]] cuda::CaptureBatch::Slots places() const;
    [[nodiscard]] Status reserve(std::uint64_t changes);
  };
  struct FoundTile;

  [[nodiscard]] Status start(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                             const DeviceStream& trainer);
  [[nodiscard]] Status prepare(Run& run, std::span<const TensorPair> pairs,
                               const DeviceStream& trainer) const;
  // The number of changes; waits for the comparison.
  [[nodiscard]] Result<std::uint64_t> count(const Run& run, const DeviceStream& stream);
  [[nodiscard]] Result<std::vector<FoundTile>> found_tiles(Run& run, const DeviceStream& stream,
                                                           std::vector<std::uint32_t>& missing);
  // Fetches tiles in the order of their blocks; their slots together fit kFetchBytes.
  [[nodiscard]] Status fetch_some(const Run& run, std::span<const FoundTile> tiles,
                                  const DeviceStream& stream, unsigned threads,
                                  const UseChanges& use);
  // Hands over the fetched changes of one piece of a ChangeStore. `changes` belongs to the thread.
  struct Fetched;
  static void use_piece(const Fetched& fetched, std::span<const FoundTile> tiles,
                        PieceChanges& changes, const UseChanges& use);

  std::vector<Run> runs_;
  std::size_t used_ = 0;                 // of runs_, since the last fetch()
  DeviceBuffer fetched_;                 // pinned
  std::vector<PieceChanges> exchanged_;  // by thread: memory for the next piece
};

}  // namespace driftless
