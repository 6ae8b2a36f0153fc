// SPDX-License-Identifier: Apache-2.0
// Measures the parts of one version on the road nccl: from device memory of this process until it
// is committed on the GPU of another process.
//
//   nccl_bench [MIB [ROUNDS]]     prints medians in milliseconds
//   nccl_bench DIR NAME           the receiver, which the first form starts
//
// If both processes share a GPU, NCCL uses sockets, and the broadcast's time does not count.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "gpu/nccl_processes.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPartBytes = std::uint64_t{64} << 20;

// A row for each part of the work.
struct Row {
  const char* name;
  std::vector<double> ms = {};
  [[nodiscard]] double median() const {
    std::vector<double> sorted = ms;
    std::ranges::sort(sorted);
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
};

class Timer {
 public:
  void lap(Row& row) {
    const Clock::time_point now = Clock::now();
    row.ms.push_back(std::chrono::duration<double, std::milli>(now - last_).count());
    last_ = now;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

class Bench {
 public:
  Bench(std::uint64_t bytes, int rounds) : bytes_(bytes), rounds_(rounds) {}

  Status run() {
    const TempDir dir;
    be_a_host("publisher");
    const NcclOptions options = options_of();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<nccl::Fabric> fabric,
                               make_nccl_fabric(options));
    DRIFTLESS_ASSIGN_OR_RETURN(weights_, fabric->allocate(bytes_));
    DRIFTLESS_RETURN_IF_ERROR(fabric->zero(weights_.data, bytes_));
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Hub> hub, hub::make_file_hub(dir.file("meet")));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<SendRoad> road,
                               nccl::make_leading_sender(options, 1, fabric, std::move(hub)));
    const Child receiver("/proc/self/exe", dir.file("meet"), "receiver");
    const Deadline deadline = in_ms(60'000);
    while (road->receivers()->empty() && !deadline.expired()) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("waiting for the receiver"));
    for (int round = 0; round < rounds_ + 1; ++round) {
      DRIFTLESS_RETURN_IF_ERROR(publish(*road, *fabric, static_cast<std::uint64_t>(round) + 1));
      if (round > 0) continue;
      for (Row* row : {&write_, &hash_, &flush_, &seal_, &total_}) row->ms.clear();  // connecting
    }
    print();
    return {};
  }

 private:
  Status publish(SendRoad& road, nccl::Fabric& fabric, std::uint64_t version) {
    const Deadline deadline = in_ms(60'000);
    std::vector<std::span<const std::byte>> pieces;
    for (std::uint64_t at = 0; at < bytes_; at += kPartBytes) {
      pieces.emplace_back(weights_.data + at, std::min(kPartBytes, bytes_ - at));
    }
    Timer alone;
    DRIFTLESS_RETURN_IF_ERROR(fabric.hash(pieces).status());
    alone.lap(hash_);
    Timer whole;
    Timer timer;
    DRIFTLESS_RETURN_IF_ERROR(road.begin({version, PublicationKind::kVersion}, deadline));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                                 road.create_part(concat("part", i)));
      DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, pieces[i]));
      DRIFTLESS_RETURN_IF_ERROR(file->sync());
    }
    timer.lap(write_);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PartReceipt> parts, road.flush(deadline));
    timer.lap(flush_);
    DRIFTLESS_RETURN_IF_ERROR(road.seal("", deadline));  // the receiver fetches nothing
    timer.lap(seal_);
    whole.lap(total_);
    return {};
  }

  void print() const {
    const double megabytes = static_cast<double>(bytes_) / 1e6;
    const double sent = flush_.median() - hash_.median();
    std::printf("%.0f MB in parts of 64 MiB, medians of %d versions, ms\n", megabytes, rounds_);
    std::printf("  begin, parts written device to device  %9.2f\n", write_.median());
    std::printf("  hash on the publisher's GPU            %9.2f  %.1f GB/s\n", hash_.median(),
                megabytes / hash_.median());
    std::printf("  offer and broadcast                    %9.2f  %.2f GB/s\n", sent,
                megabytes / sent);
    std::printf("  receiver's hash, acknowledged, commit  %9.2f\n", seal_.median());
    const double sum = write_.median() + flush_.median() + seal_.median();
    std::printf("  sum                                    %9.2f\n", sum);
    std::printf("  the whole                              %9.2f  %.3fx the sum\n", total_.median(),
                total_.median() / sum);
  }

  const std::uint64_t bytes_;
  const int rounds_;
  nccl::Block weights_;
  Row write_{"write"}, hash_{"hash"}, flush_{"flush"}, seal_{"seal"}, total_{"total"};
};

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  using namespace driftless;
  Status status;
  if (argc == 3 && argv[1][0] == '/') {
    status = testing::receive(argv[1], argv[2]);
  } else {
    const int mebibytes = argc > 1 ? std::atoi(argv[1]) : 256;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
    testing::Bench bench(static_cast<std::uint64_t>(std::clamp(mebibytes, 1, 1'000)) << 20,
                         std::clamp(rounds, 1, 1'000));
    status = bench.run();
  }
  if (status.ok()) return 0;
  std::printf("FAILED: %s\n", status.to_string().c_str());
  return status.code() == StatusCode::kUnsupported ? 77 : 1;
}
