// SPDX-License-Identifier: Apache-2.0
#include "plugin/interchange/trl_directory.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "formats/flush_file.h"
#include "formats/strict_json.h"
#include "plugin/interchange/trl_writer.h"

namespace driftless {
namespace {

constexpr std::string_view kAnchors = "anchors", kDeltas = "deltas";
constexpr std::string_view kStep = "step_", kSuffix = ".safetensors";
constexpr std::size_t kPiecePositions = std::size_t{1} << 16;

std::string step_name(std::uint64_t step) { return concat(kStep, version_string(step), kSuffix); }

Result<std::set<std::uint64_t>> steps_in(FileSystem& fs, const std::string& directory) {
  std::set<std::uint64_t> steps;
  const auto names = fs.list(directory);
  if (names.status().code() == StatusCode::kNotFound) return steps;
  DRIFTLESS_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (!name.starts_with(kStep) || !name.ends_with(kSuffix)) continue;
    const auto step = parse_version_string(
        name.substr(kStep.size(), name.size() - kStep.size() - kSuffix.size()));
    if (step.ok() && step_name(*step) == name) steps.insert(*step);
  }
  return steps;
}

// A file in memory.
class HeldFile final : public File {
 public:
  HeldFile(std::string name, std::shared_ptr<std::vector<std::byte>> bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    bytes_->resize(std::max<std::size_t>(bytes_->size(), offset + bytes.size()));
    std::ranges::copy(bytes, bytes_->begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }
  Status pread(std::uint64_t, std::span<std::byte>) override {
    return error(StatusCode::kInternal, name_, ": is only written");
  }
  Status sync() override { return {}; }
  [[nodiscard]] const std::string& path() const override { return name_; }

 private:
  const std::string name_;
  const std::shared_ptr<std::vector<std::byte>> bytes_;
};

// Checks the counts in the file's metadata, if it has any.
Status check_counts(const SafetensorsFile& file, std::uint64_t tensors, std::uint64_t elements,
                    std::uint64_t step) {
  const std::pair<const char*, std::uint64_t> counts[] = {{"model_version", step},
                                                          {"num_changed_params", tensors},
                                                          {"total_changed_elements", elements}};
  const auto& metadata = file.header().metadata;
  for (const auto& [key, found] : counts) {
    const auto entry = metadata.find(key);
    if (entry == metadata.end() || entry->second == std::to_string(found)) continue;
    return error(StatusCode::kCorrupt, file.file().path(), ": ", key, " is ", shown(entry->second),
                 ", but the file has ", found);
  }
  return {};
}

// Reads one of our digests from the metadata.
Result<std::optional<Digest>> digest_in(const SafetensorsFile& file, std::string_view key) {
  const auto& metadata = file.header().metadata;
  const auto entry = metadata.find(std::string(key));
  if (entry == metadata.end()) return std::optional<Digest>();
  DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest, digest_from_hex(entry->second));
  return std::optional(digest);
}

// One changed tensor: its two entries in the file; without positions, the values are the whole
// tensor.
struct Patch {
  std::uint32_t tensor = 0;
  const SafetensorsEntry* positions = nullptr;
  const SafetensorsEntry* values = nullptr;
  bool whole = false;
};

class DeltaReader {
 public:
  DeltaReader(const SafetensorsFile& file, const WeightLayout& layout)
      : file_(file), layout_(layout), what_(file.file().path()) {}

