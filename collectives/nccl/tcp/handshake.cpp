// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/tcp/handshake.h"

namespace driftless::nccl {

Result<Admission> admit(std::string_view token, std::string_view nonce, std::string_view said) {
  if (said.size() != kClientProofBytes) {
    return error(StatusCode::kInvalidArgument, "nccl: a proof of ", said.size(), " bytes");
  }
  const std::string_view theirs = said.substr(0, kNonceBytes);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string expected, client_proof(token, nonce, theirs));
  if (!same_proof(said.substr(kNonceBytes), expected)) {
    return error(StatusCode::kInvalidArgument, "nccl: somebody does not know the run's token");
  }
  Admission admitted;
  DRIFTLESS_ASSIGN_OR_RETURN(admitted.key, session_key(token, nonce, theirs));
  DRIFTLESS_ASSIGN_OR_RETURN(admitted.answer, server_proof(token, nonce, theirs));
  return admitted;
}

Result<Admission> answer_hello(std::string_view token, std::string_view hello,
                               std::string* expected_proof) {
  if (hello.size() != kServerHelloBytes || !hello.starts_with(kGreeting)) {
    return error(StatusCode::kCorrupt, "nccl: what listens there is not a leader of this release");
  }
  const std::string_view theirs = hello.substr(kGreeting.size());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string mine, new_nonce());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof, client_proof(token, theirs, mine));
  DRIFTLESS_ASSIGN_OR_RETURN(*expected_proof, server_proof(token, theirs, mine));
  Admission admission;
  admission.answer = concat(mine, proof);
  DRIFTLESS_ASSIGN_OR_RETURN(admission.key, session_key(token, theirs, mine));
  return admission;
}

}  // namespace driftless::nccl
