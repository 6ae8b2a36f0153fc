// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/checkpoint_quantizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/new_directory.h"
#include "core/stopwatch.h"
#include "kernels/quantize.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/checkpoint/quantization.h"

namespace driftless {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;  // of weights, read at a time
constexpr std::string_view kWeight = ".weight";
// The tensors that DeepSeek's and Qwen3's FP8 checkpoints, and slime's tool, keep in bfloat16.
constexpr std::array kKept = {
    "*embed*",     "*norm*",        "*lm_head*", "*shared_head.head*", "*router*",
    "*.gate.*",    "*_gate.weight", "*eh_proj*", "*weights_proj*",     "*conv1d*",
    "*in_proj_a*", "*in_proj_b*",   "*visual*",  "*vision*",           "*multi_modal_projector*"};

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool can_be_quantized(const TensorSpec& tensor) {
  return tensor.dtype == DType::kBF16 && tensor.shape.size() == 2 && tensor.name.ends_with(kWeight);
}

Result<TensorSpec> codes_of(const TensorSpec& tensor) {
  return TensorSpec::make(tensor.name, DType::kF8E4M3, tensor.shape);
}

// The keys in config.json from which engines recognize the scheme.
nlohmann::ordered_json fp8_config(QuantizeRule rule) {
  nlohmann::ordered_json config = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {kQuantizeBlock, kQuantizeBlock}}};
  if (rule == QuantizeRule::kUe8m0) config["scale_fmt"] = "ue8m0";
  return config;
}
nlohmann::ordered_json int4_config(unsigned group) {
  nlohmann::ordered_json weights = {
      {"num_bits", 4},        {"type", "int"},       {"symmetric", true},
      {"strategy", "group"},  {"group_size", group}, {"dynamic", false},
      {"observer", "minmax"}, {"actorder", nullptr}, {"block_structure", nullptr}};
  nlohmann::ordered_json only = {{"targets", {"Linear"}},
                                 {"weights", std::move(weights)},
                                 {"input_activations", nullptr},
                                 {"output_activations", nullptr}};
  nlohmann::ordered_json groups;
  groups["group_0"] = std::move(only);
  nlohmann::ordered_json config = {{"quant_method", "compressed-tensors"},
                                   {"format", "pack-quantized"},
                                   {"quantization_status", "compressed"}};
  config["config_groups"] = std::move(groups);
  return config;
}

class CheckpointQuantizer {
 public:
  CheckpointQuantizer(FileSystem& fs, const QuantizeOptions& options, Checkpoint checkpoint,
                      Companions companions)
      : fs_(fs),
        options_(options),
        checkpoint_(std::move(checkpoint)),
        companions_(std::move(companions)),
        total_bytes_(checkpoint_.layout().total_bytes()) {}

  // Writes into a hidden sibling and renames it.
  [[nodiscard]] Status run() {
    DRIFTLESS_RETURN_IF_ERROR(choose());
    const std::filesystem::path out =
        std::filesystem::absolute(options_.out + "/").parent_path().lexically_normal();
    if (exists(fs_, out.string())) {
      return error(StatusCode::kAlreadyExists, options_.out,
                   ": is there already; choose another directory, or remove it");
    }
    const std::string number = to_hex(random_hash128()).substr(0, 8);
    const std::string hidden =
        (out.parent_path() / concat(".", out.filename().string(), ".", number, ".tmp")).string();
    DRIFTLESS_RETURN_IF_ERROR(make_last_directory(fs_, hidden).status());
    Status written = write(hidden);
    if (written.ok()) written = fs_.rename_new(hidden, out.string());
    if (written.ok()) return fs_.sync_directory(out.parent_path().string());
    static_cast<void>(remove_tree(fs_, hidden));  // report the failure that led here, not this one
    return written;
  }

  QuantizeReport report;

