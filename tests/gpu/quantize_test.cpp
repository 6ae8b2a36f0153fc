// SPDX-License-Identifier: Apache-2.0
// cuda::quantize(): many parts in one launch, as a publisher has them, against the reference. The
// contract suite has single ones.
#include "kernels/cuda/quantize.h"

#include <cstring>

#include "gpu/device.h"
#include "support/quantize_cases.h"

namespace driftless {
namespace {

using namespace driftless::testing;

// A part on the GPU, and what the reference makes of it.
struct OnePart {
  MatrixPart part;
  std::vector<std::uint16_t> weights, largest;
  std::vector<std::uint8_t> codes;
  DeviceBytes weights_dev, largest_dev, codes_dev;

  OnePart(const MatrixPart& of, Random& random, bool aligned)
      : part(of),
        weights(random_weights(random, of.rows * of.stride, random() % 2 == 0)),
        largest(of.blocks_high() * of.blocks_wide()),
        codes(weights.size(), 0xa5),  // DeviceBytes::kFill: between the rows nothing is written
        weights_dev(std::as_bytes(std::span(weights)), aligned ? 0 : 2),
        largest_dev(filled(random)),
        codes_dev(codes.size(), aligned ? 0 : random() % 8) {}
  std::span<const std::byte> filled(Random& random) {
    for (std::uint16_t& size : largest) {
      size = random() % 3 == 0 ? static_cast<std::uint16_t>(random() % 0x4000) : std::uint16_t{0};
    }
    return std::as_bytes(std::span(largest));
  }
  [[nodiscard]] cuda::QuantizePart there(bool coded) const {
    return {part, weights_dev.data(), reinterpret_cast<std::uint16_t*>(largest_dev.data()),
            coded ? codes_dev.data() : nullptr};
  }
  void expect(QuantizeRule rule, bool coded, std::size_t number) {
    all_quantizers().front().part(rule, part, weights.data(), largest.data(),
                                  coded ? codes.data() : nullptr);
    const std::string what =
        concat("part ", number, " of ", part.rows, "x", part.columns, " stride ", part.stride,
               " at ", part.row, ",", part.column, " by ", to_string(rule),
               reinterpret_cast<std::uintptr_t>(weights_dev.data()) % 16 == 0 ? "" : ", shifted");
    const std::vector<std::byte> sizes = largest_dev.copy(), made = codes_dev.copy();
    for (std::size_t i = 0; i < largest.size(); ++i) {
      std::uint16_t size = 0;
      std::memcpy(&size, sizes.data() + i * 2, 2);
      ASSERT_EQ(size, largest[i]) << "largest of block " << i << " of " << what;
    }
    for (std::size_t i = 0; i < codes.size(); ++i) {
      ASSERT_EQ(std::to_integer<int>(made[i]), int{codes[i]})
          << "code of row " << i / part.stride << " column " << i % part.stride << ", weight 0x"
          << std::hex << weights[i] << ", of " << what;
    }
    ASSERT_TRUE(codes_dev.intact() && largest_dev.intact() && weights_dev.intact()) << what;
  }
};

class QuantizeOnGpu : public ::testing::TestWithParam<QuantizeRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, QuantizeOnGpu, ::testing::ValuesIn(kRules));

TEST_P(QuantizeOnGpu, MakesOfManyPartsWhatTheReferenceMakes) {
  Random random(9);
  for (const bool coded : {true, false}) {
    std::vector<std::unique_ptr<OnePart>> parts;
    for (int i = 0; i < 40; ++i) {
      const bool grouped = i % 2 == 0;
      const std::uint64_t step = grouped ? 8 : 1;
      MatrixPart part;
      part.rows = i == 7 ? 0 : 1 + random() % 300;
      part.columns = (1 + random() % 90) * step;
      part.stride = part.columns + random() % 3 * step;
      part.row = random() % 128;
      part.column = random() % (128 / step) * step;
      parts.push_back(std::make_unique<OnePart>(part, random, grouped));
    }
    std::vector<cuda::QuantizePart> there;
    for (const auto& part : parts) there.push_back(part->there(coded));
    const WorkMemory work(cuda::quantize_workspace_size(there));
    must(cuda::quantize(GetParam(), there, work.get(), nullptr));
    must(cudaDeviceSynchronize());
    EXPECT_TRUE(work.intact());
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i]->expect(GetParam(), coded, i);
  }
}

TEST_P(QuantizeOnGpu, RefusesAWorkspaceThatIsTooSmall) {
  const DeviceBytes weights(64), largest(2), codes(32);
  const cuda::QuantizePart one{
      {4, 8, 8}, weights.data(), reinterpret_cast<std::uint16_t*>(largest.data()), codes.data()};
  cuda::WorkspaceSize size = cuda::quantize_workspace_size({&one, 1});
  size.dev_bytes -= 1;
  const WorkMemory work(size);
  EXPECT_EQ(cuda::quantize(GetParam(), {&one, 1}, work.get(), nullptr).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace driftless
