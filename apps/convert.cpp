#include "tessera/models/convert.h"

#include <algorithm>
#include <charconv>

#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/base/units.h"

namespace tessera::apps {

namespace {

/// The value of a flag that has to be one of a few; empty when the flag is not there.
std::string choice(const Arguments& arguments, const std::string& flag, const std::vector<std::string>& known) {
  const std::string value = arguments.value(flag);
  if (!arguments.has(flag) || std::find(known.begin(), known.end(), value) != known.end()) return value;
  std::string list;
  for (const auto& one : known) list += (list.empty() ? "" : ", ") + one;
  throw UserError(Exit::usage, "convert", flag + " '" + value + "' is not known",
                  "did you mean " + nearest(value, known)[0] + "? Known: " + list);
}

double strength(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  throw UserError(Exit::usage, "convert", "--scale '" + text + "' is no number", "write 0.8");
}

int run_convert(const Arguments& arguments) {
  if (arguments.words.size() != 2)
    throw UserError(Exit::usage, "convert",
                    std::to_string(arguments.words.size()) + " paths are given, expected two: IN and OUT",
                    "see tessera convert --help");
  models::ConvertOptions options;
  options.in = arguments.words[0];
  options.out = arguments.words[1];
  options.to = choice(arguments, "--to", {"official", "diffusers", "fused", "comfyui", "kohya", "diffsynth", "peft"});
  options.format = choice(arguments, "--format", {"safetensors", "pth"});
  options.dtype = choice(arguments, "--dtype", {"fp32", "bf16", "fp16", "fp8_scaled"});
  if (arguments.has("--extra-tensors"))
    options.extra_tensors = choice(arguments, "--extra-tensors", {"refuse", "drop", "keep"});
  options.averaged = arguments.has("--ema");
  options.force = arguments.has("--force");
  options.base = arguments.value("--base");
  for (const std::string& file : arguments.values("--merge")) options.merge.emplace_back(file);
  for (const std::string& text : arguments.values("--scale")) options.merge_scales.push_back(strength(text));
  if (options.merge.empty() && !options.merge_scales.empty())
    throw UserError(Exit::usage, "convert", "--scale is given without --merge", "add --merge LORA");
  if (arguments.has("--shard-size")) {
    options.shard_size = parse_bytes(arguments.value("--shard-size"), "--shard-size");
    if (options.shard_size <= 0) throw UserError(Exit::usage, "convert", "--shard-size must be above 0", "write 5GiB");
  }
  models::convert(options);
  return 0;
}

}  // namespace

Command convert_command() {
  Command c;
  c.name = "convert";
  c.summary = "Converts weights to other names, formats and dtypes; merges LoRAs.";
  c.usage =
      "convert IN OUT [--to NAMES] [--format FORMAT] [--dtype DTYPE] [--merge LORA [--scale S]] [--base BASE] [--shard-size BYTES] "
      "[--ema] [--extra-tensors WHAT] [--force]";
  c.example = "tessera convert Wan2.1-T2V-1.3B wan-diffusers --to diffusers --dtype bf16";
  c.flags = {
      {"--to", "NAMES",
       "official, diffusers, comfyui, or fused (q, k and v in one tensor); of a LoRA diffusers, comfyui, kohya, "
       "diffsynth or peft [unchanged]"},
      {"--format", "FORMAT", "safetensors or pth [by the name of OUT]"},
      {"--dtype", "DTYPE",
       "fp32, bf16 or fp16, of floating-point tensors; fp8_scaled: linears of blocks in fp8, each with a scale, as ComfyUI "
       "reads them [as stored]"},
      {"--shard-size", "BYTES", "largest file of a folder [5GiB]"},
      {"--merge", "LORA", "merge a LoRA, any naming; may be repeated"},
      {"--base", "BASE",
       "the model that a LoRA belongs to: for a DoRA to or from names of ComfyUI and kohya [not needed]"},
      {"--scale", "S", "strength of the LoRAs, one for all or one each [1]"},
      {"--ema", "",
       "the moving average that a trainer's .pth holds beside its weights (state_dict_ema), instead of them"},
      {"--extra-tensors", "WHAT",
       "tensors that the model has no parameter for: refuse, drop, or keep under their names [refuse]"},
      {"--force", "", "overwrite OUT"}};
  c.run = run_convert;
  return c;
}

}  // namespace tessera::apps
