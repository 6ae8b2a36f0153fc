// SPDX-License-Identifier: Apache-2.0
// Medium: the communicator and the windows that both sides of the mpi_rma road share in a process.
//
// Each window is in a passive-target epoch during its whole life: it is locked once, when it is
// made. Reads and writes of other ranks' windows are request-based, and tested until they are done
// or the deadline has passed; the memory of an abandoned request is kept until MPI has finished it.
// A rank's own stores become visible through std::atomic_thread_fence (the unified memory model,
// which is checked, allows that from any thread) and through sync().
//
// One thread at a time; without MPI_THREAD_MULTIPLE always the thread that initialized MPI.
#pragma once

#include <mpi.h>

#include <atomic>

#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/mpi_rma/window_map.h"

namespace driftless::mpi_rma {

// A stretch of another rank's window, and the memory that receives its bytes.
struct Piece {
  unsigned rank = 0;  // of the publisher
  std::uint64_t offset = 0;
  std::span<std::byte> into;
};

class Medium {
 public:
  // Collective; either all ranks succeed or all fail.
  [[nodiscard]] static Result<std::unique_ptr<Medium>> create(MPI_Comm world, unsigned publishers,
                                                              const MpiRmaOptions& options);
  ~Medium();  // calls close() if nobody has
  Medium(const Medium&) = delete;
  Medium& operator=(const Medium&) = delete;

  // Collective; waits for the other ranks, for a limited time. kDeadlineExceeded if a rank did not
  // call it, or a get never ended: windows and communicators are then kept until the process ends.
  [[nodiscard]] Status close();

  [[nodiscard]] const MpiRmaOptions& options() const { return options_; }
  [[nodiscard]] unsigned rank() const { return rank_; }  // in the world
  [[nodiscard]] unsigned publishers() const { return publishers_; }
  [[nodiscard]] unsigned receivers() const { return ranks_ - publishers_; }
  [[nodiscard]] bool publishes() const { return rank_ < publishers_; }
  [[nodiscard]] bool threads() const { return threads_; }
  [[nodiscard]] bool one_node() const { return one_node_; }
  [[nodiscard]] const WindowMap& map(unsigned publisher) const {
    return publisher == 0 ? leader_map_ : other_map_;
  }
  // The window of this rank; empty on receivers.
  [[nodiscard]] std::span<std::byte> window() { return {base_, window_bytes_}; }
  [[nodiscard]] MPI_Win handle() const { return win_; }  // for measurements
  // A communicator without messages, for a ProgressPoll.
  [[nodiscard]] MPI_Comm quiet() const { return quiet_comm_; }

  // Reads all pieces; `owner` keeps their memory alive. The stretches must lie within the windows:
  // MPI does not check that.
  [[nodiscard]] Status get(std::span<const Piece> pieces, std::shared_ptr<const void> owner,
                           const Deadline& deadline, std::string_view what);
  // Reads a small stretch of publisher `rank`'s window.
  [[nodiscard]] Result<std::vector<std::byte>> get(unsigned rank, std::uint64_t offset,
                                                   std::uint64_t size, const Deadline& deadline,
                                                   std::string_view what);
  // Writes into publisher `rank`'s window, and returns once the bytes are there.
  [[nodiscard]] Status put(unsigned rank, std::uint64_t offset, std::span<const std::byte> bytes,
                           const Deadline& deadline, std::string_view what);
  // Makes this rank's earlier stores visible to gets that start later, and completed puts of other
  // ranks visible to this rank's loads.
  [[nodiscard]] Status sync();

 private:
  struct Abandoned {
    std::vector<MPI_Request> requests;
    std::shared_ptr<const void> owner;
  };

  Medium(const MpiRmaOptions& options, unsigned publishers)
      : options_(options), publishers_(publishers) {}
  [[nodiscard]] Status connect(MPI_Comm world);
  [[nodiscard]] Status find_neighbours();
  [[nodiscard]] Status check_room() const;
  [[nodiscard]] Status make_window();
  [[nodiscard]] int allocate(bool shared);
  [[nodiscard]] Status start_access();
  // Collective: combines the statuses of all ranks into this rank's result.
  [[nodiscard]] Status agree(const Status& mine, std::string_view what);
  [[nodiscard]] Status wait(std::vector<MPI_Request>& requests, std::shared_ptr<const void> owner,
                            const Deadline& deadline, std::string_view what);
  void sweep();  // frees abandoned requests that have ended
  [[nodiscard]] bool all_are_done();

  const MpiRmaOptions options_;
  const unsigned publishers_;
  unsigned rank_ = 0, ranks_ = 0;
  bool threads_ = false, one_node_ = false;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm quiet_comm_ = MPI_COMM_NULL;
  MPI_Win win_ = MPI_WIN_NULL;
  bool accessible_ = false, closed_ = false;
  std::byte* base_ = nullptr;
  std::uint64_t window_bytes_ = 0;
  WindowMap leader_map_, other_map_;
  std::vector<Abandoned> abandoned_;
};

// Stores a word of this rank's window that other ranks may read at the same time.
inline void store_word(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_release);
  // Later stores must not become visible before this one.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_sender(Medium& medium);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(Medium& medium);

}  // namespace driftless::mpi_rma
