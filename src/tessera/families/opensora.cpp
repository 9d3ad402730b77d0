#include "tessera/families/family.h"

namespace tessera::families {

Family opensora() {
  using Kind = ConfigKey::Kind;
  Family family;
  family.name = "opensora";
  family.preset = "opensora2-11b";
  family.config_keys = {
      {"hidden_size", Kind::integer, "width"},
      {"num_heads", Kind::integer, "attention heads"},
      {"depth", Kind::integer, "blocks with a stream of video and one of text"},
      {"depth_single_blocks", Kind::integer, "blocks after them, with one stream"},
      {"in_channels", Kind::integer, "latent channels of a token: those of the autoencoder times the patch squared"},
      {"patch_size", Kind::integer, "height and width of a patch"},
      {"axes_dim", Kind::integers, "channels of a head that are rotated by frame, row and column"},
      {"context_in_dim", Kind::integer, "width of text embeddings"},
      {"context_length", Kind::integer, "most text tokens of a caption"},
      {"vec_in_dim", Kind::integer, "width of the pooled text"},
  };
  family.codec = "haar";
  family.text_encoders = {"t5-v1_1-xxl"};
  family.autoencoders = {"hunyuan-vae", "dc-ae-f32t4c128"};
  family.whole_clip_autoencoders = family.autoencoders;
  family.pooled_encoders = {"clip-l", "clip-text-demo"};
  family.shift_by_size = {"Open-Sora 2.0"};
  family.files = {{.role = "vae",
                   .variant = {},
                   .mark = "hunyuan_vae",
                   .official = "hunyuan_vae",
                   .comfyui_folder = "vae",
                   .comfyui = "hunyuan_video_vae"},
                  {.role = "text_encoder",
                   .variant = {},
                   .mark = "t5-v1_1",
                   .official = "google/t5-v1_1-xxl",
                   .comfyui_folder = "text_encoders",
                   .comfyui = "t5xxl",
                   .folder = true},
                  {.role = "text_encoder_2",
                   .variant = {},
                   .mark = "clip-vit",
                   .official = "openai/clip-vit-large-patch14",
                   .comfyui_folder = "text_encoders",
                   .comfyui = "clip_l",
                   .folder = true}};
  family.text_encoder = "umt5-demo";
  family.columns = {{"latents", "latents_path"}, {"context", "text_t5_path"}, {"pooled", "text_clip_path"}};
  return family;
}

}  // namespace tessera::families
