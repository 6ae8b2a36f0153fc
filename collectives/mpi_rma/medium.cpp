// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/medium.h"

#include <sys/statvfs.h>

#include <array>
#include <cstring>
#include <new>
#include <thread>

#include "collectives/mpi_rma/mpi_status.h"

namespace driftless::mpi_rma {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Long gets are divided into pieces: MPI counts in int, and on one host a get is a copy that no
// deadline ends. Each piece costs a round trip over UCX, so they are not small.
constexpr std::uint64_t kBytesOfGet = std::uint64_t{16} << 20;
constexpr std::size_t kMostRequests = 64;
constexpr milliseconds kFarewell{10'000};
// MPI does not report whether a poll made progress; its duration shows it.
constexpr microseconds kWorked{5};
constexpr microseconds kEager{200};  // until then it does not even yield the core
constexpr microseconds kSpin{2'000};

constexpr std::string_view kFlags =
    "between hosts without RDMA run mpirun with `--mca pml ucx --mca osc ucx --mca pml_ucx_tls any "
    "--mca pml_ucx_devices any` (or, without MPI_THREAD_MULTIPLE, `--mca osc pt2pt`)";

constexpr const char* kDefaultDirectory = "/dev/shm";
constexpr const char* kVariable = "osc_sm_backing_directory";  // Open MPI's
constexpr std::uint64_t kSlack = std::uint64_t{1} << 20;       // for MPI's own memory

std::string read_variable(int index) {
  MPI_T_cvar_handle handle = nullptr;
  int count = 0;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return {};
  std::vector<char> text(static_cast<std::size_t>(count) + 1, '\0');
  const int code = MPI_T_cvar_read(handle, text.data());
  MPI_T_cvar_handle_free(&handle);
  return code == MPI_SUCCESS ? std::string(text.data()) : std::string();
}

std::string window_directory() {
  int level = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return kDefaultDirectory;
  int index = 0;
  std::string directory;
  if (MPI_T_cvar_get_index(kVariable, &index) == MPI_SUCCESS) directory = read_variable(index);
  MPI_T_finalize();
  return directory.empty() ? kDefaultDirectory : directory;
}

// Checks the space for windows in this host's shared memory: kNoSpace if the directory in which MPI
// keeps shared windows has fewer than `needed_bytes` free, ok if that is unknown. Checked before
// MPI is called: in Open MPI not all processes return if one of them cannot make a shared window.
Status check_shared_memory(std::uint64_t needed_bytes) {
  const std::string directory = window_directory();
  struct statvfs info{};
  if (::statvfs(directory.c_str(), &info) != 0) return {};
  const std::uint64_t room = std::uint64_t{info.f_bavail} * info.f_frsize;
  if (needed_bytes + kSlack <= room) return {};
  return error(StatusCode::kNoSpace, "the windows on this host need ", needed_bytes, " bytes, ",
               directory, " has ", room,
               " free: enlarge it, or lower road.ring_size and road.mpi_rma.anchor_size, or give "
               "mpirun --mca ",
               kVariable, " DIR, on a file system with room");
}

}  // namespace

Result<std::unique_ptr<Medium>> Medium::create(MPI_Comm world, unsigned publishers,
                                               const MpiRmaOptions& options) {
  if (!mpi_runs()) {
    return error(StatusCode::kInvalidArgument,
                 "mpi_rma: MPI is not initialized, or finalized already");
  }
  std::unique_ptr<Medium> medium(new Medium(options, publishers));
  DRIFTLESS_RETURN_IF_ERROR(medium->connect(world));
  DRIFTLESS_RETURN_IF_ERROR(medium->agree(check_options(options, publishers, medium->ranks_),
                                          "the options of the mpi_rma road"));
  DRIFTLESS_RETURN_IF_ERROR(medium->find_neighbours());
  medium->leader_map_ = WindowMap::of(options, medium->receivers(), true);
  medium->other_map_ = WindowMap::of(options, medium->receivers(), false);
  DRIFTLESS_RETURN_IF_ERROR(medium->agree(medium->check_room(), "room for the windows"));
  DRIFTLESS_RETURN_IF_ERROR(medium->make_window());
  DRIFTLESS_RETURN_IF_ERROR(
      medium->agree(medium->start_access(), "the windows of the mpi_rma road"));
  return medium;
}

Status Medium::connect(MPI_Comm world) {
  DRIFTLESS_ASSIGN_OR_RETURN(const DuplicatedComm comm,
                             duplicate_comm(world, "the road's communicator"));
  comm_ = comm.comm;
  rank_ = comm.rank;
  ranks_ = comm.size;
  DRIFTLESS_ASSIGN_OR_RETURN(const DuplicatedComm quiet,
                             duplicate_comm(world, "the road's communicator"));
  quiet_comm_ = quiet.comm;
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  threads_ = level == MPI_THREAD_MULTIPLE;
  return {};
}

Status Medium::agree(const Status& mine, std::string_view what) {
  // The minimum of x and of ~x over all ranks shows whether x is the same everywhere.
  const std::array<std::uint64_t, 5> facts{publishers_, options_.ring_bytes, options_.ring_versions,
                                           options_.anchor_bytes, options_.announcement_bytes};
  std::array<std::uint64_t, 11> least{};
  for (std::size_t i = 0; i < facts.size(); ++i) {
    least[2 * i] = facts[i];
    least[2 * i + 1] = ~facts[i];
  }
  least.back() = mine.ok() ? ranks_ : rank_;
  DRIFTLESS_RETURN_IF_ERROR(mpi_status(
      MPI_Allreduce(MPI_IN_PLACE, least.data(), least.size(), MPI_UINT64_T, MPI_MIN, comm_), what));
  DRIFTLESS_RETURN_IF_ERROR(mine);
  if (least.back() != ranks_) {
    return error(StatusCode::kIo, what, ": rank ", least.back(), " failed; see its message");
  }
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (least[2 * i] == ~least[2 * i + 1]) continue;
    return error(StatusCode::kInvalidArgument, what,
                 ": ranks differ in publishers, road.ring_size, road.ring_versions, "
                 "road.mpi_rma.anchor_size or announcement_bytes; give all the same configuration");
  }
  return {};
}

Status Medium::find_neighbours() {
  MPI_Comm node = MPI_COMM_NULL;
  DRIFTLESS_RETURN_IF_ERROR(
      mpi_status(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
                 "MPI_Comm_split_type"));
  int here = 0;
  MPI_Comm_size(node, &here);
  MPI_Comm_free(&node);
  int least = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      mpi_status(MPI_Allreduce(&here, &least, 1, MPI_INT, MPI_MIN, comm_), "MPI_Allreduce"));
  one_node_ = static_cast<unsigned>(least) == ranks_;
  return {};
}

