// SPDX-License-Identifier: Apache-2.0
// A library that is preloaded into a process, and makes the installed MPI worse.
//
//   LD_PRELOAD=libworse_mpi.so DRIFTLESS_TEST_MPI_THREADS=funneled driftless ...
//
// Grants less than MPI_THREAD_MULTIPLE, and ends the process with one line if it breaks that level:
// at `single` and `funneled`, by a call from another thread than the one that initialized MPI; at
// `serialized`, by two calls at once.
//
//   LD_PRELOAD=libworse_mpi.so DRIFTLESS_TEST_MPI_HANGS=MPI_Win_allocate_shared driftless ...
//
// The call never returns.
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace {

struct Level {
  std::string_view name;
  int value;
};
constexpr Level kLevels[] = {{"single", MPI_THREAD_SINGLE},
                             {"funneled", MPI_THREAD_FUNNELED},
                             {"serialized", MPI_THREAD_SERIALIZED}};

std::atomic<int> granted = MPI_THREAD_MULTIPLE;
std::thread::id owner;  // written before `granted`
std::atomic<bool> inside = false;
thread_local int depth = 0;  // MPI may implement a call by other calls

[[noreturn]] void refuse(const char* call, const char* why) {
  std::fprintf(stderr, "worse_mpi: %s %s\n", call, why);
  std::_Exit(99);
}

void perhaps_hang(std::string_view call) {
  const char* const wanted = std::getenv("DRIFTLESS_TEST_MPI_HANGS");
  while (wanted != nullptr && call == wanted) std::this_thread::sleep_for(std::chrono::seconds(1));
}

class Guard {
 public:
  explicit Guard(const char* call) {
    perhaps_hang(call);
    if (depth++ > 0 || granted == MPI_THREAD_MULTIPLE) return;
    if (granted < MPI_THREAD_SERIALIZED) {
      if (std::this_thread::get_id() != owner) refuse(call, "from another thread than MPI's");
    } else if (inside.exchange(true)) {
      refuse(call, "while another thread is inside MPI");
    } else {
      holds_ = true;
    }
  }
  ~Guard() {
    if (holds_) inside = false;
    --depth;
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  bool holds_ = false;
};

}  // namespace

#define GUARDED(name, parameters, arguments) \
  int MPI_##name parameters {                \
    const Guard guard("MPI_" #name);         \
    return PMPI_##name arguments;            \
  }

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  perhaps_hang("MPI_Init_thread");
  const char* const wanted = std::getenv("DRIFTLESS_TEST_MPI_THREADS");
  int level = required;
  for (const Level& known : kLevels) {
    if (wanted != nullptr && known.name == wanted && known.value < required) level = known.value;
  }
  const int code = PMPI_Init_thread(argc, argv, level, provided);
  if (*provided > level) *provided = level;
  owner = std::this_thread::get_id();
  granted = *provided;
  std::fprintf(stderr, "worse_mpi: asked for %d, has %d\n", required, *provided);
  return code;
}

// A later query returns the same level.
int MPI_Query_thread(int* provided) {
  *provided = granted;
  return MPI_SUCCESS;
}

GUARDED(Abort, (MPI_Comm a, int b), (a, b))
GUARDED(Allreduce, (const void* a, void* b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f),
        (a, b, c, d, e, f))
GUARDED(Barrier, (MPI_Comm a), (a))
GUARDED(Bcast, (void* a, int b, MPI_Datatype c, int d, MPI_Comm e), (a, b, c, d, e))
GUARDED(Cancel, (MPI_Request * a), (a))
GUARDED(Comm_dup, (MPI_Comm a, MPI_Comm* b), (a, b))
GUARDED(Comm_free, (MPI_Comm * a), (a))
GUARDED(Comm_split, (MPI_Comm a, int b, int c, MPI_Comm* d), (a, b, c, d))
GUARDED(File_close, (MPI_File * a), (a))
GUARDED(File_open, (MPI_Comm a, const char* b, int c, MPI_Info d, MPI_File* e), (a, b, c, d, e))
GUARDED(File_set_view,
        (MPI_File a, MPI_Offset b, MPI_Datatype c, MPI_Datatype d, const char* e, MPI_Info f),
        (a, b, c, d, e, f))
GUARDED(File_sync, (MPI_File a), (a))
GUARDED(File_write_at,
        (MPI_File a, MPI_Offset b, const void* c, int d, MPI_Datatype e, MPI_Status* f),
        (a, b, c, d, e, f))
GUARDED(File_write_at_all,
        (MPI_File a, MPI_Offset b, const void* c, int d, MPI_Datatype e, MPI_Status* f),
        (a, b, c, d, e, f))
GUARDED(Finalize, (void), ())
GUARDED(Iallgather,
        (const void* a, int b, MPI_Datatype c, void* d, int e, MPI_Datatype f, MPI_Comm g,
         MPI_Request* h),
        (a, b, c, d, e, f, g, h))
GUARDED(Iallreduce,
        (const void* a, void* b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f, MPI_Request* g),
        (a, b, c, d, e, f, g))
GUARDED(Improbe, (int a, int b, MPI_Comm c, int* d, MPI_Message* e, MPI_Status* f),
        (a, b, c, d, e, f))
GUARDED(Imrecv, (void* a, int b, MPI_Datatype c, MPI_Message* d, MPI_Request* e), (a, b, c, d, e))
GUARDED(Iprobe, (int a, int b, MPI_Comm c, int* d, MPI_Status* e), (a, b, c, d, e))
GUARDED(Irecv, (void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request* g),
        (a, b, c, d, e, f, g))
GUARDED(Isend, (const void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request* g),
        (a, b, c, d, e, f, g))
GUARDED(Recv, (void* a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Status* g),
        (a, b, c, d, e, f, g))
GUARDED(Rget,
        (void* a, int b, MPI_Datatype c, int d, MPI_Aint e, int f, MPI_Datatype g, MPI_Win h,
         MPI_Request* i),
        (a, b, c, d, e, f, g, h, i))
GUARDED(Rput,
        (const void* a, int b, MPI_Datatype c, int d, MPI_Aint e, int f, MPI_Datatype g, MPI_Win h,
         MPI_Request* i),
        (a, b, c, d, e, f, g, h, i))
GUARDED(Test, (MPI_Request * a, int* b, MPI_Status* c), (a, b, c))
GUARDED(Testall, (int a, MPI_Request* b, int* c, MPI_Status* d), (a, b, c, d))
GUARDED(Testsome, (int a, MPI_Request* b, int* c, int* d, MPI_Status* e), (a, b, c, d, e))
GUARDED(Wait, (MPI_Request * a, MPI_Status* b), (a, b))
GUARDED(Win_allocate, (MPI_Aint a, int b, MPI_Info c, MPI_Comm d, void* e, MPI_Win* f),
        (a, b, c, d, e, f))
GUARDED(Win_allocate_shared, (MPI_Aint a, int b, MPI_Info c, MPI_Comm d, void* e, MPI_Win* f),
        (a, b, c, d, e, f))
GUARDED(Win_free, (MPI_Win * a), (a))
GUARDED(Win_lock_all, (int a, MPI_Win b), (a, b))
GUARDED(Win_sync, (MPI_Win a), (a))
GUARDED(Win_unlock_all, (MPI_Win a), (a))

}  // extern "C"
