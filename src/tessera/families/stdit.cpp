#include "tessera/families/family.h"

namespace tessera::families {

Family stdit() {
  using Kind = ConfigKey::Kind;
  Family family;
  family.name = "stdit";
  family.preset = "opensora1.2";
  family.config_keys = {
      {"hidden_size", Kind::integer, "width"},
      {"num_heads", Kind::integer, "attention heads"},
      {"depth", Kind::integer, "pairs of a spatial and a temporal block"},
      {"in_channels", Kind::integer, "latent channels"},
      {"mlp_ratio", Kind::number, "width of the feed-forward, in model widths"},
      {"patch_size", Kind::integers, "frames, height and width of a patch"},
      {"caption_channels", Kind::integer, "width of text embeddings"},
      {"model_max_length", Kind::integer, "most text tokens of a caption"},
      {"input_sq_size", Kind::integer, "side in pixels of the square that is the unit of positions"},
  };
  family.codec = "haar";
  family.autoencoders = {"opensora1.2-vae", "opensora1.3-vae"};
  family.text_encoders = {"t5-v1_1-xxl"};
  family.shift_by_size = {"Open-Sora 1.2"};
  family.text_encoder = "umt5-demo";
  return family;
}

}  // namespace tessera::families