int Medium::allocate(bool shared) {
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  MPI_Info_set(info, "same_disp_unit", "true");
  void* base = nullptr;
  void* out = static_cast<void*>(&base);
  const auto size = static_cast<MPI_Aint>(window_bytes_);
  const int code = shared ? MPI_Win_allocate_shared(size, 1, info, comm_, out, &win_)
                          : MPI_Win_allocate(size, 1, info, comm_, out, &win_);
  MPI_Info_free(&info);
  base_ = static_cast<std::byte*>(base);
  return code;
}

Status Medium::check_room() const {
  if (!one_node_) return {};
  const std::uint64_t others = other_map_.window_bytes * (publishers_ - 1);
  return check_shared_memory(leader_map_.window_bytes + others);
}

// Tries a shared window first if all ranks are on one node. Its pages are allocated when touched;
// an ordinary window may allocate all pages at once.
Status Medium::make_window() {
  window_bytes_ = publishes() ? map(rank_).window_bytes : 0;
  for (const bool shared : {true, false}) {
    if (shared && !one_node_) continue;
    const int code = allocate(shared);
    int worst = code == MPI_SUCCESS ? 0 : 1;
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(
        MPI_Allreduce(MPI_IN_PLACE, &worst, 1, MPI_INT, MPI_MAX, comm_), "MPI_Allreduce"));
    if (worst == 0) return {};
    // Freeing is collective: a window that only some ranks have is kept until the process ends.
    win_ = MPI_WIN_NULL;
    base_ = nullptr;
    if (!shared) {
      const Status why = mpi_status(code, "MPI_Win_allocate");
      return error(StatusCode::kUnsupported, "mpi_rma: no window of ", window_bytes_,
                   " bytes on rank ", rank_, " (", why.ok() ? "another rank failed" : why.message(),
                   "): ", kFlags);
    }
  }
  return error(StatusCode::kInternal, "mpi_rma: no kind of window was tried");
}

