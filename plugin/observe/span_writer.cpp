// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/span_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/environment.h"
#include "core/line_log.h"
#include "plugin/observe/line_file.h"

namespace driftless {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename Value>
OrderedJson attribute(std::string_view key, std::string_view type, Value&& value) {
  OrderedJson made;
  made["key"] = key;
  made["value"][type] = std::forward<Value>(value);
  return made;
}
// In OTLP's JSON 64-bit numbers are strings.
OrderedJson attribute(std::string_view key, std::string_view value) {
  return attribute(key, "stringValue", value);
}
OrderedJson attribute(std::string_view key, std::uint64_t value) {
  return attribute(key, "intValue", std::to_string(value));
}
OrderedJson attribute(std::string_view key, double value) {
  return attribute(key, "doubleValue", value);
}
OrderedJson attribute(std::string_view key, bool value) {
  return attribute(key, "boolValue", value);
}

struct Interval {
  double begin_ms = 0, end_ms = 0;  // milliseconds before the record's time
};

// The spans of one record: one for the whole record, and one for each stage.
class RecordSpans {
 public:
  RecordSpans(const RecordOrigin& origin, const Hash128& run, std::uint64_t version)
      : origin_(origin), trace_(trace_id(run, version)), end_ms_(unix_ms(origin.time).value_or(0)) {
    note("driftless.run", std::string_view(to_hex(run)));
    note("driftless.version", version);
  }

  template <typename Value>
  void note(std::string_view key, const Value& value) {
    attributes_.push_back(attribute(key, value));
  }
  // A span of `all_ms` that ends at the record's time.
  void whole(const std::string& name, const std::string& id, std::string_view parent, double all_ms,
             const Status& status = {}) {
    id_ = id;
    OrderedJson& made = add(name, id, parent, {all_ms, 0});
    made["attributes"] = std::move(attributes_);
    if (status.ok()) return;
    made["status"] = {{"code", 2},
                      {"message", without_users(status.to_string())}};  // STATUS_CODE_ERROR
  }
  // A stage that did not take place gets no span.
  void stage(const std::string& name, const std::string& id, const Interval& when) {
    if (when.begin_ms > when.end_ms) add(name, id, id_, when);
  }

  [[nodiscard]] std::string line() && {
    OrderedJson json;
    OrderedJson& resource = json["resourceSpans"][0];
    OrderedJson& process = resource["resource"]["attributes"];
    process.push_back(attribute("service.name", std::string_view("driftless")));
    process.push_back(attribute("host.name", std::string_view(origin_.host)));
    process.push_back(attribute("driftless.role", origin_.role));
    process.push_back(attribute("driftless.rank", std::uint64_t{origin_.rank}));
    OrderedJson& scope = resource["scopeSpans"][0];
    scope["scope"]["name"] = "driftless";
    scope["spans"] = std::move(spans_);
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

 private:
  OrderedJson& add(const std::string& name, const std::string& id, std::string_view parent,
                   const Interval& when) {
    OrderedJson span;
    span["traceId"] = trace_;
    span["spanId"] = id;
    if (!parent.empty()) span["parentSpanId"] = parent;
    span["name"] = name;
    span["kind"] = 1;  // SPAN_KIND_INTERNAL
    span["startTimeUnixNano"] = nanoseconds(when.begin_ms);
    span["endTimeUnixNano"] = nanoseconds(when.end_ms);
    return spans_.emplace_back(std::move(span));
  }
  [[nodiscard]] std::string nanoseconds(double before_ms) const {
    const std::int64_t end = end_ms_ * 1'000'000;
    return std::to_string(
        std::max<std::int64_t>(end - static_cast<std::int64_t>(std::max(before_ms, 0.0) * 1e6), 0));
  }

  const RecordOrigin& origin_;
  std::string trace_, id_;
  std::int64_t end_ms_;
  OrderedJson attributes_ = OrderedJson::array();  // of the span for the whole record
  OrderedJson spans_ = OrderedJson::array();
};

class SpanWriter final : public RecordSink {
 public:
  explicit SpanWriter(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}

  void add(const VersionRecord& record) override {
    guard(record.version, [&] { return line_of(record); });
  }
  void add(const EngineRecord& record) override {
    if (record.looked()) return;  // a look, not an update
    guard(record.goal, [&] { return line_of(record); });
  }
  void replace(std::span<const RolloutRecord>) override {}
  void failed(const Status&) override {}
  void add(const EndRecord&) override {}
  [[nodiscard]] Status take_trouble() override { return std::exchange(trouble_, {}); }

 private:
  // A sink never fails: if memory runs out, the line is dropped.
  template <typename MakeLine>
  void guard(std::uint64_t version, const MakeLine& make_line) {
    try {
      const Status written = file_->write(make_line(), version);
      if (!written.ok()) trouble_ = written;
    } catch (const std::exception&) {
    }
  }
  [[nodiscard]] std::string next_id() {
    return to_hex(xxh3_128(concat(to_hex(process_), " ", ++spans_))).substr(0, 16);
  }

