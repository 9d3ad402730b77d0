#include "tessera/families/wan.h"

namespace tessera::families {

namespace {

using Kind = ConfigKey::Kind;

std::vector<ConfigKey> config_keys() {
  return {
      {"model_type", Kind::text, "t2v, i2v, flf2v, ti2v, s2v, vace or animate; empty: by the channels"},
      {"dim", Kind::integer, "width (hidden size)"},
      {"ffn_dim", Kind::integer, "width of the feed-forward layer"},
      {"num_heads", Kind::integer, "attention heads"},
      {"num_layers", Kind::integer, "transformer blocks"},
      {"in_dim", Kind::integer, "latent channels in"},
      {"out_dim", Kind::integer, "latent channels out"},
      {"freq_dim", Kind::integer, "width of the timestep embedding's sinusoids"},
      {"text_dim", Kind::integer, "width of text embeddings"},
      {"text_len", Kind::integer, "text tokens of a caption"},
      {"image_dim", Kind::integer, "width of CLIP features, for a model with an image branch"},
      {"image_len", Kind::integer, "CLIP tokens of one image"},
      {"in_dim_ref_conv", Kind::integer, "Fun: channels of a reference picture's latent; absent: it takes none"},
      {"in_dim_control_adapter", Kind::integer, "Fun: channels of a camera's rays; absent: it takes none"},
      {"downscale_factor_control_adapter", Kind::integer, "Fun: pixels of a latent's cell"},
      {"cond_dim", Kind::integer, "s2v: channels of the pose latent, those of the autoencoder"},
      {"audio_dim", Kind::integer, "s2v: width of the speech encoder's hidden states"},
      {"num_audio_token", Kind::integer, "s2v: audio tokens of a latent frame"},
      {"audio_inject_layers", Kind::integers, "s2v: blocks followed by audio cross-attention"},
      {"vace_layers", Kind::integers, "vace: blocks that are followed by a block of the second stream; the first is 0"},
      {"vace_in_dim", Kind::integer, "vace: channels of the context, two latents and 64 of the mask"},
      {"eps", Kind::number, "epsilon of the norms"},
  };
}

/// The names that the official code looks for.
std::vector<ReleasedFile> released_files() {
  return {
      {.role = "text_encoder",
       .variant = {},
       .mark = "models_t5",
       .official = "models_t5_umt5-xxl-enc-bf16",
       .comfyui_folder = "text_encoders",
       .comfyui = "umt5_xxl"},
      {.role = "vae",
       .variant = "2.1",
       .mark = "VAE",
       .official = "Wan2.1_VAE",
       .comfyui_folder = "vae",
       .comfyui = "Wan2.1_VAE"},
      {.role = "vae",
       .variant = "2.2",
       .mark = "VAE",
       .official = "Wan2.2_VAE",
       .comfyui_folder = "vae",
       .comfyui = "Wan2.2_VAE"},
      {.role = "image_encoder",
       .variant = {},
       .mark = "models_clip",
       .official = "models_clip_open-clip-xlm-roberta-large-vit-huge-14",
       .comfyui_folder = "clip_vision",
       .comfyui = "clip_vision_h"},
      {.role = "audio_encoder",
       .variant = {},
       .mark = "wav2vec2",
       .official = "wav2vec2-large-xlsr-53-english",
       .comfyui_folder = "audio_encoders",
       .comfyui = "wav2vec2_large_english",
       .folder = true},
  };
}

}  // namespace

Family wan() {
  return {.name = "wan",
          .types = {"t2v", "i2v", "flf2v", "ti2v", "s2v", "vace", "animate"},
          .preset = "wan2.1-t2v-1.3b",
          .config_keys = config_keys(),
          .codec = "haar",
          .text_encoder = "umt5-demo",
          .autoencoders = {"wan2.1-vae", "wan2.2-vae"},
          .whole_clip_autoencoders = {},
          .text_encoders = {"umt5-xxl"},
          .image_encoders = {"clip-vit-h", "clip-demo"},
          .pooled_encoders = {},
          .glyph_encoders = {},
          .audio_encoder = "wav2vec-demo",
          .experts = {{"high_noise", "high_noise_model"}, {"low_noise", "low_noise_model"}},
          .files = released_files(),
          .tokenizer = "google/umt5-xxl",
          .lora_network = "networks.lora_wan",
          .columns = {{"pose", "s2v_pose_video"},
                      {"pose", "animate_pose_video"},
                      {"face", "animate_face_video"},
                      {"guide", "background_file_path"},
                      {"guide_mask", "mask_file_path"},
                      {"references", "ref_file_path"},
                      {"guide", "vace_video"},
                      {"guide_mask", "vace_video_mask"},
                      {"references", "vace_reference_image"},
                      {"references", "object_file_path"}},
          .shift_by_size = {}};
}

namespace {

// Frames, steps, rate, shift and guidance are those of the releases' configurations.
constexpr WanTask kTasks[] = {
    {"t2v-1.3B", "wan2.1-t2v-1.3b", "t2v", false, kWan21Vae, 81, 50, 16, 5, 5, 832, 480},
    {"t2v-14B", "wan2.1-t2v-14b", "t2v", false, kWan21Vae, 81, 50, 16, 5, 5, 1280, 720},
    {"t2i-14B", "wan2.1-t2v-14b", "t2v", false, kWan21Vae, 1, 50, 16, 5, 5, 1280, 720},
    {"i2v-14B", "wan2.1-i2v-14b-720p", "i2v", false, kWan21Vae, 81, 40, 16, 5, 5, 1280, 720},
    {"flf2v-14B", "wan2.1-flf2v-14b-720p", "flf2v", false, kWan21Vae, 81, 50, 16, 16, 5, 1280, 720},
    {"t2v-A14B", "wan2.2-t2v-a14b", "t2v", true, kWan21Vae, 81, 40, 16, 12, 3, 1280, 720},
    {"i2v-A14B", "wan2.2-i2v-a14b", "i2v", true, kWan21Vae, 81, 40, 16, 5, 3.5, 1280, 720},
    {"ti2v-5B", "wan2.2-ti2v-5b", "ti2v", false, kWan22Vae, 121, 50, 24, 5, 5, 1280, 704},
    {"s2v-14B", "wan2.2-s2v-14b", "s2v", false, kWan21Vae, 80, 40, 16, 3, 4.5, 1280, 720},
    {"animate-14B", "wan2.2-animate-14b", "animate", false, kWan21Vae, 77, 20, 30, 5, 1, 1280, 720},
    {"vace-1.3B", "wan2.1-vace-1.3b", "vace", false, kWan21Vae, 81, 50, 16, 16, 5, 832, 480},
    {"vace-14B", "wan2.1-vace-14b", "vace", false, kWan21Vae, 81, 50, 16, 16, 5, 1280, 720},
};

}  // namespace

std::span<const WanTask> wan_tasks() { return kTasks; }

}  // namespace tessera::families