Status Medium::start_access() {
  MPI_Win_set_errhandler(win_, MPI_ERRORS_RETURN);
  int* model = nullptr;
  int found = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      mpi_status(MPI_Win_get_attr(win_, MPI_WIN_MODEL, static_cast<void*>(&model), &found),
                 "MPI_Win_get_attr"));
  if (found == 0 || *model != MPI_WIN_UNIFIED) {
    return error(StatusCode::kUnsupported,
                 "mpi_rma: this MPI keeps a separate copy of a window (not MPI_WIN_UNIFIED): use "
                 "another osc component, or another road");
  }
  DRIFTLESS_RETURN_IF_ERROR(mpi_status(MPI_Win_lock_all(0, win_), "MPI_Win_lock_all"));
  accessible_ = true;
  if (publishes()) {
    // Touches only the bytes that must be zero.
    const std::uint64_t begun = rank_ == 0 ? leader_map_.announcement : sizeof(Control);
    std::memset(base_, 0, begun);
    Control control;
    control.window_bytes = window_bytes_;
    std::memcpy(base_, &control, sizeof(control));
  }
  return sync();
}

Medium::~Medium() { [[maybe_unused]] const Status status = close(); }

Status Medium::close() {
  if (closed_ || !mpi_runs() || comm_ == MPI_COMM_NULL) return {};
  closed_ = true;
  sweep();
  if (!all_are_done()) {
    // Other ranks may still access the windows: they stay, and so does memory that MPI may write.
    for (Abandoned& left : abandoned_) new std::shared_ptr<const void>(std::move(left.owner));
    abandoned_.clear();
    return error(StatusCode::kDeadlineExceeded, "mpi_rma: rank ", rank_,
                 " waited in vain for others to close the road: a process or host is gone, and "
                 "MPI_Finalize may not return");
  }
  if (win_ != MPI_WIN_NULL) {
    if (accessible_) MPI_Win_unlock_all(win_);
    MPI_Win_free(&win_);
  }
  if (quiet_comm_ != MPI_COMM_NULL) MPI_Comm_free(&quiet_comm_);
  MPI_Comm_free(&comm_);
  return {};
}

// A barrier with a deadline. Freeing is collective, so one rank that cannot free keeps all others
// from it. Runs twice, so that a rank which arrived after the others had given up does not free
// alone: they are missing in the second round.
bool Medium::all_are_done() {
  for (int round = 0; round < 2; ++round) {
    const auto clean = std::make_shared<int>(abandoned_.empty() ? 1 : 0);
    std::vector<MPI_Request> requests(1, MPI_REQUEST_NULL);
    const int code =
        MPI_Iallreduce(MPI_IN_PLACE, clean.get(), 1, MPI_INT, MPI_MIN, comm_, &requests[0]);
    if (code != MPI_SUCCESS) return false;
    if (!wait(requests, clean, Deadline::after(kFarewell), "farewell").ok() || *clean == 0) {
      return false;
    }
  }
  return true;
}

Status Medium::sync() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return mpi_status(MPI_Win_sync(win_), "MPI_Win_sync");
}

void Medium::sweep() {
  std::erase_if(abandoned_, [](Abandoned& left) {
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(left.requests.size()), left.requests.data(),
                                 &done, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS && done != 0;
  });
}

