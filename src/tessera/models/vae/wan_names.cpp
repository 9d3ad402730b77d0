#include "tessera/models/vae/wan_names.h"

#include <memory>

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

// The stages of Wan 2.1: the decoder's list of 15 is four blocks of three, with upsampling layers between them.
const Table kStages21 = {
    {"encoder.downsamples.#.*", "encoder.down_blocks.#.*"},
    {"decoder.upsamples.0.*", "decoder.up_blocks.0.resnets.0.*"},
    {"decoder.upsamples.1.*", "decoder.up_blocks.0.resnets.1.*"},
    {"decoder.upsamples.2.*", "decoder.up_blocks.0.resnets.2.*"},
    {"decoder.upsamples.3.*", "decoder.up_blocks.0.upsamplers.0.*"},
    {"decoder.upsamples.4.*", "decoder.up_blocks.1.resnets.0.*"},
    {"decoder.upsamples.5.*", "decoder.up_blocks.1.resnets.1.*"},
    {"decoder.upsamples.6.*", "decoder.up_blocks.1.resnets.2.*"},
    {"decoder.upsamples.7.*", "decoder.up_blocks.1.upsamplers.0.*"},
    {"decoder.upsamples.8.*", "decoder.up_blocks.2.resnets.0.*"},
    {"decoder.upsamples.9.*", "decoder.up_blocks.2.resnets.1.*"},
    {"decoder.upsamples.10.*", "decoder.up_blocks.2.resnets.2.*"},
    {"decoder.upsamples.11.*", "decoder.up_blocks.2.upsamplers.0.*"},
    {"decoder.upsamples.12.*", "decoder.up_blocks.3.resnets.0.*"},
    {"decoder.upsamples.13.*", "decoder.up_blocks.3.resnets.1.*"},
    {"decoder.upsamples.14.*", "decoder.up_blocks.3.resnets.2.*"},
};

const Table kStages22 = {
    {"encoder.downsamples.#.downsamples.2.*", "encoder.down_blocks.#.downsampler.*"},
    {"encoder.downsamples.#.downsamples.#.*", "encoder.down_blocks.#.resnets.#.*"},
    {"decoder.upsamples.#.upsamples.3.*", "decoder.up_blocks.#.upsampler.*"},
    {"decoder.upsamples.#.upsamples.#.*", "decoder.up_blocks.#.resnets.#.*"},
};

/// The insides of a residual block at these places (under diffusers' names).
Table residual(std::initializer_list<std::string_view> places) {
  constexpr std::pair<std::string_view, std::string_view> kInside[] = {{".residual.0.*", ".norm1.*"},
                                                                       {".residual.2.*", ".conv1.*"},
                                                                       {".residual.3.*", ".norm2.*"},
                                                                       {".residual.6.*", ".conv2.*"},
                                                                       {".shortcut.*", ".conv_shortcut.*"}};
  static std::vector<std::unique_ptr<std::string>> texts;  // a NamePattern is a view of its text
  const auto keep = [](std::string text) -> std::string_view {
    return *texts.emplace_back(std::make_unique<std::string>(std::move(text)));
  };
  Table table;
  for (const std::string_view place : places)
    for (const auto& [ours, theirs] : kInside)
      table.push_back({keep(std::string(place).append(ours)), keep(std::string(place).append(theirs))});
  return table;
}

Table joined(Table first, const Table& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

const KeyMap& wan21_vae_names() {
  static const KeyMap map = {joined(kFrame, kStages21),
                             residual({"encoder.mid_block.resnets.#", "decoder.mid_block.resnets.#",
                                       "encoder.down_blocks.#", "decoder.up_blocks.#.resnets.#"})};
  return map;
}

const KeyMap& wan22_vae_names() {
  static const KeyMap map = {joined(kFrame, kStages22),
                             residual({"encoder.mid_block.resnets.#", "decoder.mid_block.resnets.#",
                                       "encoder.down_blocks.#.resnets.#", "decoder.up_blocks.#.resnets.#"})};
  return map;
}

}  // namespace tessera::models
