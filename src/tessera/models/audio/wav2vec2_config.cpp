#include "tessera/models/audio/wav2vec2_config.h"

#include "tessera/models/common/config_reader.h"

namespace tessera::models::wav2vec {

int64_t Config::shortest() const {
  int64_t samples = 1;
  for (size_t i = conv_kernel.size(); i-- > 0;) samples = (samples - 1) * conv_stride[i] + conv_kernel[i];
  return samples;
}

namespace {

/// Of its training, of heads that are not used, and of transformers' classes in general.
constexpr std::initializer_list<const char*> kWithoutEffect = {"return_dict",
                                                               "output_hidden_states",
                                                               "output_attentions",
                                                               "torchscript",
                                                               "use_bfloat16",
                                                               "tf_legacy_loss",
                                                               "pruned_heads",
                                                               "tie_word_embeddings",
                                                               "chunk_size_feed_forward",
                                                               "is_encoder_decoder",
                                                               "is_decoder",
                                                               "add_cross_attention",
                                                               "tie_encoder_decoder",
                                                               "max_length",
                                                               "min_length",
                                                               "do_sample",
                                                               "early_stopping",
                                                               "num_beams",
                                                               "num_beam_groups",
                                                               "diversity_penalty",
                                                               "temperature",
                                                               "top_k",
                                                               "top_p",
                                                               "typical_p",
                                                               "repetition_penalty",
                                                               "length_penalty",
                                                               "no_repeat_ngram_size",
                                                               "encoder_no_repeat_ngram_size",
                                                               "num_return_sequences",
                                                               "output_scores",
                                                               "return_dict_in_generate",
                                                               "remove_invalid_values",
                                                               "id2label",
                                                               "label2id",
                                                               "bos_token_id",
                                                               "pad_token_id",
                                                               "eos_token_id",
                                                               "bad_words_ids",
                                                               "cross_attention_hidden_size",
                                                               "decoder_start_token_id",
                                                               "exponential_decay_length_penalty",
                                                               "finetuning_task",
                                                               "forced_bos_token_id",
                                                               "forced_eos_token_id",
                                                               "prefix",
                                                               "problem_type",
                                                               "sep_token_id",
                                                               "suppress_tokens",
                                                               "begin_suppress_tokens",
                                                               "task_specific_params",
                                                               "tokenizer_class",
                                                               "torch_dtype",
                                                               "_name_or_path",
                                                               "_attn_implementation_autoset",
                                                               "transformers_version",
                                                               "num_feat_extract_layers",
                                                               "hidden_dropout",
                                                               "attention_dropout",
                                                               "activation_dropout",
                                                               "feat_proj_dropout",
                                                               "feat_quantizer_dropout",
                                                               "final_dropout",
                                                               "layerdrop",
                                                               "initializer_range",
                                                               "vocab_size",
                                                               "use_weighted_layer_sum",
                                                               "apply_spec_augment",
                                                               "mask_time_prob",
                                                               "mask_time_length",
                                                               "mask_time_min_masks",
                                                               "mask_feature_prob",
                                                               "mask_feature_length",
                                                               "mask_feature_min_masks",
                                                               "num_codevectors_per_group",
                                                               "num_codevector_groups",
                                                               "contrastive_logits_temperature",
                                                               "num_negatives",
                                                               "codevector_dim",
                                                               "proj_codevector_dim",
                                                               "diversity_loss_weight",
                                                               "ctc_loss_reduction",
                                                               "ctc_zero_infinity",
                                                               "adapter_kernel_size",
                                                               "adapter_stride",
                                                               "num_adapter_layers",
                                                               "adapter_attn_dim",
                                                               "output_hidden_size",
                                                               "classifier_proj_size",
                                                               "tdnn_dim",
                                                               "tdnn_kernel",
                                                               "tdnn_dilation",
                                                               "xvector_output_dim"};

}  // namespace

Config parse_config(std::string_view text, const std::string& file) {
  const ConfigReader json(text, file);
  json.expect("model_type", "wav2vec2");
  json.expect("feat_extract_norm", "layer");
  json.expect("feat_extract_activation", "gelu");
  json.expect("hidden_act", "gelu");
  json.expect("conv_bias", true);
  json.expect("do_stable_layer_norm", true);
  json.expect("add_adapter", false);
  json.without_effect(kWithoutEffect);
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
