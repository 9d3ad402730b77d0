#include "tessera/models/vae/dc_ae_names.h"

#include <utility>

namespace tessera::models::dc_ae {

namespace {

using Row = std::pair<std::string_view, std::string_view>;

// Outside the stages: beginnings of names.
constexpr Row kOutside[] = {{"encoder.conv_in.", "encoder.project_in.conv."},
                            {"encoder.conv_out.", "encoder.project_out.main.op_list.0.conv."},
                            {"decoder.conv_in.", "decoder.project_in.main.conv."},
                            {"decoder.norm_out.", "decoder.project_out.op_list.0."},
                            {"decoder.conv_out.", "decoder.project_out.op_list.2.conv."}};

// Stages of encoder and decoder: beginnings; the steps between stages; the insides of blocks.
constexpr Row kStages[] = {{"encoder.down_blocks.", "encoder.stages."}, {"decoder.up_blocks.", "decoder.stages."}};
constexpr Row kDown = {".conv.", ".main.conv."}, kUp = {".conv.", ".main.conv.conv."};
constexpr Row kInside[] = {{".attn.to_q.", ".context_module.main.qkv.conv."},
                           {".attn.to_k.", ".context_module.main.qkv.conv."},
                           {".attn.to_v.", ".context_module.main.qkv.conv."},
                           {".attn.to_qkv_multiscale.0.proj_in.", ".context_module.main.aggreg.0.0."},
                           {".attn.to_qkv_multiscale.0.proj_out.", ".context_module.main.aggreg.0.1."},
                           {".attn.to_out.", ".context_module.main.proj.conv."},
                           {".attn.norm_out.", ".context_module.main.proj.norm."},
                           {".conv_out.conv_inverted.", ".local_module.main.inverted_conv.conv."},
                           {".conv_out.conv_depth.", ".local_module.main.depth_conv.conv."},
                           {".conv_out.conv_point.", ".local_module.main.point_conv.conv."},
                           {".conv_out.norm.", ".local_module.main.point_conv.norm."},
                           {".conv1.", ".main.conv1.conv."},
                           {".conv2.", ".main.conv2.conv."},
                           {".norm.", ".main.conv2.norm."}};

bool replace(std::string& name, const Row& row) {
  const size_t at = name.find(row.first);
  if (at == std::string::npos) return false;
  name.replace(at, row.first.size(), row.second);
  return true;
}

/// "encoder.stages.3.0.attn.to_out.weight" -> "encoder.stages.3.op_list.0.context_module.main.proj.conv.weight".
std::string in_stage(std::string name) {
  const size_t stage = name.find(".stages.") + std::string_view(".stages.").size();
  name.insert(name.find('.', stage), ".op_list");
  if (replace(name, name.starts_with("encoder.") ? kDown : kUp)) return name;
  for (const Row& row : kInside)
    if (replace(name, row)) break;
  return name;
}

}  // namespace

StoredRows in_efficientvit(std::string_view diffusers_name) {
  StoredRows stored{std::string(diffusers_name)};
  for (const Row& row : kOutside)
    if (diffusers_name.starts_with(row.first)) {
      replace(stored.name, row);
      return stored;
    }
  for (int64_t part = 0; part < 3; ++part)
    if (diffusers_name.find(kInside[part].first) != std::string_view::npos) stored.part = part, stored.parts = 3;
  for (const Row& row : kStages)
    if (replace(stored.name, row)) stored.name = in_stage(std::move(stored.name));
  return stored;
}

}  // namespace tessera::models::dc_ae
