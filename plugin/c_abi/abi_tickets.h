// SPDX-License-Identifier: Apache-2.0
// What the handles of driftless.h stand for. A handle is a number that is never given out twice,
// so that a closed one is found out instead of being followed into freed memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/status.h"

namespace driftless::c_abi {

template <typename Handle, typename Held>
class Tickets {
 public:
  // The one global of the library for each kind: what a ticket means must be known to every call.
  // Never destroyed, since what the process leaves open must not wait for others while it ends.
  static Tickets& all() {
    static auto* const table = new Tickets;
    return *table;
  }

  [[nodiscard]] Handle* give(std::shared_ptr<Held> held) {
    const std::scoped_lock lock(mutex_);
    held_.emplace(++last_, std::move(held));
    return reinterpret_cast<Handle*>(last_);  // NOLINT(performance-no-int-to-ptr): no address
  }
  // kInvalidArgument for NULL, and for what is no ticket (any more).
  [[nodiscard]] Result<std::shared_ptr<Held>> find(const Handle* ticket, const char* name) {
    if (ticket == nullptr) return error(StatusCode::kInvalidArgument, name, " is NULL");
    const std::scoped_lock lock(mutex_);
    const auto at = held_.find(number_of(ticket));
    if (at != held_.end()) return at->second;
    return error(StatusCode::kInvalidArgument, name,
                 " is not open: it was closed, or never was one");
  }
  void take_back(const Handle* ticket) {
    const std::scoped_lock lock(mutex_);
    held_.erase(number_of(ticket));
  }

 private:
  static std::uintptr_t number_of(const Handle* ticket) {
    return reinterpret_cast<std::uintptr_t>(ticket);
  }
  std::mutex mutex_;
  std::uintptr_t last_ = 0;
  std::map<std::uintptr_t, std::shared_ptr<Held>> held_;
};

}  // namespace driftless::c_abi
