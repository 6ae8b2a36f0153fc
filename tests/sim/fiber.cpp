// SPDX-License-Identifier: Apache-2.0
#include "sim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace driftless::testing {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // touched as far as it is used

// Stacks are used again: a simulation makes many short fibers.
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
  inside_.uc_link = &outside_;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::run), 2,
                static_cast<unsigned>(self >> 32U), static_cast<unsigned>(self));
#if defined(__SANITIZE_THREAD__)
  tsan_inside_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_inside_);
#endif
  pool().give_back(stack_);
}

void Fiber::run(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>((std::uintptr_t{high} << 32U) | std::uintptr_t{low});
  self->has_switched(true);
  self->body_();
  self->body_ = nullptr;
  self->ended_ = true;
  self->about_to_switch(false);
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

void Fiber::about_to_switch([[maybe_unused]] bool to_fiber) {
#if defined(__SANITIZE_ADDRESS__)
  if (to_fiber) {
    __sanitizer_start_switch_fiber(&outside_fake_, stack_, kStackBytes);
  } else {
    __sanitizer_start_switch_fiber(ended_ ? nullptr : &inside_fake_, outside_stack_,
                                   outside_bytes_);
  }
#endif
#if defined(__SANITIZE_THREAD__)
  if (to_fiber) tsan_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to_fiber ? tsan_inside_ : tsan_outside_, 0);
#endif
}

void Fiber::has_switched([[maybe_unused]] bool to_fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(to_fiber ? inside_fake_ : outside_fake_,
                                  to_fiber ? &outside_stack_ : nullptr,
                                  to_fiber ? &outside_bytes_ : nullptr);
#endif
}

}  // namespace driftless::testing
