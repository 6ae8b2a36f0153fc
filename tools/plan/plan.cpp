// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/setting_values.h"
#include "plugin/job/config.h"

namespace driftless {
namespace {

constexpr double kBytes = 2;                          // per bf16 weight
constexpr double kCodeBytes = 1 + 4.0 / (128 * 128);  // per FP8 code, with its part of a scale
constexpr double kMiB = 1 << 20;
constexpr double kTraceDensity = 0.015;  // the density at which bytes.* were measured
constexpr double kWideGaps = 2.5e-4;     // below it, a tensor has gaps of more than 16 bits
constexpr double kFullAbove = 0.25;      // full_above_density
// The part of the decoding that remains once the last frame has arrived.
constexpr double kLastFrame = 0.15;
constexpr std::uint64_t kMostRanks = 1 << 20;

std::uint64_t ceiling(double value) { return static_cast<std::uint64_t>(std::ceil(value - 1e-9)); }

// How a road brings a version to the receivers.
enum class Way : unsigned char { kBroadcast, kReadFromRanks, kFiles, kUploads };

Way way_of(const RoadKind& road) {
  if (!road.gpu_library.empty()) return Way::kBroadcast;
  if (road.directory != nullptr) return Way::kFiles;
  return road.place_key.empty() ? Way::kReadFromRanks : Way::kUploads;
}

// Computes the row of one road and encoding.
class Planner {
 public:
  Planner(const PlanInput& input, const Figures& figures, const RoadKind& road, Encoding encoding)
      : in_(input),
        figures_(figures),
        road_(road.name),
        way_(way_of(road)),
        encoding_(encoding),
        gpu_(input.device == Device::kGpu),
        trainer_gpu_(gpu_ && input.snapshot != "host"),
        full_(encoding == Encoding::kFull),
        weights_("weights", static_cast<double>(input.model.weights), "") {
    const std::uint64_t ranks = input.tp * input.pp * input.dp;
    ranks_ = count("trainer ranks", static_cast<double>(ranks));
    engine_hosts_ = count(
        "engine hosts",
        static_cast<double>(ceiling(static_cast<double>(input.engines) / input.engines_per_host)));
    share_ = Term("share of the weights on a host", std::min(1.0, input.engines_per_host), "");
    const double workers = input.engines_per_host * static_cast<double>(input.engine_tp);
    receivers_ = count("receivers of a host on the road", input.hand_over ? 1 : workers);
    link_ = (Term("link", input.link_bytes_per_s, "B/s") *
             count("NICs", static_cast<double>(input.nics_per_host)) * figure("link.payload"))
                .named("link without headers", "B/s");
    size_weights();
    size_quantities(workers);
  }

  [[nodiscard]] PlanRow row() const {
    PlanRow row{.road = road_, .encoding = encoding_, .why_not = why_not()};
    if (!row.why_not.empty()) return row;
    const Term comparing = compare(), encoding = encode();
    const Term made = (comparing + encoding).named("compare and encode", "s");
    const Term carried = carry();
    row.phases = {{"compare", comparing},
                  {"encode", encoding},
                  {"send", send(made)},
                  {"wait", figure(concat("wait.", road_))},
                  {"fetch", fetch(carried)},
                  {"hand_over", hand_over()},
                  {"stage", stage(carried.named("carrying", "s"))},
                  {"pause", pause()}};
    for (const PlanQuantity& phase : row.phases) row.seconds += phase.amount.value();
    row.bytes = {{"version", version_formula_},
                 {"busiest_rank", rank_formula_},
                 {"out_of_trainer_host", out_of_host()},
                 {"into_engine_host", into_host_formula_}};
    row.memory = {{"trainer_device", trainer_device()},
                  {"trainer_host", trainer_host()},
                  {"receiver_device", receiver_device()},
                  {"receiver_host", receiver_host()}};
    return row;
  }

 private:
  [[nodiscard]] Term figure(std::string_view name) const { return figures_.term(name); }
  // A figure of the road: "peer.get_tcp".
  [[nodiscard]] Term of_road(std::string_view name) const {
    return figure(concat(road_, ".", name));
  }
  [[nodiscard]] static Term count(std::string_view name, double value) { return {name, value, ""}; }
  [[nodiscard]] Term of_encoding(std::string_view kind, Encoding encoding) const {
    return figure(concat(kind, ".", info(encoding).name));
  }

