#include "tessera/families/family.h"

namespace tessera::families {

Family hunyuan() {
  using Kind = ConfigKey::Kind;
  Family family;
  family.name = "hunyuan";
  family.preset = "hunyuan1.5-480p-t2v";
  family.config_keys = {
      {"hidden_size", Kind::integer, "width"},
      {"heads_num", Kind::integer, "attention heads"},
      {"mm_double_blocks_depth", Kind::integer, "blocks, each with a stream of video and one of words"},
      {"in_channels", Kind::integer, "latent channels"},
      {"out_channels", Kind::integer, "the same"},
      {"mlp_width_ratio", Kind::number, "width of the feed-forward, in model widths"},
      {"rope_dim_list", Kind::integers, "channels of a head that are rotated by frame, row and column"},
      {"text_states_dim", Kind::integer, "width of text embeddings"},
      {"text_len", Kind::integer, "most text tokens of a caption"},
      {"byt5_in_dim", Kind::integer, "width of the embeddings of quoted text"},
      {"glyph_len", Kind::integer, "most tokens of quoted text; 0: the model is given none"},
      {"vision_states_dim", Kind::integer, "width of a picture's features"},
      {"image_len", Kind::integer, "most features of a picture; 0: the model is given none"},
  };
  family.codec = "haar";
  family.autoencoders = {"hunyuan15-vae"};
  family.text_encoders = {"qwen2.5-vl-7b"};
  family.image_encoders = {"siglip-so400m", "siglip-demo"};
  family.glyph_encoders = {"byt5-glyph", "byt5-demo"};
  family.text_encoder = "umt5-demo";
  const auto part = [](const char* role, const char* folder, const char* comfyui_folder, const char* comfyui) {
    return ReleasedFile{.role = role,
                        .variant = {},
                        .mark = std::string(folder) + "/",  // of no other name than its own
                        .official = folder,
                        .comfyui_folder = comfyui_folder,
                        .comfyui = comfyui,
                        .folder = true};
  };
  family.files = {
      part("vae", "vae", "vae", "hunyuanvideo15_vae"),
      part("text_encoder", "text_encoder/llm", "text_encoders", "qwen_2.5_vl_7b"),
      part("text_encoder_2", "text_encoder/Glyph-SDXL-v2/checkpoints", "text_encoders", "byt5_small_glyphxl"),
      part("image_encoder", "vision_encoder/siglip/image_encoder", "clip_vision", "sigclip_vision_patch14_384")};
  return family;
}

}  // namespace tessera::families
