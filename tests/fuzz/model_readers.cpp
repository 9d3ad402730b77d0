// Readers of what a model's folder holds beside its weights: config.json, experts.json, states of a foreign optimiser, the
// shapes of tensors from which sizes follow; and case.json of a golden case.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/torch_bytes.h"
#include "fuzz/readers.h"
#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/checkpoint/foreign_states.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/models/hunyuan/files.h"
#include "tessera/models/opensora/files.h"
#include "tessera/models/sana/files.h"
#include "tessera/models/stdit/files.h"
#include "tessera/models/vae/dc_ae_config.h"
#include "tessera/models/vae/hunyuan_configs.h"
#include "tessera/models/vae/opensora_configs.h"
#include "tessera/models/vae/wan_config.h"
#include "tessera/models/wan/config.h"
#include "tessera/models/wan/weight_form.h"
#include "tessera/tools/verify/case_json.h"

namespace tessera::fuzz {

namespace {

namespace fs = std::filesystem;
using namespace models;
using Json = nlohmann::ordered_json;

constexpr const char* kFile = "config.json";

/// By each of them; refused where all refuse it.
using Parse = void (*)(const std::string& text);
void read_as_any(const std::string& text, std::initializer_list<Parse> parsers) {
  size_t refused = 0;
  for (const Parse parse : parsers) try {
      parse(text);
    } catch (const UserError&) {
      if (++refused == parsers.size()) throw;
    }
}

void parse_wan(const std::string& text) { wan::to_json(wan::parse_config(text, kFile)); }
void parse_s2v(const std::string& text) { to_json(wan::parse_s2v_config(text, kFile)); }
void parse_sana(const std::string& text) { sana::to_json(sana::parse_config(text, kFile)); }
void parse_opensora(const std::string& text) { opensora::to_json(opensora::parse_config(text, kFile)); }
void parse_stdit(const std::string& text) { stdit::to_json(stdit::parse_config(text, kFile)); }
void parse_hunyuan(const std::string& text) { hunyuan::to_diffusers_json(hunyuan::parse_config(text, kFile)); }
void read_denoiser_config(const std::string& bytes, const std::string&) {
  read_as_any(bytes, {parse_wan, parse_s2v, parse_sana, parse_opensora, parse_stdit, parse_hunyuan});
}

void read_encoder_config(const std::string& bytes, const std::string&) {
  read_as_any(bytes, {[](const std::string& text) { umt5::parse_config(text, kFile); },
                      [](const std::string& text) { gemma2::parse_config(text, kFile); },
                      [](const std::string& text) { clip_text::parse_config(text, kFile); },
                      [](const std::string& text) { clip::parse_config(text, kFile).rows(); },
                      [](const std::string& text) { wav2vec::parse_config(text, kFile).shortest(); }});
}

template <class Config>
void parse_vae(const std::string& text) {
  Config config;
  check_config(text, kFile, config);
  if constexpr (requires { config_json(config); }) config_json(config);
}
void parse_wan_vae(const std::string& text) {
  const wan_vae::Config c = wan_vae::parse_config(text, kFile);
  check_internal(c.stride() > 0 && c.time_stride() > 0, "fuzz", "a stride of nothing");
}
void read_vae_config(const std::string& bytes, const std::string&) {
  read_as_any(bytes,
              {parse_wan_vae, parse_vae<hunyuan_vae::Config>, parse_vae<dc_ae::Config>, parse_vae<dc_ae_video::Config>,
               parse_vae<opensora12_vae::Config>, parse_vae<opensora13_vae::Config>, parse_vae<hunyuan15_vae::Config>});
}

/// {"shapes": {name: sizes}, "config": {...}}: the tensors that a file has, and the config.json beside it.
struct Model {
  Shapes shapes;
  std::string config;

