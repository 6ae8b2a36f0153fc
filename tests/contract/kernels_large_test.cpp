// SPDX-License-Identifier: Apache-2.0
// Tensors with more than 2^32 units, and models with very many tiny tensors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <vector>

#include "core/parallel.h"
#include "kernels/tensor_ops.h"
#include "support/kernels_data.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using namespace driftless::testing;

constexpr std::uint64_t kUnits = (std::uint64_t{1} << 32) + 12345;
constexpr long kTmpfsMagic = 0x01021994;

// A file of holes, mapped privately: reading costs no disk, and only written pages cost memory.
class SparseMapping {
 public:
  explicit SparseMapping(int file)
      : data_(::mmap(nullptr, kUnits, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file,
                     0)) {}
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;
  ~SparseMapping() {
    if (ok()) ::munmap(data_, kUnits);
  }
  [[nodiscard]] bool ok() const { return data_ != MAP_FAILED; }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data(), kUnits}; }

 private:
  void* data_;
};

class LargeTensor : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer's shadow of 4 GiB does not fit";
#endif
    struct statfs system{};
    if (::statfs(directory_.path().c_str(), &system) == 0 && system.f_type == kTmpfsMagic) {
      GTEST_SKIP() << "temporary files lie in memory, where holes that are read take space";
    }
    file_ = ::open(directory_.file("holes").c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    struct stat info{};
    if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(kUnits)) != 0 ||
        ::fstat(file_, &info) != 0 || info.st_blocks > 1000) {
      GTEST_SKIP() << "the file system of " << directory_.path() << " holds no sparse file of "
                   << kUnits << " bytes";
    }
  }
  void TearDown() override {
    if (file_ >= 0) ::close(file_);
  }
  TempDir directory_;
  int file_ = -1;
};

TEST_F(LargeTensor, PositionsPast32BitsAreFoundWrittenAndDigested) {
  const SparseMapping before(file_), after(file_);
  if (!before.ok() || !after.ok()) GTEST_SKIP() << "no address space for the mappings";
  const std::vector<std::uint64_t> positions = {0, (std::uint64_t{1} << 31) + 1,
                                                (std::uint64_t{1} << 32) - 1,
                                                std::uint64_t{1} << 32, kUnits - 1};
  for (const std::uint64_t position : positions) after.data()[position] = std::byte{0x81};

  const unsigned threads = default_threads();
  const HostKernels& kernels = host_kernels();
  const DigestTensorKey key = digest_tensor_key("experts");
  const TensorPair pair{0, 1, kUnits, before.data(), after.data()};
  std::vector<std::uint64_t> found;
  Digest change;
  const Status status = diff_tensors(
      kernels, std::span(&pair, 1), {threads}, nullptr, [&](const DiffPiece& piece) -> Status {
        const DeltaView& delta = piece.delta;
        for (const std::uint32_t offset : delta.offsets) found.push_back(delta.origin + offset);
        const std::vector<std::byte> old_values(delta.count());
        change += kernels.digest_change(key, 1, delta.origin, delta.offsets.data(), delta.count(),
                                        old_values.data(), delta.values);
        kernels.scatter(before.data() + delta.origin, 1, delta.offsets.data(), delta.count(),
                        delta.values);
        return {};
      });
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(found, positions);
  for (const std::uint64_t position : positions) {
    EXPECT_EQ(before.data()[position], std::byte{0x81}) << position;
  }
  // All was zero before, so the change is the whole digest.
  EXPECT_EQ(digest_tensor(kernels, key, before.bytes(), threads), change);
}

TEST(TinyTensors, TwentyThousandAreComparedInOrder) {
  constexpr std::size_t kTensors = 20000;
  Random random(9);
  std::vector<std::byte> before(kTensors * 64), after;
  fill_units(random, 1, before.data(), before.size());
  after = before;
  std::vector<TensorPair> pairs;
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    const unsigned width = kWidths[i % 4];
    pairs.push_back({i, width, i % 8, before.data() + i * 64, after.data() + i * 64});
    if (i % 8 == 0 || i % 3 != 0) continue;
    after[i * 64 + (i % 8) * width - 1] ^= std::byte{4};
    expected.push_back(i);
  }
  for (const HostKernels& kernels : all_host_kernels()) {
    std::vector<std::uint32_t> found;
    const Status status = diff_tensors(kernels, pairs, {.threads = 4}, nullptr,
                                       [&](const DiffPiece& piece) -> Status {
                                         EXPECT_EQ(piece.delta.count(), 1U);
                                         EXPECT_EQ(piece.delta.offsets[0], piece.units - 1);
                                         found.push_back(piece.delta.tensor);
                                         return {};
                                       });
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(found, expected) << kernels.name;
  }
}

}  // namespace
}  // namespace driftless