  [[nodiscard]] Result<std::vector<MappedFile>> read(std::uint64_t version) {
    DRIFTLESS_RETURN_IF_ERROR(read_metadata());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Patch> patches, pair_entries());
    BucketBuilder builder(layout_, Encoding::kIndices);
    std::vector<MappedFile> parts;
    const auto flush = [&]() -> Status {
      if (builder.empty()) return {};
      const auto bytes = std::make_shared<std::vector<std::byte>>();
      const std::string name = flush_file_name(0, static_cast<std::uint32_t>(parts.size()));
      DRIFTLESS_RETURN_IF_ERROR(write_flush_file(std::make_unique<HeldFile>(name, bytes), layout_,
                                                 builder.view(), Encoding::kIndices, version, {})
                                    .status());
      builder.clear();
      parts.emplace_back(name, bytes, std::span<const std::byte>(*bytes));
      return {};
    };
    for (const Patch& patch : patches) {
      const DeltaView empty{patch.tensor, unit_bytes(layout_[patch.tensor].dtype), 0, {}, nullptr};
      if (!builder.accepts(empty)) DRIFTLESS_RETURN_IF_ERROR(flush());
      DRIFTLESS_RETURN_IF_ERROR(add(patch, builder).with_context(name_of(patch)));
    }
    DRIFTLESS_RETURN_IF_ERROR(flush());
    DRIFTLESS_RETURN_IF_ERROR(check_counts(file_, patches.size(), changed_, version));
    return parts;
  }

 private:
  [[nodiscard]] std::string name_of(const Patch& patch) const {
    return concat(what_, ": tensor '", layout_[patch.tensor].name, "'");
  }

  [[nodiscard]] Status read_metadata() {
    const auto& metadata = file_.header().metadata;
    const auto format = metadata.find("format");
    if (format != metadata.end() && format->second != "sparse_weight_patch") {
      return error(StatusCode::kUnsupported, what_, ": format ", shown(format->second),
                   ", expected sparse_weight_patch");
    }
    const auto encoding = metadata.find("encoding");
    if (encoding == metadata.end() || encoding->second == "raw") return {};
    gaps_ = encoding->second == "gap_delta";
    if (gaps_) return {};
    return error(StatusCode::kUnsupported, what_, ": encoding ", shown(encoding->second),
                 ", expected raw or gap_delta");
  }

  // Pairs the entries in either spelling: every tensor occurs once, with both halves. Sorted by
  // dtype, then as the layout.
  [[nodiscard]] Result<std::vector<Patch>> pair_entries() const {
    constexpr std::pair<std::string_view, bool> kEnds[] = {
        {".indices", true}, {".idx", true}, {".values", false}, {".val", false}};
    std::map<std::uint32_t, Patch> patches;
    for (const SafetensorsEntry& entry : file_.header().tensors) {
      const std::string_view name = entry.spec.name;
      const auto end =
          std::ranges::find_if(kEnds, [&](const auto& each) { return name.ends_with(each.first); });
      const auto whole = layout_.find(name);
      const auto tensor = end == std::end(kEnds) || whole
                              ? whole
                              : layout_.find(name.substr(0, name.size() - end->first.size()));
      if (!tensor) {
        return error(StatusCode::kWrongLayout, what_, ": ", shown(name, 400),
                     " belongs to no tensor of the base; use the checkpoint that this run started "
                     "from");
      }
      Patch& patch = patches[*tensor];
      patch.tensor = *tensor;
      patch.whole = patch.whole || whole;
      const bool positions = !whole && end->second;
      const SafetensorsEntry*& half = positions ? patch.positions : patch.values;
      if (half != nullptr || (patch.whole && (positions || patch.positions != nullptr))) {
        return error(StatusCode::kCorrupt, what_, ": ", shown(name, 400), " is there twice");
      }
      half = &entry;
    }
    std::vector<Patch> list;
    for (const auto& [tensor, patch] : patches) {
      DRIFTLESS_RETURN_IF_ERROR(check(patch));
      list.push_back(patch);
    }
    std::ranges::stable_sort(list, {},
                             [this](const Patch& patch) { return layout_[patch.tensor].dtype; });
    return list;
  }

