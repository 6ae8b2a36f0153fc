// SPDX-License-Identifier: Apache-2.0
// HttpConnections: the connections of the status server. One thread reads the requests of all
// connections, so that silent or slow clients delay no other. A complete request is answered by one
// of kThreads threads. A request for /ready is answered by a separate thread, which never waits for
// a client: a client that opens connections again and again cannot keep a probe from its answer.
// Limits: http_server.h.
//
// Any thread may call add(). start() is called once; the threads inherit the signal mask of its
// caller.
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
  // Returns the whole answer to a request, which ends with the empty line after its headers. Called
  // by several threads. Empty: the connection is closed without an answer.
  using Answer = std::function<std::string(std::string request, int socket)>;

  explicit HttpConnections(Answer answer) : answer_(std::move(answer)) {}
  HttpConnections(const HttpConnections&) = delete;
  HttpConnections& operator=(const HttpConnections&) = delete;
  ~HttpConnections() { end(); }

  [[nodiscard]] Status start();
  void add(Descriptor socket);
  // Closes all connections and waits for the threads.
  void end();

 private:
  struct Connection {
    Descriptor socket;
    Deadline until;  // the connection is closed if its request is not complete by then
    std::string request{};
    bool answered = false;  // only waits for the client to close
    std::size_t drained = 0;
  };
  struct Request {
    Descriptor socket;
    std::string text;
  };
  // A queue from which threads take complete requests.
  struct Lane {
    std::deque<Request> waiting;
    std::condition_variable changed;
  };

  void read();
  void look();
  // Reads from the connection. False: it was closed, or handed to a lane.
  [[nodiscard]] bool read_some(Connection& connection);
  void dispatch(Connection& connection);
  void work(Lane& lane, bool waits);
  // Sends as much of the answer as the socket takes at once, then waits only for the client to
  // close.
  void close_after(Descriptor socket, std::string_view answer);
  void come_back(Connection connection);
  void wake() const;

  const Answer answer_;
  Descriptor wake_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::deque<Connection> coming_;  // passed to the reading thread
  Lane probes_, others_;
  std::deque<Connection> open_;  // owned by the reading thread; oldest first
  std::vector<std::thread> threads_;
};

}  // namespace driftless
