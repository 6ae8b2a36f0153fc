// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_messages.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "formats/records.h"

namespace driftless {
namespace {

using nlohmann::json;

constexpr std::size_t kDigestNumber = 8, kDigestEntry = kDigestNumber + 32;  // digits
constexpr std::size_t kMaximumEntry = 8 + 8 + 4;

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw std::invalid_argument(std::string(result.status().message()));
  return std::move(*result);
}

}  // namespace

// How a message's fields are written and read. The JSON library finds these by argument type.
static void to_json(json& value, const Status& status) {
  if (!status.ok()) value = {static_cast<unsigned>(status.code()), std::string(status.message())};
}
static void from_json(const json& value, Status& status) {
  if (value.is_null()) return;
  const auto code = value.at(0).get<unsigned>();
  const auto last = static_cast<unsigned>(StatusCode::kInternal);
  status = {static_cast<StatusCode>(code == 0 || code > last ? last : code),
            value.at(1).get<std::string>()};
}
static void to_json(json& value, const Hash128& hash) { value = to_hex(hash); }
static void from_json(const json& value, Hash128& hash) {
  hash = value_or_throw(hash128_from_hex(value.get<std::string>()));
}
static void to_json(json& value, const Digest& digest) { value = to_hex(digest); }
static void from_json(const json& value, Digest& digest) {
  digest = value_or_throw(digest_from_hex(value.get<std::string>()));
}
static void to_json(json& value, const Encoding& encoding) {
  value = static_cast<std::uint8_t>(encoding);
}
static void from_json(const json& value, Encoding& encoding) {
  encoding = value_or_throw(encoding_from_wire(value.get<std::uint8_t>()));
}
// Digests are one string, 8 and 32 digits each, because there may be tens of thousands.
static void to_json(json& value, const TensorDigests& digests) {
  std::string text;
  text.reserve(digests.size() * kDigestEntry);
  for (const auto& [tensor, digest] : digests) {
    std::array<char, kDigestNumber + 1> number{};
    std::snprintf(number.data(), number.size(), "%08x", tensor);
    text.append(number.data()).append(to_hex(digest));
  }
  value = std::move(text);
}
static void from_json(const json& value, TensorDigests& digests) {
  const std::string_view text = value.get_ref<const std::string&>();
  if (text.size() % kDigestEntry != 0) throw std::invalid_argument("digests of tensors");
  for (std::size_t at = 0; at < text.size(); at += kDigestEntry) {
    const std::string_view number = text.substr(at, kDigestNumber);
    const std::string_view digest = text.substr(at + kDigestNumber, kDigestEntry - kDigestNumber);
    TensorDigest& each = digests.emplace_back();
    const auto read =
        std::from_chars(number.data(), number.data() + number.size(), each.tensor, 16);
    if (read.ec != std::errc() || read.ptr != number.data() + number.size()) {
      throw std::invalid_argument("the number of a tensor");
    }
    each.digest = value_or_throw(digest_from_hex(digest));
  }
}
// Likewise: tensor, block, size.
static void to_json(json& value, const std::vector<BlockMaximum>& maxima) {
  std::string text;
  text.reserve(maxima.size() * kMaximumEntry);
  for (const auto& [key, size] : maxima) {
    std::array<char, kMaximumEntry + 1> entry{};
    std::snprintf(entry.data(), entry.size(), "%08x%08x%04x", key.tensor, key.block, size);
    text.append(entry.data());
  }
  value = std::move(text);
}
static void from_json(const json& value, std::vector<BlockMaximum>& maxima) {
  const std::string_view text = value.get_ref<const std::string&>();
  if (text.size() % kMaximumEntry != 0) throw std::invalid_argument("maxima of blocks");
  const auto read = [](std::string_view digits) {
    std::uint32_t number = 0;
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
    if (done.ec != std::errc() || done.ptr != digits.data() + digits.size()) {
      throw std::invalid_argument("the maximum of a block");
    }
    return number;
  };
  for (std::size_t at = 0; at < text.size(); at += kMaximumEntry) {
    maxima.push_back({{read(text.substr(at, 8)), read(text.substr(at + 8, 8))},
                      static_cast<std::uint16_t>(read(text.substr(at + 16, 4)))});
  }
}
static void to_json(json& value, const TensorSpec& tensor) {
  value = {tensor.name, static_cast<unsigned>(tensor.dtype), tensor.shape};
}
static void from_json(const json& value, TensorSpec& tensor) {
  const DType dtype = value_or_throw(dtype_from_wire(value.at(1).get<std::uint8_t>()));
  tensor = value_or_throw(TensorSpec::make(value.at(0).get<std::string>(), dtype,
                                           value.at(2).get<std::vector<std::uint64_t>>()));
}
static void to_json(json& value, const TensorBox& box) { value = {box.offsets, box.sizes}; }
static void from_json(const json& value, TensorBox& box) {
  value.at(0).get_to(box.offsets);
  value.at(1).get_to(box.sizes);
}
static void to_json(json& value, const BlockCut& cut) { value = {cut.tensor, cut.dim, cut.points}; }
static void from_json(const json& value, BlockCut& cut) {
  value.at(0).get_to(cut.tensor);
  value.at(1).get_to(cut.dim);
  value.at(2).get_to(cut.points);
}
static void from_json(const json& value, Verdict& verdict) {
  const auto number = value.get<unsigned>();
  if (number > static_cast<unsigned>(Verdict::kDoubt)) throw std::invalid_argument("verdict");
  verdict = static_cast<Verdict>(number);
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartReceipt, name, rank, size_bytes, hash, locator)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ManifestTensor, name, checksum)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PayloadFindings, changed_units, shard, dense, tensors, tables,
                                   mirror_tensors, mirror_shard)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(VersionShape, encoding, cuts, plain)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OfferMessage, status, tensors, boxes, left, quantize_rule,
                                   shares_blocks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BaseMessage, status, digest, tensor_digests, copies)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReadyMessage, status, version, step, doubtful, needs_full)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PayloadMessage, status, needs_full, digest, tensor_digests,
                                   unchanged, copies, findings, most_changed, parts, notes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AssemblyMessage, status, tensors, owners, dropped, copied, cuts,
                                   quantize_rule, shares_blocks, notes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StartMessage, status, run, version, digest, resume, otherwise,
                                   anchor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlanMessage, status, version, base_version, digest, full, shape,
                                   notes, fallback)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FallbackMessage, status, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OutcomeMessage, status, verdict, anchor, digest, notes,
                                   changed_units, delta_bytes, wire_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MaximaMessage, status, all, maxima)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StatusMessage, status)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DigestMessage, status, digest)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CountMessage, status, count)