  [[nodiscard]] Status check(const Patch& patch) const {
    const TensorSpec& tensor = layout_[patch.tensor];
    if (patch.whole) {
      if (patch.values->spec.dtype == tensor.dtype && patch.values->spec.shape == tensor.shape) {
        return {};
      }
      return error(StatusCode::kWrongLayout, name_of(patch), ": is ",
                   info(patch.values->spec.dtype).name, " ", patch.values->spec.shape_string(),
                   ", the base has ", info(tensor.dtype).name, " ", tensor.shape_string());
    }
    if (patch.positions == nullptr || patch.values == nullptr) {
      return error(
          StatusCode::kCorrupt, name_of(patch), ": has ",
          patch.values == nullptr ? "positions without values" : "values without positions");
    }
    const TensorSpec &positions = patch.positions->spec, &values = patch.values->spec;
    if (values.dtype != tensor.dtype) {
      return error(StatusCode::kWrongLayout, name_of(patch), ": values of ",
                   info(values.dtype).name, ", the base has ", info(tensor.dtype).name);
    }
    const DType type = positions.dtype;
    const bool fits = type == DType::kI32 || type == DType::kI64 ||
                      (gaps_ && (type == DType::kU16 || type == DType::kU32));
    if (!fits || positions.shape.size() != 1 || positions.shape != values.shape) {
      return error(StatusCode::kCorrupt, name_of(patch), ": positions are ", info(type).name, " ",
                   positions.shape_string(), ", values ", values.shape_string());
    }
    return {};
  }

  [[nodiscard]] static std::uint64_t load(const std::byte* at, std::size_t width, bool sign) {
    std::uint64_t value = 0;
    std::memcpy(&value, at, width);
    if (sign && width == 4 && value > 0x7fffffffU) return ~std::uint64_t{0};  // negative
    return value;
  }

  // Adds the patch; its positions must ascend and lie within the tensor.
  [[nodiscard]] Status add(const Patch& patch, BucketBuilder& builder) {
    const TensorSpec& tensor = layout_[patch.tensor];
    const std::uint64_t count = patch.values->spec.units();
    const DType stored_type = patch.whole ? DType::kI64 : patch.positions->spec.dtype;
    const std::size_t width = unit_bytes(stored_type);
    const bool sign = stored_type == DType::kI32;
    const std::byte* const stored = patch.whole ? nullptr : file_.bytes(*patch.positions).data();
    const std::byte* const values = file_.bytes(*patch.values).data();
    const unsigned unit = unit_bytes(tensor.dtype);
    std::uint64_t next = 0;  // the least position allowed next
    std::vector<std::uint32_t> offsets;
    for (std::uint64_t done = 0; done < count; done += offsets.size()) {
      offsets.clear();
      std::uint64_t origin = 0;
      for (std::uint64_t i = done; i < count && offsets.size() < kPiecePositions; ++i) {
        const std::uint64_t read = patch.whole ? i : load(stored + i * width, width, sign);
        const bool gap = gaps_ && !patch.whole && read < tensor.units();
        const std::uint64_t position = gap ? next + read : read;
        if (position < next || position >= tensor.units()) {
          return error(StatusCode::kCorrupt, "position ", i, " is ", position, ", expected ", next,
                       " or more, below ", tensor.units());
        }
        if (offsets.empty()) origin = position;
        if (position - origin >= 0xffffffffU) break;
        offsets.push_back(static_cast<std::uint32_t>(position - origin));
        next = position + 1;
      }
      DRIFTLESS_RETURN_IF_ERROR(
          builder.add({patch.tensor, unit, origin, offsets, values + done * unit}));
    }
    changed_ += count;
    return {};
  }

  const SafetensorsFile& file_;
  const WeightLayout& layout_;
  const std::string what_;
  bool gaps_ = false;
  std::uint64_t changed_ = 0;
};

}  // namespace

std::vector<std::string> trl_directories(const std::string& directory) {
  return {join_path(directory, kAnchors), join_path(directory, kDeltas)};
}

TrlPlace trl_place(const std::string& directory, std::uint64_t step, bool anchor) {
  return {join_path(directory, anchor ? kAnchors : kDeltas), step_name(step)};
}

Result<std::vector<std::uint64_t>> list_trl_steps(FileSystem& fs, const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::set<std::uint64_t> steps,
                             steps_in(fs, join_path(directory, kAnchors)));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::set<std::uint64_t> deltas,
                             steps_in(fs, join_path(directory, kDeltas)));
  steps.insert(deltas.begin(), deltas.end());
  return std::vector(steps.begin(), steps.end());
}

