// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/message.h"

#include <cstring>
#include <type_traits>

namespace driftless::nccl {
namespace {

constexpr std::uint64_t kMaxParts = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxIds = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxNameBytes = 255;
constexpr std::uint64_t kMaxMeetingBytes = 1024;

// Both ends run on little-endian machines, as everything of Driftless does.
class Writer {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(std::string_view value) {
    number(static_cast<std::uint64_t>(value.size()));
    bytes_.append(value);
  }
  void id(const PublicationId& value) {
    number(value.version);
    number(static_cast<std::uint8_t>(value.kind));
  }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T number() {
    T value = 0;
    if (left_.size() < sizeof(value)) {
      good_ = false;
      return 0;
    }
    std::memcpy(&value, left_.data(), sizeof(value));
    left_.remove_prefix(sizeof(value));
    return value;
  }
  std::string text(std::uint64_t most) {
    const auto size = number<std::uint64_t>();
    if (size > most || size > left_.size()) {
      good_ = false;
      return {};
    }
    std::string value(left_.substr(0, size));
    left_.remove_prefix(size);
    return value;
  }
  PublicationId id() {
    PublicationId value;
    value.version = number<std::uint64_t>();
    const auto kind = number<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(PublicationKind::kAnchor)) {
      good_ = false;
    } else {
      value.kind = static_cast<PublicationKind>(kind);
    }
    return value;
  }
  // Of things of at least `each` bytes: never more than the bytes that are there can hold.
  std::uint64_t count(std::uint64_t most, std::uint64_t each) {
    const auto value = number<std::uint64_t>();
    if (value <= most && value <= left_.size() / each) return value;
    good_ = false;
    return 0;
  }
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] bool at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
  bool good_ = true;
};

void write_part(Writer& out, const PartReceipt& part) {
  out.text(part.name);
  out.number(part.rank);
  out.number(part.size_bytes);
  out.number(part.hash.high);
  out.number(part.hash.low);
}

PartReceipt read_part(Reader& in) {
  PartReceipt part;
  part.name = in.text(kMaxNameBytes);
  part.rank = in.number<std::uint32_t>();
  part.size_bytes = in.number<std::uint64_t>();
  part.hash.high = in.number<std::uint64_t>();
  part.hash.low = in.number<std::uint64_t>();
  return part;
}

}  // namespace

std::string to_bytes(const Message& message) {
  Writer out;
  out.number(static_cast<std::uint8_t>(message.kind));
  out.number(static_cast<std::uint8_t>(message.code));
  out.number(message.rank);
  out.number(message.index);
  out.number(message.count);
  out.number(message.request);
  out.number(message.session);
  out.number(message.attempt);
  out.number(message.generation);
  out.number(message.wait_ms);
  out.id(message.id);
  out.text(message.name);
  out.text(message.meeting);
  out.text(message.text);
  out.number(static_cast<std::uint64_t>(message.parts.size()));
  for (const PartReceipt& part : message.parts) write_part(out, part);
  out.number(static_cast<std::uint64_t>(message.ids.size()));
  for (const PublicationId& id : message.ids) out.id(id);
  return out.take();
}

Result<Message> parse_message(std::string_view bytes) {
  Reader in(bytes);
  Message message;
  const auto kind = in.number<std::uint8_t>();
  const auto code = in.number<std::uint8_t>();
  const bool known = kind <= static_cast<std::uint8_t>(MessageKind::kLast) &&
                     code <= static_cast<std::uint8_t>(StatusCode::kInternal);
  if (known) {
    message.kind = static_cast<MessageKind>(kind);
    message.code = static_cast<StatusCode>(code);
  }
  message.rank = in.number<std::uint32_t>();
  message.index = in.number<std::uint32_t>();
  message.count = in.number<std::uint32_t>();
  message.request = in.number<std::uint64_t>();
  message.session = in.number<std::uint64_t>();
  message.attempt = in.number<std::uint64_t>();
  message.generation = in.number<std::uint64_t>();
  message.wait_ms = in.number<std::uint64_t>();
  message.id = in.id();
  message.name = in.text(kMaxNameBytes);
  message.meeting = in.text(kMaxMeetingBytes);
  message.text = in.text(kMaxMessageBytes);
  const std::uint64_t parts = in.count(kMaxParts, 36);
  for (std::uint64_t i = 0; i < parts && in.good(); ++i) message.parts.push_back(read_part(in));
  const std::uint64_t ids = in.count(kMaxIds, 9);
  for (std::uint64_t i = 0; i < ids && in.good(); ++i) message.ids.push_back(in.id());
  if (!known || !in.good() || !in.at_end()) {
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

}  // namespace driftless::nccl
