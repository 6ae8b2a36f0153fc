// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/message.h"

#include <cstring>

#include "collectives/fields.h"

namespace driftless::nccl {
namespace {

constexpr std::uint64_t kMaxItems = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxNameBytes = 255;
constexpr std::uint64_t kMaxMeetingBytes = 1024;

constexpr auto kWalkId = [](auto& fields, auto& id) {
  fields.number(id.version);
  fields.choice(id.kind, PublicationKind::kAnchor);
};

constexpr auto kWalkPart = [](auto& fields, auto& part) {
  fields.text(part.name, kMaxNameBytes);
  fields.number(part.rank);
  fields.number(part.size_bytes);
  fields.number(part.hash.high);
  fields.number(part.hash.low);
};

template <typename Fields, typename Value>
void walk(Fields& fields, Value& message) {
  fields.choice(message.kind, MessageKind::kLast);
  fields.choice(message.code, StatusCode::kInternal);
  fields.number(message.rank);
  fields.number(message.index);
  fields.number(message.count);
  fields.number(message.request);
  fields.number(message.session);
  fields.number(message.attempt);
  fields.number(message.generation);
  fields.number(message.wait_ms);
  kWalkId(fields, message.id);
  fields.text(message.name, kMaxNameBytes);
  fields.text(message.meeting, kMaxMeetingBytes);
  fields.text(message.text, hub::kMaxMessageBytes);
  fields.list(message.parts, kMaxItems, 36, kWalkPart);
  fields.list(message.ids, kMaxItems, 9, kWalkId);
  fields.text(message.needs, kMaxNeedsBytes);
}

}  // namespace

std::string to_bytes(const Message& message) {
  WireWriter out;
  walk(out, message);
  return out.take();
}

Result<Message> parse_message(std::string_view bytes) {
  WireReader in(bytes);
  Message message;
  walk(in, message);
  if (!in.whole()) {
    return error(StatusCode::kCorrupt, "nccl: a message of ", bytes.size(), " bytes is malformed");
  }
  for (const PartReceipt& part : message.parts) {
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  }
  return message;
}

Status status_of(const Message& message) {
  return message.code == StatusCode::kOk ? Status() : Status(message.code, message.text);
}

Message with_status(Message message, const Status& status) {
  message.code = status.code();
  message.text = status.message();
  return message;
}

std::string nccl_version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string make_meeting(std::string_view unique_id, int version) {
  const auto stored = static_cast<std::uint32_t>(version);
  std::string meeting(reinterpret_cast<const char*>(&stored), sizeof(stored));
  return meeting.append(unique_id);
}

Result<std::string_view> read_meeting(std::string_view meeting, int version) {
  std::uint32_t stored = 0;
  if (meeting.size() <= sizeof(stored)) {
    return error(StatusCode::kCorrupt, "nccl: a truncated unique id of ", meeting.size(), " bytes");
  }
  std::memcpy(&stored, meeting.data(), sizeof(stored));
  if (stored == static_cast<std::uint32_t>(version)) return meeting.substr(sizeof(stored));
  return error(
      StatusCode::kUnsupported, "nccl: the publisher has NCCL ",
      nccl_version_text(static_cast<int>(stored)), ", this receiver has ",
      nccl_version_text(version),
      ": these releases cannot communicate. Have both load the same libnccl.so.2 (a Python "
      "process takes the one that torch loaded, so import torch before the job)");
}

}  // namespace driftless::nccl