Result<VersionDirectory> open_trl_step(FileSystem& fs, const std::string& directory,
                                       std::uint64_t step, std::uint64_t newest) {
  const std::string name = step_name(step);
  VersionDirectory version;
  version.version = step;
  version.payload_files = {name};
  version.path = join_path(directory, kDeltas);
  if (step == newest + 1 && exists(fs, join_path(version.path, name))) {
    version.base_version = newest;
    version.directory_layout = DirectoryLayout::kFlush;
    version.encoding = Encoding::kIndices;
  } else {
    version.path = join_path(directory, kAnchors);
    if (!exists(fs, join_path(version.path, name))) {
      return error(StatusCode::kNotFound, join_path(version.path, name), ": there is no anchor");
    }
    version.encoding = Encoding::kFull;
  }
  DRIFTLESS_RETURN_IF_ERROR(check_inside(fs, version.path, name));
  return version;
}

// Makes a file with the present values of the tensors that an anchor does not contain.
static Result<MappedFile> unchanged_part(const WeightLayout& layout, const CurrentBytes& current,
                                         VersionDirectory& version) {
  const std::string name = "model-unchanged.safetensors";
  std::vector<std::string> names;
  std::size_t dimensions = 1;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    if (version.weight_map.contains(layout[tensor].name)) continue;
    names.push_back(layout[tensor].name);
    dimensions = std::max(dimensions, layout[tensor].shape.size());
  }
  if (names.empty()) return MappedFile();
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  const std::uint64_t room =
      SafetensorsWriter::header_bytes_for(names, dimensions, {}, layout.total_bytes());
  DRIFTLESS_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(std::make_unique<HeldFile>(name, bytes), room));
  for (const std::string& each : names) {
    const std::uint32_t tensor = *layout.find(each);
    DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(each, layout[tensor].dtype));
    DRIFTLESS_RETURN_IF_ERROR(writer.append(current(tensor)));
    DRIFTLESS_RETURN_IF_ERROR(writer.end_tensor(layout[tensor].shape));
    version.weight_map[each] = name;
  }
  DRIFTLESS_RETURN_IF_ERROR(writer.finish().status());
  return MappedFile(name, bytes, std::span<const std::byte>(*bytes));
}

Result<TrlStep> read_trl_step(const MappedFile& file, const WeightLayout& layout,
                              const CurrentBytes& current, VersionDirectory& version) {
  DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsFile opened, SafetensorsFile::open(file));
  TrlStep step;
  DRIFTLESS_ASSIGN_OR_RETURN(step.base_digest, digest_in(opened, kTrlBaseDigestKey));
  DRIFTLESS_ASSIGN_OR_RETURN(step.digest, digest_in(opened, kTrlDigestKey));
  if (version.full()) {
    std::uint64_t units = 0;
    for (const SafetensorsEntry& entry : opened.header().tensors) units += entry.spec.units();
    DRIFTLESS_RETURN_IF_ERROR(
        check_counts(opened, opened.header().tensors.size(), units, version.version));
    const std::string name = "model.safetensors";
    version.payload_files = {name};
    for (const SafetensorsEntry& entry : opened.header().tensors) {
      version.weight_map[entry.spec.name] = name;
    }
    std::vector<MappedFile>& parts = step.parts;
    DRIFTLESS_ASSIGN_OR_RETURN(MappedFile rest, unchanged_part(layout, current, version));
    if (!rest.path().empty()) {
      version.payload_files.insert(version.payload_files.begin(), rest.path());
      parts.push_back(std::move(rest));
    }
    parts.emplace_back(name, std::make_shared<MappedFile>(file), file.bytes());
    return step;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(step.parts, DeltaReader(opened, layout).read(version.version));
  version.payload_files.clear();
  for (const MappedFile& part : step.parts) version.payload_files.push_back(part.path());
  return step;
}

}  // namespace driftless
