// SPDX-License-Identifier: Apache-2.0
// mpirun -n 65 --oversubscribe fan_in_bench [MEGABYTES [DIRECTORY [ROAD]]]
//
// Compares a version published by 64 ranks with one of the same size published by 4 ranks, over
// each road that many ranks can use. The time is from begin() on the leader until a receiver has
// checked the hash of every part. Also prints the windows and communicators of a rank, and the
// files of a version. Prints medians. It is no test: its exit code is 0 whatever it measures.
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "mpi/scenario.h"
#include "support/temp_dir.h"

// Counts the windows and communicators that the roads create: these functions intercept MPI's.
namespace {
std::atomic<int> windows = 0, communicators = 0;
int counted(int code, std::atomic<int>& count, int by = 1) {
  if (code == MPI_SUCCESS) count += by;
  return code;
}
}  // namespace
extern "C" {
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  return counted(PMPI_Comm_dup(comm, made), communicators);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  return counted(PMPI_Comm_split(comm, color, key, made), communicators);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  return counted(PMPI_Comm_split_type(comm, type, key, info, made), communicators);
}
int MPI_Comm_free(MPI_Comm* comm) { return counted(PMPI_Comm_free(comm), communicators, -1); }
int MPI_Win_allocate(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base,
                     MPI_Win* made) {
  return counted(PMPI_Win_allocate(size, unit, info, comm, base, made), windows);
}
int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base,
                            MPI_Win* made) {
  return counted(PMPI_Win_allocate_shared(size, unit, info, comm, base, made), windows);
}
int MPI_Win_free(MPI_Win* window) { return counted(PMPI_Win_free(window), windows, -1); }
}

namespace {

using namespace driftless;
using namespace driftless::testing;
using Clock = std::chrono::steady_clock;

constexpr int kRuns = 7;
constexpr unsigned kFew = 4;
constexpr unsigned kMany = 1'000;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }
SharedFsOptions files_in(const std::string& directory) {
  SharedFsOptions options;
  options.dir = directory;
  options.poll_first = std::chrono::milliseconds(1);
  options.poll_longest = std::chrono::milliseconds(5);
  return options;
}

// A barrier that sleeps while it waits, unlike MPI_Barrier: idle processes must not take the cores.
void meet(MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(comm, &request);
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

// One rank's end of a road; the last rank of `comm` receives, all others publish.
struct End {
  std::shared_ptr<void> world;  // destroyed last
  std::unique_ptr<Group> group;
  std::unique_ptr<SendRoad> sender;
  std::unique_ptr<ReceiveRoad> receiver;
};
struct Place {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm publishing = MPI_COMM_NULL;  // null on the receiver
  unsigned rank = 0, publishers = 0;
  std::uint64_t bytes = 0;  // of each rank
  std::string directory;
};
using OpenEnd = std::function<Result<End>(const Place&)>;

Result<End> open_mpi_rma(const Place& place) {
  MpiRmaOptions options;
  options.ring_bytes = 3 * place.bytes + (1 << 20);
  DRIFTLESS_ASSIGN_OR_RETURN(auto world,
                             MpiRmaWorld::create(place.comm, place.publishers, options));
  const std::shared_ptr<MpiRmaWorld> shared = std::move(world);
  End end;
  end.world = shared;
  if (shared->publishes()) {
    DRIFTLESS_ASSIGN_OR_RETURN(end.group, make_mpi_group(place.publishing));
    DRIFTLESS_ASSIGN_OR_RETURN(end.sender, shared->sender());
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(end.receiver, shared->receiver());
  }
  return end;
}

Result<End> open_files(const Place& place, bool hdf5, unsigned most_files) {
  SharedFsOptions options = files_in(place.directory);
  options.part_files = most_files;
  FileSystem& fs = posix_file_system();
  End end;
  if (place.publishing == MPI_COMM_NULL) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        end.receiver,
        make_shared_fs_receiver(fs, options, hdf5 ? make_hdf5_reader() : PartReader()));
    return end;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(end.group, make_mpi_group(place.publishing));
  std::unique_ptr<PartSink> sink;
  if (hdf5) {
    DRIFTLESS_ASSIGN_OR_RETURN(sink, make_hdf5_sink(place.publishing, {}));
  } else if (const auto pack = pack_of(options, place.rank, place.publishers)) {
    sink = make_part_packs_sink(fs, *pack);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(end.sender, make_shared_fs_sender(fs, options, place.rank,
                                                               place.publishers, std::move(sink)));
  return end;
}

Status publish_bytes(End& end, std::uint64_t version, std::span<const std::byte> bytes) {
  Group& group = *end.group;
  group.begin_epoch(version);
  if (group.leads()) DRIFTLESS_RETURN_IF_ERROR(end.sender->begin(step(version), soon()));
  DRIFTLESS_RETURN_IF_ERROR(group.broadcast("go", soon()).status());
  if (!group.leads()) DRIFTLESS_RETURN_IF_ERROR(end.sender->begin(step(version), soon()));
  {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto part,
                               end.sender->create_part(concat("rank", group.rank())));
    DRIFTLESS_RETURN_IF_ERROR(part->pwrite(0, bytes));
    DRIFTLESS_RETURN_IF_ERROR(part->sync());
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const auto mine, end.sender->flush(soon()));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto all, group.gather(pack(mine), soon()));
  if (!group.leads()) return {};
  std::vector<PartReceipt> receipts;
  for (const std::string& of_rank : all) {
    for (PartReceipt& part : unpack(of_rank)) receipts.push_back(std::move(part));
  }
  return end.sender->seal(pack(receipts), soon());
}

