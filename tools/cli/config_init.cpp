// SPDX-License-Identifier: Apache-2.0
// driftless config init: a commented file for a road, made from the table of keys.
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

constexpr std::size_t kColumns = 96;

// The keys that only one role reads, by their group; all others are for every role.
constexpr std::pair<std::string_view, std::string_view> kOfRole[] = {{"anchors.", "trainer"},
                                                                     {"capture.", "trainer"},
                                                                     {"notify.", "trainer"},
                                                                     {"quantize.", "trainer"},
                                                                     {"agent.", "agent"}};

// Whether this key is the road's own. A road may also list a key of the job that it uses, such as
// gpu.device; that row has no help.
bool is_roads(const RoadKind& kind, std::string_view name) {
  return std::ranges::any_of(
      kind.keys, [&](const RoadKey& key) { return key.name == name && !key.help.empty(); });
}

// Whether a process of this role on this road uses the key.
bool matters(const ConfigKey& key, const RoadKind& road, std::string_view role) {
  for (const auto& [group, reader] : kOfRole) {
    if (!role.empty() && role != reader && key.name.starts_with(group)) return false;
  }
  if (role == "trainer" && key.name.starts_with("receiver.")) return false;
  bool others = false;
  for (const RoadKind* const kind : config_table().kinds()) {
    if (!is_roads(*kind, key.name)) continue;
    if (kind == &road || (kind->one_host && (role.empty() || role == "agent"))) return true;
    others = true;
  }
  return !others;
}

// The keys that a configuration of this road must have.
std::set<std::string_view> required_keys(const RoadKind& road) {
  Config config;
  config.road = road.name;
  const Status missing = complete_config(config);
  std::set<std::string_view> required;
  for (const RoadKey& key : road.keys) {
    if (!missing.ok() && missing.message().starts_with(concat(key.name, " is missing"))) {
      required.insert(key.name);
    }
  }
  return required;
}

std::string yaml(const std::string& value) {
  const bool plain =
      !value.empty() && value.find_first_not_of(
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") ==
                            std::string::npos;
  return plain ? value : nlohmann::json(value).dump();
}

void add_prose(std::string_view text, std::size_t indent, std::string& out) {
  const std::string begin = std::string(indent, ' ') + "# ";
  std::string line = begin;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (line.size() > begin.size() && line.size() + word.size() + 1 > kColumns) {
      out += line + "\n";
      line = begin;
    }
    line += concat(line.size() > begin.size() ? " " : "", word);
  }
  out += line + "\n";
}

class ConfigFile {
 public:
  ConfigFile(const RoadKind& road, std::string_view role)
      : road_(road), role_(role), required_(required_keys(road)) {}

  [[nodiscard]] const std::set<std::string_view>& required() const { return required_; }
  [[nodiscard]] std::string text() {
    std::vector<const ConfigKey*> keys;
    for (const ConfigKey& key : config_table().keys()) {
      if (matters(key, road_, role_)) keys.push_back(&key);
    }
    out_ = concat(
        "# A configuration for road.kind: ", road_.name, ".\n",
        "# A commented line such as '#mode: delta' or '#  size: 512MiB' is a key with its "
        "default. ",
        "To set it,\n# remove its '#' and that of the group above it. The other lines are help. ",
        "Then: driftless\n# config check FILE\n");
    add_group("", keys, 0);
    return out_;
  }

 private:
  // Writes the keys whose names begin with `prefix`, below the group's header.
  void add_group(const std::string& prefix, const std::vector<const ConfigKey*>& keys,
                 std::size_t indent) {
    std::set<std::string> done;
    for (const ConfigKey* const key : keys) {
      if (!key->name.starts_with(prefix)) continue;
      const std::string_view rest = key->name.substr(prefix.size());
      const std::size_t dot = rest.find('.');
      if (dot == std::string_view::npos) {
        add_key(*key, rest, indent);
        continue;
      }
      const std::string group = prefix + std::string(rest.substr(0, dot + 1));
      if (!done.insert(group).second) continue;
      const bool set = std::ranges::any_of(keys, [&](const ConfigKey* each) {
        return each->name.starts_with(group) && is_set(*each);
      });
      std::string name(rest.substr(0, dot));
      const bool list = name.ends_with("[]");
      if (list) name.resize(name.size() - 2);
      out_ +=
          concat(indent == 0 ? "\n" : "", set ? "" : "#", std::string(indent, ' '), name, ":\n");
      if (list) out_ += concat("#", std::string(indent + 2, ' '), "-\n");
      add_group(group, keys, indent + (list ? 4 : 2));
    }
  }

  [[nodiscard]] bool is_set(const ConfigKey& key) const {
    return key.name == "road.kind" || required_.contains(key.name);
  }

  void add_key(const ConfigKey& key, std::string_view name, std::size_t indent) {
    const bool required = required_.contains(key.name);
    if (indent == 0) out_ += "\n";
    add_prose(concat(key.help, " (", key.expected, ")", required ? ". Required: fill it in" : ""),
              indent, out_);
    const std::string value =
        key.name == "road.kind" ? std::string(road_.name) : key.default_value();
    out_ += concat(is_set(key) ? "" : "#", std::string(indent, ' '), name, ": ", yaml(value), "\n");
  }

  const RoadKind& road_;
  const std::string_view role_;
  const std::set<std::string_view> required_;
  std::string out_;
};

}  // namespace

Result<int> run_config_init(const Common& common, const ConfigInitArguments& arguments) {
  // The command line accepts only existing roads.
  const auto road = std::ranges::find(config_table().kinds(), arguments.road, &RoadKind::name);
  ConfigFile file(**road, arguments.role);
  const std::string text = file.text();
  if (arguments.out.empty()) {
    if (common.json) {
      print_json({{"text", text}});
    } else {
      std::cout << text;
    }
    return int{kExitOk};
  }
  DRIFTLESS_RETURN_IF_ERROR(write_text(posix_file_system(), arguments.out, text));
  if (common.json) {
    print_json({{"file", arguments.out}, {"required", file.required()}});
  } else {
    std::cout << "wrote " << arguments.out << "\n";
    for (const std::string_view key : file.required()) std::cout << "fill in: " << key << "\n";
  }
  return int{kExitOk};
}

}  // namespace driftless::cli
