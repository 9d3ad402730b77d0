#include "tessera/models/convert.h"

#include <sys/statvfs.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/models/convert_lora.h"
#include "tessera/models/convert_plan.h"
#include "tessera/models/convert_source.h"
#include "tessera/models/merge_lora.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/torch_headers.h"

namespace tessera::models {

using checkpoint::TensorInfo;

namespace {

/// How far a conversion is, on one line of a terminal; elsewhere a line now and then.
class ByteProgress {
 public:
  explicit ByteProgress(int64_t total) : total_(total), terminal_(log::in_terminal()) {}
  ~ByteProgress() {
    if (open_) log::status("");
  }
  void add(int64_t bytes, const std::string& name) {
    done_ += bytes;
    const auto now = Clock::now();
    if (std::chrono::duration<double>(now - shown_).count() < (terminal_ ? 0.1 : 10)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double left =
        seconds * static_cast<double>(total_ - done_) / static_cast<double>(std::max<int64_t>(done_, 1));
    char percent[32];
    std::snprintf(percent, sizeof percent, "convert: %3d%%  ",
                  static_cast<int>(100 * done_ / std::max<int64_t>(total_, 1)));
    const std::string line = percent + format_bytes(done_) + " of " + format_bytes(total_) + "  ETA " +
                             format_seconds(left) + "  " + printable(name).substr(0, 60);
    terminal_ ? log::status(line) : log::info(line);
    open_ = terminal_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const int64_t total_;
  const bool terminal_;
  int64_t done_ = 0;
  bool open_ = false;
  Clock::time_point start_ = Clock::now(), shown_ = Clock::now();
};

/// The bytes of a tensor of the input in another dtype, with what is merged into it.
at::Tensor read_source(const ConvertedPart& part, const TensorInfo& source, DType to, const LoraMerge* merge) {
  const at::Tensor bytes = read_bytes(part.source, source);
  const std::string official = part.identity.official(source.name).value_or("");
  if (!merge || !merge->touches(official)) return cast_bytes(bytes, source, to);
  const at::Tensor values = cast_bytes(bytes, source, DType::f32).view(at::kFloat).view(source.shape);
  TensorInfo merged = source;
  merged.dtype = DType::f32;
  const at::Tensor result = merge->apply(official, values).contiguous();
  return cast_bytes(result.view(-1).view(at::kByte), merged, to);
}

at::Tensor read_tensor(const ConvertedPart& part, const ConvertedTensor& tensor, const LoraMerge* merge);

/// The codes of a weight, or their scale.
at::Tensor read_fp8(const ConvertedPart& part, const ConvertedTensor& tensor, const LoraMerge* merge) {
  const at::Tensor wide = read_tensor(part, {tensor.sources, *tensor.quantised, tensor.parts}, merge);
  const at::Tensor values = wide.view(at::kFloat).contiguous();
  const ops::Fp8Tiles whole{.rows = 1, .cols = values.numel(), .tile_rows = 1, .tile_cols = values.numel()};
  const at::Tensor codes = at::empty({values.numel()}, at::kByte), scale = at::empty({1}, at::kFloat);
  ops::quantise_fp8(codes.mutable_data_ptr<uint8_t>(), scale.mutable_data_ptr<float>(), values.const_data_ptr<float>(),
                    whole);
  return tensor.out.dtype == DType::f32 ? scale.view(at::kByte) : codes;
}

at::Tensor read_tensor(const ConvertedPart& part, const ConvertedTensor& tensor, const LoraMerge* merge) {
  if (tensor.sources.empty()) return at::empty({tensor.out.bytes()}, at::kByte);  // a mark without elements
  if (tensor.quantised) return read_fp8(part, tensor, merge);
  if (tensor.parts.empty()) return read_source(part, tensor.sources[0], tensor.out.dtype, merge);
  const at::Tensor whole = at::empty({tensor.out.bytes()}, at::kByte);
  for (size_t i = 0; i < tensor.parts.size(); ++i)
    checkpoint::put_part(tensor.parts[i], tensor.out.shape, size_of(tensor.out.dtype),
                         read_source(part, tensor.sources[i], tensor.out.dtype, merge).contiguous().const_data_ptr(),
                         whole.mutable_data_ptr());
  return whole;
}

void write_file(const ConvertedPart& part, const ConvertedFile& file, const fs::path& path, const LoraMerge* merge,
                ByteProgress& progress) {
  std::map<std::string, const ConvertedTensor*> by_name;
  std::vector<TensorInfo> infos;
  for (const auto& tensor : file.tensors) {
    by_name[tensor.out.name] = &tensor;
    infos.push_back(tensor.out);
  }
  const auto each = [&](const std::vector<TensorInfo>& order, const auto& write) {
    for (const TensorInfo& info : order) {
      const ConvertedTensor& tensor = *by_name.at(info.name);
      const at::Tensor data = read_tensor(part, tensor, merge);
      write(data.const_data_ptr(), info.bytes());
      progress.add(info.bytes(), info.name);
    }
  };
  if (file.format == "pth") {
    checkpoint::TorchWriter writer(path, infos);
    each(infos, [&](const void* data, int64_t) { writer.write(data); });
    return writer.commit();
  }
  checkpoint::Metadata metadata = part.source.metadata;
  metadata["format"] = "pt";  // what transformers and diffusers ask for
  checkpoint::SafetensorsWriter writer(path, infos, metadata);
  each(writer.tensors(), [&](const void* data, int64_t bytes) { writer.write(data, bytes); });
  writer.commit();
}

void check_target(const ConvertOptions& options, const ConvertPlan& plan) {
  std::error_code error;
  const bool folder = fs::is_directory(options.out, error);
  for (const auto& part : plan.parts)
    for (const auto& file : part.source.files)
      if (fs::equivalent(file, options.out, error))
        throw UserError(Exit::usage, "convert", options.out.string() + " is the input itself", "choose another OUT");
  if (fs::equivalent(options.in, options.out, error))
    throw UserError(Exit::usage, "convert", options.out.string() + " is the input itself", "choose another OUT");
  if (plan.single_file && folder)
    throw UserError(Exit::usage, "convert", options.out.string() + " is a folder, expected a file",
                    "choose another OUT");
  if (folder && !fs::is_empty(options.out, error))  // --force is for files: a folder may hold anything
    throw UserError(Exit::usage, "convert", options.out.string() + " is a folder with something in it",
                    "choose another OUT, or remove the folder");
  if (!folder && fs::exists(options.out, error) && !options.force)
    throw UserError(Exit::usage, "convert", options.out.string() + " is there already",
                    "choose another OUT, or replace it with --force");
}

fs::path parent_of(const fs::path& path) {
  const fs::path clean = path.has_filename() ? path : path.parent_path();
  return clean.has_parent_path() ? clean.parent_path() : fs::path(".");
}

void check_disk(const fs::path& where, int64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(where.c_str(), &disk) != 0) return;
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  if (free >= bytes) return;
  throw UserError(Exit::disk, "convert",
                  where.string() + ": " + format_bytes(bytes) + " will be written, " + format_bytes(free) + " are free",
                  "make room or choose another disk; nothing was written");
}

void write_folder(const ConvertOptions& options, const ConvertPlan& plan, const LoraMerge* merge,
                  ByteProgress& progress) {
  checkpoint::PartialFolder folder(options.out, "check OUT");
  const auto at = [&](const fs::path& relative) {
    checkpoint::make_folder((folder.path() / relative).parent_path(), "check OUT");
    return folder.path() / relative;
  };
  for (const auto& part : plan.parts)
    for (const auto& file : part.files) write_file(part, file, at(file.path), merge, progress);
  for (const auto& [path, text] : plan.texts) checkpoint::write_text(at(path), text);
  for (const auto& [from, to] : plan.copies) fs::copy(from, at(to), fs::copy_options::recursive);
  checkpoint::sync_folder(folder.path());
  checkpoint::publish(folder.path(), folder.final());
}

bool is_lora_file(const fs::path& path) {
  const checkpoint::ModelFolder folder = checkpoint::find_parts(path);
  return folder.parts.size() == 1 && is_lora(open_source(folder.parts[0].weights));
}

/// The one transformer that LoRAs are merged into; null without any.
std::unique_ptr<LoraMerge> open_merge(const ConvertOptions& options, const ConvertPlan& plan) {
  if (options.merge.empty()) return nullptr;
  const ConvertedPart* base = nullptr;
  for (const ConvertedPart& part : plan.parts) {
    if (part.identity.kind != models::ModelKind::denoiser) continue;
    if (base)
      throw UserError(Exit::usage, "convert", options.in.string() + " has two experts, a LoRA belongs to one",
                      "merge into " + base->source.path.string() + " or " + part.source.path.string() + " alone");
    base = &part;
  }
  check_input(base, "convert", options.in.string() + " holds no transformer that is known, to merge a LoRA into");
  return std::make_unique<LoraMerge>(
      options.merge, options.merge_scales,
      LoraMerge::Base{base->identity.form, models::official_shapes(base->identity, shapes_of(base->source.tensors)),
                      base->source.path.string()});
}

}  // namespace

void convert(const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const bool lora = is_lora_file(options.in);
  if (lora && !options.merge.empty())
    throw UserError(Exit::usage, "convert", options.in.string() + " is a LoRA itself, --merge wants a base as IN",
                    "tessera convert BASE OUT --merge " + options.in.string());
  if (lora && options.dtype == "fp8_scaled")
    throw UserError(Exit::usage, "convert",
                    options.in.string() + " is a LoRA: programs read those in fp32, bf16 or fp16, not in scaled fp8",
                    "--dtype bf16");
  if (lora && !options.to.empty()) return convert_lora(options);
  if (!options.base.empty())
    throw UserError(
        Exit::usage, "convert",
        "--base is for a LoRA that gets other names, " + options.in.string() + (lora ? " keeps its names" : " is none"),
        lora ? "add --to NAMES" : "leave --base out");
  if (options.to == "kohya" || options.to == "diffsynth" || options.to == "peft")
    throw UserError(Exit::usage, "convert",
                    "'" + options.to + "' is a naming of LoRA files, " + options.in.string() + " is none",
                    "weights of models go to official, diffusers or comfyui");
  const ConvertPlan plan = plan_conversion(options);
  const auto merge = open_merge(options, plan);
  const LoraMerge* merged = merge.get();
  check_target(options, plan);
  const fs::path parent = parent_of(options.out);
  std::error_code error;
  fs::create_directories(parent, error);
  if (error)
    throw UserError(Exit::disk, "convert", parent.string() + ": cannot be made: " + error.message(), "check the path");
  checkpoint::remove_dead_partials_of(options.out);
  if (plan.single_file)
    for (const ConvertedFile& file : plan.parts[0].files)
      if (!file.path.empty()) checkpoint::remove_dead_partials_of(parent / file.path);
  check_disk(parent, plan.bytes + plan.tensors * 512);
  for (const std::string& warning : plan.warnings) log::warn("convert: " + warning);
  for (const auto& part : plan.parts)
    log::info("convert: " + part.source.path.string() + ": " +
              (lora                  ? "a LoRA, " + part.identity.naming + " names, which stay"
               : part.identity.names ? part.identity.model + ", " + part.identity.naming + " names"
                                     : "no model that is known; names stay"));
  {
    ByteProgress progress(plan.bytes);
    try {
      if (plan.single_file)
        for (const ConvertedFile& file : plan.parts[0].files)
          write_file(plan.parts[0], file, file.path.empty() ? options.out : parent / file.path, merged, progress);
      if (plan.single_file)
        for (const auto& [path, text] : plan.texts) checkpoint::write_text(parent / path, text);
      else
        write_folder(options, plan, merged, progress);
    } catch (const fs::filesystem_error& failure) {
      throw UserError(Exit::disk, "convert", failure.what(), "check the disk and the permissions there");
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log::info("convert: " + options.out.string() + ": " + std::to_string(plan.tensors) + " tensors, " +
            format_bytes(plan.bytes) + (options.to.empty() ? "" : ", " + options.to + " names") + ", in " +
            format_seconds(seconds));
}

}  // namespace tessera::models
