// SPDX-License-Identifier: Apache-2.0
// Reads YAML into a Config, key by key, as the parser reports them. No tree is built, so anchors
// and aliases cannot blow up memory.
#include "plugin/job/config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <set>
#include <sstream>

#include "core/setting_values.h"
#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::size_t kMaxItems = 4096;

bool is_list(std::string_view name) { return name == kConfigList; }

bool is_group(const ConfigTable& table, std::string_view name) {
  return std::ranges::any_of(table.keys(), [&](const ConfigKey& key) {
    return key.name.size() > name.size() && key.name.starts_with(name) &&
           key.name[name.size()] == '.';
  });
}

// Keys that were removed, and what to do instead.
constexpr std::pair<std::string_view, std::string_view> kGone[] = {
    {"agent.engines", "list them under engines, each with its kind"},
    {"agent.mirror", "remove it: workers that cannot decode compact are sent deltas"},
    {"road.single_writer", "remove it: a store must refuse a name that is taken (If-None-Match)"},
};

std::string unknown_key(const ConfigTable& table, std::string_view name) {
  for (const auto& [gone, instead] : kGone) {
    if (!name.starts_with(gone)) continue;
    const std::string_view rest = name.substr(gone.size());
    const bool whole = rest.empty() || rest.starts_with('.') || rest.starts_with('[');
    if (whole) return concat("is gone; ", instead);
  }
  if (const ConfigKey* const now = table.find_former(name)) {
    return concat("is now '", now->name, "': ", now->expected);
  }
  const std::string_view nearest = table.nearest(name);
  std::string message = "is not a known key";
  if (!nearest.empty()) message += concat("; did you mean '", nearest, "'?");
  return message + " (driftless info lists all)";
}

// A position in the file: a path of keys, as "engines[1].url", and the name of its row,
// "engines[].url".
struct Place {
  std::string path;
  std::string name;
  std::size_t item = 0;

  [[nodiscard]] Place below(std::string_view key) const {
    const std::string dot = path.empty() ? "" : ".";
    return {path + dot + std::string(key), name + dot + std::string(key), item};
  }
};