// A status may quote bytes from the file system that are not UTF-8.
template <typename Message>
std::string to_message(const Message& message) {
  return json(message).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Messages come from the same program, but perhaps from another build of it: a message that does
// not parse is an error, not undefined behaviour.
template <typename Message>
Result<Message> parse_message(std::string_view text) {
  try {
    return json::parse(text).get<Message>();
  } catch (const std::exception& caught) {
    return error(StatusCode::kCorrupt, "a message between publisher ranks cannot be read (",
                 caught.what(), "): do all ranks run the same release?");
  }
}

#define DRIFTLESS_RANK_MESSAGE(type)            \
  template std::string to_message(const type&); \
  template Result<type> parse_message(std::string_view)
DRIFTLESS_RANK_MESSAGE(OfferMessage);
DRIFTLESS_RANK_MESSAGE(BaseMessage);
DRIFTLESS_RANK_MESSAGE(ReadyMessage);
DRIFTLESS_RANK_MESSAGE(PayloadMessage);
DRIFTLESS_RANK_MESSAGE(AssemblyMessage);
DRIFTLESS_RANK_MESSAGE(StartMessage);
DRIFTLESS_RANK_MESSAGE(PlanMessage);
DRIFTLESS_RANK_MESSAGE(OutcomeMessage);
DRIFTLESS_RANK_MESSAGE(FallbackMessage);
DRIFTLESS_RANK_MESSAGE(MaximaMessage);
DRIFTLESS_RANK_MESSAGE(StatusMessage);
DRIFTLESS_RANK_MESSAGE(DigestMessage);
DRIFTLESS_RANK_MESSAGE(CountMessage);
#undef DRIFTLESS_RANK_MESSAGE

std::vector<ChangedUnits> most_changed(const std::map<std::uint32_t, std::uint64_t>& units) {
  std::vector<ChangedUnits> most(std::min(units.size(), kMostChangedTensors));
  std::ranges::partial_sort_copy(units, most, [](const auto& one, const auto& other) {
    return std::pair(other.second, one.first) < std::pair(one.second, other.first);
  });
  return most;
}

void add_failure(Status& failed, const Status& found, std::size_t rank) {
  if (found.ok()) return;
  const bool cause = failed.ok() || (failed.code() == StatusCode::kIncomplete &&
                                     found.code() != StatusCode::kIncomplete);
  if (cause) failed = found.with_context(concat("publisher rank ", rank));
}

}  // namespace driftless
