#include "tessera/models/text/umt5_make.h"

#include "tessera/models/common/unknown.h"
#include "tessera/models/text/umt5.h"
#include "tessera/models/text/umt5_weight_form.h"

namespace tessera::models::umt5 {

namespace {

using at::Tensor;

std::unique_ptr<net::TextEncoder> from_preset(const std::string& preset) {
  return std::make_unique<Umt5>(find_named(presets(), "text encoder", preset));
}

std::unique_ptr<net::TextEncoder> from_json(const std::string& json, const std::string& file) {
  return std::make_unique<Umt5>(parse_config(json, file));
}

const Umt5& as_umt5(const net::TextEncoder& encoder) { return dynamic_cast<const Umt5&>(encoder); }

net::Batch pack_case(const net::TextEncoder& encoder, const CaseTensors& file) {
  return as_umt5(encoder).pack_padded(file.tensor("in.ids"), file.tensor("in.mask"));
}

/// `hidden` [B * L, dim]; beside it the bias of block 0 for L tokens, [heads, L, L].
NamedTensors case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                          const std::function<Tensor(const std::string& name)>& parameter) {
  const Tensor ids = file.tensor("in.ids");
  const int64_t n = ids.size(1);
  const Tensor table = parameter("blocks.0.pos_embedding.embedding.weight");
  const Tensor bias =
      at::embedding(table, relative_buckets(n, as_umt5(encoder).config(), table)).t().reshape({-1, n, n});
  return {{"out.hidden", hidden.reshape({ids.size(0), n, encoder.dim()})},
          {"out.pos_bias_block0", bias.select(1, 0)},
          {"out.pos_bias_block0_last_row", bias.select(1, n - 1)}};
}

std::unique_ptr<net::TextEncoder> from_t5_preset(const std::string& preset) {
  return std::make_unique<Umt5>(find_named(t5_presets(), "text encoder", preset));
}

/// The prompts twice: with their mask, and as Open-Sora encodes them, whose padding takes part.
net::Batch pack_t5_case(const net::TextEncoder& encoder, const CaseTensors& file) {
  const Tensor ids = file.tensor("in.input_ids"), mask = file.tensor("in.attention_mask");
  return as_umt5(encoder).pack_padded(at::cat({ids, ids}), at::cat({mask, at::ones_like(mask)}));
}

Tensor both_of(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden) {
  const Tensor ids = file.tensor("in.input_ids");
  return hidden.reshape({2, ids.size(0), ids.size(1), encoder.dim()});
}

NamedTensors t5_case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                             const std::function<Tensor(const std::string& name)>&) {
  const Tensor both = both_of(encoder, file, hidden);
  return {{"out.last_hidden_state", both[0]}, {"out.last_hidden_state_nomask", both[1]}};
}

}  // namespace

TextEncoderMake t5_text_encoder() {
  return {.presets = [] { return names_of(t5_presets()); },
          .from_preset = from_t5_preset,
          .from_json = from_json,
          .weights = t5_weight_form(),
          .verify = {.kind = "t5",
                     .pack = pack_t5_case,
                     .results = t5_case_results,
                     .state = [](const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
                       return both_of(encoder, file, rows)[0];
                     }}};
}

TextEncoderMake text_encoder() {
  return {.presets = [] { return names_of(presets()); },
          .from_preset = from_preset,
          .from_json = from_json,
          .weights = weight_form(),
          .verify = {.kind = "umt5",
                     .pack = pack_case,
                     .results = case_results,
                     .state = [](const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
                       const Tensor ids = file.tensor("in.ids");
                       return rows.reshape({ids.size(0), ids.size(1), encoder.dim()});
                     }}};
}

}  // namespace tessera::models::umt5