  [[nodiscard]] std::string line_of(const VersionRecord& record) {
    RecordSpans spans(record.origin, record.run, record.version);
    spans.note("driftless.base_version", record.base_version);
    spans.note("driftless.anchor", record.anchor);
    spans.note("driftless.changed_units", record.changed_units);
    spans.note("driftless.wire_bytes", record.wire_bytes);
    const std::string root = publisher_span_id(record.run, record.version);
    const std::string number = std::to_string(record.version);
    if (record.published) {
      add(spans, *record.published, "publish version " + number, root, record.origin.rank > 0);
    } else if (record.received) {
      const CommitTimes& commit = record.received->commit;
      spans.whole("follow version " + number, next_id(), root,
                  record.received->fetch_ms + length(commit));
      add(spans, commit, record.received->fetch_ms);
    } else if (record.delivered) {
      // The fetch is the first part of the processing.
      const auto& [needed, plain, fetch_ms, process_ms, apply_ms, carrier] = *record.delivered;
      const double all_ms = process_ms + apply_ms;
      spans.whole("follow version " + number, next_id(), root, all_ms);
      spans.stage("fetch", next_id(), {all_ms, all_ms - std::min(fetch_ms, all_ms)});
      spans.stage("process", next_id(), {all_ms, apply_ms});
      spans.stage("apply", next_id(), {apply_ms, 0});
    }
    return std::move(spans).line();
  }

  // The leader's span is the parent of all others of the version.
  void add(RecordSpans& spans, const VersionRecord::Published& published, const std::string& name,
           const std::string& root, bool follows) {
    spans.note("driftless.encoding", std::string_view(info(published.encoding).name));
    spans.note("driftless.density", published.density);
    const double all_ms = published.total_ms;
    spans.whole(name, follows ? next_id() : root, follows ? root : "", all_ms);
    const auto from_begin = [&](const char* stage, double ms) {
      spans.stage(stage, next_id(), {all_ms, std::max(all_ms - ms, 0.0)});
    };
    from_begin("compare", published.compare_ms);
    from_begin("encode", published.encode_ms);
    from_begin("send", published.send_ms);
    spans.stage("seal", next_id(), {published.seal_ms, 0});
  }

  // Summed in the same order as the stages below: another order would round to another nanosecond.
  [[nodiscard]] static double length(const CommitTimes& commit) {
    return commit.resume_ms + commit.apply_ms + commit.pause_ms + commit.stage_ms;
  }
  // Adds the stages, one after the other, so that the last ends at the record's time.
  void add(RecordSpans& spans, const CommitTimes& commit, double fetch_ms) {
    const double resume = commit.resume_ms, apply = resume + commit.apply_ms,
                 pause = apply + commit.pause_ms, stage = pause + commit.stage_ms;
    spans.stage("fetch", next_id(), {stage + fetch_ms, stage});
    spans.stage("stage", next_id(), {stage, pause});
    spans.stage("commit", next_id(), {pause, 0});
    spans.stage("pause", next_id(), {pause, apply});
    spans.stage("apply", next_id(), {apply, resume});
    spans.stage("resume", next_id(), {resume, 0});
  }

  [[nodiscard]] std::string line_of(const EngineRecord& record) {
    RecordSpans spans(record.origin, record.run, record.goal);
    spans.note("driftless.engine", std::string_view(without_users(record.engine)));
    spans.note("driftless.engine_kind", record.kind);
    spans.note("driftless.engine_version", record.version);
    spans.note("driftless.proven", record.proven);
    spans.note("driftless.attempts", std::uint64_t{record.attempts});
    spans.whole("engine update", next_id(), publisher_span_id(record.run, record.goal),
                length(record.commit), record.status);
    add(spans, record.commit, 0);
    return std::move(spans).line();
  }

  std::unique_ptr<LineFile> file_;
  Status trouble_;  // the first line that was lost, until take_trouble()
  Hash128 process_ = environment().random();
  std::uint64_t spans_ = 0;  // number of span ids given out
};

}  // namespace

Result<std::unique_ptr<RecordSink>> open_span_writer(std::string path) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file,
                             LineFile::open("monitor.spans_file", std::move(path)));
  return std::unique_ptr<RecordSink>(std::make_unique<SpanWriter>(std::move(file)));
}

std::string trace_id(const Hash128& run, std::uint64_t version) {
  return to_hex(xxh3_128(concat("trace ", to_hex(run), " ", version)));
}

std::string publisher_span_id(const Hash128& run, std::uint64_t version) {
  return to_hex(xxh3_128(concat("publish ", to_hex(run), " ", version))).substr(0, 16);
}

}  // namespace driftless
