#pragma once
// Families under test: a new one is a row here (and its object in the workers, where it is not in the registry).
//
//   const Family& family = family_of("toy");
//   auto model = family.model(random, mesh);                       // small, of random sizes that the mesh can share
//   draw_weights(*model, seed, param, first, count, out);          // no weight is zero
#include <algorithm>
#include <map>
#include <random>

#include "tessera/base/check.h"
#include "tessera/base/mesh.h"
#include "tessera/base/random.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/registry.h"

namespace tessera::testing {

using Random = std::mt19937_64;
inline int64_t draw(Random& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

/// The fields of a config.json, and the sites of its blocks that plans may treat apart.
struct Family {
  std::string_view name;  ///< of the family, and maybe ":" and which of its models
  std::string (*config)(Random& random, const Mesh& mesh);
  std::vector<const char*> attentions, results;
  int64_t most_frames = 4;  ///< of a sample
  int64_t least_side = 1;   ///< of half its latents' sides: eight ranks share the smallest sample
  /// Of the largest gradient of a parameter, what may be off.
  double bound = 2e-4;
  bool adapters = false;               ///< trained by LoRA
  std::array<int64_t, 3> latent = {};  ///< frames, height and width of a sample; zeros: drawn
  bool caption_tokens = false;         ///< rows of a caption are tokens, as many as it has: a plan is for one number
  int64_t least_frames = 1;            ///< of a sample
  bool relu = false;                   ///< gradients have steps, and rounding may take a value over one

  std::unique_ptr<net::Denoiser> model(Random& random, const Mesh& mesh) const {
    std::unique_ptr<net::Denoiser> made = models::make_denoiser(
        {.family = std::string(name.substr(0, name.find(':'))), .config_text = config(random, mesh)});
    if (adapters) models::adapt(*made, {.rank = draw(random, 1, 6), .targets = {"q", "k", "v", "o", "ffn.0", "ffn.2"}});
    return made;
  }
};

inline std::string wan_config(Random& random, const Mesh&) {
  const int64_t heads = draw(random, 1, 2) * 2;
  return R"({"dim":)" + std::to_string(heads * 32) + R"(,"num_heads":)" + std::to_string(heads) + R"(,"ffn_dim":)" +
         std::to_string(64 * draw(random, 2, 4)) + R"(,"num_layers":)" + std::to_string(draw(random, 1, 5)) +
         R"(,"text_dim":32,"text_len":)" + std::to_string(draw(random, 3, 9)) +
         R"(,"freq_dim":32,"in_dim":4,"out_dim":4})";
}

/// VideoX-Fun's, of 2.1 or 2.2, with a reference or a camera or both.
inline std::string wan_fun_config(Random& random, const Mesh& mesh) {
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2), width = 2 * draw(random, 4, 12);
  const bool second = draw(random, 0, 1), reference = draw(random, 0, 1),
             camera = !reference || draw(random, 0, 2) == 0;
  const auto number = [](int64_t n) { return std::to_string(n); };
  return R"({"dim":)" + number(heads * width) + R"(,"num_heads":)" + number(heads) + R"(,"ffn_dim":)" +
         number(mesh[Axis::tp] * draw(random, 10, 60)) + R"(,"num_layers":)" + number(draw(random, 1, 3)) +
         R"(,"text_dim":32,"text_len":5,"freq_dim":32,"out_dim":6,"model_type":"i2v","in_dim":)" +
         (second ? "22" : R"(18,"image_dim":24,"image_len":5)") +
         (reference ? R"(,"add_ref_conv":true,"in_dim_ref_conv":6)" : "") +
         (camera ? R"(,"add_control_adapter":true,"downscale_factor_control_adapter":2)" : "") + "}";
}

inline std::string wan_fields(int64_t heads, int64_t width, int64_t ffn, int64_t layers) {
  return R"({"dim":)" + std::to_string(heads * width) + R"(,"num_heads":)" + std::to_string(heads) + R"(,"ffn_dim":)" +
         std::to_string(ffn) + R"(,"num_layers":)" + std::to_string(layers) +
         R"(,"text_dim":32,"text_len":5,"freq_dim":32,"out_dim":4)";
}
constexpr const char* kNoPicture = R"(,"in_dim":4})";
constexpr const char* kPicture = R"(,"model_type":"i2v","in_dim":12,"image_dim":24,"image_len":5})";
/// Wan of other widths, half of them picture-to-video.
inline std::string wan_shapes_config(Random& random, const Mesh& mesh) {
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 3), width = 2 * draw(random, 4, 24);
  const int64_t ffn = mesh[Axis::tp] * draw(random, 20, 400);
  return wan_fields(heads, width, ffn, draw(random, 1, 6)) + (draw(random, 0, 1) ? kPicture : kNoPicture);
}
/// Seven units, three heads of 32.
inline std::string wan_seven_config(Random&, const Mesh&) { return wan_fields(3, 32, 168, 5) + kNoPicture; }
inline std::string wan_seven_pictures_config(Random&, const Mesh&) { return wan_fields(3, 32, 168, 5) + kPicture; }

