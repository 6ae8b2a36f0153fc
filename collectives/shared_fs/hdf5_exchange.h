// SPDX-License-Identifier: Apache-2.0
// Exchange: every rank says a word, and hears everybody's. Internal to the hdf5_*.cpp files.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/shared_fs/hdf5_attempt.h"
#include "core/hash128.h"
#include "core/status.h"

namespace driftless {

// As it travels, between ranks of one build: plain bytes.
struct Hdf5Message {
  enum Kind : std::uint32_t { kPart = 1, kNoMore = 2, kFailed = 3, kGo = 4 };

  std::uint32_t kind = kFailed;
  std::uint32_t code = 0;       // of a failure
  std::uint64_t file_open = 0;  // whether the sender takes part in closing the file
  Hash128 attempt;
  std::uint64_t size_bytes = 0;  // of a part, like the following
  Hash128 hash;
  std::array<char, kMaxHdf5PartName + 1> name{};  // ends with a zero
  std::array<char, 512> text{};                   // of a failure; ends with a zero

  void set_failure(const Status& why);
  [[nodiscard]] Status failure(unsigned rank) const;
};

// One exchange at a time, without a wait: post(), then test() until it says true. One thread at a
// time. A request that is still under way when it is destroyed is left to MPI, with its buffers:
// MPI cannot take it back.
class Hdf5Exchange {
 public:
  // Duplicates `ranks`; errors of MPI become statuses from here on. Collective.
  [[nodiscard]] static Result<std::unique_ptr<Hdf5Exchange>> create(MPI_Comm ranks);
  ~Hdf5Exchange();
  Hdf5Exchange(const Hdf5Exchange&) = delete;
  Hdf5Exchange& operator=(const Hdf5Exchange&) = delete;

  [[nodiscard]] MPI_Comm comm() const { return comm_; }
  [[nodiscard]] unsigned rank() const { return rank_; }
  [[nodiscard]] unsigned size() const { return size_; }

  [[nodiscard]] Status post(const Hdf5Message& mine);
  [[nodiscard]] Result<bool> test();
  // By rank; valid from test() to the next post().
  [[nodiscard]] const std::vector<Hdf5Message>& heard() const { return buffers_->heard; }

 private:
  struct Buffers {
    Hdf5Message mine;
    std::vector<Hdf5Message> heard;
  };
  explicit Hdf5Exchange(MPI_Comm comm) : comm_(comm) {}

  MPI_Comm comm_;
  unsigned rank_ = 0, size_ = 1;
  std::unique_ptr<Buffers> buffers_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// "<what>: MPI: <its text>"; ok for MPI_SUCCESS.
[[nodiscard]] Status hdf5_mpi_status(int code, std::string_view what);

}  // namespace driftless