std::size_t count_files(const std::string& directory, std::uint64_t version) {
  std::error_code ignored;
  const std::string digits = concat(version);
  const std::string name =
      concat(directory, "/weight_v", std::string(6 - digits.size(), '0'), digits);
  const std::filesystem::directory_iterator files(name, ignored);
  return static_cast<std::size_t>(std::distance(begin(files), std::filesystem::end(files)));
}

// The median milliseconds of a version on the receiver; 0 on the others.
Result<double> measure(const Place& place, const OpenEnd& open) {
  const int had_windows = windows;
  const int had_communicators = communicators;
  DRIFTLESS_ASSIGN_OR_RETURN(End end, open(place));
  std::array<int, 2> cost{windows - had_windows, communicators - had_communicators};
  MPI_Allreduce(MPI_IN_PLACE, cost.data(), 2, MPI_INT, MPI_MAX, place.comm);
  const std::vector<std::byte> bytes =
      content(step(1), place.rank, 0, end.sender != nullptr ? place.bytes : 0);
  std::vector<double> times;
  Status status;
  for (std::uint64_t version = 1; version <= kRuns + 1; ++version) {
    meet(place.comm);
    const auto start = Clock::now();
    if (end.sender != nullptr) {
      status = publish_bytes(end, version, bytes);
    } else {
      status = end.receiver->wait_beyond(version - 1, soon());
      if (status.ok()) status = fetch_all(*end.receiver, step(version), soon()).status();
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    if (!status.ok()) std::printf("rank %u: %s\n", place.rank, status.to_string().c_str());
  }
  meet(place.comm);
  if (end.sender != nullptr) return 0.0;
  times.erase(times.begin());  // the first version allocates pages and connects
  std::sort(times.begin(), times.end());
  std::printf("  %2u ranks: %7.1f ms a version (%.1f to %.1f); %d windows, %d communicators, ",
              place.publishers, times[times.size() / 2], times.front(), times.back(), cost[0],
              cost[1]);
  std::printf("%zu files\n", count_files(place.directory, 2));
  return times[times.size() / 2];
}

// Measures with this number of publishers; the other processes sleep.
double run(unsigned publishers, std::uint64_t bytes, const std::string& directory,
           const OpenEnd& open) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const bool receives = rank == size - 1;
  const bool publishes = static_cast<unsigned>(rank) < publishers;
  Place place;
  MPI_Comm_split(MPI_COMM_WORLD, publishes || receives ? 0 : 1, rank, &place.comm);
  MPI_Comm_split(MPI_COMM_WORLD, publishes ? 0 : 1, rank, &place.publishing);
  MPI_Comm mine = place.publishing;
  if (!publishes) place.publishing = MPI_COMM_NULL;
  place.rank = static_cast<unsigned>(rank);
  place.publishers = publishers;
  place.bytes = bytes / publishers;
  place.directory = concat(directory, "/", publishers);
  double time = 0;
  if (publishes || receives) {
    const Result<double> measured = measure(place, open);
    if (measured.ok()) time = *measured;
    if (!measured.ok()) std::printf("rank %d: %s\n", rank, measured.status().to_string().c_str());
  }
  meet(MPI_COMM_WORLD);
  MPI_Comm_free(&mine);
  MPI_Comm_free(&place.comm);
  return time;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::uint64_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 128) * 1'000'000;
  const auto many = static_cast<unsigned>(size - 1);
  const std::vector<std::pair<const char*, OpenEnd>> roads{
      {"mpi_rma", open_mpi_rma},
      {"shared_fs", [](const Place& place) { return open_files(place, false, kMany); }},
      {"shared_fs_8_files", [](const Place& place) { return open_files(place, false, 8); }},
      {"hdf5", [](const Place& place) { return open_files(place, true, kMany); }}};
  const TempDir here(TempDir::Where::kMemory);
  std::array<char, 1024> directory{};
  const std::string given = argc > 2 && argv[2][0] != '\0' ? argv[2] : here.path();
  std::copy_n(given.begin(), std::min(given.size(), directory.size() - 1), directory.begin());
  MPI_Bcast(directory.data(), static_cast<int>(directory.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  for (const auto& [name, open] : roads) {
    if (argc > 3 && std::string_view(argv[3]) != name) continue;
    if (rank == size - 1) std::printf("%s, %.0f MB\n", name, static_cast<double>(bytes) / 1e6);
    const std::string where = concat(directory.data(), "/", name);
    const double few = run(kFew, bytes, where, open);
    const double all = run(many, bytes, where, open);
    if (rank == size - 1) std::printf("  ratio %.2f\n", all / few);
    std::fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
