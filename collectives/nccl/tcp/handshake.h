// SPDX-License-Identifier: Apache-2.0
// The first words on a TCP connection of the rendezvous, all of fixed size:
//   server: greeting, nonce    client: nonce, proof    server: proof
#pragma once

#include <string>
#include <string_view>

#include "collectives/nccl/tcp/token.h"

namespace driftless::nccl {

inline constexpr std::string_view kGreeting = "DRFTNCC1";
inline constexpr std::size_t kServerHelloBytes = kGreeting.size() + kNonceBytes;
inline constexpr std::size_t kClientProofBytes = kNonceBytes + kProofBytes;

struct Admission {
  std::string key;     // of the connection's messages
  std::string answer;  // what the other side is sent
};

// [server] `said`: kClientProofBytes. kInvalidArgument where the proof is false.
[[nodiscard]] Result<Admission> admit(std::string_view token, std::string_view nonce,
                                      std::string_view said);
// [client] `hello`: kServerHelloBytes.
[[nodiscard]] Result<Admission> answer_hello(std::string_view token, std::string_view hello,
                                             std::string* expected_proof);

}  // namespace driftless::nccl
