#include "tessera/models/vae/wan_names.h"

#include <map>
#include <memory>
#include <mutex>

namespace tessera::models {

namespace {

using Table = std::vector<NamePattern>;

// The tensors of both autoencoders outside their stages.
const Table kFrame = {
    {"conv1.*", "quant_conv.*"},
    {"conv2.*", "post_quant_conv.*"},
    {"encoder.conv1.*", "encoder.conv_in.*"},
    {"decoder.conv1.*", "decoder.conv_in.*"},
    {"encoder.head.0.*", "encoder.norm_out.*"},
    {"decoder.head.0.*", "decoder.norm_out.*"},
    {"encoder.head.2.*", "encoder.conv_out.*"},
    {"decoder.head.2.*", "decoder.conv_out.*"},
    {"encoder.middle.1.*", "encoder.mid_block.attentions.0.*"},
    {"decoder.middle.1.*", "decoder.mid_block.attentions.0.*"},
    {"encoder.middle.0.*", "encoder.mid_block.resnets.0.*"},
    {"decoder.middle.0.*", "decoder.mid_block.resnets.0.*"},
    {"encoder.middle.2.*", "encoder.mid_block.resnets.1.*"},
    {"decoder.middle.2.*", "decoder.mid_block.resnets.1.*"},
};

/// A NamePattern is a view of its text, which lives as long as the program.
std::string_view kept(std::string text) {
  static std::mutex lock;
  static std::vector<std::unique_ptr<std::string>> texts;
  const std::lock_guard<std::mutex> guard(lock);
  return *texts.emplace_back(std::make_unique<std::string>(std::move(text)));
}

/// The stages of Wan 2.1: the decoder's list is four blocks of one residual block more than the encoder's, with upsampling
/// layers between them: 15 for the released two.
Table stages21(int64_t res_blocks) {
  constexpr int64_t kLevels = 4;
  Table table = {{"encoder.downsamples.#.*", "encoder.down_blocks.#.*"}};
  int64_t place = 0;
  const auto add = [&](int64_t level, const std::string& theirs) {
    table.push_back({kept("decoder.upsamples." + std::to_string(place++) + ".*"),
                     kept("decoder.up_blocks." + std::to_string(level) + theirs + ".*")});
  };
  for (int64_t level = 0; level < kLevels; ++level) {
    for (int64_t i = 0; i <= res_blocks; ++i) add(level, ".resnets." + std::to_string(i));
    if (level + 1 < kLevels) add(level, ".upsamplers.0");
  }
  return table;
}

Table stages22(int64_t res_blocks) {
  const std::string down = std::to_string(res_blocks), up = std::to_string(res_blocks + 1);
  return {
      {kept("encoder.downsamples.#.downsamples." + down + ".*"), "encoder.down_blocks.#.downsampler.*"},
      {"encoder.downsamples.#.downsamples.#.*", "encoder.down_blocks.#.resnets.#.*"},
      {kept("decoder.upsamples.#.upsamples." + up + ".*"), "decoder.up_blocks.#.upsampler.*"},
      {"decoder.upsamples.#.upsamples.#.*", "decoder.up_blocks.#.resnets.#.*"},
  };
}

/// The insides of a residual block at these places (under diffusers' names).
Table residual(std::initializer_list<std::string_view> places) {
  constexpr std::pair<std::string_view, std::string_view> kInside[] = {{".residual.0.*", ".norm1.*"},
                                                                       {".residual.2.*", ".conv1.*"},
                                                                       {".residual.3.*", ".norm2.*"},
                                                                       {".residual.6.*", ".conv2.*"},
                                                                       {".shortcut.*", ".conv_shortcut.*"}};
  Table table;
  for (const std::string_view place : places)
    for (const auto& [ours, theirs] : kInside)
      table.push_back({kept(std::string(place).append(ours)), kept(std::string(place).append(theirs))});
  return table;
}

Table joined(Table first, const Table& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

namespace {

/// One map for each number of residual blocks, made when it is first asked for.
template <class Make>
const KeyMap& map_for(int64_t res_blocks, const Make& make) {
  static std::mutex lock;
  static std::map<int64_t, std::unique_ptr<const KeyMap>> maps;  // of this `Make`
  const std::lock_guard<std::mutex> guard(lock);
  auto& map = maps[res_blocks];
  if (!map) map = std::make_unique<const KeyMap>(make());
  return *map;
}

}  // namespace

const KeyMap& wan21_vae_names(int64_t res_blocks) {
  return map_for(res_blocks, [&] {
    return KeyMap{joined(kFrame, stages21(res_blocks)),
                  residual({"encoder.mid_block.resnets.#", "decoder.mid_block.resnets.#", "encoder.down_blocks.#",
                            "decoder.up_blocks.#.resnets.#"})};
  });
}

const KeyMap& wan22_vae_names(int64_t res_blocks) {
  return map_for(res_blocks, [&] {
    return KeyMap{joined(kFrame, stages22(res_blocks)),
                  residual({"encoder.mid_block.resnets.#", "decoder.mid_block.resnets.#",
                            "encoder.down_blocks.#.resnets.#", "decoder.up_blocks.#.resnets.#"})};
  });
}

int64_t wan_vae_res_blocks(const std::function<bool(const std::string&)>& has) {
  constexpr int64_t kMost = 64;
  int64_t count = 0;
  const auto go_on = [&](const std::string& begin, const std::string& end) {
    while (count < kMost && has(begin + std::to_string(count) + end)) ++count;
  };
  go_on("decoder.upsamples.", ".residual.2.weight");  // up to the first upsampling layer
  go_on("decoder.upsamples.0.upsamples.", ".residual.2.weight");
  go_on("decoder.up_blocks.0.resnets.", ".conv1.weight");
  go_on("decoder.up_blocks.0.resnets.", ".residual.2.weight");
  return count > 1 ? count - 1 : kWanVaeResBlocks;
}

}  // namespace tessera::models