  // Bytes per changed weight, or per changed code, if the fraction `density` changes. At a lower
  // density a position takes more: an entropy-coded one takes one bit more for each halving of the
  // density, and a gap that does not fit into 16 bits takes 2 bytes more.
  [[nodiscard]] Term bytes_per_change(std::string_view kind, Encoding encoding,
                                      double density) const {
    const Term known = of_encoding(kind, encoding);
    if (encoding == Encoding::kCompact || encoding == Encoding::kXor) {
      return known +
             Term("log2(0.015 / density) bits", std::log2(kTraceDensity / in_.density) / 8, "B");
    }
    const bool gaps = encoding == Encoding::kDeltas || encoding == Encoding::kDeltasZstd;
    return gaps && density < kWideGaps ? known + Term("wide gaps", 2, "B") : known;
  }
  // The bytes of all changes in an encoding.
  [[nodiscard]] Term payload(Encoding encoding) const {
    if (full_) return weights_ * weight_bytes_;
    const Term plain = changed_plain_ * bytes_per_change("bytes", encoding, in_.density);
    if (!in_.fp8) return plain;
    const double density = in_.density * figure("fp8.changed").value();
    return changed_codes_ * bytes_per_change("fp8.bytes", encoding, density) + plain;
  }
  // Converts a time per weight that was measured with weights of 2 bytes.
  [[nodiscard]] Term by_bytes(const Term& time) const {
    return in_.fp8 ? time * weight_bytes_ / kBytes : time;
  }

  // Sets the sizes of a weight on the road, and its change.
  void size_weights() {
    const Term density("density", in_.density, "");
    weight_bytes_ = Term("bytes of a weight", kBytes, "B");
    changed_plain_ = weights_ * density;
    if (in_.fp8) {
      codes_ = count("weights in FP8", static_cast<double>(in_.model.matrices));
      const double all = weights_.value(), others = all - codes_.value();
      weight_bytes_ = {"bytes of a weight", (codes_.value() * kCodeBytes + others * kBytes) / all,
                       "B"};
      changed_codes_ = (codes_ * density * figure("fp8.changed")).named("changed codes", "");
      changed_plain_ = Term("weights in bf16", others, "") * density;
    }
    changed_ = (changed_codes_ + changed_plain_).named("changed weights", "");
    rate_ = in_.fp8 ? Term("share that changes", changed_.value() / weights_.value(), "") : density;
    if (full_) changed_ = weights_;
    changed_plain_ =
        changed_plain_.named(in_.fp8 ? "changed weights in bf16" : "changed weights", "");
  }

  // Sets what the busiest rank and the busiest host publish.
  void divide_weights() {
    if (in_.snapshot == "none") {
      owned_ = weights_ / ranks_;
      host_owned_ = owned_ * count("ranks of a host", std::min(ranks_.value(), per_host()));
      return;
    }
    // Each block is published by the lowest rank that holds it. Ranks are numbered by TP, then DP,
    // then PP, as in Megatron; the ranks of a stage of PP divide its routed experts by EP.
    const Term experts = count("weights of experts", static_cast<double>(in_.model.experts));
    const Term others = count("weights beside experts", weights_.value() - experts.value());
    const Term dense = others / count("TP x PP", static_cast<double>(in_.tp * in_.pp));
    owned_ = dense;
    const auto [of_dense, of_experts] = busiest_host(dense.value());
    host_owned_ = dense * count("ranks of a host that publish them", of_dense);
    if (experts.value() == 0) return;
    const Term routed = experts / count("PP x EP", static_cast<double>(in_.pp * in_.ep));
    owned_ = dense + routed;
    host_owned_ = host_owned_ + routed * count("ranks of a host that publish experts", of_experts);
  }
  [[nodiscard]] double per_host() const { return static_cast<double>(in_.ranks_per_host); }
  // How many ranks of the host that publishes most publish dense weights, and routed experts.
  [[nodiscard]] std::pair<double, double> busiest_host(double dense) const {
    const double routed =
        static_cast<double>(in_.model.experts) / static_cast<double>(in_.pp * in_.ep);
    const std::uint64_t stage = in_.tp * in_.dp, ranks = stage * in_.pp;
    std::pair<double, double> most;
    for (std::uint64_t first = 0; first < ranks; first += in_.ranks_per_host) {
      std::pair<double, double> here;
      for (std::uint64_t rank = first; rank < std::min(first + in_.ranks_per_host, ranks); ++rank) {
        here.first += rank % stage < in_.tp ? 1 : 0;
        here.second += rank % stage < in_.ep ? 1 : 0;
      }
      const auto weights = [&](const auto& each) {
        return each.first * dense + each.second * routed;
      };
      if (weights(here) > weights(most)) most = here;
    }
    return most;
  }

