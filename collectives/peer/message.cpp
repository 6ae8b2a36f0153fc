// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/message.h"

#include <sys/stat.h>

#include <fstream>

#include "collectives/fields.h"

namespace driftless::peer {
namespace {

constexpr std::uint64_t kMaxItems = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxNameBytes = 255;
constexpr std::uint64_t kMaxErrorBytes = 4096;

constexpr auto kWalkId = [](auto& fields, auto& id) {
  fields.number(id.version);
  fields.choice(id.kind, PublicationKind::kAnchor);
};

constexpr auto kWalkEndpoint = [](auto& fields, auto& endpoint) {
  fields.number(endpoint.rank);
  fields.text(endpoint.tcp, kMaxNameBytes);
  fields.text(endpoint.socket, kMaxNameBytes);
  fields.text(endpoint.host, kMaxNameBytes);
  fields.choice(endpoint.nixl, NixlOffer::kFast);
};

constexpr auto kWalkRange = [](auto& fields, auto& range) {
  fields.number(range.offset);
  fields.number(range.size_bytes);
};

constexpr auto kWalkHash = [](auto& fields, auto& hash) {
  fields.number(hash.high);
  fields.number(hash.low);
};

constexpr auto kWalkNumber = [](auto& fields, auto& number) { fields.number(number); };

constexpr auto kWalkSource = [](auto& fields, auto& source) {
  fields.number(source.number);
  kWalkEndpoint(fields, source.from);
  fields.list(source.ranges, kMaxRanges, 16, kWalkRange);
};

constexpr auto kWalkExchange = [](auto& fields, auto& exchange) {
  fields.list(exchange.kept, kMaxExchanged, 16, kWalkRange);
  fields.list(exchange.wanted, kMaxExchanged, 16, kWalkRange);
  fields.number(exchange.most_bytes);
  fields.list(exchange.gone, kMaxExchanged, 8, kWalkNumber);
  fields.list(exchange.late, kMaxExchanged, 8, kWalkNumber);
  fields.list(exchange.damaged, kMaxExchanged, 8, kWalkNumber);
};

struct Walk {
  static void over(auto& fields, auto& message)
    requires requires { message.ask; }
  {
    fields.choice(message.ask, Ask::kLast);
    fields.number(message.number);
    fields.number(message.ranks);
    fields.number(message.start);
    fields.number(message.bytes);
    kWalkId(fields, message.id);
    fields.text(message.name, kMaxNameBytes);
    fields.text(message.text, kMaxErrorBytes);
    fields.text(message.needs, kMaxNeedsBytes);
    kWalkEndpoint(fields, message.endpoint);
    kWalkExchange(fields, message.exchange);
  }
  static void over(auto& fields, auto& message)
    requires requires { message.endpoints; }
  {
    fields.number(message.number);
    fields.choice(message.code, StatusCode::kInternal);
    fields.text(message.text, hub::kMaxMessageBytes);
    fields.list(message.ids, kMaxItems, 9, kWalkId);
    fields.list(message.endpoints, kMaxItems, 29, kWalkEndpoint);
    fields.list(message.sources, kMaxExchanged, 45, kWalkSource);
    fields.number(message.readers);
  }
  static void over(auto& fields, auto& message)
    requires requires { message.ranges; }
  {
    kWalkId(fields, message.id);
    fields.text(message.name, kMaxNameBytes);
    fields.number(message.size_bytes);
    fields.choice(message.by, Means::kChunkHashes);
    fields.list(message.ranges, kMaxRanges, 16, kWalkRange);
    fields.number(message.known);
  }
  static void over(auto& fields, auto& message)
    requires requires { message.description; }
  {
    fields.number(message.address);
    fields.number(message.state);
    fields.number(message.removals);
    fields.text(message.description, kMaxDescriptionBytes);
  }
  static void over(auto& fields, auto& message)
    requires(
        requires { message.code; } && !requires { message.endpoints; })
  {
    fields.choice(message.code, StatusCode::kInternal);
    fields.text(message.text, kMaxErrorBytes);
    fields.number(message.bytes);
  }
};

template <typename Message>
std::string written(const Message& message) {
  WireWriter out;
  Walk::over(out, message);
  return out.take();
}

template <typename Message>
Result<Message> read(std::string_view bytes, std::string_view what) {
  WireReader in(bytes);
  Message message;
  Walk::over(in, message);
  if (in.whole()) return message;
  return error(StatusCode::kCorrupt, "peer: ", what, " of ", bytes.size(), " bytes is malformed");
}

}  // namespace

std::string to_bytes(const Request& message) { return written(message); }
std::string to_bytes(const Reply& message) { return written(message); }
std::string to_bytes(const Want& message) { return written(message); }
std::string to_bytes(const Answer& message) { return written(message); }
std::string to_bytes(const Place& message) { return written(message); }

std::string to_bytes(const std::vector<Hash128>& hashes) {
  WireWriter out;
  out.list(hashes, hashes.size(), 16, kWalkHash);
  return out.take();
}

Result<Request> parse_request(std::string_view bytes) { return read<Request>(bytes, "a request"); }
Result<Reply> parse_reply(std::string_view bytes) { return read<Reply>(bytes, "a reply"); }
Result<Want> parse_want(std::string_view bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(Want want, read<Want>(bytes, "a reader's request"));
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(want.name));
  return want;
}
Result<Answer> parse_answer(std::string_view bytes) { return read<Answer>(bytes, "an answer"); }
Result<Place> parse_place(std::string_view bytes) { return read<Place>(bytes, "a place"); }

Result<std::vector<Hash128>> parse_hashes(std::string_view bytes) {
  WireReader in(bytes);
  std::vector<Hash128> hashes;
  in.list(hashes, bytes.size(), 16, kWalkHash);
  if (in.whole()) return hashes;
  return error(StatusCode::kCorrupt, "peer: hashes of ", bytes.size(), " bytes are malformed");
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network{};
  if (boot.empty() || ::stat("/proc/self/ns/net", &network) != 0) return {};
  return concat(boot, ".", network.st_ino);
}

}  // namespace driftless::peer
