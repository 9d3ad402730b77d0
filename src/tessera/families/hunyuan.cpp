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
  family.text_encoder = "umt5-demo";
  return family;
}

}  // namespace tessera::families
