// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/help_pages.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "tools/cli/console.h"

namespace driftless::cli {
namespace {

struct ExitText {
  int code;
  std::string_view meaning;
};
// docs/operate/command.md has the same table, with advice.
constexpr std::array kExitTexts = {
    ExitText{kExitOk, "done; verify: identical; status: nothing is wrong"},
    ExitText{kExitDifferent,
             "verify: not identical, or different (--engine); compare: not the same tensors; "
             "doctor: a check failed; status: something is wrong; trainer, agent: a rollout or an "
             "engine did not take the last version"},
    ExitText{kExitUsage, "wrong usage or argument; verify --engine: cannot tell"},
    ExitText{kExitNotFound, "not found, or not whole yet"},
    ExitText{kExitRefused, "refused: damaged, or the wrong run, base, layout or content"},
    ExitText{kExitIo, "the operating system refused, no space, or no connection"},
    ExitText{kExitBusy, "another process holds the lock, or a deadline passed"},
    ExitText{kExitExists, "something is there already"},
    ExitText{kExitUnsupported, "not supported by this encoding or build"},
    ExitText{kExitInternal, "a defect of ours"},
};

// A subcommand that can be run, and its words: "config check".
struct Leaf {
  const CLI::App* app;
  std::string words;
};

std::vector<const CLI::App*> below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

void add_leaves(const CLI::App& app, const std::string& words, std::vector<Leaf>& leaves) {
  for (const CLI::App* const each : below(app)) {
    const std::string name = words + (words.empty() ? "" : " ") + each->get_name();
    if (below(*each).empty()) {
      leaves.push_back({each, name});
    } else {
      add_leaves(*each, name, leaves);
    }
  }
}

std::vector<Leaf> leaves_of(const CLI::App& app) {
  std::vector<Leaf> leaves;
  add_leaves(app, "", leaves);
  return leaves;
}

std::vector<const CLI::Option*> options_of(const CLI::App& app, bool positional) {
  std::vector<const CLI::Option*> options = app.get_options();
  std::erase_if(options, [&](const CLI::Option* each) {
    return each->get_positional() != positional || each->get_group().empty();  // hidden options
  });
  return options;
}

// The names of an option as they can be typed, from "-h,--help".
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

// The words that an option accepts, from "TEXT:{auto,vllm}"; empty: any.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos) return choices;
  std::string list = type.substr(open + 1, close - open - 1);
  for (std::size_t comma = list.find(','); comma != std::string::npos; comma = list.find(',')) {
    choices.push_back(list.substr(0, comma));
    list.erase(0, comma + 1);
  }
  choices.push_back(list);
  return choices;
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += concat(text.empty() ? "" : between, word);
  return text;
}

// --- man ---

std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
      out += c == '\n' ? ' ' : c;
    }
  }
  return out;
}

void add_option(const CLI::Option& option, std::string& out) {
  const std::string names =
      option.get_positional() ? option.get_name(true) : joined(names_of(option), ", ");
  out += concat(".TP\n.B ", troff(names), "\n");
  std::string text = option.get_description();
  if (const auto choices = choices_of(option); !choices.empty()) {
    text += concat(" (", joined(choices, ", "), ")");
  }
  if (const std::string value = option.get_default_str(); !value.empty()) {
    text += concat(" [", value, "]");
  }
  if (option.get_required()) text += " (required)";
  out += troff(text) + "\n";
}

void add_command(const Leaf& leaf, std::string& out) {
  std::string usage = concat("driftless ", leaf.words);
  for (const CLI::Option* const each : options_of(*leaf.app, true)) {
    const bool one = each->get_required();
    usage += concat(" ", one ? "" : "[", each->get_name(true), one ? "" : "]");
  }
  out += concat(".SS ", troff(leaf.words), "\n.B ", troff(usage), " [options]\n.PP\n",
                troff(leaf.app->get_description()), "\n");
  for (const bool positional : {true, false}) {
    for (const CLI::Option* const each : options_of(*leaf.app, positional)) {
      if (each != leaf.app->get_help_ptr()) add_option(*each, out);
    }
  }
}

