// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/record.h"

#include <cstring>

#include "core/hash128.h"
#include "core/version.h"

namespace driftless::host_shm {
namespace {

constexpr std::string_view kRecordMagic = "DRIFTLSP";
constexpr std::string_view kReportMagic = "DRIFTLSW";
constexpr std::size_t kHashBytes = 32;  // as text

// Both ends are processes of one host: numbers are as the machine has them.
void put(std::string& out, std::uint64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}
void put(std::string& out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out.append(text);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  [[nodiscard]] bool number(std::uint64_t& out) {
    if (left_.size() < sizeof(out)) return false;
    std::memcpy(&out, left_.data(), sizeof(out));
    left_.remove_prefix(sizeof(out));
    return true;
  }
  [[nodiscard]] bool text(std::string& out) {
    std::uint64_t size = 0;
    if (!number(size) || size > left_.size()) return false;
    out = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }
  [[nodiscard]] std::uint64_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

std::string sealed(std::string bytes) {
  bytes += to_hex(xxh3_128(bytes));
  return bytes;
}

Status damaged(std::string_view what, std::string_view why) {
  return error(StatusCode::kCorrupt, what, ": ", why);
}

// The content between magic and hash.
Result<std::string_view> unsealed(std::string_view bytes, std::string_view magic,
                                  std::string_view what) {
  if (bytes.size() < magic.size() + kHashBytes || !bytes.starts_with(magic)) {
    return damaged(what, "is not what this road writes there");
  }
  const std::string_view content = bytes.substr(0, bytes.size() - kHashBytes);
  if (to_hex(xxh3_128(content)) != bytes.substr(content.size())) {
    return damaged(what, "its hash is not that of its content");
  }
  return content.substr(magic.size());
}

}  // namespace

std::string record_to_bytes(const Record& record) {
  std::string out(kRecordMagic);
  put(out, record.token);
  put(out, record.manifest);
  put(out, std::uint64_t{record.parts.size()});
  for (const RecordPart& part : record.parts) {
    put(out, part.name);
    put(out, part.size_bytes);
  }
  return sealed(std::move(out));
}

Result<Record> record_from_bytes(std::string_view bytes, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view content, unsealed(bytes, kRecordMagic, what));
  Reader in(content);
  Record record;
  std::uint64_t parts = 0;
  bool whole = in.text(record.token) && in.text(record.manifest) && in.number(parts);
  whole = whole && parts <= in.left() / (2 * sizeof(std::uint64_t));
  for (std::uint64_t i = 0; whole && i < parts; ++i) {
    RecordPart& part = record.parts.emplace_back();
    whole = in.text(part.name) && in.number(part.size_bytes);
  }
  if (!whole || in.left() != 0) return damaged(what, "its lengths do not add up");
  DRIFTLESS_RETURN_IF_ERROR(hash128_from_hex(record.token).status().with_context(what));
  return record;
}

std::string report_to_bytes(const Report& report) {
  std::string out(kReportMagic);
  put(out, report.beat);
  put(out, report.report.id);
  put(out, report.report.version);
  put(out, report.report.proof);
  return sealed(std::move(out));
}

Result<Report> report_from_bytes(std::string_view bytes, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view content, unsealed(bytes, kReportMagic, what));
  Reader in(content);
  Report report;
  const bool whole = in.number(report.beat) && in.text(report.report.id) &&
                     in.number(report.report.version) && in.text(report.report.proof);
  if (!whole || in.left() != 0) return damaged(what, "its lengths do not add up");
  if (report.report.version > kMaxVersion) return damaged(what, "its version is too large");
  DRIFTLESS_RETURN_IF_ERROR(check_report(report.report).with_context(what));
  return report;
}

}  // namespace driftless::host_shm
