// SPDX-License-Identifier: Apache-2.0
// HttpConnections: the connections of the status server. One thread reads the requests of all of
// them, so that those who send nothing, or slowly, hold up nobody; a request is answered once it is
// whole, by one of kThreads, and a request for /ready by a thread of its own, which never waits for
// a client: whoever opens connections again and again cannot keep a probe from its answer. Bounds:
// http_server.h.
//
// Any thread may call add(). start() is called once; the threads inherit the caller's signals.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/deadline.h"
#include "core/descriptor.h"

namespace driftless {

class HttpConnections {
 public:
  // The whole answer to a request, which ends with the empty line behind its headers. Called by
  // several threads. Empty: the connection is closed without one.
  using Answer = std::function<std::string(std::string request, int socket)>;

  explicit HttpConnections(Answer answer) : answer_(std::move(answer)) {}
  HttpConnections(const HttpConnections&) = delete;
  HttpConnections& operator=(const HttpConnections&) = delete;
  ~HttpConnections() { end(); }

  [[nodiscard]] Status start();
  void add(Descriptor socket);
  // Closes all connections, and waits for the threads.
  void end();

 private:
  struct Connection {
    Descriptor socket;
    Deadline until;  // its request is whole, or it is closed
    std::string request{};
    bool answered = false;  // only its end is waited for
    std::size_t drained = 0;
  };
  struct Request {
    Descriptor socket;
    std::string text;
  };
  // What threads take requests from.
  struct Lane {
    std::deque<Request> waiting;
    std::condition_variable changed;
  };

  void read();
  void look();
  // False: it is closed, or has gone to a lane.
  [[nodiscard]] bool read_some(Connection& connection);
  void dispatch(Connection& connection);
  void work(Lane& lane, bool waits);
  // Sent, as far as the socket takes it at once; then only the client's end is waited for.
  void close_after(Descriptor socket, std::string_view answer);
  void come_back(Connection connection);
  void wake() const;

  const Answer answer_;
  Descriptor wake_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::deque<Connection> coming_;  // for the thread that reads
  Lane probes_, others_;
  std::deque<Connection> open_;  // of the thread that reads; oldest first
  std::vector<std::thread> threads_;
};

}  // namespace driftless