// --- completion ---

// The words that a command's positional arguments accept; empty: any, or it has none.
std::vector<std::string> positional_choices(const CLI::App& app) {
  std::vector<std::string> choices;
  for (const CLI::Option* const each : options_of(app, true)) {
    std::ranges::move(choices_of(*each), std::back_inserter(choices));
  }
  return choices;
}
// Whether file names may follow a command.
bool takes_files(const CLI::App& app) {
  return !options_of(app, true).empty() && positional_choices(app).empty();
}

// Adds, for each position in the command tree, the names that may follow.
void add_bash_cases(const CLI::App& app, const std::string& words, std::string& steps,
                    std::string& names, std::string& values) {
  std::vector<std::string> next = positional_choices(app);
  for (const CLI::App* const each : below(app)) {
    next.push_back(each->get_name());
    const std::string path = words + (words.empty() ? "" : " ") + each->get_name();
    steps += concat("      \"", words, "/", each->get_name(), "\") command=\"", path, "\" ;;\n");
    add_bash_cases(*each, path, steps, names, values);
  }
  for (const CLI::Option* const each : options_of(app, false)) {
    for (const std::string& name : names_of(*each)) {
      next.push_back(name);
      const std::string key = concat("    \"", words, " ", name, "\") ");
      if (const auto choices = choices_of(*each); !choices.empty()) {
        values += concat(key, "names=\"", joined(choices, " "), "\" files=\"\" ;;\n");
      } else if (takes_value(*each)) {
        values += concat(key, "names=\"\" files=1 ;;\n");
      }
    }
  }
  names += concat("    \"", words, "\") names=\"", joined(next, " "), "\"",
                  takes_files(app) ? " files=1" : "", " ;;\n");
}

std::string bash_completion(const CLI::App& app) {
  std::string steps, names, values;
  add_bash_cases(app, "", steps, names, values);
  return concat(R"(# Completion of driftless for bash; made by: driftless completion bash
_driftless() {
  local current="${COMP_WORDS[COMP_CWORD]}" command="" names="" files="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$command/${COMP_WORDS[i]}" in
)",
                steps, R"(    esac
  done
  case "$command" in
)",
                names, R"(  esac
  case "$command ${COMP_WORDS[COMP_CWORD - 1]}" in
)",
                values, R"(  esac
  mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current")
  if [[ -n $files && ($current != -* || -z $names) ]]; then
    [[ -n $current ]] || COMPREPLY=()
    local found
    mapfile -t found < <(compgen -f -- "$current")
    COMPREPLY+=("${found[@]}")
  fi
}
complete -o filenames -F _driftless driftless
)");
}

// Quotes a text for a shell with single quotes.
std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// An entry of zsh's _describe, which splits it at the first ':'.
std::string zsh_entry(std::string_view name, std::string_view help) {
  return concat(" ", single_quoted(concat(name, ":", help)));
}

void add_zsh_cases(const CLI::App& app, const std::string& words, std::string& steps,
                   std::string& cases, std::string& values) {
  std::string commands, options;
  for (const CLI::App* const each : below(app)) {
    const std::string path = words + (words.empty() ? "" : " ") + each->get_name();
    commands += zsh_entry(each->get_name(), each->get_description());
    steps += concat("      ", single_quoted(concat(words, "/", each->get_name())),
                    ") command=", single_quoted(path), " ;;\n");
    add_zsh_cases(*each, path, steps, cases, values);
  }
  for (const CLI::Option* const each : options_of(app, false)) {
    for (const std::string& name : names_of(*each)) {
      options += zsh_entry(name, each->get_description());
      if (!takes_value(*each)) continue;
      const auto choices = choices_of(*each);
      values += concat("    ", single_quoted(concat(words, " ", name)), ") ",
                       choices.empty() ? "_files" : concat("compadd ", joined(choices, " ")),
                       "; return ;;\n");
    }
  }
  for (const std::string& word : positional_choices(app)) commands += zsh_entry(word, "");
  cases += concat("    ", single_quoted(words), ") commands=(", commands, " ) options=(", options,
                  " ) ;;\n");
}