/// A second stream beside some of the blocks, as far from each other as they come, of which none follows the last.
inline std::string vace_config(Random& random, const Mesh& mesh) {
  const int64_t layers = draw(random, 1, 5);
  std::string list = "[0";
  for (int64_t i = 1; i < layers; ++i)
    if (draw(random, 0, 1)) list += "," + std::to_string(i);
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2);
  return wan_fields(heads, 2 * draw(random, 4, 16), mesh[Axis::tp] * draw(random, 20, 200), layers) +
         R"(,"model_type":"vace","in_dim":4,"vace_in_dim":)" + std::to_string(draw(random, 9, 80)) +
         R"(,"vace_layers":)" + list + "]}";
}

/// Adapters behind every fifth block, of faces of 4 or 8 pixels.
inline std::string animate_config(Random& random, const Mesh& mesh) {
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2), eight = draw(random, 0, 1);
  return wan_fields(heads, 2 * draw(random, 4, 16), mesh[Axis::tp] * draw(random, 20, 200), 5 * draw(random, 1, 2)) +
         R"(,"model_type":"animate","in_dim":12,"image_dim":6,"image_len":)" + std::to_string(draw(random, 2, 5)) +
         R"(,"motion_encoder_dim":10,"motion_encoder_size":)" + (eight ? "8" : "4") +
         R"(,"motion_encoder_channel_sizes":{"4":4,"8":3},"motion_style_dim":6,"motion_dim":)" +
         std::to_string(draw(random, 2, 10)) + R"(,"face_encoder_hidden_dim":6,"face_encoder_num_heads":2})";
}

/// Odd where it may be: sp and tp share heads, tp the feed-forward.
inline std::string toy_config(Random& random, const Mesh& mesh) {
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2);
  return R"({"dim":)" + std::to_string(heads * 2 * draw(random, 3, 9)) + R"(,"num_heads":)" + std::to_string(heads) +
         R"(,"ffn_dim":)" + std::to_string(mesh[Axis::tp] * draw(random, 9, 90)) + R"(,"num_layers":)" +
         std::to_string(draw(random, 1, 4)) + R"(,"text_dim":)" + std::to_string(draw(random, 3, 40)) +
         R"(,"text_len":)" + std::to_string(draw(random, 3, 9)) + "}";
}

/// Heads of the linear attention and of the cross-attention, which sp and tp share; three channels of a feed-forward's
/// half for each two of the width. A divisor of the linear attention is a sum of products that may all be zero: it has an
/// epsilon that is larger than its rounding.
inline std::string sana_fields(Random& random, const Mesh& mesh, const char* type) {
  const int64_t both = mesh[Axis::sp] * mesh[Axis::tp], heads = both * draw(random, 1, 2);
  return std::string(R"({"_class_name":")") +
         (type == std::string("video") ? "SanaVideoTransformer3DModel" : "SanaTransformer2DModel") +
         R"(","model_type":")" + type + R"(","num_attention_heads":)" + std::to_string(heads) +
         R"(,"attention_head_dim":)" +
         std::to_string(type == std::string("video") ? 2 * draw(random, 3, 8) : 4 * draw(random, 1, 4)) +
         R"(,"num_cross_attention_heads":)" + std::to_string(both) + R"(,"num_layers":)" +
         std::to_string(draw(random, 1, 4)) + R"(,"in_channels":4,"caption_channels":)" +
         std::to_string(draw(random, 3, 40)) + R"(,"caption_length":)" + std::to_string(draw(random, 3, 9)) +
         R"(,"mlp_ratio":1.5,"linear_attention_eps":0.01)";
}
inline std::string sana_config(Random& random, const Mesh& mesh) {
  const bool norms = draw(random, 0, 1), positions = draw(random, 0, 1);
  return sana_fields(random, mesh, "image") + R"(,"qk_norm":)" + (norms ? "\"rms_norm_across_heads\"" : "null") +
         (positions ? R"(,"patch_size":2,"interpolation_scale":1.0})" : R"(,"patch_size":1})");
}
inline std::string sana_video_config(Random& random, const Mesh& mesh) {
  return sana_fields(random, mesh, "video") + R"(,"patch_size":[1,2,2]})";
}

