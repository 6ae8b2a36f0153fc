// SPDX-License-Identifier: Apache-2.0
#include "core/line_log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include "core/status.h"
#include "core/utc_time.h"

namespace driftless {

namespace {

constexpr char32_t kNoCharacter = 0xFFFFFFFF;

struct Character {
  char32_t code = kNoCharacter;  // kNoCharacter: the first byte is not UTF-8
  std::size_t bytes = 1;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return {};
  char32_t code = first & (0x7FU >> bytes);
  for (std::size_t at = 1; at < bytes; ++at) {
    if ((byte(at) & 0xC0U) != 0x80) return {};
    code = (code << 6U) | (byte(at) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0x80, 0x800, 0x10000};  // smaller codes must use fewer bytes
  if (code < kLeast[bytes - 2] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, bytes};
}

// Control characters, and characters that are invisible or turn the direction of text: a name that
// holds them could look like another name. page.html has the same list.
bool is_hidden(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  constexpr Range kHidden[] = {
      {0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},       {0x34F, 0x34F},    {0x61C, 0x61C},
      {0x115F, 0x1160}, {0x17B4, 0x17B5}, {0x180E, 0x180E},   {0x200B, 0x200F},  {0x2028, 0x202F},
      {0x2060, 0x206F}, {0x2800, 0x2800}, {0x3164, 0x3164},   {0xFE00, 0xFE0F},  {0xFEFF, 0xFEFF},
      {0xFFA0, 0xFFA0}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}, {0xE0100, 0xE01EF}};
  return std::ranges::any_of(
      kHidden, [code](const Range& each) { return code >= each.first && code <= each.last; });
}

std::string code_of(const Character& character, std::string_view bytes) {
  std::array<char, 16> text{};
  if (character.code == kNoCharacter) {
    std::snprintf(text.data(), text.size(), "\\x%02x", static_cast<unsigned char>(bytes[0]));
  } else {
    std::snprintf(text.data(), text.size(), "\\u%04x", static_cast<unsigned>(character.code));
  }
  return text.data();
}

// One write() per line: other processes write to the same place.
void write_to(std::FILE* file, std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), file);
  std::fflush(file);
}

}  // namespace

std::string without_users(std::string_view text) {
  constexpr std::string_view kPlace = "://";
  std::string shown;
  for (;;) {
    const std::size_t at = text.find(kPlace);
    if (at == std::string_view::npos) return shown.append(text);
    shown.append(text.substr(0, at + kPlace.size()));
    text.remove_prefix(at + kPlace.size());
    // A password may hold an '@'.
    const std::size_t user = text.substr(0, text.find_first_of("/?#\"<> \t\r\n")).rfind('@');
    if (user != std::string_view::npos) text.remove_prefix(user + 1);
  }
}

std::string one_line(std::string_view text) {
  const std::string whole = without_users(text);
  std::string line;
  line.reserve(whole.size());
  for (std::string_view rest = whole; !rest.empty();) {
    const Character next = first_character(rest);
    const std::string_view bytes = rest.substr(0, next.bytes);
    rest.remove_prefix(next.bytes);
    if (next.code == '\n' || next.code == '\r' || next.code == '\t') {
      line.push_back(' ');
    } else if (next.code == kNoCharacter || is_hidden(next.code)) {
      line += code_of(next, bytes);
    } else {
      line += bytes;
    }
  }
  return line;
}

void LineLog::set_name(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  name_ = name.empty() ? std::string() : concat(" ", one_line(name));
}

void LineLog::add(std::string_view line, const Moment& now) {
  const std::string text = one_line(line);
  const std::scoped_lock lock(mutex_);
  for (Recent& recent : recent_) {
    if (now.steady - recent.since >= kWindow) write_count(recent, now);
  }
  std::erase_if(recent_, [&](const Recent& each) { return now.steady - each.since >= kWindow; });
  const auto same = std::ranges::find(recent_, text, &Recent::line);
  if (same != recent_.end()) {
    ++same->repeats;
    return;
  }
  if (recent_.size() == kMostRecent) {
    write_count(recent_.front(), now);
    recent_.erase(recent_.begin());
  }
  recent_.push_back({text, now.steady});
  write(text, now);
}

void LineLog::flush(const Moment& now) {
  const std::scoped_lock lock(mutex_);
  for (Recent& recent : recent_) write_count(recent, now);
}

void LineLog::write(std::string_view line, const Moment& now) {
  write_(concat(utc_text(now.utc), " driftless", name_, ": ", line, "\n"));
}

// A line that was not repeated keeps its time and therefore drops out of the list.
void LineLog::write_count(Recent& recent, const Moment& now) {
  if (recent.repeats == 0) return;
  const auto past = std::chrono::round<std::chrono::seconds>(now.steady - recent.since);
  write(concat(recent.line, " (repeated ", recent.repeats, recent.repeats == 1 ? " time" : " times",
               " in ", past.count(), " s)"),
        now);
  recent.since = now.steady;
  recent.repeats = 0;
}

void ProcessLog::set_name(std::string_view name) {
  warnings_.set_name(name);
  events_.set_name(name);
}

void ProcessLog::flush() {
  events_.flush(LineLog::Moment::now());
  warnings_.flush(LineLog::Moment::now());
}

ProcessLog::ProcessLog()
    : warnings_([](std::string_view line) { write_to(stderr, line); }),
      events_([](std::string_view line) { write_to(stdout, line); }) {}

namespace {
std::atomic<ProcessLog*> used = nullptr;
}

ProcessLog& process_log() {
  if (ProcessLog* const log = used.load()) return *log;
  // Never destroyed: threads of the process may still use it at its end.
  static ProcessLog& log = *new ProcessLog;
  return log;
}

void use_process_log(ProcessLog& log) { used = &log; }

}  // namespace driftless
