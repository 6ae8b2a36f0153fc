// SPDX-License-Identifier: Apache-2.0
#include "plugin/c_abi/handles.h"

#include <cstdint>
#include <map>
#include <mutex>

namespace driftless::c_abi {
namespace {

struct Tickets {
  std::mutex mutex;
  std::uintptr_t last = 0;
  std::map<std::uintptr_t, std::shared_ptr<AbiReceiver>> receivers;
};

// The one global of the library: what a ticket means must be known to every call. Never destroyed,
// since a receiver that the process leaves open must not wait for others while it ends.
Tickets& tickets() {
  static auto* const table = new Tickets;
  return *table;
}

std::uintptr_t number_of(const driftless_receiver* ticket) {
  return reinterpret_cast<std::uintptr_t>(ticket);
}

}  // namespace

driftless_receiver* give_ticket(std::shared_ptr<AbiReceiver> held) {
  Tickets& table = tickets();
  const std::scoped_lock lock(table.mutex);
  table.receivers.emplace(++table.last, std::move(held));
  // A number, never an address.
  return reinterpret_cast<driftless_receiver*>(table.last);  // NOLINT(performance-no-int-to-ptr)
}

Result<std::shared_ptr<AbiReceiver>> find(const driftless_receiver* ticket) {
  if (ticket == nullptr) return error(StatusCode::kInvalidArgument, "receiver is NULL");
  Tickets& table = tickets();
  const std::scoped_lock lock(table.mutex);
  const auto at = table.receivers.find(number_of(ticket));
  if (at != table.receivers.end()) return at->second;
  return error(StatusCode::kInvalidArgument,
               "receiver is not open: it was closed, or never was one");
}

void take_back(const driftless_receiver* ticket) {
  Tickets& table = tickets();
  const std::scoped_lock lock(table.mutex);
  table.receivers.erase(number_of(ticket));
}

}  // namespace driftless::c_abi