class ConfigReader final : public YAML::EventHandler {
 public:
  ConfigReader(Config& config, std::string_view what) : config_(&config), what_(what) {}

  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] bool empty() const { return !found_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string&) override { refuse_anchor(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark); }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (!status_.ok() || frames_.empty()) return;
    if (frames_.back().expects_key) return fail(mark, frames_.back().place.path, "a key is empty");
    const Place place = next_place();
    const ConfigKey* key = config_->table->find(place.name);
    fail(frames_.back().key_line, place.path,
         key == nullptr ? (is_group(*config_->table, place.name) || is_list(place.name)
                               ? "has nothing below it"
                               : unknown_key(*config_->table, place.name))
                        : concat("has no value; expected ", key->expected));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    if (!accept(mark, tag)) return;
    if (frames_.empty()) return fail(mark, "", "expected keys and values, found a single value");
    Frame& frame = frames_.back();
    if (frame.expects_key) return take_key(mark, value);
    const Place place = next_place();
    frame.expects_key = !frame.list;
    const ConfigKey* key = config_->table->find(place.name);
    if (key == nullptr) return fail_kind(mark, place, shown(value));
    if (const Status applied = key->apply(*config_, place.item, value); !applied.ok()) {
      fail(mark, place.path, applied.message());
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    if (!accept(mark, tag)) return;
    if (frames_.empty()) return fail(mark, "", "expected keys and values, found a list");
    if (frames_.back().expects_key) return fail(mark, frames_.back().place.path, kStrangeKey);
    const Place place = next_place();
    if (!is_list(place.name)) return fail_kind(mark, place, "a list");
    frames_.emplace_back(place, true, mark.line);
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    if (!accept(mark, tag)) return;
    if (frames_.empty()) {
      found_ = true;
      frames_.emplace_back(Place{}, false, mark.line);
      return;
    }
    if (frames_.back().expects_key) return fail(mark, frames_.back().place.path, kStrangeKey);
    const Place place = next_place();
    if (!is_group(*config_->table, place.name)) return fail_kind(mark, place, "keys below it");
    if (frames_.back().list) config_->engines.emplace_back();
    frames_.emplace_back(place, false, mark.line);
  }

  void OnSequenceEnd() override { leave(); }
  void OnMapEnd() override { leave(); }

 private:
  struct Frame {
    Frame(Place at, bool is_list, int line)
        : place(std::move(at)), list(is_list), expects_key(!is_list), key_line(line) {}
    Place place;
    bool list;
    bool expects_key;
    int key_line;  // of the key whose value comes next
    std::string key;
    std::size_t items = 0;
    std::set<std::string> seen;
  };
  static constexpr std::string_view kStrangeKey = "a key must be a plain word";

  // Whether to process an event at all. Tags are refused, because they would change the meaning of
  // the value.
  bool accept(const YAML::Mark& mark, const std::string& tag) {
    if (!status_.ok()) return false;
    found_ = true;
    if (tag.empty() || tag == "?" || tag == "!") return true;
    fail(mark, frames_.empty() ? "" : frames_.back().place.path,
         concat("tags such as ", shown(tag), " are not supported"));
    return false;
  }

  void take_key(const YAML::Mark& mark, const std::string& key) {
    Frame& frame = frames_.back();
    if (!frame.seen.insert(key).second) {
      return fail(mark, frame.place.below(key).path, "stands here for the second time");
    }
    frame.key = key;
    frame.key_line = mark.line;
    frame.expects_key = false;
  }

  // The place of the value that comes next.
  Place next_place() {
    Frame& frame = frames_.back();
    if (!frame.list) return frame.place.below(frame.key);
    const std::size_t item = frame.items++;
    return {concat(frame.place.path, "[", item, "]"), frame.place.name + "[]", item};
  }

  void leave() {
    if (!status_.ok()) return;
    frames_.pop_back();
    if (!frames_.empty()) frames_.back().expects_key = !frames_.back().list;
  }

  void refuse_anchor(const YAML::Mark& mark) {
    fail(mark, frames_.empty() ? "" : frames_.back().place.path,
         "anchors and aliases (& and *) are not supported: write the value out");
  }

  void fail_kind(const YAML::Mark& mark, const Place& place, std::string_view found) {
    const ConfigKey* key = config_->table->find(place.name);
    std::string message = unknown_key(*config_->table, place.name);
    if (key != nullptr) message = concat("expected ", key->expected, ", found ", found);
    if (is_group(*config_->table, place.name))
      message = concat("expected keys below it, found ", found);
    if (is_list(place.name)) message = concat("expected a list, found ", found);
    fail(mark, place.path, message);
  }

  void fail(const YAML::Mark& mark, std::string_view path, std::string_view message) {
    fail(mark.line, path, message);
  }
  void fail(int line, std::string_view path, std::string_view message) {
    if (!status_.ok()) return;
    const std::string key = path.empty() ? "" : concat(": ", shown(path));
    status_ = error(StatusCode::kInvalidArgument, what_, ":", line + 1, key, ": ", message);
  }

  Config* config_;
  std::string_view what_;
  Status status_;
  bool found_ = false;
  std::vector<Frame> frames_;
};

// yaml-cpp treats some bytes as its own marks (0x04 as the end), and guesses other encodings:
// refuse such text.
Status check_text(std::string_view text, std::string_view what) {
  if (text.size() > kMaxConfigBytes) {
    return error(StatusCode::kInvalidArgument, what, ": is longer than ", kMaxConfigBytes,
                 " bytes");
  }
  std::size_t line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = text.substr(begin, end - begin);
    const bool control = std::any_of(content.begin(), content.end(), [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') || c == 0x7f;
    });
    if (control || !json_quote(content, what).ok()) {
      return error(StatusCode::kInvalidArgument, what, ":", line, ": ",
                   control ? "holds a control character" : "is not UTF-8");
    }
    begin = end + 1;
  }
  return {};
}