 private:
  // Chooses the tensors to quantize, and plans the new checkpoint.
  [[nodiscard]] Status choose() {
    std::vector<TensorSpec> tensors;
    const WeightLayout& layout = checkpoint_.layout();
    for (const TensorSpec& tensor : layout.tensors()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool chosen, is_chosen(tensor));
      chosen_.push_back(chosen);
      if (!chosen) {
        tensors.push_back(tensor);
        continue;
      }
      if (options_.int4_group > 0) {
        DRIFTLESS_ASSIGN_OR_RETURN(Int4Tensors made, int4_tensors_of(tensor, options_.int4_group));
        tensors.push_back(std::move(made.packed));
        tensors.push_back(std::move(made.scales));
        tensors.push_back(std::move(made.shape));
        ++report.quantized;
        continue;
      }
      DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec scales, scales_of(tensor));
      if (layout.find(scales.name)) {
        return error(StatusCode::kUnsupported, checkpoint_.path(), ": tensor '", scales.name,
                     "' is there: this checkpoint is quantized already");
      }
      DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec codes, codes_of(tensor));
      tensors.push_back(std::move(codes));
      tensors.push_back(std::move(scales));
      ++report.quantized;
    }
    if (report.quantized == 0) {
      return error(StatusCode::kInvalidArgument, checkpoint_.path(),
                   ": no tensor would be quantized; only matrices of BF16 whose names end in "
                   ".weight can be, and --only (or the default choice) and --skip exclude all");
    }
    report.kept = layout.size() - report.quantized;
    report.bytes_before = layout.total_bytes();
    plan_ = ShardPlan::make(std::move(tensors), options_.shard_bytes);
    report.bytes_after = plan_.total_bytes();
    return {};
  }

  [[nodiscard]] Result<bool> is_chosen(const TensorSpec& tensor) const {
    const auto named = [&](const std::vector<std::string>& patterns) {
      return std::ranges::any_of(
          patterns, [&](const std::string& pattern) { return matches(pattern, tensor.name); });
    };
    if (info(tensor.dtype).bits <= 8 && tensor.shape.size() > 1) {
      return error(StatusCode::kUnsupported, checkpoint_.path(), ": tensor '", tensor.name, "' is ",
                   info(tensor.dtype).name, ": this checkpoint is quantized already");
    }
    if (named(options_.skip)) return false;
    const bool can_be = can_be_quantized(tensor) && has_whole_groups(tensor);
    if (options_.only.empty()) return can_be && quantized_by_default(tensor.name);
    if (!named(options_.only)) return false;
    if (can_be) return true;
    if (can_be_quantized(tensor)) {
      return error(StatusCode::kInvalidArgument, "--only names tensor '", tensor.name, "' ",
                   tensor.shape_string(), ", whose rows are not groups of ", options_.int4_group,
                   " weights: leave it out, or choose another --group");
    }
    return error(StatusCode::kInvalidArgument, "--only names tensor '", tensor.name, "', which is ",
                 info(tensor.dtype).name, " ", tensor.shape_string(),
                 ": only matrices of BF16 whose names end in .weight are quantized");
  }

  [[nodiscard]] bool has_whole_groups(const TensorSpec& matrix) const {
    return options_.int4_group == 0 || matrix.shape[1] % options_.int4_group == 0;
  }

  [[nodiscard]] Status write(const std::string& directory) {
    CheckpointWriter writer(fs_, directory, plan_);
    for (std::size_t tensor = 0; tensor < chosen_.size(); ++tensor) {
      DRIFTLESS_RETURN_IF_ERROR(chosen_[tensor] ? write_quantized(writer, tensor)
                                                : write_kept(writer, tensor));
    }
    DRIFTLESS_RETURN_IF_ERROR(write_config(directory));
    for (const auto& [name, file] : companions_.files) {
      if (name == kModelConfigName) continue;
      const std::span<const std::byte> bytes = file.bytes();
      DRIFTLESS_RETURN_IF_ERROR(
          write_text(fs_, join_path(directory, name),
                     {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
    return writer.finish();
  }

  [[nodiscard]] Status write_kept(CheckpointWriter& writer, std::size_t tensor) {
    const std::span<const std::byte> bytes = checkpoint_.tensor(tensor).bytes();
    for (std::uint64_t at = 0;; at += kPieceBytes) {
      const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
      DRIFTLESS_RETURN_IF_ERROR(writer.append(piece));
      done(tensor, at, piece.size());
      if (bytes.size() - at <= kPieceBytes) return {};
    }
  }

  [[nodiscard]] Status write_quantized(CheckpointWriter& writer, std::size_t tensor) {
    const TensorView weights = checkpoint_.tensor(tensor);
    const std::uint64_t rows = weights.spec->shape[0], columns = weights.spec->shape[1];
    const std::uint64_t row_bytes = columns * sizeof(std::uint16_t);
    const std::uint64_t of_blocks = quantize_blocks(columns);
    const std::uint64_t fitting =
        kPieceBytes / std::max<std::uint64_t>(row_bytes * kQuantizeBlock, 1);
    const std::uint64_t step = std::max<std::uint64_t>(fitting, 1) * kQuantizeBlock;
    const unsigned group = options_.int4_group;
    scales_.resize(group > 0 ? rows * columns / group * sizeof(std::uint16_t)
                             : quantize_blocks(rows) * of_blocks * sizeof(float));
    for (std::uint64_t row = 0;; row += step) {
      const std::uint64_t count = std::min(step, rows - row);
      const std::byte* const from = weights.data + row * row_bytes;
      codes_.resize(group > 0 ? count * columns / 2 : count * columns);
      DRIFTLESS_RETURN_IF_ERROR(
          group > 0
              ? quantize_int4(quantizer(), group, from, count, columns, options_.threads,
                              codes_.data(),
                              scales_.data() + row * columns / group * sizeof(std::uint16_t))
              : quantize_fp8(quantizer(), options_.rule, from, count, columns, options_.threads,
                             codes_.data(),
                             scales_.data() + row / kQuantizeBlock * of_blocks * sizeof(float)));
      DRIFTLESS_RETURN_IF_ERROR(writer.append(codes_));
      done(tensor, row * row_bytes, count * row_bytes);
      if (rows - row <= step) break;
    }
    DRIFTLESS_RETURN_IF_ERROR(writer.append(scales_));
    return group > 0 ? writer.append(int4_shape_bytes(*weights.spec, DType::kI32)) : Status();
  }

  // These `size` bytes of the tensor are not read again.
  void done(std::size_t tensor, std::uint64_t at, std::uint64_t size) {
    checkpoint_.forget(tensor, at, size);
    done_bytes_ += size;
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  [[nodiscard]] Status write_config(const std::string& directory) {
    nlohmann::ordered_json config = nlohmann::ordered_json::object();
    const auto file = companions_.files.find(std::string(kModelConfigName));
    if (file != companions_.files.end()) {
      const std::span<const std::byte> bytes = file->second.bytes();
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const std::string path = join_path(checkpoint_.path(), kModelConfigName);
      DRIFTLESS_ASSIGN_OR_RETURN(const Json checked, parse_json(text, path));
      if (!checked.is_object()) return error(StatusCode::kCorrupt, path, ": is not an object");
      for (const char* const key : {"quantization_config", "compression_config"}) {
        if (checked.value(key, Json()).is_null()) continue;
        return error(StatusCode::kUnsupported, path, ": it has a ", key,
                     ": this checkpoint is quantized already");
      }
      config = nlohmann::ordered_json::parse(text, nullptr, false);  // keeps the order of keys
    }
    const char* const kept = options_.int4_group > 0 ? "ignore" : "modules_to_not_convert";
    nlohmann::ordered_json quantization =
        options_.int4_group > 0 ? int4_config(options_.int4_group) : fp8_config(options_.rule);
    quantization[kept] = nlohmann::ordered_json::array();
    for (std::size_t tensor = 0; tensor < chosen_.size(); ++tensor) {
      const std::string& name = checkpoint_.layout()[tensor].name;
      if (chosen_[tensor] || !name.ends_with(kWeight)) continue;
      quantization[kept].push_back(name.substr(0, name.size() - kWeight.size()));
    }
    config["quantization_config"] = std::move(quantization);
    return write_text(fs_, join_path(directory, kModelConfigName), config.dump(2) + "\n");
  }

  FileSystem& fs_;
  const QuantizeOptions& options_;
  Checkpoint checkpoint_;
  Companions companions_;
  std::vector<bool> chosen_;  // by index in the checkpoint
  ShardPlan plan_;
  std::vector<std::byte> codes_, scales_;
  std::uint64_t total_bytes_, done_bytes_ = 0;
};

}  // namespace

bool quantized_by_default(const std::string& name) {
  return std::ranges::none_of(kKept, [&](const char* pattern) { return matches(pattern, name); });
}

Result<QuantizeReport> quantize_checkpoint(FileSystem& fs, const QuantizeOptions& options) {
  Stopwatch watch;
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(fs, options.checkpoint));
  if (checkpoint.directory().empty()) {
    return error(StatusCode::kInvalidArgument, options.checkpoint,
                 ": is a file; name the checkpoint's directory, which has config.json, too");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(Companions companions, open_companions(fs, options.checkpoint));
  std::vector<std::string> left_out = companions.left_out;
  CheckpointQuantizer work(fs, options, std::move(checkpoint), std::move(companions));
  DRIFTLESS_RETURN_IF_ERROR(work.run());
  work.report.notes = std::move(left_out);
  work.report.seconds = watch.lap_ms() / 1000;
  return std::move(work.report);
}

}  // namespace driftless
