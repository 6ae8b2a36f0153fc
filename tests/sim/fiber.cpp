// SPDX-License-Identifier: Apache-2.0
#include "sim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

// gcc defines a macro for each sanitizer, clang answers __has_feature.
#if defined(__has_feature)
#define DRIFTLESS_HAS_FEATURE(name) __has_feature(name)
#else
#define DRIFTLESS_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || DRIFTLESS_HAS_FEATURE(address_sanitizer)
#define DRIFTLESS_ASAN_FIBERS 1
#include <sanitizer/common_interface_defs.h>
#else
#define DRIFTLESS_ASAN_FIBERS 0
#endif
#if defined(__SANITIZE_THREAD__) || DRIFTLESS_HAS_FEATURE(thread_sanitizer)
#define DRIFTLESS_TSAN_FIBERS 1
#include <sanitizer/tsan_interface.h>
#else
#define DRIFTLESS_TSAN_FIBERS 0
#endif

namespace driftless::testing {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // touched as far as it is used

// Stacks are reused: a simulation makes many short fibers.
class StackPool {
 public:
  ~StackPool() {
    for (std::byte* stack : free_) ::munmap(stack, kStackBytes);
  }
  std::byte* take() {
    if (!free_.empty()) {
      std::byte* const stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* const made = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(made);
  }
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  std::vector<std::byte*> free_;
};

StackPool& pool() {
  thread_local StackPool stacks;
  return stacks;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(pool().take()) {
  ::getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;  // run() does not return
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::run), 2,
                static_cast<unsigned>(self >> 32U), static_cast<unsigned>(self));
#if DRIFTLESS_TSAN_FIBERS
  tsan_inside_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if DRIFTLESS_TSAN_FIBERS
  __tsan_destroy_fiber(tsan_inside_);
#endif
  pool().give_back(stack_);
}

// Inline, because ThreadSanitizer counts each function's entry and return on the fiber that is
// current: a function that returned between the two switches (its and ours) would return on
// another fiber than it was entered on.
[[gnu::always_inline]] inline void Fiber::about_to_switch([[maybe_unused]] bool to_fiber) {
#if DRIFTLESS_ASAN_FIBERS
  if (to_fiber) {
    __sanitizer_start_switch_fiber(&outside_fake_, stack_, kStackBytes);
  } else {
    __sanitizer_start_switch_fiber(ended_ ? nullptr : &inside_fake_, outside_stack_,
                                   outside_bytes_);
  }
#endif
#if DRIFTLESS_TSAN_FIBERS
  if (to_fiber) tsan_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to_fiber ? tsan_inside_ : tsan_outside_, 0);
#endif
}

[[gnu::always_inline]] inline void Fiber::has_switched([[maybe_unused]] bool to_fiber) {
#if DRIFTLESS_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(to_fiber ? inside_fake_ : outside_fake_,
                                  to_fiber ? &outside_stack_ : nullptr,
                                  to_fiber ? &outside_bytes_ : nullptr);
#endif
}

void Fiber::run(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>((std::uintptr_t{high} << 32U) | std::uintptr_t{low});
  self->has_switched(true);
  self->body_();
  self->body_ = nullptr;
  self->ended_ = true;
  self->about_to_switch(false);
  ::setcontext(&self->outside_);  // does not return: see about_to_switch()
  std::abort();
}

void Fiber::enter() {
  about_to_switch(true);
  ::swapcontext(&outside_, &inside_);
  has_switched(false);
}

void Fiber::leave() {
  about_to_switch(false);
  ::swapcontext(&inside_, &outside_);
  has_switched(true);
}

}  // namespace driftless::testing