  void size_quantities(double workers) {
    version_formula_ = payload(encoding_);
    version_ = version_formula_.named("version", "B");
    divide_weights();
    rank_formula_ = version_ * owned_ / weights_;
    rank_bytes_ = rank_formula_.named("bytes of the busiest rank", "B");
    owned_ = owned_.named("weights of the busiest rank", "");
    host_formula_ = version_ * host_owned_ / weights_;
    host_bytes_ = host_formula_.named("bytes of the busiest trainer host", "B");
    // Ranks and workers of a host share its processor; each has its own GPU.
    worked_ = trainer_gpu_ ? owned_ : host_owned_;
    const double crowd = gpu_ ? 1 : std::max(1.0, workers);
    held_ = (weights_ * count("workers on one processor", crowd) /
             count("engine TP", static_cast<double>(in_.engine_tp)))
                .named(gpu_ ? "weights of a worker" : "weights of a host's workers", "");
    worker_changes_ = (changed_ * held_ / weights_).named("changes of a worker", "");
    into_host_ = version_;
    if (way_ != Way::kBroadcast) {
      into_host_ =
          version_ * (in_.hand_over ? share_ : Term("engines of a host", in_.engines_per_host, ""));
    }
    into_host_formula_ = into_host_;
    into_host_ = into_host_.named("bytes into a host", "B");
  }

  [[nodiscard]] std::string why_not() const {
    const bool interchange = info(encoding_).interchange && !full_;
    if (way_ == Way::kBroadcast && !trainer_gpu_) {
      return concat(road_, " carries frames from GPU to GPUs");
    }
    if (way_ == Way::kBroadcast && in_.fp8)
      return concat("codes over ", road_, " were not measured");
    if (interchange && way_ != Way::kFiles) return "road.layout: hf_delta needs a road of files";
    if (interchange && (in_.snapshot == "none" || in_.snapshot == "device")) {
      return "is made from whole tensors: needs snapshot: pinned or host";
    }
    if (encoding_ == Encoding::kCompact && (in_.snapshot == "none" || in_.snapshot == "pinned")) {
      return "is coded given the old values: needs snapshot: device or host";
    }
    if (!full_ && rate_.value() > kFullAbove) {
      return "a version of which more than full_above_density (0.25) changed is sent whole";
    }
    return {};
  }

  // --- the trainer -------------------------------------------------------------------------------

  [[nodiscard]] Term compare() const {
    const Term rate = figure(concat("compare.", in_.snapshot));
    if (!in_.fp8) return worked_ * kBytes / rate;
    const Term others("weights in bf16", weights_.value() - codes_.value(), "");
    return worked_ * codes_ / weights_ * figure(trainer_gpu_ ? "quantize.device" : "quantize") +
           worked_ * others / weights_ * kBytes / rate;
  }
  [[nodiscard]] Term encode() const {
    const Term changes = worked_ * rate_;
    if (in_.snapshot != "none" || full_) {
      const Term time = of_encoding(gpu_ && !trainer_gpu_ ? "host.encode" : "encode", encoding_);
      return per_change(encoding_) ? changes * time : by_bytes(worked_ * time);
    }
    const Term captured = changes * figure("encode.captured");
    // The host makes what a GPU would write into frames; compression comes on top.
    return encoding_ == Encoding::kDeltasZstd
               ? captured + changes * of_encoding("encode", encoding_)
               : captured;
  }
  [[nodiscard]] Term seal() const { return ranks_ * figure("seal.rank"); }