std::string zsh_completion(const CLI::App& app) {
  std::string steps, cases, values;
  add_zsh_cases(app, "", steps, cases, values);
  return concat(R"(#compdef driftless
# Completion of driftless for zsh; made by: driftless completion zsh
_driftless() {
  local command="" word
  local -a commands options
  for word in "${(@)words[2,CURRENT-1]}"; do
    case "$command/$word" in
)",
                steps, R"(    esac
  done
  case "$command" in
)",
                cases, R"(  esac
  case "$command ${words[CURRENT-1]}" in
)",
                values, R"(  esac
  (( $#commands )) && _describe -t commands command commands
  [[ $PREFIX == -* ]] && _describe -t options option options
  (( $#commands )) || _files
}
_driftless "$@"
)");
}

void add_fish_lines(const CLI::App& app, const std::string& words, std::string& out) {
  std::vector<std::string> next;
  for (const CLI::App* const each : below(app)) next.push_back(each->get_name());
  // True if a word of this node was typed, but none of its children's.
  std::string when =
      words.empty() ? ""
                    : concat("__fish_seen_subcommand_from ", words.substr(words.rfind(' ') + 1));
  if (!next.empty()) {
    when +=
        concat(when.empty() ? "" : "; and ", "not __fish_seen_subcommand_from ", joined(next, " "));
  }
  const std::string begin = concat("complete -c driftless -n ", single_quoted(when), " ");
  for (const CLI::App* const each : below(app)) {
    out += concat(begin, "-f -a ", each->get_name(), " -d ", single_quoted(each->get_description()),
                  "\n");
    add_fish_lines(*each, words + (words.empty() ? "" : " ") + each->get_name(), out);
  }
  if (const auto choices = positional_choices(app); !choices.empty()) {
    out += concat(begin, "-f -a ", single_quoted(joined(choices, " ")), "\n");
  }
  for (const CLI::Option* const each : options_of(app, false)) {
    out += begin;
    for (const std::string& name : each->get_snames()) out += concat("-s ", name, " ");
    for (const std::string& name : each->get_lnames()) out += concat("-l ", name, " ");
    const auto choices = choices_of(*each);
    if (!choices.empty()) {
      out += concat("-x -a ", single_quoted(joined(choices, " ")), " ");
    } else if (takes_value(*each)) {
      out += "-r ";
    }
    out += concat("-d ", single_quoted(each->get_description()), "\n");
  }
}

}  // namespace

std::string exit_codes_text() {
  std::string text = "Exit codes:";
  for (const ExitText& each : kExitTexts) {
    text += concat("\n  ", each.code, each.code < 10 ? "   " : "  ", each.meaning);
  }
  return text;
}

std::string man_page(const CLI::App& app, std::string_view release) {
  std::string out =
      concat(".\\\" Made by: driftless man\n.TH DRIFTLESS 1 \"\" \"driftless ", troff(release),
             "\" \"User Commands\"\n.SH NAME\ndriftless \\- ship exactly the changed weights, "
             "losslessly\n",
             ".SH SYNOPSIS\n.B driftless\n.I command\n[options]\n.SH DESCRIPTION\n",
             troff(app.get_description()),
             "\nA failure is one line on standard error.\nNothing is overwritten unless an option "
             "asks for "
             "it.\n.SH COMMANDS\n");
  for (const Leaf& leaf : leaves_of(app)) add_command(leaf, out);
  out += ".SH EXIT STATUS\n";
  for (const ExitText& each : kExitTexts) {
    out += concat(".TP\n.B ", each.code, "\n", troff(each.meaning), "\n");
  }
  return out;
}

Result<std::string> completion(const CLI::App& app, std::string_view shell) {
  if (shell == "bash") return bash_completion(app);
  if (shell == "zsh") return zsh_completion(app);
  if (shell == "fish") {
    std::string out = "# Completion of driftless for fish; made by: driftless completion fish\n";
    add_fish_lines(app, "", out);
    return out;
  }
  return error(StatusCode::kInvalidArgument, "completion: expected bash, zsh or fish, found ",
               shell);
}

}  // namespace driftless::cli
