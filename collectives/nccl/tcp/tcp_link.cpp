// SPDX-License-Identifier: Apache-2.0
// Everybody else's side of the TCP rendezvous.
#include <poll.h>

#include <atomic>
#include <mutex>

#include "collectives/nccl/rendezvous.h"
#include "collectives/nccl/tcp/frame.h"
#include "collectives/nccl/tcp/handshake.h"
#include "collectives/nccl/tcp/socket.h"
#include "collectives/nccl/tcp/token.h"

namespace driftless::nccl {
namespace {

class TcpLink final : public Link {
 public:
  TcpLink(Socket socket, const std::string& key)
      : socket_(std::move(socket)),
        writer_(key, Direction::kToServer),
        reader_(key, Direction::kToClient) {}

  [[nodiscard]] Status send(std::string_view message, const Deadline& deadline) override {
    const std::scoped_lock lock(mutex_);
    if (torn_) return error(StatusCode::kIo, "nccl: the link to the leader is torn");
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string frame, writer_.frame(message));
    const Status sent = write_all(socket_, frame, deadline);
    if (sent.ok()) return {};
    torn_ = true;  // half a message may be out
    return error(StatusCode::kIo, sent.message());
  }

  [[nodiscard]] Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    for (;;) {
      Result<std::optional<std::string>> message = reader_.next();
      if (!message.ok()) return error(StatusCode::kIo, message.status().message());
      if (message->has_value()) return message;
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string bytes, read_some(socket_, std::size_t{1} << 16));
      reader_.append(bytes);
      // Only once nothing is left to be read: what the leader said last is whole.
      if (bytes.empty() && torn_) {
        return error(StatusCode::kIo, "nccl: the link to the leader is torn");
      }
      if (bytes.empty() && !wait_for(socket_, POLLIN, deadline)) return message;
    }
  }

 private:
  const Socket socket_;
  std::mutex mutex_;  // of what is sent
  FrameWriter writer_;
  FrameReader reader_;
  std::atomic<bool> torn_ = false;
};

class TcpConnector final : public Connector {
 public:
  TcpConnector(std::string address, std::string token)
      : address_(std::move(address)), token_(std::move(token)) {}

  [[nodiscard]] Result<std::unique_ptr<Link>> connect(const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(Socket socket, connect_to(address_, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string hello,
                               read_all(socket, kServerHelloBytes, deadline));
    std::string expected;
    DRIFTLESS_ASSIGN_OR_RETURN(const Admission mine, answer_hello(token_, hello, &expected));
    DRIFTLESS_RETURN_IF_ERROR(write_all(socket, mine.answer, deadline));
    const Result<std::string> proof = read_all(socket, kProofBytes, deadline);
    if (!proof.ok()) {
      return proof.status().with_context(
          concat("the leader at ", address_, " did not admit us; is the token the same?"));
    }
    if (!same_proof(*proof, expected)) {
      return error(StatusCode::kInvalidArgument, "nccl: what listens on ", address_,
                   " does not know the run's token");
    }
    return std::unique_ptr<Link>(std::make_unique<TcpLink>(std::move(socket), mine.key));
  }

 private:
  const std::string address_;
  const std::string token_;
};

}  // namespace

Result<std::unique_ptr<Connector>> make_tcp_connector(const RendezvousOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_token(options.token_file));
  return std::unique_ptr<Connector>(
      std::make_unique<TcpConnector>(options.address, std::move(token)));
}

}  // namespace driftless::nccl