  // The time until receivers can see the version.
  [[nodiscard]] Term send(const Term& made) const {
    if (way_ == Way::kBroadcast) {
      const Term rate = in_.rdma ? link_ : smaller(link_, ranks_ * of_road("broadcast_tcp"));
      return rank_bytes_ / of_road("hash") + version_ / rate + version_ / of_road("acknowledge") +
             seal();
    }
    // Without a snapshot the changes are captured, and encode.captured includes this copy.
    const bool down = trainer_gpu_ && in_.snapshot != "none" && !full_;
    const Term fetched = down ? rank_bytes_ / figure("bus") : Term();
    if (way_ == Way::kReadFromRanks) {  // into host memory, assumed equal on all such roads
      return trainer_gpu_ ? fetched + rank_bytes_ / figure("mpi_rma.put") + seal() : seal();
    }
    // Files and uploads are written while the next bucket is compared; nothing is left to compare
    // while the last bucket of a rank is written.
    const Term write = host_bytes_ / write_rate();
    const Term last = smaller(rank_bytes_, Term("last bucket", 2 * kMiB, "B")) * host_bytes_ /
                      rank_bytes_ / write_rate();
    const Term after_compare = fetched + larger(write - made, last) + seal();
    if (way_ == Way::kUploads) return after_compare;
    // Syncs of the parts, of the manifest and DONE, and twice each of the version's directory and
    // of the one above it. A part holds one type: codes, scales, or weights in bf16.
    const bool one_part = !in_.fp8 || (info(encoding_).interchange && !full_);
    const Term syncs = count("parts", one_part ? 1 : 3) + count("other files and directories", 6);
    return after_compare + syncs * of_road("sync");
  }
  [[nodiscard]] Term write_rate() const {
    return way_ == Way::kFiles ? of_road("write") : smaller(link_, of_road("write"));
  }

  // --- the road ----------------------------------------------------------------------------------

  // The transfer itself, as one host waits for it.
  [[nodiscard]] Term carry() const {
    switch (way_) {
      case Way::kBroadcast: return {};  // the broadcast is part of send
      case Way::kFiles: return into_host_ / of_road("read");
      case Way::kUploads: return into_host_ / smaller(link_, of_road("read"));
      case Way::kReadFromRanks: break;
    }
    const bool rdma = in_.rdma && figures_.has(concat(road_, ".get"));
    const Term gets = receivers_ * of_road(rdma ? "get" : "get_tcp");
    const Term in = into_host_ / smaller(link_, gets);
    const Term out = out_of_host();
    return out.value() <= into_host_.value() ? in : larger(in, out / link_);
  }
  [[nodiscard]] Term fetch(const Term& carried) const {
    if (way_ == Way::kBroadcast) return into_host_ / figure("bus");  // arrival: host
    return carried + into_host_ / receivers_ / figure("hash");
  }
  [[nodiscard]] Term out_of_host() const {
    if (way_ == Way::kReadFromRanks) return into_host_ * engine_hosts_ * host_owned_ / weights_;
    return host_formula_;
  }

  // --- the receivers -----------------------------------------------------------------------------