  explicit Model(const std::string& bytes) {
    const auto json = parse_json(bytes, kFile);
    for (const auto& [name, shape] : checkpoint::json_member(json, "shapes", kFile).items())
      shapes[name] = checkpoint::json_shape(shape, name);
    if (json.contains("config")) config = json["config"].dump();
    for (const auto& [name, shape] : shapes)  // what no file of weights can hold
      check_input(checkpoint::element_count(shape).has_value(), "fuzz", name);
  }
  std::vector<int64_t> operator()(const std::string& name) const {
    const auto found = shapes.find(name);
    return found == shapes.end() ? std::vector<int64_t>() : found->second;
  }
};

/// As a config.json of either form is made for a file of that form.
void convert(const WeightForm& form, const Model& model) {
  Identity identity{form.kind, form.model, form.variant, "official", "", &form.names, &form};
  if (form.refine) form.refine(model.shapes, identity);
  if (form.untold) form.untold(model.shapes, identity);
  size_t refused = 0;
  for (const char* to : {"official", "diffusers"}) try {
      config_for(to, identity, model.shapes, model.config, kFile);
    } catch (const UserError&) {
      if (++refused == 2) throw;
    }
}
template <size_t form>
void convert_denoiser(const std::string& bytes) {
  static const std::vector<WeightForm> forms = [] {
    std::vector<WeightForm> all = {wan::weight_form(), opensora::weight_form()};
    for (auto more : {sana::weight_forms(), stdit::weight_forms(), wan_vae::weight_forms()})
      all.insert(all.end(), more.begin(), more.end());
    all.push_back(hunyuan::weight_form());
    return all;
  }();
  convert(forms.at(form), Model(bytes));
}
void read_denoiser_shapes(const std::string& bytes, const std::string&) {
  read_as_any(
      bytes, {convert_denoiser<0>, convert_denoiser<1>, convert_denoiser<2>, convert_denoiser<3>, convert_denoiser<4>,
              convert_denoiser<5>, convert_denoiser<6>, convert_denoiser<7>, convert_denoiser<8>, convert_denoiser<9>});
}

template <class Config, Config (*config_of_weights)(const ShapeOf&, const std::string&)>
void size_vae(const std::string& bytes) {
  const Model model(bytes);
  Config config = config_of_weights(model, kFile);
  if (!model.config.empty()) check_config(model.config, kFile, config);
  if constexpr (requires { config_json(config); }) config_json(config);
}
template <bool two>
void size_wan_vae(const std::string& bytes) {
  wan_vae::config_of_weights(two, Model(bytes), kFile);
}
void size_clip(const std::string& bytes) { clip::config_of(Model(bytes).shapes, kFile).rows(); }
void read_vae_shapes(const std::string& bytes, const std::string&) {
  read_as_any(bytes, {size_wan_vae<false>, size_wan_vae<true>, size_clip,
                      size_vae<hunyuan_vae::Config, hunyuan_vae::config_of_weights>,
                      size_vae<hunyuan15_vae::Config, hunyuan15_vae::config_of_weights>,
                      size_vae<dc_ae::Config, dc_ae::config_of_weights>,
                      size_vae<dc_ae_video::Config, dc_ae_video::config_of_weights>,
                      size_vae<opensora12_vae::Config, opensora12_vae::config_of_weights>,
                      size_vae<opensora13_vae::Config, opensora13_vae::config_of_weights>});
}

/// The facts of a pipeline and of a run's experts, and the encoder that a pipeline's config.json tells is CLIP.
void read_facts(const std::string& bytes, const std::string& file) {
  const fs::path folder = fs::path(file).parent_path() / "pipeline";
  fs::remove_all(folder);
  for (const char* name : {"model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json"}) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  checkpoint::find_facts(folder);
  std::ofstream(folder / checkpoint::kExpertsFile, std::ios::binary) << bytes;
  checkpoint::find_facts(folder);
  checkpoint::find_part(folder, "text_encoder");
}

void read_case(const std::string&, const std::string& file) {
  const tools::CaseDescription description(file);
  description.kind();
  description.tolerance("loss");
  description.bound("out")(1e300);
}

void read_states(const checkpoint::ForeignStates& states) {
  states.step();
  states.order();
  states.groups();
  states.identity();
  for (const char* parameter : {"0", "1", "a"})
    for (const char* kind : {"exp_avg", "exp_avg_sq"})
      if (const auto moment = states.find(parameter, kind)) {
        constexpr int64_t kMost = 1 << 16;  // a run compares the shape with its own before it reads
        const int64_t count = *checkpoint::element_count(moment->shape);
        if (count > kMost) continue;
        std::vector<float> values(static_cast<size_t>(count));
        moment->read(values.data());
      }
  if (const auto average = states.average())
    for (const std::string& name : average->names()) average->at(name);
}
void read_state_file(const std::string&, const std::string& file) {
  read_states(*checkpoint::open_foreign_states(file));
}

std::string torch_file(const checkpoint::PickleMaker::Items& items) {
  checkpoint::PickleMaker pickle;
  pickle.dict(items);
  return checkpoint::torch_file_bytes(pickle, {1, 2});
}
std::string two_values() { return checkpoint::PickleMaker::tensor("0", 2, 0, {2}, {1}); }

std::string moments() {
  using checkpoint::PickleMaker;
  return PickleMaker::inner({{"exp_avg", two_values()}, {"exp_avg_sq", two_values()}});
}
std::string state_seed() {
  using checkpoint::PickleMaker;
  return torch_file({{"model", PickleMaker::inner({{"a", two_values()}})},
                     {"optimizer", PickleMaker::inner({{"state", PickleMaker::inner({{"a", moments()}})}})},
                     {"step", PickleMaker::integer(7)}});
}

/// The files of a folder of ColossalAI's trainers that are read.
const std::vector<std::pair<const char*, std::string>>& folder_parts() {
  using checkpoint::PickleMaker;
  static const std::vector<std::pair<const char*, std::string>> parts = {
      {"running_states.json", R"({"epoch": 0, "step": 12, "global_step": 12, "actual_update_step": 6})"},
      {"optimizer/pytorch_optim.bin.index.json",
       R"({"metadata": {"total_size": 8}, "weight_map": {"0": "part.bin", "a": "part.bin"}})"},
      {"model/model.safetensors.index.json",
       R"({"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001.safetensors"}})"},
      {"ema.pt", torch_file({{"a", two_values()}})},
      {"optimizer/part.bin", torch_file({{"0", moments()}, {"a", moments()}})}};
  return parts;
}
/// The input is the part that its first byte numbers; the others are whole.
void read_state_folder(const std::string& bytes, const std::string& file) {
  const auto& parts = folder_parts();
  const fs::path folder = fs::path(file).parent_path() / "states";
  fs::remove_all(folder);
  const size_t chosen = bytes.empty() ? parts.size() : static_cast<unsigned char>(bytes[0]) % parts.size();
  for (size_t part = 0; part < parts.size(); ++part) {
    const fs::path name = folder / parts[part].first;
    fs::create_directories(name.parent_path());
    std::ofstream(name, std::ios::binary) << (part == chosen ? bytes.substr(1) : parts[part].second);
  }
  read_states(*checkpoint::open_foreign_states(folder));
}
std::vector<std::string> folder_seeds() {
  std::vector<std::string> seeds;
  for (size_t part = 0; part < folder_parts().size(); ++part)
    seeds.push_back(static_cast<char>(part) + folder_parts()[part].second);
  return seeds;
}

/// The tensors of a model from which its sizes follow, and its config.json.
std::string model_seed(const std::map<std::string, std::vector<int64_t>>& shapes, const std::string& config) {
  return Json{{"shapes", shapes}, {"config", Json::parse(config)}}.dump();
}
template <class Config>
const Config& preset(const std::vector<std::pair<std::string, Config>>& presets, const std::string& name) {
  for (const auto& [known, config] : presets)
    if (known == name) return config;
  throw InternalError("fuzz", "no preset " + name);
}
std::vector<std::string> denoiser_shape_seeds() {
  const auto& wan = preset(wan::presets(), "wan-tiny-flf2v");
  const auto& sana = preset(sana::presets(), "sana-tiny-video");
  const auto& mmdit = preset(opensora::presets(), "opensora2-tiny");
  const auto& stdit = stdit::presets().back().second;
  const auto& joint = preset(hunyuan::presets(), "hunyuan-tiny");
  const int64_t j = joint.hidden_size;
  const int64_t w = wan.dim, d = sana.dim(), m = mmdit.hidden_size, h = stdit.hidden_size;
  return {model_seed({{"patch_embedding.weight", {w, wan.in_dim, 1, 2, 2}},
                      {"text_embedding.0.weight", {w, wan.text_dim}},
                      {"time_embedding.0.weight", {w, wan.freq_dim}},
                      {"img_emb.emb_pos", {1, wan.image_rows(), wan.image_dim}},
                      {"img_emb.proj.1.weight", {wan.image_dim, wan.image_dim}},
                      {"blocks.0.self_attn.q.weight", {w, w}},
                      {"blocks.0.cross_attn.k_img.weight", {w, w}},
                      {"blocks.0.ffn.0.weight", {wan.ffn_dim, w}},
                      {"head.head.weight", {4 * wan.out_dim, w}}},
                     wan::to_json(wan)),
          model_seed({{"x_embedder.proj.weight", {d, sana.in_channels, 1, 1, 1}},
                      {"y_embedder.y_proj.fc1.weight", {d, sana.caption_dim}},
                      {"blocks.0.attn.q.weight", {d, d}},
                      {"blocks.0.attn.q_norm.weight", {d}},
                      {"blocks.0.mlp.inverted_conv.value.weight", {sana.hidden(), d, 1, 1}},
                      {"blocks.0.mlp.point_conv.conv.weight", {d, sana.hidden(), 1, 1}},
                      {"blocks.0.mlp.t_conv.weight", {d, d, 3, 1}},
                      {"final_layer.linear.weight", {sana.out_channels, d}}},
                     sana::to_json(sana)),
          model_seed({{"img_in.weight", {m, mmdit.in_channels}},
                      {"cond_in.weight", {m, mmdit.cond_channels()}},
                      {"txt_in.weight", {m, mmdit.context_dim}},
                      {"vector_in.in_layer.weight", {m, mmdit.pooled_dim}},
                      {"double_blocks.0.img_attn.norm.query_norm.weight", {mmdit.head_dim()}},
                      {"double_blocks.0.img_mlp.0.weight", {mmdit.mlp_dim(), m}},
                      {"single_blocks.0.linear2.attn.weight", {m, m}}},
                     opensora::to_json(mmdit)),
          model_seed({{"x_embedder.proj.weight", {h, stdit.in_channels, 1, 2, 2}},
                      {"x_embedder_cond.proj.weight", {h, stdit.in_channels, 1, 2, 2}},
                      {"fps_embedder.mlp.0.weight", {h, 256}},
                      {"y_embedder.y_proj.fc1.weight", {h, stdit.caption_dim}},
                      {"spatial_blocks.0.attn.q.weight", {h, h}},
                      {"spatial_blocks.0.attn.q_norm.weight", {stdit.head_dim()}},
                      {"spatial_blocks.0.mlp.fc1.weight", {stdit.mlp_dim(), h}},
                      {"temporal_blocks.0.attn.q.weight", {h, h}},
                      {"final_layer.linear.weight", {4 * stdit.out_channels(), h}}},
                     stdit::to_json(stdit)),
          model_seed({{"img_in.proj.weight", {j, joint.in_channels(), 1, 1, 1}},
                      {"txt_in.input_embedder.weight", {j, joint.text_dim}},
                      {"byt5_in.fc1.weight", {joint.glyph_hidden, joint.glyph_dim}},
                      {"vision_in.proj.1.weight", {joint.image_dim, joint.image_dim}},
                      {"double_blocks.0.img_attn_q.weight", {j, j}},
                      {"double_blocks.0.txt_attn_q.weight", {j, j}},
                      {"double_blocks.0.img_attn_q_norm.weight", {joint.head_dim()}},
                      {"double_blocks.0.img_mlp.fc1.weight", {joint.mlp_dim(), j}},
                      {"final_layer.shift.weight", {j, j}},
                      {"final_layer.linear.weight", {joint.channels, j}}},
                     hunyuan::to_json(joint)),
          R"({"shapes": {"encoder.conv1.weight": [96, 3, 3, 3, 3], "conv2.weight": [16, 16, 1, 1, 1]}})"};
}
const std::vector<std::string> kVaeShapes = {
    R"({"shapes": {"encoder.conv1.weight": [96, 3, 3, 3, 3], "decoder.head.2.weight": [3, 96, 3, 3, 3],)"
    R"( "conv2.weight": [16, 16, 1, 1, 1]}})",
    R"({"shapes": {"visual.patch_embedding.weight": [24, 3, 14, 14], "visual.transformer.0.mlp.0.weight": [48, 24],)"
    R"( "visual.pos_embedding": [1, 5, 24], "visual.transformer.0.norm1.weight": [24]}})",
    R"({"shapes": {"encoder.down_blocks.0.resnets.0.conv1.conv.weight": [128, 128, 3, 3, 3],)"
    R"( "encoder.down_blocks.1.resnets.0.conv1.conv.weight": [256, 128, 3, 3, 3],)"
    R"( "encoder.down_blocks.2.resnets.0.conv1.conv.weight": [512, 256, 3, 3, 3],)"
    R"( "encoder.down_blocks.3.resnets.0.conv1.conv.weight": [512, 512, 3, 3, 3],)"
    R"( "post_quant_conv.weight": [16, 16, 1, 1, 1]}, "config": {"latent_channels": 16, "norm_num_groups": 32}})",
    R"({"shapes": {"encoder.down.0.block.0.conv1.conv.weight": [128, 128, 3, 3, 3],)"
    R"( "encoder.down.1.block.0.conv1.conv.weight": [256, 128, 3, 3, 3],)"
    R"( "encoder.down.2.block.0.conv1.conv.weight": [512, 256, 3, 3, 3],)"
    R"( "encoder.down.3.block.0.conv1.conv.weight": [512, 512, 3, 3, 3],)"
    R"( "encoder.conv_in.conv.weight": [128, 3, 3, 3, 3], "decoder.up.0.block.0.conv1.conv.weight": [128, 256, 3, 3, 3],)"
    R"( "decoder.up.0.block.1.conv1.conv.weight": [128, 128, 3, 3, 3],)"
    R"( "decoder.up.1.block.0.conv1.conv.weight": [256, 512, 3, 3, 3],)"
    R"( "decoder.up.2.block.0.conv1.conv.weight": [512, 512, 3, 3, 3],)"
    R"( "decoder.up.3.block.0.conv1.conv.weight": [512, 512, 3, 3, 3],)"
    R"( "decoder.conv_in.conv.weight": [512, 16, 3, 3, 3]}, "config": {"micro_frame_size": 17, "encoder": {"ch": 128}}})",
    R"({"shapes": {"spatial_vae.module.encoder.down_blocks.0.resnets.0.conv1.weight": [128, 128, 3, 3],)"
    R"( "spatial_vae.module.encoder.down_blocks.1.resnets.0.conv1.weight": [256, 128, 3, 3],)"
    R"( "spatial_vae.module.encoder.down_blocks.2.resnets.0.conv1.weight": [512, 256, 3, 3],)"
    R"( "spatial_vae.module.encoder.down_blocks.3.resnets.0.conv1.weight": [512, 512, 3, 3],)"
    R"( "spatial_vae.module.post_quant_conv.weight": [4, 4, 1, 1],)"
    R"( "temporal_vae.encoder.conv_in.conv.weight": [128, 4, 3, 3, 3],)"
    R"( "temporal_vae.encoder.block_res_blocks.0.0.conv1.conv.weight": [128, 128, 3, 3, 3]},)"
    R"( "config": {"scaling_2d": 0.2}})",
    R"({"shapes": {"encoder.down_blocks.0.0.conv1.weight": [128, 128, 3, 3],)"
    R"( "encoder.down_blocks.1.0.attn.to_q.weight": [256, 256],)"
    R"( "encoder.down_blocks.1.0.attn.to_qkv_multiscale.0.proj_out.weight": [768, 32, 1, 1],)"
    R"( "decoder.up_blocks.0.0.conv1.weight": [128, 128, 3, 3], "decoder.up_blocks.1.0.conv1.weight": [256, 256, 3, 3],)"
    R"( "encoder.conv_out.weight": [32, 256, 3, 3]}, "config": {"scaling_factor": 0.41407}})",
    R"({"shapes": {"encoder.stages.0.op_list.0.main.conv1.conv.weight": [128, 128, 3, 3, 3],)"
    R"( "encoder.stages.1.op_list.0.main.conv1.conv.weight": [256, 256, 3, 3, 3],)"
    R"( "encoder.project_out.main.op_list.0.conv.weight": [128, 256, 3, 3, 3]},)"
    R"( "config": {"temporal_downsample": [true, false]}})"};

template <class Config>
std::vector<std::string> preset_seeds(const std::vector<std::pair<std::string, Config>>& presets) {
  std::vector<std::string> seeds;
  for (const auto& [name, config] : presets) seeds.push_back(to_json(config));
  return seeds;
}
std::vector<std::string> denoiser_seeds() {
  std::vector<std::string> all;
  for (const auto& more :
       {preset_seeds(wan::presets()), preset_seeds(wan::s2v_presets()), preset_seeds(sana::presets()),
        preset_seeds(opensora::presets()), preset_seeds(stdit::presets()), preset_seeds(hunyuan::presets())})
    all.insert(all.end(), more.begin(), more.end());
  all.push_back(R"({"num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 80, "num_layers": 2,)"
                R"( "in_channels": 4, "out_channels": 4, "qk_norm": "rms_norm_across_heads"})");
  return all;
}
const std::vector<std::string> kEncoderConfigs = {
    R"({"vocab_size": 1024, "dim": 64, "dim_attn": 64, "dim_ffn": 128, "num_heads": 4, "num_layers": 3})",
    R"({"vocab_size": 1024, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_layers": 3,)"
    R"( "feed_forward_proj": "gated-gelu", "model_type": "t5", "relative_attention_num_buckets": 32})",
    R"({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,)"
    R"( "num_key_value_heads": 1, "head_dim": 4, "layer_types": ["sliding_attention", "full_attention"]})",
    R"({"hidden_act": "quick_gelu", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,)"
    R"( "num_attention_heads": 2, "max_position_embeddings": 77, "eos_token_id": 1})",
    R"({"dim": 24, "mlp_ratio": 2.0, "num_heads": 2, "num_layers": 3, "image_size": 28, "patch_size": 14,)"
    R"( "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]})",
    R"({"model_type": "wav2vec2", "hidden_size": 32, "num_attention_heads": 2, "conv_dim": [16, 16],)"
    R"( "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_conv_pos_embedding_groups": 4})"};
