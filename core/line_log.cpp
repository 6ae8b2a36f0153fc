// SPDX-License-Identifier: Apache-2.0
#include "core/line_log.h"

#include <algorithm>
#include <cstdio>

#include "core/status.h"
#include "core/utc_time.h"

namespace driftless {

namespace {

// At once: other processes write there, too.
void write_to(std::FILE* file, std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), file);
  std::fflush(file);
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters, too, and two bytes of UTF-8.
    const bool second = byte == 0xC2 && i + 1 < text.size() &&
                        static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                        static_cast<unsigned char>(text[i + 1]) < 0xA0;
    line.push_back(second || byte < 0x20 || byte == 0x7F ? ' ' : text[i]);
    if (second) ++i;
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

// A line that was not repeated keeps its place in time, and so goes out of the list.
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

ProcessLog& process_log() {
  // Never destroyed: threads of the process may still use it at its end.
  static ProcessLog& log = *new ProcessLog;
  return log;
}

}  // namespace driftless
