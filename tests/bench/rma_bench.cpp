// SPDX-License-Identifier: Apache-2.0
// mpirun -n 2..9 rma_bench
//
// Measures how fast the road mpi_rma delivers frames, relative to a raw MPI_Get of the same bytes
// from the same window. Also measures the publisher's time for a publication while 1, 2, 4, 8
// receivers poll. Prints medians. It is no test: its exit code is 0 whatever it measures.
#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "collectives/mpi_rma/medium.h"
#include "collectives/mpi_rma/progress_thread.h"
#include "mpi/scenario.h"

namespace {

using namespace driftless;
using namespace driftless::testing;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kFrameBytes = 20'000'000;
constexpr int kRuns = 7;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
double seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// A barrier that sleeps while it waits, unlike MPI_Barrier: idle processes must not take the cores.
void meet() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

Status publish_frame(SendRoad& road, const std::vector<std::byte>& frame, std::uint64_t version) {
  DRIFTLESS_RETURN_IF_ERROR(road.begin(step(version), soon()));
  {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto part, road.create_part("frame"));
    DRIFTLESS_RETURN_IF_ERROR(part->pwrite(0, frame));
    DRIFTLESS_RETURN_IF_ERROR(part->sync());
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const auto receipts, road.flush(soon()));
  return road.seal(pack(receipts), soon());
}

// `checked`: also hashes the fetched bytes, as a receiver does.
Status deliver(ReceiveRoad& road, PartReceipt& part, std::uint64_t version, bool checked) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto ids, road.list(soon()));
  if (ids.empty()) return error(StatusCode::kNotFound, "nothing is listed");
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string manifest,
                             road.fetch_manifest(step(version), soon()));
  part = unpack(manifest).front();
  DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile fetched,
                             road.fetch_part(step(version), part, soon()));
  if (!checked || xxh3_128(fetched.bytes()) == part.hash) return {};
  return error(StatusCode::kCorrupt, "the part does not have its hash");
}

Status compare(mpi_rma::Medium& medium, ReceiveRoad& road) {
  std::vector<double> by_road;
  std::vector<double> with_hash;
  std::vector<double> raw;
  std::vector<std::byte> buffer(kFrameBytes, std::byte{1});
  PartReceipt part;
  for (int i = 0; i < 2; ++i) DRIFTLESS_RETURN_IF_ERROR(deliver(road, part, 1, true));
  for (int i = 0; i < kRuns; ++i) {
    auto begin = Clock::now();
    DRIFTLESS_RETURN_IF_ERROR(deliver(road, part, 1, false));
    by_road.push_back(seconds(begin));
    begin = Clock::now();
    DRIFTLESS_RETURN_IF_ERROR(deliver(road, part, 1, true));
    with_hash.push_back(seconds(begin));
    begin = Clock::now();
    MPI_Get(buffer.data(), static_cast<int>(kFrameBytes), MPI_BYTE, 0,
            static_cast<MPI_Aint>(part.locator), static_cast<int>(kFrameBytes), MPI_BYTE,
            medium.handle());
    MPI_Win_flush(0, medium.handle());
    raw.push_back(seconds(begin));
  }
  const double road_gb = kFrameBytes / 1e9 / median(by_road);
  const double raw_gb = kFrameBytes / 1e9 / median(raw);
  std::printf("frames of %llu MB: road %.2f GB/s, raw MPI_Get %.2f GB/s, ratio %.2f\n",
              static_cast<unsigned long long>(kFrameBytes / 1'000'000), road_gb, raw_gb,
              road_gb / raw_gb);
  const double checked_gb = kFrameBytes / 1e9 / median(with_hash);
  std::printf("the same with the receiver's hash check: %.2f GB/s, ratio %.2f\n", checked_gb,
              checked_gb / raw_gb);
  return {};
}

// The publisher's side of one round with `active` receivers that look for the next version.
void measure_publisher(SendRoad& road, const std::vector<std::byte>& frame, unsigned active,
                       std::uint64_t& version) {
  std::vector<double> wall;
  std::vector<double> cpu;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = Clock::now();
    const double cpu_begin = thread_seconds();
    const Status status = publish_frame(road, frame, ++version);
    wall.push_back(seconds(begin) * 1e3);
    cpu.push_back((thread_seconds() - cpu_begin) * 1e3);
    if (!status.ok()) std::printf("%s\n", status.to_string().c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  std::printf("%u receivers poll: begin..seal of %llu MB %.2f ms (%.2f ms of the processor)\n",
              active, static_cast<unsigned long long>(kFrameBytes / 1'000'000), median(wall),
              median(cpu));
}

Status run(mpi_rma::Medium& medium) {
  const bool publishes = medium.publishes();
  const std::vector<std::byte> frame = content(step(1), 0, 0, publishes ? kFrameBytes : 0);
  std::unique_ptr<SendRoad> sender;
  std::unique_ptr<ReceiveRoad> receiver;
  // The same thread as in MpiRmaWorld. It serves the road's gets and the raw ones.
  std::optional<mpi_rma::ProgressThread> progress;
  if (publishes && medium.threads() && !medium.one_node()) progress.emplace(medium.quiet());
  if (publishes) {
    DRIFTLESS_ASSIGN_OR_RETURN(sender, mpi_rma::make_sender(medium));
    DRIFTLESS_RETURN_IF_ERROR(publish_frame(*sender, frame, 1));
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(receiver, mpi_rma::make_receiver(medium));
  }
  meet();
  if (medium.rank() == 1) DRIFTLESS_RETURN_IF_ERROR(compare(medium, *receiver));
  meet();
  std::uint64_t version = 1;
  // Fill the ring once before measuring, so that all of its memory was touched.
  for (int i = 0; publishes && i < 8; ++i) {
    DRIFTLESS_RETURN_IF_ERROR(publish_frame(*sender, frame, ++version));
  }
  std::uint64_t end = 9;
  for (unsigned active = 1; active <= medium.receivers(); active *= 2) {
    meet();
    end += kRuns;
    if (publishes) {
      measure_publisher(*sender, frame, active, version);
    } else if (medium.rank() <= active) {
      for (std::uint64_t at = end - kRuns; at < end; ++at) {
        DRIFTLESS_RETURN_IF_ERROR(receiver->wait_beyond(at, soon()));
      }
    }
    meet();
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  {
    auto medium = mpi_rma::Medium::create(MPI_COMM_WORLD, 1, {.ring_bytes = 4 * kFrameBytes});
    const Status status = medium.ok() ? run(**medium) : medium.status();
    if (!status.ok()) std::printf("%s\n", status.to_string().c_str());
  }
  MPI_Finalize();
  return 0;
}