Status read_yaml(std::string_view text, std::string_view what, Config& config) {
  DRIFTLESS_RETURN_IF_ERROR(check_text(text, what));
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    ConfigReader reader(config, what);
    const bool some = parser.HandleNextDocument(reader);
    DRIFTLESS_RETURN_IF_ERROR(reader.status());
    if (!some || reader.empty()) {
      return error(StatusCode::kInvalidArgument, what, ": is empty; configs/ has examples");
    }
    Config ignored(*config.table);
    ConfigReader second(ignored, what);
    if (parser.HandleNextDocument(second) && !second.empty()) {
      return error(StatusCode::kInvalidArgument, what, ": holds more than one document (---)");
    }
    return {};
  } catch (const YAML::Exception& problem) {
    return error(StatusCode::kInvalidArgument, what, ":", problem.mark.line + 1,
                 ": is not YAML: ", problem.msg);
  } catch (const std::exception& problem) {
    return error(StatusCode::kInvalidArgument, what, ": is not YAML: ", problem.what());
  }
}

// Splits "engines[1].url" into its row's name and the item; grows the list by at most one.
Result<Place> override_place(Config& config, std::string_view path) {
  Place place{std::string(path), std::string(path), 0};
  const std::size_t open = path.find('[');
  if (open == std::string_view::npos) return place;
  const std::size_t close = path.find(']', open);
  const std::string_view list = path.substr(0, open);
  if (close == std::string_view::npos || !is_list(list)) return place;
  const std::size_t items = config.engines.size();
  const auto item =
      parse_count(path.substr(open + 1, close - open - 1), 0, std::min(items, kMaxItems));
  if (!item.ok()) {
    return error(StatusCode::kInvalidArgument, "--set ", shown(path),
                 ": the item in brackets: ", item.status().message());
  }
  place.item = *item;
  place.name = concat(list, "[]", path.substr(close + 1));
  if (config.table->find(place.name) != nullptr && *item == items) config.engines.emplace_back();
  return place;
}

Status apply_override(std::string_view setting, Config& config) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return error(StatusCode::kInvalidArgument, "--set ", shown(setting),
                 ": expected key=value, for example road.shared_fs.dir=/mnt/weights");
  }
  const std::string_view path = setting.substr(0, equals);
  DRIFTLESS_ASSIGN_OR_RETURN(const Place place, override_place(config, path));
  const ConfigKey* key = config.table->find(place.name);
  if (key == nullptr || (key->in_list() && place.name == path)) {
    const bool bare = place.name.starts_with(concat(kConfigList, ".")) || is_list(place.name);
    const std::string message = bare ? "is a list: name the item, as in engines[0].url"
                                     : unknown_key(*config.table, place.name);
    return error(StatusCode::kInvalidArgument, "--set ", shown(path), ": ", message);
  }
  const Status applied = key->apply(config, place.item, setting.substr(equals + 1));
  if (applied.ok()) return {};
  return error(StatusCode::kInvalidArgument, "--set ", path, ": ", applied.message());
}

}  // namespace

Result<Config> parse_config(std::string_view text, std::string_view what,
                            std::span<const std::string> overrides, const ConfigTable& table) {
  Config config(table);
  DRIFTLESS_RETURN_IF_ERROR(read_yaml(text, what, config));
  for (const std::string& setting : overrides) {
    DRIFTLESS_RETURN_IF_ERROR(apply_override(setting, config));
  }
  DRIFTLESS_RETURN_IF_ERROR(complete_config(config).with_context(what));
  return config;
}

Result<Config> load_config(FileSystem& fs, const std::string& path,
                           std::span<const std::string> overrides) {
  const Result<std::string> text = read_text(fs, path, kMaxConfigBytes);
  if (!text.ok() && text.status().code() == StatusCode::kCorrupt) {
    return error(StatusCode::kInvalidArgument, text.status().message());
  }
  if (!text.ok()) return text.status();
  return parse_config(*text, path, overrides);
}

std::vector<std::pair<std::string, std::string>> effective_settings(const Config& config) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const ConfigKey& key : config.table->keys()) {
    if (!key.in_list()) settings.emplace_back(key.name, key.text(config, 0));
  }
  for (std::size_t item = 0; item < config.engines.size(); ++item) {
    for (const ConfigKey& key : config.table->keys()) {
      if (!key.in_list()) continue;
      std::string name(key.name);
      name.insert(name.find("[]") + 1, std::to_string(item));
      settings.emplace_back(std::move(name), key.text(config, item));
    }
  }
  return settings;
}

}  // namespace driftless