std::vector<std::string> vae_seeds() {
  std::vector<std::string> all = {
      R"({"dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "temperal_downsample": [false, true, true]})",
      R"({"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": true, "patch_size": 2})"};
  for (const Json& json :
       {config_json(hunyuan_vae::Config()), config_json(dc_ae::Config()), config_json(dc_ae_video::Config()),
        config_json(opensora12_vae::Config()), config_json(opensora13_vae::Config())})
    all.push_back(json.dump());
  return all;
}

}  // namespace

std::vector<Reader> model_readers() {
  const std::vector<std::string> json = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ",",
                                         ":",
                                         "null",
                                         "true",
                                         "0",
                                         "1",
                                         "-1",
                                         "2.5",
                                         "1e300",
                                         "\"\"",
                                         "{\"a\":[]}",
                                         "1048576",
                                         "1048577",
                                         "4611686018427387904",
                                         "9223372036854775807"};
  std::vector<std::string> torch = {"(", ")", "}", "]", "t", "u", "R", "b", "Q", "\x85", "\x94", "PK\x01\x02"},
                           shapes = json;
  for (const char* name : {"optimizer.param_groups", "optimizer", "state", "step", "exp_avg", "model"})
    torch.push_back(checkpoint::PickleMaker::text(name));
  for (const auto& code : {checkpoint::PickleMaker::integer(-1), checkpoint::PickleMaker::text("many"), two_values()})
    torch.push_back(code);
  shapes.insert(shapes.end(), {".0.", ".1.", ".4611686018427387904.", "[0]", "[1, 1, 1, 1, 1]", "\"config\": "});
  std::vector<std::string> folder = json;
  folder.insert(folder.end(), torch.begin(), torch.end());
  folder.insert(folder.end(), {"../", "/dev/zero", "part.bin", "\"weight_map\""});
  return {
      {"denoiser-config", read_denoiser_config, ".json", denoiser_seeds(), json},
      {"encoder-config", read_encoder_config, ".json", kEncoderConfigs, json},
      {"vae-config", read_vae_config, ".json", vae_seeds(), json},
      {"denoiser-shapes", read_denoiser_shapes, ".json", denoiser_shape_seeds(), shapes},
      {"vae-shapes", read_vae_shapes, ".json", kVaeShapes, shapes},
      {"facts",
       read_facts,
       ".json",
       {R"({"boundary": 0.875, "flow_shift": 12.0, "boundary_ratio": 0.9, "model_type": "t5"})"},
       json},
      {"case",
       read_case,
       ".json",
       {R"({"kind": "dit", "tolerance": {"loss": 1e-6, "out": {"rtol_of_max": 1e-5, "atol": 1e-6}}})",
        R"({"kind": "vae", "tolerance": {"loss": 1e-6, "out": 1e-5}})"},
       json},
      {"foreign-state", read_state_file, ".pt", {state_seed()}, torch},
      {"foreign-folder", read_state_folder, ".bin", folder_seeds(), folder},
  };
}

}  // namespace tessera::fuzz