/// Heads of four channels and more, of which sp and tp share the heads; a model with given frames or with guidance.
inline std::string opensora_config(Random& random, const Mesh& mesh) {
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2);
  const int64_t axes[] = {2 * draw(random, 1, 3), 2 * draw(random, 1, 3), 2 * draw(random, 1, 3)};
  const auto number = [](int64_t n) { return std::to_string(n); };
  const bool cond = draw(random, 0, 1);
  return R"({"_class_name":"MMDiTModel","hidden_size":)" + number(heads * (axes[0] + axes[1] + axes[2])) +
         R"(,"num_heads":)" + number(heads) + R"(,"axes_dim":[)" + number(axes[0]) + "," + number(axes[1]) + "," +
         number(axes[2]) + R"(],"depth":)" + number(draw(random, 1, 2)) + R"(,"depth_single_blocks":)" +
         number(draw(random, 1, 3)) + R"(,"mlp_ratio":)" + number(draw(random, 1, 4)) +
         R"(,"in_channels":16,"patch_size":2,"context_in_dim":)" + number(draw(random, 3, 40)) +
         R"(,"context_length":)" + number(draw(random, 3, 9)) + R"(,"vec_in_dim":)" + number(draw(random, 3, 20)) +
         R"(,"cond_embed":)" + (cond ? "true" : "false") + R"(,"guidance_embed":)" + (cond ? "false" : "true") + "}";
}

/// Heads that sp and tp share; models that are given pictures or quoted text, and those that are not.
inline std::string hunyuan_config(Random& random, const Mesh& mesh) {
  const int64_t heads = mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2);
  const int64_t axes[] = {2 * draw(random, 1, 3), 2 * draw(random, 1, 3), 2 * draw(random, 1, 3)};
  const auto number = [](int64_t n) { return std::to_string(n); };
  return R"({"_class_name":"HunyuanVideo_1_5_DiffusionTransformer","hidden_size":)" +
         number(heads * (axes[0] + axes[1] + axes[2])) + R"(,"heads_num":)" + number(heads) + R"(,"rope_dim_list":[)" +
         number(axes[0]) + "," + number(axes[1]) + "," + number(axes[2]) + R"(],"mm_double_blocks_depth":)" +
         number(draw(random, 1, 3)) + R"(,"mlp_width_ratio":)" + number(draw(random, 1, 4)) +
         R"(,"in_channels":5,"out_channels":5,"text_states_dim":)" + number(draw(random, 3, 40)) + R"(,"text_len":)" +
         number(draw(random, 3, 9)) + R"(,"byt5_in_dim":)" + number(draw(random, 3, 20)) + R"(,"byt5_hidden_dim":)" +
         number(draw(random, 3, 20)) + R"(,"vision_states_dim":)" + number(draw(random, 3, 20)) + R"(,"glyph_len":)" +
         number(draw(random, 0, 4)) + R"(,"image_len":)" + number(draw(random, 0, 4)) + R"(,"use_meanflow":)" +
         (draw(random, 0, 3) == 0 ? "true}" : "false}");
}

/// Heads that sp and tp share. 1.3 has windows, which may be larger than a frame, a rotation in both kinds of blocks, and
/// heads of six channels and more.
inline std::string stdit_config(Random& random, const Mesh& mesh, bool first) {
  const int64_t heads = 2 * mesh[Axis::sp] * mesh[Axis::tp] * draw(random, 1, 2);
  const auto number = [](int64_t n) { return std::to_string(n); };
  return R"({"_class_name":"STDiT3","hidden_size":)" + number(heads * (first ? 2 : 6) * draw(random, 1, 3)) +
         R"(,"num_heads":)" + number(heads) + R"(,"depth":)" + number(draw(random, 1, 2)) + R"(,"mlp_ratio":)" +
         number(draw(random, 1, 4)) + R"(,"in_channels":4,"caption_channels":)" + number(draw(random, 3, 40)) +
         R"(,"model_max_length":)" + number(draw(random, 3, 9)) + R"(,"pred_sigma":)" +
         (draw(random, 0, 1) ? "true" : "false") +
         (first ? "}"
                : R"(,"kernel_size":[)" + number(draw(random, 1, 3)) + "," + number(draw(random, 1, 3)) +
                      R"(,-1],"use_spatial_rope":)" + (draw(random, 0, 1) ? "true}" : "false}"));
}
inline std::string stdit12_config(Random& random, const Mesh& mesh) { return stdit_config(random, mesh, true); }
inline std::string stdit13_config(Random& random, const Mesh& mesh) { return stdit_config(random, mesh, false); }

