#include "tessera/families/family.h"

namespace tessera::families {

Family sana() {
  using Kind = ConfigKey::Kind;
  Family family;
  family.name = "sana";
  family.types = {"image", "sprint", "video"};
  family.preset = "sana-1.6b";
  family.config_keys = {
      {"model_type", Kind::text, "image, sprint or video"},
      {"num_attention_heads", Kind::integer, "heads of the linear attention"},
      {"attention_head_dim", Kind::integer, "channels of a head of the linear attention"},
      {"num_cross_attention_heads", Kind::integer, "heads of the cross-attention"},
      {"num_layers", Kind::integer, "transformer blocks"},
      {"in_channels", Kind::integer, "latent channels"},
      {"caption_channels", Kind::integer, "width of text embeddings"},
      {"caption_length", Kind::integer, "most text tokens of a caption"},
      {"mlp_ratio", Kind::number, "width of the feed-forward's halves, in model widths"},
      {"patch_size", Kind::integers, "frames, height and width of a patch"},
      {"sample_size", Kind::integer, "side of the latents that the table of positions is for"},
      {"interpolation_scale", Kind::number, "scale of the table of positions; empty: no table"},
      {"qk_norm", Kind::text, "rms_norm_across_heads, or empty: no norms of queries and keys"},
      {"timestep_scale", Kind::number,
       "factor of timesteps before their embedding; 0.001 for a model that shall become a teacher (distill.teacher)"},
      {"norm_eps", Kind::number, "epsilon of the modulated norms"},
      {"linear_attention_eps", Kind::number, "added to the divisor of the linear attention: 1e-15, or NVlabs' 1e-8"},
      {"cross_attention_norm_eps", Kind::number, "epsilon of the cross-attention's norms: 1e-5, or NVlabs' 1e-6"},
  };
  family.codec = "haar";
  family.autoencoders = {"dc-ae-f32c32"};
  family.text_encoders = {"gemma-2-2b"};
  family.text_encoder = "umt5-demo";
  return family;
}

}  // namespace tessera::families
