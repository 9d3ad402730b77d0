#include "tessera/models/text/umt5_names.h"

namespace tessera::models::umt5 {

const std::vector<NamePattern>& hf_names() {
  static const std::vector<NamePattern> table = {
      {"token_embedding.weight", "shared.weight"},
      {"norm.weight", "encoder.final_layer_norm.weight"},
      {"blocks.#.norm1.*", "encoder.block.#.layer.0.layer_norm.*"},
      {"blocks.#.pos_embedding.embedding.*", "encoder.block.#.layer.0.SelfAttention.relative_attention_bias.*"},
      {"blocks.#.attn.*", "encoder.block.#.layer.0.SelfAttention.*"},
      {"blocks.#.norm2.*", "encoder.block.#.layer.1.layer_norm.*"},
      {"blocks.#.ffn.gate.0.*", "encoder.block.#.layer.1.DenseReluDense.wi_0.*"},
      {"blocks.#.ffn.fc1.*", "encoder.block.#.layer.1.DenseReluDense.wi_1.*"},
      {"blocks.#.ffn.fc2.*", "encoder.block.#.layer.1.DenseReluDense.wo.*"},
  };
  return table;
}

}  // namespace tessera::models::umt5