inline const Family& family_of(std::string_view name) {
  static const std::vector<const char*> wan_attentions = {"self_attn", "cross_attn"}, wan_results = {"ffn.2"};
  static const Family seven = {"wan:seven", wan_seven_config, wan_attentions, wan_results, 4, 1, 2e-4,
                               false,       {5, 6, 6}};
  static const Family table[] = {
      {"wan", wan_config, wan_attentions, wan_results},
      {"wan:shapes", wan_shapes_config, wan_attentions, wan_results},
      {"wan:lora", wan_shapes_config, wan_attentions, wan_results, 4, 1, 2e-4, true},
      seven,
      {"wan:seven-lora", wan_seven_pictures_config, wan_attentions, wan_results, 4, 1, 2e-4, true, seven.latent},
      {"wan:vace", vace_config, wan_attentions, wan_results, 4, 3},
      {"wan:vace-lora", vace_config, wan_attentions, wan_results, 4, 3, 2e-4, true},
      {"wan:fun", wan_fun_config, wan_attentions, wan_results, 4, 3, 1e-3},
      {"wan:animate", animate_config, wan_attentions, wan_results, 4, 3, 1e-3, false, {3, 6, 6}, false, 2},
      {"wan:animate-lora", animate_config, wan_attentions, wan_results, 4, 3, 1e-3, true, {3, 6, 6}, false, 2},
      {"toy", toy_config, {"joint", "time"}, {}},
      {"sana", sana_config, {"cross_attn"}, {}, 1, 3, 2e-4, false, {}, false, 1, true},
      {"sana-video", sana_video_config, {"cross_attn"}, {}, 4, 3, 2e-4, false, {}, false, 1, true},
      {"opensora", opensora_config, {"attn"}, {}},
      {"hunyuan", hunyuan_config, {"attn"}, {}, 4, 1, 2e-4, false, {}, true},
      {"stdit:1.2", stdit12_config, {"attn", "cross_attn"}, {"mlp.fc2"}, 4, 3},
      {"stdit:1.3", stdit13_config, {"attn", "cross_attn"}, {"mlp.fc2"}, 4, 3}};
  for (const Family& family : table)
    if (family.name == name) return family;
  throw UserError(Exit::usage, "families", "no family " + std::string(name));
}

/// A little beside the initial values: what begins as zero, a head, would leave all before it without a gradient. Uniform,
/// since normal values took workers a fifth of their time.
inline void draw_weights(const net::Denoiser& model, uint64_t seed, const plan::ParamSpec& param, int64_t first,
                         int64_t count, float* out) {
  model.initialise(param, seed, first, count, out);
  std::vector<uint16_t> more(static_cast<size_t>(count));
  const RandomKey key(seed, Purpose::test, std::hash<std::string>()(param.name));
  key.half_words(more.data(), static_cast<uint64_t>(first), more.size());
  constexpr float kLargest = 0.035f;
  for (size_t i = 0; i < more.size(); ++i) out[i] += kLargest * (static_cast<float>(more[i]) / 32768 - 1);
}

/// The same for one model and seed, each parameter drawn once, however often and in what parts it is asked for.
class DrawnWeights {
 public:
  DrawnWeights(const net::Denoiser& model, uint64_t seed) : model_(model), seed_(seed) {}
  void operator()(const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
    std::vector<float>& values = known_[param.name];
    if (values.empty()) {
      values.resize(static_cast<size_t>(c10::multiply_integers(param.shape)));
      draw_weights(model_, seed_, param, 0, static_cast<int64_t>(values.size()), values.data());
    }
    std::copy_n(values.begin() + first, count, out);
  }

 private:
  const net::Denoiser& model_;
  const uint64_t seed_;
  std::map<std::string, std::vector<float>> known_;
};

}  // namespace tessera::testing
