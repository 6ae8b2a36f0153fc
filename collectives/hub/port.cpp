// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/port.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace driftless::hub {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kServeSlice{20};
constexpr std::size_t kMostHeldBytes = 4 * kMaxMessageBytes;
constexpr std::size_t kMostNameBytes = 64;  // for a service
constexpr std::string_view kServed = "served";

}  // namespace

// The hub, the thread that polls it, and the events of each service.
class Exchange {
 public:
  explicit Exchange(std::unique_ptr<Hub> hub)
      : hub_(std::move(hub)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  // False: the service is already served.
  [[nodiscard]] bool open(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    return services_.try_emplace(name).second;
  }
  // Its peers still receive the messages that were sent to them.
  void close(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    for (auto it = peers_.begin(); it != peers_.end();) {
      if (it->second != name) {
        ++it;
        continue;
      }
      hub_->finish(it->first);
      it = peers_.erase(it);
    }
    held_bytes_ -= services_.at(name).held_bytes;
    services_.erase(name);
  }

  [[nodiscard]] std::vector<HubEvent> take(const std::string& name, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    Service& service = services_.at(name);
    static_cast<void>(
        wait_until(service.came, lock, deadline.at(), [&] { return !service.events.empty(); }));
    held_bytes_ -= std::exchange(service.held_bytes, 0);
    return std::exchange(service.events, {});
  }
  void send(const std::string& name, std::uint64_t peer, std::string_view message) {
    if (belongs(name, peer)) hub_->send(peer, message);
  }
  void drop(const std::string& name, std::uint64_t peer) {
    if (belongs(name, peer)) hub_->drop(peer);
  }
  void finish(const std::string& name, std::uint64_t peer) {
    if (belongs(name, peer)) hub_->finish(peer);
  }

 private:
  struct Service {
    std::vector<HubEvent> events;
    std::size_t held_bytes = 0;  // of the events' texts
    std::condition_variable came;
  };

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<HubEvent> events = hub_->poll(Deadline::after(kServeSlice));
      const std::scoped_lock lock(mutex_);
      for (HubEvent& event : events) handle(std::move(event));
    }
  }

  // Needs the mutex.
  void handle(HubEvent event) {
    if (event.kind == HubEvent::Kind::kCame) {
      peers_.try_emplace(event.peer);
      return;
    }
    const auto found = peers_.find(event.peer);
    if (found == peers_.end()) return;  // from a peer of a closed service
    if (event.kind == HubEvent::Kind::kMessage && found->second.empty()) {
      return name_service(event.peer, found->second, event.text);
    }
    const auto service = services_.find(found->second);
    if (event.kind == HubEvent::Kind::kWent) peers_.erase(found);
    if (service == services_.end()) return;
    deliver(service->second, std::move(event));
    while (held_bytes_ > kMostHeldBytes) drop_largest();
  }

  void deliver(Service& service, HubEvent event) {
    service.held_bytes += event.text.size();
    held_bytes_ += event.text.size();
    service.events.push_back(std::move(event));
    service.came.notify_all();
  }

  void name_service(std::uint64_t peer, std::string& named, const std::string& name) {
    const auto service = services_.find(name);
    if (service == services_.end()) {
      hub_->send(peer, concat("hub: the leading trainer does not serve '",
                              name.substr(0, kMostNameBytes), "' yet, or any more"));
      hub_->finish(peer);
      peers_.erase(peer);
      return;
    }
    named = name;
    hub_->send(peer, kServed);
    deliver(service->second, {HubEvent::Kind::kCame, peer, {}});
  }

  // Drops the peer with the most bytes, and its messages that no service has taken; the service
  // gets only its end.
  void drop_largest() {
    std::map<std::uint64_t, std::size_t> bytes;
    for (const auto& [name, service] : services_) {
      for (const HubEvent& event : service.events) bytes[event.peer] += event.text.size();
    }
    const std::uint64_t peer =
        std::ranges::max_element(bytes, {}, [](const auto& each) { return each.second; })->first;
    for (auto& [name, service] : services_) {
      std::erase_if(service.events, [&](const HubEvent& event) {
        if (event.peer != peer || event.kind != HubEvent::Kind::kMessage) return false;
        service.held_bytes -= event.text.size();
        held_bytes_ -= event.text.size();
        return true;
      });
    }
    hub_->drop(peer);
  }

  [[nodiscard]] bool belongs(const std::string& name, std::uint64_t peer) {
    const std::scoped_lock lock(mutex_);
    const auto found = peers_.find(peer);
    return found != peers_.end() && found->second == name;
  }

  const std::unique_ptr<Hub> hub_;
  std::mutex mutex_;
  std::map<std::string, Service> services_;
  std::map<std::uint64_t, std::string> peers_;  // their services; "": not yet named
  std::size_t held_bytes_ = 0;                  // of all services
  std::jthread thread_;                         // started last
};

namespace {

class ServiceHub final : public Hub {
 public:
  ServiceHub(std::shared_ptr<Exchange> exchange, std::string name)
      : exchange_(std::move(exchange)), name_(std::move(name)) {}
  ServiceHub(const ServiceHub&) = delete;
  ServiceHub& operator=(const ServiceHub&) = delete;
  ~ServiceHub() override { exchange_->close(name_); }
  std::vector<HubEvent> poll(const Deadline& deadline) override {
    return exchange_->take(name_, deadline);
  }
  void send(std::uint64_t peer, std::string_view message) override {
    exchange_->send(name_, peer, message);
  }
  void drop(std::uint64_t peer) override { exchange_->drop(name_, peer); }
  void finish(std::uint64_t peer) override { exchange_->finish(name_, peer); }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const std::string name_;
};

}  // namespace

Result<std::unique_ptr<Hub>> Port::serve(const std::string& service) {
  std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (exchange == nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Hub> hub, listen_());
    try {
      exchange = std::make_shared<Exchange>(std::move(hub));
    } catch (const std::system_error& failure) {
      return error(StatusCode::kIo, "hub: cannot start a thread: ", failure.what());
    }
    exchange_ = exchange;
  }
  if (!exchange->open(service)) {
    return error(StatusCode::kBusy, "hub: this process serves '", service, "' already");
  }
  return std::unique_ptr<Hub>(std::make_unique<ServiceHub>(std::move(exchange), service));
}

Result<Connector> Port::connector(const std::string& service) const {
  DRIFTLESS_ASSIGN_OR_RETURN(Connector connect, connect_());
  return Connector([connect = std::move(connect),
                    service](const Deadline& deadline) -> Result<std::unique_ptr<Link>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, connect(deadline));
    DRIFTLESS_RETURN_IF_ERROR(link->send(service, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> answer, link->receive(deadline));
    if (!answer) return deadline.check(concat("hub: waiting for the service '", service, "'"));
    if (*answer != kServed) return error(StatusCode::kIo, *answer);
    return Result<std::unique_ptr<Link>>(std::move(link));
  });
}

}  // namespace driftless::hub
