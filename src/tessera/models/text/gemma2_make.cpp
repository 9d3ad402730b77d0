#include "tessera/models/text/gemma2_make.h"

#include "tessera/models/common/unknown.h"
#include "tessera/models/text/gemma2.h"
#include "tessera/models/text/gemma2_weight_form.h"
#include "tessera/models/text/prompts.h"

namespace tessera::models::gemma2 {

namespace {

using at::Tensor;

net::Batch pack_case(const net::TextEncoder& encoder, const CaseTensors& file) {
  return encoder.pack(real_tokens(file.tensor("in.input_ids"), file.tensor("in.attention_mask")));
}

/// `rows` [T, dim] of the tokens with mask 1; the case has zeros for the others.
Tensor case_state(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& rows) {
  const net::Batch batch = pack_case(encoder, file);
  return padded_rows(rows, batch.tokens.offsets, file.tensor("in.input_ids").size(1));
}

NamedTensors case_results(const net::TextEncoder& encoder, const CaseTensors& file, const Tensor& hidden,
                          const std::function<Tensor(const std::string& name)>&) {
  return {{"out.last_hidden_state", case_state(encoder, file, hidden)}};
}

}  // namespace

TextEncoderMake text_encoder() {
  return {.presets = [] { return names_of(presets()); },
          .from_preset = [](const std::string& preset) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<Gemma2>(find_named(presets(), "text encoder", preset));
          },
          .from_json = [](const std::string& json, const std::string& file) -> std::unique_ptr<net::TextEncoder> {
            return std::make_unique<Gemma2>(parse_config(json, file));
          },
          .weights = weight_form(),
          .verify = {.kind = "gemma2",
                     .pack = pack_case,
                     .results = case_results,
                     .prompts = "sana_prompt",
                     .state = case_state}};
}

}  // namespace tessera::models::gemma2
