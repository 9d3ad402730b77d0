// Prompts from their text to the rows that a denoiser gets, behind an instruction or without: kinds that a text
// encoder's row names (TextEncoderCase::prompts). The encoder runs under the engine on any mesh.
#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/prepare/text_pass.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;

/// A run of prompts.json.
class PromptRun {
 public:
  PromptRun(CaseFile& file, const CaseContext& context, prepare::EncoderRun& run, const net::TextEncoder& encoder,
            const std::string& name, const Settings& json)
      : file_(file),
        context_(context),
        run_(run),
        encoder_(encoder),
        out_("out." + name + "."),
        length_(json.at("max_sequence_length")),
        tokenizer_(context.folder / "tokenizer.json", instruction_of(json), length_),
        with_instruction_(!lines_of(json).empty()) {}

  void check(const Settings& json) {
    const Settings negative = json.at("negative_prompt");
    std::vector<data::PromptIds> prompts, plain;
    for (const auto& text : json.at("prompts").get<std::vector<std::string>>()) {
      prompts.push_back(with_instruction_ ? tokenizer_.encode_behind(text) : tokenizer_.encode_plain(text));
      const Settings against = negative.is_array() ? negative.at(plain.size()) : negative;
      plain.push_back(tokenizer_.encode_plain(against.get<std::string>()));
    }
    const int64_t longest = with_instruction_ ? tokenizer_.longest() : length_;
    check_ids("input_ids", "attention_mask", prompts, longest);
    check_ids("negative_input_ids", "negative_attention_mask", plain, length_);
    std::vector<int64_t> kept = {0};  // the places of the padded ids that embeddings are of
    for (int64_t i = 1; i < length_; ++i) kept.push_back(prompts.front().kept_from + i - 1);
    file_.compare(out_ + "select", at::tensor(kept, at::kLong), 0.0);
    check_rows("prompt_embeds", "prompt_attention_mask", prompts);
    check_rows("negative_embeds", "", plain);  // whose mask is that of its ids
  }

 private:
  static std::vector<std::string> lines_of(const Settings& json) {
    return json.value("complex_human_instruction", std::vector<std::string>());
  }
  static std::string instruction_of(const Settings& json) {
    std::string text;
    const std::vector<std::string> lines = lines_of(json);
    for (size_t i = 0; i < lines.size(); ++i) text += (i ? "\n" : "") + lines[i];
    return text;
  }

  void check_ids(const char* name, const char* mask, const std::vector<data::PromptIds>& prompts, int64_t length) {
    const auto count = static_cast<int64_t>(prompts.size());
    Tensor ids = at::zeros({count, length}, at::kLong), real = at::zeros({count, length}, at::kLong);  // pad is 0
    for (int64_t b = 0; b < count; ++b) {
      const std::vector<int64_t>& of = prompts[static_cast<size_t>(b)].ids;
      const auto n = static_cast<int64_t>(of.size());
      ids[b].slice(0, 0, n).copy_(at::tensor(of, at::kLong));
      real[b].slice(0, 0, n).fill_(1);
    }
    file_.compare(out_ + name, ids, 0.0);
    file_.compare(out_ + mask, real, 0.0);
  }

  /// Rows [B, L, D], zero behind those of the prompt.
  void check_rows(const std::string& name, const std::string& mask, const std::vector<data::PromptIds>& prompts) {
    std::vector<Tensor> rows, real;
    for (const data::PromptIds& prompt : prompts) {
      const Tensor kept = prepare::kept_rows(run_.forward(encoder_.pack({prompt.ids})), prompt);
      const int64_t missing = length_ - kept.size(0);
      rows.push_back(at::constant_pad_nd(kept, {0, 0, 0, missing}));
      real.push_back(at::constant_pad_nd(at::ones({kept.size(0)}, at::kLong), {0, missing}));
    }
    file_.compare(out_ + name, at::stack(rows), context_.bound("out"));
    if (!mask.empty()) file_.compare(out_ + mask, at::stack(real), 0.0);
  }

  CaseFile& file_;
  const CaseContext& context_;
  prepare::EncoderRun& run_;
  const net::TextEncoder& encoder_;
  const std::string out_;
  const int64_t length_;
  const data::PromptTokenizer tokenizer_;
  const bool with_instruction_;
};

}  // namespace

CaseResults verify_prompts(const CaseContext& context, const models::TextEncoderMake& make) {
  const auto config = context.folder / "config.json", prompts = context.folder / "prompts.json";
  const auto encoder = make.from_json(checkpoint::read_text(config), config.string());
  prepare::EncoderRun run(encoder->units(), encoder->fingerprint(), context.mesh, *context.comm, context.rank);
  prepare::load_text(run, *encoder, (context.folder / "model.safetensors").string());
  CaseFile file(context.name, context.case_files().front());
  const Settings runs(parse_ordered_json(checkpoint::read_text(prompts), prompts.string()));
  for (const auto& [name, json] : runs.items()) {
    PromptRun(file, context, run, *encoder, name, json).check(json);
    const std::vector<std::string> unread = json.unread({});
    if (!unread.empty()) file.refuse_run(name, "prompts.json: " + unread.front() + " is not known to this build");
  }
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