  // The encoding in which an agent passes versions on: it inflates deltas_zstd.
  [[nodiscard]] Encoding handed_over() const {
    const bool inflates = in_.hand_over && encoding_ == Encoding::kDeltasZstd;
    return inflates ? Encoding::kDeltas : encoding_;
  }
  [[nodiscard]] Term plain_bytes() const {
    const Term all = full_ ? version_ : payload(handed_over()).named("changes in plain", "B");
    return (all * held_ / weights_).named("bytes of a worker", "B");
  }
  [[nodiscard]] Term hand_over() const {
    if (!in_.hand_over) return {};
    const Term read = figure("wait.host_shm") + plain_bytes() / figure("hand_over.read");
    if (encoding_ != Encoding::kDeltasZstd) return read;
    return changed_ * share_ * figure("hand_over.inflate") / count("read_workers", 4) + read;
  }
  [[nodiscard]] Term stage(const Term& carried) const {
    const Term time = of_encoding("decode", handed_over());
    const Term decode = per_change(encoding_) ? worker_changes_ * time : by_bytes(held_ * time);
    const Term sweep = by_bytes(held_ * figure("sweep"));
    if (gpu_ || in_.hand_over) return decode + sweep;
    // On the host, the sweep and the decoding of compact run while frames arrive.
    if (encoding_ != Encoding::kCompact) return larger(sweep - carried, Term()) + decode;
    return larger(sweep + decode - carried, Term("last frame", kLastFrame, "") * decode);
  }
  [[nodiscard]] Term pause() const {
    const Term write =
        full_ ? by_bytes(held_ * figure("apply.full")) : worker_changes_ * figure("apply.change");
    return figure("apply.fixed") + write;
  }

  // --- memory (docs/operate/gpu.md, docs/develop/publisher.md, receiver.md)
  // -----------------------

  [[nodiscard]] Term rank_changes() const {
    return (owned_ * rate_).named("changes of a rank", "");
  }
  [[nodiscard]] Term trainer_device() const {
    if (!trainer_gpu_) return {};
    const Term pool =
        way_ == Way::kBroadcast ? rank_bytes_ * Term("with hashes", 17.0 / 16, "") : Term();
    if (full_) return pool;
    if (in_.snapshot == "none") {
      return rank_changes() * Term("captured", 6 * 1.25, "B") +
             owned_ * Term("tables", kBytes * 20 / 32768, "B") + pool;
    }
    const Term changes = rank_changes() * Term("position and values", 6, "B") + pool;
    const Term slices("slices", (in_.snapshot == "pinned" ? 2 * 256 : 32) * kMiB, "B");
    if (in_.snapshot == "pinned") return slices + changes;
    const Term held = owned_ * weight_bytes_ + slices + changes;
    return in_.fp8 ? held + Term("codes at a time", 256 * kMiB, "B") : held;
  }
  [[nodiscard]] Term trainer_host() const {
    Term sum("buckets", 2 * 64 * kMiB, "B");
    if (in_.snapshot == "none") sum = sum + rank_changes() * Term("captured, twice", 16, "B");
    if (in_.snapshot == "pinned" || in_.snapshot == "host") sum = owned_ * weight_bytes_ + sum;
    if (in_.snapshot == "host") sum = sum + rank_changes() * Term("undo log", 6, "B");
    if (in_.fp8 && !trainer_gpu_) sum = sum + Term("codes at a time", 64 * kMiB, "B");
    if (way_ != Way::kReadFromRanks) return sum;
    const Term ring("road.ring_size", std::max(1024 * kMiB, rank_bytes_.value()), "B");
    return sum + smaller(ring, Term("versions", 64, "") * rank_bytes_);
  }
  // Per worker: the memory that a version takes until it is committed, with what a rollback needs.
  [[nodiscard]] Term receiver_device() const {
    if (!gpu_) return {};
    if (full_) return {"upload", 32 * kMiB, "B"};
    const double position = encoding_ == Encoding::kIndices ? 4 : 2;
    return worker_changes_ * Term("position and values", position + 4, "B");
  }
  // Per host.
  [[nodiscard]] Term receiver_host() const {
    const Term undo = full_ ? held_ * weight_bytes_ : Term();
    if (!in_.hand_over) {
      return gpu_ ? into_host_ + undo
                  : into_host_ +
                        (full_ ? undo : worker_changes_ * Term("position and values", 6, "B"));
    }
    const Term plain = payload(handed_over()) * share_;
    const Term read = smaller(Term("agent.read_memory", 1024 * kMiB, "B"), into_host_);
    const Term room("road.host_shm.size", std::max(4096 * kMiB, plain.value()), "B");
    return smaller(room, Term("versions", 32, "") * plain) + read + undo;
  }

