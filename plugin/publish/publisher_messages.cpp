// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/publisher_messages.h"

#include <nlohmann/json.hpp>

namespace driftless {
namespace {

using nlohmann::json;

// Messages come from the same program, but perhaps from another build of it: what does not parse is
// an error, not undefined behaviour.
template <typename Message>
Result<Message> parse(std::string_view text, void (*fill)(const json&, Message&)) {
  try {
    Message message;
    fill(json::parse(text), message);
    return message;
  } catch (const std::exception& caught) {
    return error(StatusCode::kCorrupt, "a message between publisher ranks cannot be read (",
                 caught.what(), "): do all ranks run the same release?");
  }
}

json status_json(const Status& status) {
  if (status.ok()) return nullptr;
  return {static_cast<unsigned>(status.code()), std::string(status.message())};
}

Status status_from(const json& value) {
  if (value.is_null()) return {};
  const auto code = value.at(0).get<unsigned>();
  const auto last = static_cast<unsigned>(StatusCode::kInternal);
  return {static_cast<StatusCode>(code == 0 || code > last ? last : code),
          value.at(1).get<std::string>()};
}

json tensors_json(const std::vector<TensorSpec>& tensors) {
  json list = json::array();
  for (const TensorSpec& tensor : tensors) {
    list.push_back({tensor.name, static_cast<unsigned>(tensor.dtype), tensor.shape});
  }
  return list;
}

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw std::invalid_argument(std::string(result.status().message()));
  return std::move(*result);
}

std::vector<TensorSpec> tensors_from(const json& list) {
  std::vector<TensorSpec> tensors;
  for (const json& item : list) {
    const DType dtype = value_or_throw(dtype_from_wire(item.at(1).get<std::uint8_t>()));
    tensors.push_back(value_or_throw(TensorSpec::make(
        item.at(0).get<std::string>(), dtype, item.at(2).get<std::vector<std::uint64_t>>())));
  }
  return tensors;
}

json findings_json(const PayloadFindings& findings) {
  json checksums = json::array();
  for (const ManifestTensor& tensor : findings.tensors) {
    checksums.push_back({tensor.name, tensor.checksum});
  }
  return {{"changed_units", findings.changed_units},
          {"changed_tensors", findings.changed_tensors},
          {"delta_bytes", findings.delta_bytes},
          {"shard", findings.shard},
          {"dense", findings.dense},
          {"tensors", std::move(checksums)}};
}

PayloadFindings findings_from(const json& value) {
  PayloadFindings findings;
  value.at("changed_units").get_to(findings.changed_units);
  value.at("changed_tensors").get_to(findings.changed_tensors);
  value.at("delta_bytes").get_to(findings.delta_bytes);
  value.at("shard").get_to(findings.shard);
  value.at("dense").get_to(findings.dense);
  for (const json& item : value.at("tensors")) {
    findings.tensors.push_back({item.at(0).get<std::string>(), item.at(1).get<std::string>()});
  }
  return findings;
}

json parts_json(const std::vector<PartReceipt>& parts) {
  json list = json::array();
  for (const PartReceipt& part : parts) {
    list.push_back({part.name, part.rank, part.size_bytes, to_hex(part.hash), part.locator});
  }
  return list;
}

std::vector<PartReceipt> parts_from(const json& list) {
  std::vector<PartReceipt> parts;
  for (const json& item : list) {
    parts.push_back({item.at(0).get<std::string>(), item.at(1).get<std::uint32_t>(),
                     item.at(2).get<std::uint64_t>(),
                     value_or_throw(hash128_from_hex(item.at(3).get<std::string>())),
                     item.at(4).get<std::uint64_t>()});
  }
  return parts;
}

json digests_json(const std::vector<std::pair<std::uint32_t, Digest>>& digests) {
  json list = json::array();
  for (const auto& [tensor, digest] : digests) list.push_back({tensor, to_hex(digest)});
  return list;
}

std::vector<std::pair<std::uint32_t, Digest>> digests_from(const json& list) {
  std::vector<std::pair<std::uint32_t, Digest>> digests;
  for (const json& item : list) {
    digests.emplace_back(item.at(0).get<std::uint32_t>(),
                         value_or_throw(digest_from_hex(item.at(1).get<std::string>())));
  }
  return digests;
}

void fill_rank(const json& value, RankMessage& message) {
  message.status = status_from(value.at("status"));
  message.tensors = tensors_from(value.at("tensors"));
  value.at("version").get_to(message.version);
  value.at("doubtful").get_to(message.doubtful);
  value.at("needs_full").get_to(message.needs_full);
  message.digest = value_or_throw(digest_from_hex(value.at("digest").get<std::string>()));
  message.tensor_digests = digests_from(value.at("tensor_digests"));
  message.findings = findings_from(value.at("findings"));
  message.parts = parts_from(value.at("parts"));
}

void fill_leader(const json& value, LeaderMessage& message) {
  message.status = status_from(value.at("status"));
  const auto verdict = value.at("verdict").get<unsigned>();
  if (verdict > static_cast<unsigned>(Verdict::kDoubt)) throw std::invalid_argument("verdict");
  message.verdict = static_cast<Verdict>(verdict);
  message.run = value_or_throw(hash128_from_hex(value.at("run").get<std::string>()));
  value.at("version").get_to(message.version);
  value.at("base_version").get_to(message.base_version);
  value.at("full").get_to(message.full);
  value.at("anchor").get_to(message.anchor);
  value.at("resume").get_to(message.resume);
  message.digest = value_or_throw(digest_from_hex(value.at("digest").get<std::string>()));
  message.tensors = tensors_from(value.at("tensors"));
  value.at("owners").get_to(message.owners);
  value.at("notes").get_to(message.notes);
  value.at("changed_units").get_to(message.changed_units);
  value.at("delta_bytes").get_to(message.delta_bytes);
  value.at("wire_bytes").get_to(message.wire_bytes);
}

// A status may quote bytes of the file system that are not UTF-8.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string to_message(const RankMessage& message) {
  return dump({{"status", status_json(message.status)},
               {"tensors", tensors_json(message.tensors)},
               {"version", message.version},
               {"doubtful", message.doubtful},
               {"needs_full", message.needs_full},
               {"digest", to_hex(message.digest)},
               {"tensor_digests", digests_json(message.tensor_digests)},
               {"findings", findings_json(message.findings)},
               {"parts", parts_json(message.parts)}});
}

std::string to_message(const LeaderMessage& message) {
  return dump({{"status", status_json(message.status)},
               {"verdict", static_cast<unsigned>(message.verdict)},
               {"run", to_hex(message.run)},
               {"version", message.version},
               {"base_version", message.base_version},
               {"full", message.full},
               {"anchor", message.anchor},
               {"resume", message.resume},
               {"digest", to_hex(message.digest)},
               {"tensors", tensors_json(message.tensors)},
               {"owners", message.owners},
               {"notes", message.notes},
               {"changed_units", message.changed_units},
               {"delta_bytes", message.delta_bytes},
               {"wire_bytes", message.wire_bytes}});
}

Result<RankMessage> parse_rank_message(std::string_view text) { return parse(text, &fill_rank); }

Result<LeaderMessage> parse_leader_message(std::string_view text) {
  return parse(text, &fill_leader);
}

}  // namespace driftless
