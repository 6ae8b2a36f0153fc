// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles of driftless.h. A handle is a number that is never reused, so that
// the use of a closed one is detected instead of reading freed memory.
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
  // The library's only global, one for each kind of handle, because every call looks up a ticket.
  // It is never destroyed: closing a receiver that the process left open could wait for other
  // processes at exit.
  static Tickets& all() {
    static auto* const table = new Tickets;
    return *table;
  }

  [[nodiscard]] Handle* give(std::shared_ptr<Held> held) {
    const std::scoped_lock lock(mutex_);
    held_.emplace(++last_, std::move(held));
    return reinterpret_cast<Handle*>(last_);  // NOLINT(performance-no-int-to-ptr): no address
  }
  // kInvalidArgument for NULL, for closed tickets and for numbers that never were tickets.
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
