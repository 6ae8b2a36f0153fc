// SPDX-License-Identifier: Apache-2.0
// A publisher of quantized weights on a GPU, for machines without one: a stand-in whose memory is
// host memory that only its own calls read.
#include <deque>

#include "plugin/publish/change_store.h"
#include "plugin/publish/rank_payload.h"
#include "support/device_quantized_cases.h"

namespace driftless::testing {
namespace {

class StandInMemory final : public WeightMemory {
 public:
  [[nodiscard]] MemoryKind kind() const override { return MemoryKind::kDevice; }
  Result<std::unique_ptr<PlacedChanges>> place(std::span<const ChangePart> parts,
                                               unsigned threads) override {
    return host_->place(parts, threads);
  }
  Status read(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
              std::byte* values) override {
    return host_->read(maps, origin, count, values);
  }
  Status write(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
               const std::byte* values, MemoryKind from) override {
    return host_->write(maps, origin, count, values, from);
  }
  Status finish() override { return host_->finish(); }
  [[nodiscard]] unsigned threads(unsigned wanted) const override { return host_->threads(wanted); }
  Status fetch(std::span<std::byte> to, const std::byte* from) override {
    return host_->fetch(to, from);
  }
  Result<Digest> digest(std::span<const TensorBytes> bytes, unsigned threads) override {
    return host_->digest(bytes, threads);
  }
  Result<std::vector<StridedSum>> sum_maps(std::span<const MapToSum> maps,
                                           unsigned threads) override {
    return host_->sum_maps(maps, threads);
  }
  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    return host_->allocate(bytes);
  }
  [[nodiscard]] StagingMemory staging_memory() const override { return host_->staging_memory(); }
  [[nodiscard]] BucketMemory* buckets() override { return nullptr; }

 private:
  std::shared_ptr<WeightMemory> host_ = make_host_memory();
};

class StandInGpu final : public PublisherDevice {
 public:
  explicit StandInGpu(const DeviceOptions& options) : options_(options) {}
  [[nodiscard]] const DeviceOptions& options() const override { return options_; }
  [[nodiscard]] std::uint64_t device_bytes() const override { return 0; }
  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    return memory_->allocate(bytes);
  }
  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    std::copy_n(from, bytes, to);
    return {};
  }
  [[nodiscard]] std::shared_ptr<WeightMemory> memory() const override { return memory_; }
  Result<std::unique_ptr<RankPayload>> make_payload(const PayloadContext& context) override {
    return make_rank_payload(context);
  }
  // Overwrites the codes of the last call.
  Status quantize(QuantizeRule rule, std::span<DeviceMatrix> boxes, bool coded) override {
    for (std::vector<std::byte>& codes : codes_) std::ranges::fill(codes, std::byte{0xee});
    if (codes_.size() > 1000) codes_.clear();
    for (DeviceMatrix& box : boxes) {
      const MatrixPart& part = box.part;
      EXPECT_EQ(box.largest.size(), part.blocks_high() * part.blocks_wide());
      const bool any = coded && part.rows > 0 && part.columns > 0;
      std::byte* codes = nullptr;
      if (any) {
        codes = codes_.emplace_back((part.rows - 1) * part.stride + part.columns).data();
      }
      quantizer().part(rule, part, box.weights, box.largest.data(), codes);
      box.codes = codes;
    }
    return {};
  }
  Status quantize_groups(unsigned group, std::span<DeviceGroups> boxes) override {
    for (std::vector<std::byte>& codes : codes_) std::ranges::fill(codes, std::byte{0xee});
    if (codes_.size() > 1000) codes_.clear();
    for (DeviceGroups& box : boxes) {
      std::byte* const packed = codes_.emplace_back(box.groups * group / 2).data();
      std::byte* const scales = codes_.emplace_back(box.groups * 2).data();
      quantizer().groups(group, box.groups, group, group, box.weights, packed, scales);
      box.packed = packed;
      box.scales = scales;
    }
    return {};
  }
  Status commit() override { return {}; }
  void abort() override {}
  Status capture(std::span<const TensorPair> pairs, std::uint64_t /*limit*/,
                 void* /*trainer*/) override {
    DiffOptions how;
    how.piece_bytes = ChangeStore::kPieceBytes;
    how.old_values = true;
    return diff_tensors(host_kernels(), pairs, how, {}, [&](const DiffPiece& piece) {
      const DeltaView& delta = piece.delta;
      const std::uint64_t width = delta.unit_bytes, units = ChangeStore::kPieceBytes / width;
      Found found{delta.tensor, delta.origin / units, {}};
      const auto first = static_cast<std::uint32_t>(delta.origin % units);
      for (std::uint64_t i = 0; i < delta.count(); ++i) {
        found.changes.offsets.push_back(first + delta.offsets[i]);
      }
      const std::uint64_t bytes = delta.count() * width;
      found.changes.values.assign(delta.values, delta.values + bytes);
      found.changes.old_values.assign(piece.old_values, piece.old_values + bytes);
      if (delta.count() > 0) found_.push_back(std::move(found));
      return Status();
    });
  }
  Status copy_on_stream(std::byte* to, const std::byte* from, std::uint64_t bytes,
                        void* /*trainer*/) override {
    return copy(to, from, bytes);
  }
  Status mark(void* /*trainer*/) override { return {}; }
  Status wait_for_trainer() override { return {}; }
  Result<std::vector<std::uint32_t>> fetch_captured(
      unsigned /*threads*/,
      const std::function<void(std::uint32_t, std::uint64_t, PieceChanges&)>& use) override {
    for (Found& each : found_) use(each.number, each.piece, each.changes);
    found_.clear();
    return std::vector<std::uint32_t>();
  }

 private:
  struct Found {
    std::uint32_t number;
    std::uint64_t piece;
    PieceChanges changes;
  };
  DeviceOptions options_;
  std::shared_ptr<WeightMemory> memory_ = std::make_shared<StandInMemory>();
  std::deque<std::vector<std::byte>> codes_;
  std::vector<Found> found_;
};

}  // namespace

const GpuUnderTest& gpu_under_test() {
  static const GpuUnderTest kStandIn{
      {SnapshotPlace::kPinned},
      [](const DeviceOptions& options) -> Result<std::shared_ptr<PublisherDevice>> {
        return std::shared_ptr<PublisherDevice>(std::make_shared<StandInGpu>(options));
      },
      [](std::span<const std::byte> bytes) {
        auto held = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
        return std::shared_ptr<std::byte>(held, held->data());
      },
      [](std::byte* to, std::span<const std::byte> bytes) { std::ranges::copy(bytes, to); }};
  return kStandIn;
}

}  // namespace driftless::testing
