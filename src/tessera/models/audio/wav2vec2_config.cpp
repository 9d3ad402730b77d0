#include "tessera/models/audio/wav2vec2_config.h"

#include "tessera/models/common/config_reader.h"

namespace tessera::models::wav2vec {

int64_t Config::shortest() const {
  int64_t samples = 1;
  for (size_t i = conv_kernel.size(); i-- > 0;) samples = (samples - 1) * conv_stride[i] + conv_kernel[i];
  return samples;
}

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("model_type", "wav2vec2");
  json.expect("feat_extract_norm", "layer");
  json.expect("feat_extract_activation", "gelu");
  json.expect("hidden_act", "gelu");
  json.expect("conv_bias", true);
  json.expect("do_stable_layer_norm", true);
  Config c;
  c.hidden_size = json.size("hidden_size", c.hidden_size);
  c.num_layers = json.size("num_hidden_layers", c.num_layers);
  c.num_heads = json.size("num_attention_heads", c.num_heads);
  c.ffn_dim = json.size("intermediate_size", c.ffn_dim);
  c.conv_dim = json.sizes("conv_dim", c.conv_dim);
  c.conv_kernel = json.sizes("conv_kernel", c.conv_kernel);
  c.conv_stride = json.sizes("conv_stride", c.conv_stride);
  c.position_kernel = json.size("num_conv_pos_embeddings", c.position_kernel);
  c.position_groups = json.size("num_conv_pos_embedding_groups", c.position_groups);
  c.eps = json.real("layer_norm_eps", c.eps);
  if (c.conv_kernel.size() != c.conv_dim.size() || c.conv_stride.size() != c.conv_dim.size())
    json.fail("conv_dim, conv_kernel and conv_stride are lists of different lengths");
  double samples = 1;  // as shortest() counts them
  for (size_t i = c.conv_kernel.size(); i-- > 0;)
    samples = (samples - 1) * static_cast<double>(c.conv_stride[i]) + static_cast<double>(c.conv_kernel[i]);
  json.expect_narrow("the number of samples that conv_kernel and conv_stride make a row", samples);
  if (c.hidden_size % c.num_heads != 0) json.fail("hidden_size is not a multiple of num_attention_heads");
  if (c.hidden_size % c.position_groups != 0)
    json.fail("hidden_size is not a multiple of num_conv_pos_embedding_groups");
  return c;
}

}  // namespace tessera::models::wav2vec
