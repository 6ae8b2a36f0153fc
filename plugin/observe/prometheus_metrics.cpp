// SPDX-License-Identifier: Apache-2.0
// The only file that includes prometheus-cpp. It catches the library's exceptions.
#include "plugin/observe/prometheus_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "plugin/observe/status_pages.h"

namespace driftless {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
template <typename Metric>
using Family = prometheus::Family<Metric>;

const Histogram::BucketBoundaries& stage_bounds() {
  static const Histogram::BucketBoundaries bounds{
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};
  return bounds;
}
// Fewer buckets, because there is one histogram per engine.
const Histogram::BucketBoundaries& pause_bounds() {
  static const Histogram::BucketBoundaries bounds{0.001, 0.01, 0.05, 0.1, 0.25, 0.5,
                                                  1,     2.5,  5,    10,  30,   60};
  return bounds;
}

Family<Gauge>& gauges(prometheus::Registry& registry, const std::string& name,
                      const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Counter>& counters(prometheus::Registry& registry, const std::string& name,
                          const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Histogram>& histograms(prometheus::Registry& registry, const std::string& name,
                              const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

bool is_plain(std::string_view name) {
  return name.size() <= PrometheusMetrics::kMostLabelBytes &&
         std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
}

// An external name as a label value. Prometheus refuses all metrics of a process if one label is
// not UTF-8, so other bytes are replaced.
std::string label_value(std::string_view name) {
  std::string text(name.substr(0, PrometheusMetrics::kMostLabelBytes));
  if (is_plain(text)) return text;
  const nlohmann::json json(std::move(text));
  return nlohmann::json::parse(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
      .get<std::string>();
}

// The same for an engine's URL, without a password or token.
std::string engine_label(std::string_view url) {
  const bool secret = url.find_first_of("@?#") != std::string_view::npos;
  return label_value(secret ? public_text(url) : std::string(url));
}

enum Stage : unsigned char {
  kCompare,
  kEncode,
  kSend,
  kSeal,
  kPublish,
  kFetch,
  kProcess,
  kStage,
  kPause,
  kApply,
  kResume,
  kCommit,
  kStages
};
constexpr std::array<const char*, kStages> kStageNames{"compare", "encode", "send",    "seal",
                                                       "publish", "fetch",  "process", "stage",
                                                       "pause",   "apply",  "resume",  "commit"};

enum BytesKind : unsigned char { kFull, kDelta, kWire, kNeeded, kBytesKinds };
constexpr std::array<const char*, kBytesKinds> kBytesKindNames{"full", "delta", "wire", "needed"};

// The metrics of one engine or receiver.
struct Series {
  Gauge* version = nullptr;
  Gauge* lag = nullptr;
  Gauge* proven = nullptr;
  Histogram* pause = nullptr;  // engines only
  Gauge* reachable = nullptr;  // engines only
  std::uint64_t held = 0;
  std::uint64_t turn = 0;  // the number of the update that had its last record

  void set(std::uint64_t newest) const {
    version->Set(static_cast<double>(held));
    lag->Set(newest > held ? static_cast<double>(newest - held) : 0.0);
  }
};

// All engines, or all receivers, labelled by name.
class SeriesByName {
 public:
  // `pauses` may be null.
  SeriesByName(prometheus::Registry& registry, const std::string& kind, const std::string& label,
               Family<Histogram>* pauses)
      : label_(label),
        version_(gauges(registry, "driftless_" + kind + "_version", "The version that it holds")),
        lag_(gauges(registry, "driftless_" + kind + "_lag",
                    "Versions that it is behind the newest one")),
        proven_(gauges(registry, "driftless_" + kind + "_proven",
                       "1: a digest, or its workers, prove that it holds the version")),
        pauses_(pauses),
        reachable_(pauses == nullptr ? nullptr
                                     : &gauges(registry, "driftless_" + kind + "_reachable",
                                               "0: it has answered no call for a while")) {}

  // The metrics of this name. Makes missing ones; if there are kMostSeries already, these
  // replace the oldest. Null if every series has a record of the update `turn`. `clean` makes a
  // label of a name. It changes no label, so a name that is a label need not be cleaned.
  template <typename Clean>
  Series* at(std::string_view name, std::uint64_t turn, const Clean& clean) {
    auto found = series_.find(name);
    if (found == series_.end()) {
      std::string label = clean(name);
      found = series_.find(label);
      if (found == series_.end()) {
        if (series_.size() >= PrometheusMetrics::kMostSeries && !drop_oldest(turn)) {
          return nullptr;
        }
        Series made = make(label);
        found = series_.emplace(std::move(label), made).first;
      }
    }
    found->second.turn = turn;
    return &found->second;
  }
  void set_lags(std::uint64_t newest) const {
    for (const auto& [name, series] : series_) series.set(newest);
  }
  // Removes those that have had no record since the update `turn`.
  void keep_since(std::uint64_t turn) {
    for (auto each = series_.begin(); each != series_.end();) {
      each = each->second.turn < turn ? remove(each) : std::next(each);
    }
  }

 private:
  struct HashName {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };
  using Map = std::unordered_map<std::string, Series, HashName, std::equal_to<>>;

  Series make(const std::string& label) {
    const prometheus::Labels labels{{label_, label}};
    Series made{&version_.Add(labels), &lag_.Add(labels), &proven_.Add(labels)};
    if (pauses_ != nullptr) made.pause = &pauses_->Add(labels, pause_bounds());
    if (reachable_ != nullptr) made.reachable = &reachable_->Add(labels);
    return made;
  }
  Map::iterator remove(Map::iterator each) {
    const Series& gone = each->second;
    version_.Remove(gone.version);
    lag_.Remove(gone.lag);
    proven_.Remove(gone.proven);
    if (pauses_ != nullptr) pauses_->Remove(gone.pause);
    if (reachable_ != nullptr) reachable_->Remove(gone.reachable);
    return series_.erase(each);
  }
  bool drop_oldest(std::uint64_t turn) {
    const auto oldest =
        std::ranges::min_element(series_, {}, [](const auto& each) { return each.second.turn; });
    if (oldest->second.turn == turn) return false;
    remove(oldest);
    return true;
  }

  std::string label_;
  Family<Gauge>&version_, &lag_, &proven_;
  Family<Histogram>* pauses_;
  Family<Gauge>* reachable_;
  Map series_;
};

class Metrics final : public PrometheusMetrics {
 public:
  explicit Metrics(const RecordOrigin& origin) : origin_(origin) {
    for (unsigned code = 1; code <= static_cast<unsigned>(StatusCode::kInternal); ++code) {
      const std::string name(to_string(static_cast<StatusCode>(code)));
      // increase() needs a first sample of 0
      failures_.at(code) = &failure_family_.Add({{"code", name}});
    }
    name_run("");
  }

  void add(const VersionRecord& record) override {
    guard([&] { take(record); });
  }
  void add(const EngineRecord& record) override {
    guard([&] { take(record); });
  }
  void replace(std::span<const RolloutRecord> rollouts) override {
    guard([&] { take(rollouts); });
  }
  void failed(const Status& status) override {
    guard([&] { count(status); });
  }
  void add(const EndRecord&) override {}

  std::string text() override {
    std::string text;
    guard([&] { text = prometheus::TextSerializer().Serialize(registry_.Collect()); });
    return text;
  }

 private:
  // A sink never fails: if memory runs out, the metric is left out.
  template <typename Work>
  static void guard(const Work& work) {
    try {
      work();
    } catch (const std::exception&) {
    }
  }

  // In another run, versions count from 1 again.
  void note(const Hash128& run, std::uint64_t version) {
    if (run != run_ && !run.is_zero()) {
      run_ = run;
      newest_ = 0;
      name_run(to_hex(run));
    }
    newest_ = std::max(newest_, version);
    version_.Set(static_cast<double>(newest_));
  }
  void name_run(const std::string& run) {
    if (info_ != nullptr) info_family_.Remove(info_);
    info_ = &info_family_.Add({{"version", DRIFTLESS_VERSION},
                               {"role", label_value(origin_.role)},
                               {"host", label_value(origin_.host)},
                               {"run", run}});
    info_->Set(1);
  }

  void count(const Status& status) {
    if (!status.ok()) failures_.at(static_cast<unsigned>(status.code()))->Increment();
  }
  void observe(Stage stage, double ms) {
    Histogram*& made = stages_[stage];
    if (made == nullptr) made = &stage_family_.Add({{"stage", kStageNames[stage]}}, stage_bounds());
    if (std::isfinite(ms) && ms >= 0) made->Observe(ms / 1e3);
  }
  void count_bytes(BytesKind kind, std::uint64_t bytes) {
    Counter*& made = bytes_[kind];
    if (made == nullptr) made = &bytes_family_.Add({{"kind", kBytesKindNames[kind]}});
    made->Increment(static_cast<double>(bytes));
  }
  void observe(const CommitTimes& commit) {
    observe(kStage, commit.stage_ms);
    observe(kPause, commit.pause_ms);
    observe(kApply, commit.apply_ms);
    observe(kResume, commit.resume_ms);
    observe(kCommit, commit.pause_ms + commit.apply_ms + commit.resume_ms);
  }

  void take(const VersionRecord& record) {
    note(record.run, record.version);
    const std::optional<std::int64_t> time = unix_ms(record.origin.time);
    if (time) last_.Set(static_cast<double>(*time) / 1e3);
    versions_.Increment(static_cast<double>(record.versions));
    if (!record.fallback.empty()) {
      fallback_.Add({{"road", label_value(record.fallback)}}).Set(1);
    }
    count_bytes(kFull, record.full_bytes);
    count_bytes(kDelta, record.delta_bytes);
    count_bytes(kWire, record.wire_bytes);
    if (const auto& published = record.published) {
      density_.Add({}).Set(published->density);
      observe(kCompare, published->compare_ms);
      observe(kEncode, published->encode_ms);
      observe(kSend, published->send_ms);
      observe(kSeal, published->seal_ms);
      observe(kPublish, published->total_ms);
    }
    if (const auto& received = record.received) {
      count_bytes(kNeeded, received->needed_bytes);
      observe(kFetch, received->fetch_ms);
      observe(received->commit);
    }
    if (const auto& delivered = record.delivered) {
      count_bytes(kNeeded, delivered->needed_bytes);
      observe(kFetch, delivered->fetch_ms);
      observe(kProcess, delivered->process_ms);
    }
    engines_.set_lags(newest_);
    rollouts_.set_lags(newest_);
  }

  void take(const EngineRecord& record) {
    note(record.run, record.goal);
    count(record.status);
    Series* const engine = engines_.at(record.engine, ++turn_, engine_label);
    if (engine == nullptr) return;
    engine->held = record.version;
    engine->set(newest_);
    engine->proven->Set(record.proven.empty() ? 0 : 1);
    if (engine->reachable != nullptr) engine->reachable->Set(record.reachable ? 1 : 0);
    if (!record.status.ok() || record.looked()) return;
    engine->pause->Observe(record.commit.pause_ms / 1e3);
    observe(record.commit);
  }

  void take(std::span<const RolloutRecord> rollouts) {
    ++turn_;
    std::size_t unlisted = 0;
    for (const RolloutRecord& record : rollouts) {
      if (record.left || record.idle) continue;
      Series* const rollout = rollouts_.at(record.id, turn_, label_value);
      if (rollout == nullptr) {
        ++unlisted;
        continue;
      }
      rollout->held = record.version;
      rollout->set(newest_);
      rollout->proven->Set(record.proven ? 1 : 0);
    }
    rollouts_.keep_since(turn_);
    unlisted_.Set(static_cast<double>(unlisted));
  }

  RecordOrigin origin_;
  prometheus::Registry registry_;
  Hash128 run_;
  std::uint64_t newest_ = 0;
  std::uint64_t turn_ = 0;

  Family<Gauge>& info_family_ =
      gauges(registry_, "driftless_info", "1; its labels name the process and its run");
  Gauge* info_ = nullptr;
  Gauge& version_ =
      gauges(registry_, "driftless_version", "The newest version that this process knows of")
          .Add({});
  Gauge& last_ = gauges(registry_, "driftless_last_version_timestamp_seconds",
                        "When this process last published, took or handed over a version; 0: never")
                     .Add({});
  Counter& versions_ = counters(registry_, "driftless_versions_total",
                                "Versions that this process published, took or handed over")
                           .Add({});
  Family<Gauge>& density_ =
      gauges(registry_, "driftless_density", "Fraction of weights that the last version changed");
  Family<Gauge>& fallback_ =
      gauges(registry_, "driftless_fallback",
             "1: versions go by this road in place of the configured one, which failed");
  Family<Counter>& bytes_family_ = counters(
      registry_, "driftless_bytes_total",
      "Bytes of versions: full (all weights), delta (their payload), wire (over the road), "
      "needed (of those fetched, for tensors that are held here)");
  std::array<Counter*, kBytesKinds> bytes_{};  // created when first counted
  Family<Counter>& failure_family_ =
      counters(registry_, "driftless_failures_total",
               "Failures after which the process went on, by their code");
  std::array<Counter*, static_cast<std::size_t>(StatusCode::kInternal) + 1> failures_{};
  Family<Histogram>& stage_family_ =
      histograms(registry_, "driftless_stage_seconds",
                 "Time that a stage of a version, or of an engine's update, took");
  std::array<Histogram*, kStages> stages_{};  // created when first observed
  SeriesByName engines_{registry_, "engine", "engine",
                        &histograms(registry_, "driftless_engine_pause_seconds",
                                    "Time from the call that pauses an engine to its answer")};
  Gauge& unlisted_ = gauges(registry_, "driftless_unlisted_rollouts",
                            "Receivers past the first 1,024, which have no metrics")
                         .Add({});
  SeriesByName rollouts_{registry_, "rollout", "id", nullptr};
};

}  // namespace

Result<std::unique_ptr<PrometheusMetrics>> make_prometheus_metrics(const RecordOrigin& origin) {
  try {
    return std::unique_ptr<PrometheusMetrics>(std::make_unique<Metrics>(origin));
  } catch (const std::exception& caught) {
    return error(StatusCode::kNoSpace, "Prometheus metrics: ", caught.what());
  }
}

}  // namespace driftless