// Over networks without RDMA each poll moves some kilobytes, so it spins while bytes arrive. After
// a while without any it sleeps between polls.
Status Medium::wait(std::vector<MPI_Request>& requests, std::shared_ptr<const void> owner,
                    const Deadline& deadline, std::string_view what) {
  Backoff backoff(microseconds(10), microseconds(100));
  std::vector<int> ended(requests.size());
  auto now = Deadline::Clock::now();
  auto worked = now;
  Waiting waiting;
  for (;;) {
    const auto begin = now;
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                  ended.data(), MPI_STATUSES_IGNORE);
    if (code == MPI_SUCCESS && count == MPI_UNDEFINED) break;  // no active request
    now = Deadline::Clock::now();
    Status status = mpi_status(code, what);
    if (status.ok() && count == 0) status = deadline.check(what);
    if (!status.ok()) {
      abandoned_.push_back({std::move(requests), std::move(owner)});
      return status;
    }
    if (count > 0 || now - begin > kWorked) {
      worked = now;
      backoff.reset();
    } else if (now - worked > kSpin) {
      waiting.look([&] { return std::string(what); });
      backoff.sleep(deadline);
      now = Deadline::Clock::now();
    } else if (now - worked > kEager) {
      std::this_thread::yield();
      now = Deadline::Clock::now();
    }
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return {};
}

Status Medium::get(std::span<const Piece> pieces, std::shared_ptr<const void> owner,
                   const Deadline& deadline, std::string_view what) {
  sweep();
  std::vector<MPI_Request> requests;
  for (const Piece& piece : pieces) {
    for (std::uint64_t done = 0; done < piece.into.size();) {
      const auto count = std::min<std::uint64_t>(piece.into.size() - done, kBytesOfGet);
      MPI_Request request = MPI_REQUEST_NULL;
      Status started = mpi_status(
          MPI_Rget(piece.into.data() + done, static_cast<int>(count), MPI_BYTE,
                   static_cast<int>(piece.rank), static_cast<MPI_Aint>(piece.offset + done),
                   static_cast<int>(count), MPI_BYTE, win_, &request),
          what);
      if (!started.ok()) {
        if (!requests.empty()) abandoned_.push_back({std::move(requests), std::move(owner)});
        return started;
      }
      requests.push_back(request);
      done += count;
      if (requests.size() < kMostRequests) continue;
      DRIFTLESS_RETURN_IF_ERROR(wait(requests, owner, deadline, what));
      requests.clear();
    }
  }
  if (requests.empty()) return {};
  return wait(requests, std::move(owner), deadline, what);
}

Result<std::vector<std::byte>> Medium::get(unsigned rank, std::uint64_t offset, std::uint64_t size,
                                           const Deadline& deadline, std::string_view what) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(size);
  const Piece piece{rank, offset, *bytes};
  DRIFTLESS_RETURN_IF_ERROR(get({&piece, 1}, bytes, deadline, what));
  return std::move(*bytes);
}

// A put's request shows only that its memory may be reused, and a flush has no deadline: so the
// bytes are read back until they are there.
Status Medium::put(unsigned rank, std::uint64_t offset, std::span<const std::byte> bytes,
                   const Deadline& deadline, std::string_view what) {
  sweep();
  const auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  std::vector<MPI_Request> requests(1, MPI_REQUEST_NULL);
  const int count = static_cast<int>(copy->size());
  DRIFTLESS_RETURN_IF_ERROR(
      mpi_status(MPI_Rput(copy->data(), count, MPI_BYTE, static_cast<int>(rank),
                          static_cast<MPI_Aint>(offset), count, MPI_BYTE, win_, &requests[0]),
                 what));
  DRIFTLESS_RETURN_IF_ERROR(wait(requests, copy, deadline, what));
  Backoff backoff(microseconds(20), milliseconds(1));
  do {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto there, get(rank, offset, bytes.size(), deadline, what));
    if (std::equal(there.begin(), there.end(), bytes.begin(), bytes.end())) return {};
  } while (backoff.sleep(deadline));
  return deadline.check(what);
}

}  // namespace driftless::mpi_rma
