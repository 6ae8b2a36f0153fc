// SPDX-License-Identifier: Apache-2.0
#include "core/kept_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace driftless {
namespace {

constexpr std::uint64_t kSmallPage = 4096;
constexpr std::uint64_t kLargePage = std::uint64_t{2} << 20;
constexpr std::size_t kMostPieces = 256;                      // that are kept
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;  // a larger request is a damaged size

constexpr std::uint64_t rounded_to(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The same part has a slightly different size in each version. A piece is therefore an eighth
// larger than requested; pages that nobody touches cost nothing.
std::uint64_t piece_bytes(std::uint64_t bytes) {
  if (bytes < KeptMemory::kLeastBytes)
    return rounded_to(std::max<std::uint64_t>(bytes, 1), kSmallPage);
  const std::uint64_t roomy = bytes + bytes / 8;
  return rounded_to(roomy, roomy < kLargePage ? KeptMemory::kLeastBytes : kLargePage);
}

std::byte* allocate_pages(std::uint64_t bytes) {
  const bool huge = bytes >= kLargePage;
  void* const memory = std::aligned_alloc(huge ? kLargePage : kSmallPage, bytes);
  if (memory != nullptr && huge) ::madvise(memory, bytes, MADV_HUGEPAGE);  // if there are any
  return static_cast<std::byte*>(memory);
}

}  // namespace

// The unused pieces. A piece in use holds a weak reference, and returns if the store still exists.
class KeptMemory::Store {
 public:
  // Reserves the list now: destructors call put(), which must not allocate.
  explicit Store(std::uint64_t most_bytes) : most_bytes_(most_bytes) {
    unused_.reserve(kMostPieces);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() {
    for (const Piece& piece : unused_) std::free(piece.data);
  }

  struct Piece {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t put_at = 0;  // takes_ when it was put back
  };

  // The smallest piece that is large enough, unless it is much too large.
  [[nodiscard]] Piece take(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    ++takes_;
    free_idle();
    auto best = unused_.end();
    for (auto each = unused_.begin(); each != unused_.end(); ++each) {
      if (each->bytes < bytes || each->bytes / 4 > bytes + kLargePage) continue;
      if (best == unused_.end() || each->bytes < best->bytes) best = each;
    }
    if (best == unused_.end()) return {};
    const Piece piece = *best;
    kept_bytes_ -= piece.bytes;
    *best = unused_.back();
    unused_.pop_back();
    return piece;
  }

  void put(Piece piece) {
    const std::scoped_lock lock(mutex_);
    const bool fits = piece.bytes >= kLeastBytes && piece.bytes <= most_bytes_ - kept_bytes_;
    if (fits && unused_.size() < kMostPieces) {
      piece.put_at = takes_;
      kept_bytes_ += piece.bytes;
      unused_.push_back(piece);
    } else {
      std::free(piece.data);
    }
  }

  [[nodiscard]] std::uint64_t kept_bytes() const {
    const std::scoped_lock lock(mutex_);
    return kept_bytes_;
  }

 private:
  void free_idle() {
    std::erase_if(unused_, [this](const Piece& piece) {
      if (takes_ - piece.put_at <= kIdleTakes) return false;
      kept_bytes_ -= piece.bytes;
      std::free(piece.data);
      return true;
    });
  }

  const std::uint64_t most_bytes_;
  mutable std::mutex mutex_;
  std::vector<Piece> unused_;
  std::uint64_t kept_bytes_ = 0, takes_ = 0;
};

KeptMemory::KeptMemory(std::uint64_t most_kept_bytes)
    : store_(std::make_shared<Store>(most_kept_bytes)) {}

KeptMemory::~KeptMemory() = default;

std::shared_ptr<std::byte> KeptMemory::take(std::uint64_t bytes) {
  if (bytes < kLeastBytes || bytes > kMostBytes) return take_memory(nullptr, bytes);
  Store::Piece piece = store_->take(bytes);
  if (piece.data == nullptr) {
    piece.bytes = piece_bytes(bytes);
    piece.data = allocate_pages(piece.bytes);
  }
  if (piece.data == nullptr) return nullptr;
  // The store is destroyed with its KeptMemory, even if pieces are still in use.
  const std::weak_ptr<Store> store = store_;
  return {piece.data, [store, piece](std::byte* data) {
            if (const std::shared_ptr<Store> back = store.lock()) {
              back->put(piece);
            } else {
              std::free(data);
            }
          }};
}

std::uint64_t KeptMemory::kept_bytes() const { return store_->kept_bytes(); }

std::shared_ptr<std::byte> take_memory(KeptMemory* kept, std::uint64_t bytes) {
  if (kept != nullptr) return kept->take(bytes);
  std::byte* const data = bytes <= kMostBytes ? allocate_pages(piece_bytes(bytes)) : nullptr;
  return data != nullptr
             ? std::shared_ptr<std::byte>(data, [](std::byte* block) { std::free(block); })
             : nullptr;
}

}  // namespace driftless