  const PlanInput& in_;
  const Figures& figures_;
  const std::string_view road_;
  const Way way_;
  const Encoding encoding_;
  const bool gpu_, trainer_gpu_, full_;
  Term weights_, changed_, version_, ranks_, engine_hosts_, share_, receivers_, link_;
  Term codes_, weight_bytes_, changed_codes_, changed_plain_, rate_, version_formula_;
  Term owned_, rank_formula_, rank_bytes_;       // of the busiest rank
  Term host_owned_, host_formula_, host_bytes_;  // of the busiest trainer host
  Term worked_;                                  // the weights that one processor or GPU compares
  Term held_, worker_changes_, into_host_formula_, into_host_;
};

}  // namespace

Status check_plan(const PlanInput& input) {
  const auto refuse = [](const auto&... parts) {
    return error(StatusCode::kInvalidArgument, parts...);
  };
  if (input.ep > 1 && input.model.experts == 0) return refuse("--ep: the model has no experts");
  if (input.tp * input.dp % input.ep != 0) {
    return refuse("--ep ", input.ep, ": expected a divisor of TP x DP (", input.tp * input.dp, ")");
  }
  if (input.pp > input.model.layers) {
    return refuse("--pp ", input.pp, ": the model has ", input.model.layers, " layers");
  }
  if (input.tp * input.pp * input.dp > kMostRanks) return refuse("more than 2^20 trainer ranks");
  const double workers = input.engines_per_host * static_cast<double>(input.engine_tp);
  if (workers < 1) return refuse("--engines-per-host: less than one worker on a host");
  const bool host = input.snapshot == "host", cpu = input.device == Device::kCpu;
  if (input.fp8 && !cpu && !host && input.snapshot != "device") {
    return refuse("--snapshot ", input.snapshot, ": with --precision fp8: device, or host");
  }
  if (host != cpu && !(host && input.fp8)) {
    return refuse("--snapshot ", input.snapshot, ": a ", host ? "GPU" : "CPU", " has ",
                  host ? "none, device or pinned" : "host");
  }
  return {};
}

Result<double> parse_link(std::string_view text) {
  const auto digits = text.find_first_not_of("0123456789.");
  std::string unit;
  for (const char c : digits == std::string_view::npos ? "" : text.substr(digits)) {
    if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (unit.ends_with("/s")) unit.resize(unit.size() - 2);
  struct Unit {
    std::string_view name;
    double bytes_per_s;
  };
  constexpr Unit kUnits[] = {{"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {"tbit", 1e12 / 8},
                             {"mb", 1e6},       {"gb", 1e9},       {"tb", 1e12}};
  const auto known = std::ranges::find(kUnits, unit, &Unit::name);
  const auto number = parse_number(text.substr(0, digits), 1e-6, 1e9);
  if (known == std::end(kUnits) || !number.ok()) {
    return error(StatusCode::kInvalidArgument, "link ", shown(text),
                 ": expected a rate such as 100Gbit, 1Gbit, 100Mbit or 12.5GB/s");
  }
  return *number * known->bytes_per_s;
}

std::vector<const RoadKind*> planned_roads() {
  std::vector<const RoadKind*> roads;
  const Figures figures = Figures::built_in(Device::kGpu);
  std::ranges::copy_if(road_kinds(), std::back_inserter(roads), [&](const RoadKind* road) {
    return !road->one_host && figures.has(concat("wait.", road->name));
  });
  return roads;
}

std::vector<PlanRow> make_plan(const PlanInput& input, const Figures& figures,
                               std::string_view road, std::optional<Encoding> encoding) {
  std::vector<PlanRow> rows;
  for (const RoadKind* const each_road : planned_roads()) {
    if (!road.empty() && road != each_road->name) continue;
    for (const EncodingInfo& each : all_encodings()) {
      if (encoding && *encoding != each.encoding) continue;
      rows.push_back(Planner(input, figures, *each_road, each.encoding).row());
    }
  }
  PlanRow* best = nullptr;
  for (PlanRow& row : rows) {
    if (!row.why_not.empty()) continue;
    if (best == nullptr || row.seconds < best->seconds) best = &row;
  }
  if (best != nullptr) best->best = true;
  return rows;
}

}  // namespace driftless
