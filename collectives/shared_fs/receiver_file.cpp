// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/receiver_file.h"

#include <nlohmann/json.hpp>

#include "collectives/shared_fs/medium.h"
#include "core/version.h"

namespace driftless::shared_fs {
namespace {

constexpr std::string_view kSuffix = ".json";

// JSON contains text, but a proof is bytes: each byte is stored as the code point of its number
// (Latin-1).
std::string text_of(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) text += static_cast<char>(0xC0U | (byte >> 6U));
    text += static_cast<char>(byte >= 0x80 ? 0x80U | (byte & 0x3FU) : byte);
  }
  return text;
}

Result<std::string> bytes_of(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      bytes += text[i];
      continue;
    }
    if ((byte != 0xC2 && byte != 0xC3) || i + 1 == text.size()) {
      return error(StatusCode::kCorrupt, "a character past U+00FF");
    }
    const auto next = static_cast<unsigned char>(text[++i]);
    bytes += static_cast<char>(((byte & 3U) << 6U) | (next & 0x3FU));
  }
  return bytes;
}

std::string id_in(std::string_view name) {
  return std::string(name.substr(0, name.size() - kSuffix.size()));
}

// `oldest_anchor`: the oldest existing one.
bool needs(const ReceiverWatch::Receiver& receiver, const PublicationId& id,
           const std::optional<PublicationId>& oldest_anchor) {
  if (!receiver.readable) return true;
  const bool holds_nothing = receiver.report.version == 0 && receiver.report.proof.empty();
  if (!holds_nothing) return is_version(id) && id.version > receiver.report.version;
  if (!oldest_anchor.has_value()) return true;
  return id == *oldest_anchor || (is_version(id) && id.version > oldest_anchor->version);
}

}  // namespace

std::string receiver_file_name(std::string_view id) { return concat(id, kSuffix); }

std::string receiver_to_json(const ReceiverReport& report, std::uint64_t heartbeat) {
  const nlohmann::json json{{"id", text_of(report.id)},
                            {"version", report.version},
                            {"proof", text_of(report.proof)},
                            {"needs", text_of(report.needs)},
                            {"beat", heartbeat}};
  return json.dump() + "\n";
}

Result<ReceiverReport> receiver_from_json(std::string_view text, std::string_view id) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto damaged = [](std::string_view why) {
    return error(StatusCode::kCorrupt, "not what a receiver writes: ", why);
  };
  if (!json.is_object()) return damaged("not a JSON object");
  const auto id_json = json.find("id");
  const auto version = json.find("version");
  const auto proof = json.find("proof");
  if (id_json == json.end() || !id_json->is_string()) return damaged("id");
  if (version == json.end() || !version->is_number_unsigned()) return damaged("version");
  if (proof == json.end() || !proof->is_string()) return damaged("proof");
  ReceiverReport report;
  DRIFTLESS_ASSIGN_OR_RETURN(report.id, bytes_of(id_json->get_ref<const std::string&>()));
  DRIFTLESS_ASSIGN_OR_RETURN(report.proof, bytes_of(proof->get_ref<const std::string&>()));
  if (const auto needs = json.find("needs"); needs != json.end()) {
    if (!needs->is_string()) return damaged("needs");
    DRIFTLESS_ASSIGN_OR_RETURN(report.needs, bytes_of(needs->get_ref<const std::string&>()));
  }
  report.version = version->get<std::uint64_t>();
  if (report.id != id) return damaged("the id is another receiver's");
  if (report.version > kMaxVersion) return damaged("version");
  DRIFTLESS_RETURN_IF_ERROR(check_report(report));
  return report;
}

ReceiverWatch::ReceiverWatch(FileSystem& fs, std::string directory,
                             std::chrono::milliseconds patience)
    : fs_(&fs), directory_(std::move(directory)), patience_(patience) {}

Result<std::vector<ReceiverWatch::Receiver>> ReceiverWatch::look() {
  const auto names = fs_->list(directory_);
  if (names.status().code() == StatusCode::kNotFound) return std::vector<Receiver>();
  DRIFTLESS_RETURN_IF_ERROR(names.status());
  const auto now = Deadline::Clock::now();
  std::map<std::string, Seen> seen;
  std::vector<Receiver> alive;
  for (const std::string& name : *names) {
    if (!name.ends_with(kSuffix)) continue;  // also skips temporary names of a replacement
    const auto text = read_small(*fs_, join_path(directory_, name), kMaxReceiverFileBytes);
    if (text.status().code() == StatusCode::kNotFound) continue;  // it has left meanwhile
    const Hash128 content = text.ok() ? xxh3_128(*text) : Hash128();
    const auto before = seen_.find(name);
    const bool changed = before == seen_.end() || before->second.content != content;
    const Seen& entry = seen[name] = {content, changed ? now : before->second.at};
    const std::string id = id_in(name);
    left_.erase(id);
    if (now - entry.at > patience_) continue;
    auto report = text.ok() ? receiver_from_json(*text, id) : Result<ReceiverReport>(text.status());
    if (report.ok()) {
      alive.push_back({std::move(*report), true});
    } else {
      alive.push_back({{id, 0, ""}, false});
    }
  }
  for (const auto& [name, entry] : seen_) {
    if (!seen.contains(name)) left_.insert(id_in(name));
  }
  seen_ = std::move(seen);
  return alive;
}

void ReceiverWatch::clear() {
  const auto names = fs_->list(directory_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name.ends_with(kSuffix))
      const Status ignored = fs_->remove_file(join_path(directory_, name));
  }
}

std::vector<PublicationId> prunable(const std::vector<PublicationId>& there, std::uint64_t version,
                                    const std::vector<ReceiverWatch::Receiver>& receivers) {
  std::optional<PublicationId> oldest_anchor;
  for (const PublicationId& id : there) {
    if (!is_version(id) && (!oldest_anchor.has_value() || id < *oldest_anchor)) oldest_anchor = id;
  }
  std::vector<PublicationId> removable;
  for (const PublicationId& id : there) {
    const bool asked = is_version(id) ? id.version <= version : id.version < version;
    const bool needed = std::ranges::any_of(
        receivers, [&](const auto& receiver) { return needs(receiver, id, oldest_anchor); });
    if (asked && !needed) removable.push_back(id);
  }
  std::ranges::sort(removable);
  return removable;
}

}  // namespace driftless::shared_fs
