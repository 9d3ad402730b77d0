// Prompts from their text to the rows that a denoiser gets, behind an instruction or without: kinds that a text
// encoder's row names (TextEncoderCase::prompts), conversations and glyphs in the cases of their encoders. The encoder runs
// under the engine on any mesh.
#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer_model.h"
#include "tessera/prepare/text_pass.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;

/// An encoder as prepare runs it, and the rows of prompts that a case expects of it.
class PromptRows {
 public:
  PromptRows(CaseFile& file, const CaseContext& context, const models::TextEncoderMake& make,
             const std::string& weights = "model.safetensors")
      : file_(file), bound_(context.bound("out")) {
    const auto config = context.folder / "config.json";
    encoder_ = make.from_json(checkpoint::read_text(config), config.string());
    run_.emplace(encoder_->units(), encoder_->fingerprint(), context.mesh, *context.comm, context.rank);
    prepare::load_text(*run_, *encoder_, (context.folder / weights).string());
  }

  /// Ids and their mask, [B, length] each.
  void check_ids(const std::string& name, const std::string& mask, const std::vector<data::PromptIds>& prompts,
                 int64_t length, int64_t pad) {
    const auto count = static_cast<int64_t>(prompts.size());
    Tensor ids = at::full({count, length}, pad, at::kLong), real = at::zeros({count, length}, at::kLong);
    for (int64_t b = 0; b < count; ++b) {
      const std::vector<int64_t>& of = prompts[static_cast<size_t>(b)].ids;
      const auto n = static_cast<int64_t>(of.size());
      ids[b].slice(0, 0, n).copy_(at::tensor(of, at::kLong));
      real[b].slice(0, 0, n).fill_(1);
    }
    file_.compare(name, ids, 0.0);
    file_.compare(mask, real, 0.0);
  }

  /// Rows [B, length, D], zero behind those of the prompt, and their mask where it has a name. No ids: no rows.
  void check_rows(const std::string& name, const std::string& mask, const std::vector<data::PromptIds>& prompts,
                  int64_t length) {
    std::vector<Tensor> rows, real;
    for (const data::PromptIds& prompt : prompts) {
      const Tensor kept = prompt.ids.empty() ? at::zeros({0, encoder_->dim()}, at::kFloat)
                                             : prepare::kept_rows(run_->forward(encoder_->pack({prompt.ids})), prompt);
      const int64_t missing = length - kept.size(0);
      rows.push_back(at::constant_pad_nd(kept, {0, 0, 0, missing}));
      real.push_back(at::constant_pad_nd(at::ones({kept.size(0)}, at::kLong), {0, missing}));
    }
    file_.compare(name, at::stack(rows), bound_);
    if (!mask.empty()) file_.compare(mask, at::stack(real), 0.0);
  }

 private:
  CaseFile& file_;
  const std::function<double(double)> bound_;
  std::unique_ptr<net::TextEncoder> encoder_;
  std::optional<prepare::EncoderRun> run_;
};

std::string joined_lines(const Settings& json) {
  std::string text;
  const auto lines = json.value("complex_human_instruction", std::vector<std::string>());
  for (size_t i = 0; i < lines.size(); ++i) text += (i ? "\n" : "") + lines[i];
  return text;
}

/// A run of prompts.json behind Sana's instruction, or without.
void check_instructed(const CaseContext& context, PromptRows& rows, CaseFile& file, const std::string& name,
                      const Settings& json) {
  const std::string out = "out." + name + ".", instruction = joined_lines(json);
  const int64_t length = json.at("max_sequence_length");
  const data::PromptTokenizer tokenizer(context.folder / "tokenizer.json", instruction, length);
  const bool instructed = !json.value("complex_human_instruction", std::vector<std::string>()).empty();
  const Settings negative = json.at("negative_prompt");
  std::vector<data::PromptIds> prompts, plain;
  for (const auto& text : json.at("prompts").get<std::vector<std::string>>()) {
    prompts.push_back(instructed ? tokenizer.encode_behind(text) : tokenizer.encode_plain(text));
    const Settings against = negative.is_array() ? negative.at(plain.size()) : negative;
    plain.push_back(tokenizer.encode_plain(against.get<std::string>()));
  }
  constexpr int64_t kPad = 0;
  rows.check_ids(out + "input_ids", out + "attention_mask", prompts, instructed ? tokenizer.longest() : length, kPad);
  rows.check_ids(out + "negative_input_ids", out + "negative_attention_mask", plain, length, kPad);
  std::vector<int64_t> kept = {0};  // the places of the padded ids that embeddings are of
  for (int64_t i = 1; i < length; ++i) kept.push_back(prompts.front().kept_from + i - 1);
  file.compare(out + "select", at::tensor(kept, at::kLong), 0.0);
  rows.check_rows(out + "prompt_embeds", out + "prompt_attention_mask", prompts, length);
  rows.check_rows(out + "negative_embeds", "", plain, length);  // whose mask is that of its ids
}

/// A run of conversations.
void check_conversations(const CaseContext& context, PromptRows& rows, CaseFile& file, const std::string& name,
                         const Settings& json) {
  const std::string out = "out." + name + ".";
  const int64_t length = json.at("max_length");
  const Settings system = json.at("system");
  const auto files = context.folder / "tokenizer.json";
  const data::PromptTokenizer tokenizer(files, system.is_null() ? "" : system.get<std::string>(), length);
  std::vector<data::PromptIds> prompts;
  for (const auto& text : json.at("prompts").get<std::vector<std::string>>()) prompts.push_back(tokenizer.encode(text));
  if (json.at("crop_start").get<int64_t>() != prompts.front().kept_from) file.fail(out + "crop_start");
  rows.check_ids(out + "input_ids", out + "attention_mask", prompts, tokenizer.longest(),
                 data::Tokenizer(files).pad_id());
  rows.check_rows(out + "prompt_embeds", out + "prompt_mask", prompts, length);
}

using CheckRun = void (*)(const CaseContext& context, PromptRows& rows, CaseFile& file, const std::string& name,
                          const Settings& json);

/// Each run of prompts.json.
void check_runs(const CaseContext& context, const models::TextEncoderMake& make, CaseFile& file, CheckRun check) {
  PromptRows rows(file, context, make);
  const auto path = context.folder / "prompts.json";
  const Settings runs(parse_ordered_json(checkpoint::read_text(path), path.string()));
  for (const auto& [name, json] : runs.items()) {
    check(context, rows, file, name, json);
    const std::vector<std::string> unread = json.unread({});
    if (!unread.empty()) file.refuse_run(name, "prompts.json: " + unread.front() + " is not known to this build");
  }
}

/// byT5's tokenizer with the case's further tokens.
data::OpenTokenizer byte_tokenizer(const CaseContext& context) {
  Json settings = {{"tokenizer_class", "ByT5Tokenizer"}};
  int64_t id = 384;
  for (const auto& token : context.config.at("_added_tokens").get<std::vector<std::string>>())
    settings["added_tokens_decoder"][std::to_string(id++)] = {{"content", token}};
  return data::open_byt5(settings.dump(), context.folder / "config.json");
}

Settings table_of(const CaseContext& context, const char* name) {
  return Settings(parse_ordered_json(checkpoint::read_text(context.folder / name), (context.folder / name).string()));
}

void refuse_unread(const Settings& rows, const char* name, CaseFile& file) {
  if (const auto unread = rows.unread({}); !unread.empty())
    file.refuse_run(name, std::string(name) + ": " + unread.front() + " is not known to this build");
}

}  // namespace

CaseResults verify_prompts(const CaseContext& context, const models::TextEncoderMake& make) {
  CaseResults results;
  results.emplace_back(context.name, context.case_files().front());
  check_runs(context, make, results.front(), check_instructed);
  return results;
}

void check_prompts(const CaseContext& context, const models::TextEncoderMake& make, CaseFile& file) {
  if (!context.config.contains("_added_tokens")) return check_runs(context, make, file, check_conversations);
  const data::OpenTokenizer tokenizer = byte_tokenizer(context);
  const Settings glyphs = table_of(context, "glyphs.json");
  const int64_t length = context.config.at("_max_length");
  std::vector<data::PromptIds> prompts;
  for (const auto row : context.config.at("_prompts").get<std::vector<size_t>>()) {
    const std::string text = data::glyph_text(glyphs.at(row).at("prompt").get<std::string>());
    prompts.push_back(text.empty() ? data::PromptIds{} : data::PromptIds{tokenizer->encode(text, length)});
  }
  PromptRows(file, context, make, file.weights()).check_rows("out.prompt_embeds", "out.prompt_mask", prompts, length);
}

CaseResults check_glyphs(const CaseContext& context) {
  const Settings glyphs = table_of(context, "glyphs.json"), tokens = table_of(context, "tokens.json");
  std::map<std::string, Tensor> texts, ids, formatted, encoded;
  for (size_t i = 0; i < glyphs.size(); ++i) {
    const std::string number = std::to_string(i);
    std::string listed;
    for (const auto& text : glyphs.at(i).at("texts").get<std::vector<std::string>>())
      listed += "Text \"" + text + "\". ";
    const Settings whole = glyphs.at(i).at("formatted");
    texts["formatted." + number] = bytes_of(whole.is_null() ? "" : whole.get<std::string>());
    texts["texts." + number] = bytes_of(listed);
    formatted["formatted." + number] = formatted["texts." + number] =
        bytes_of(data::glyph_text(glyphs.at(i).at("prompt").get<std::string>()));
  }
  const data::OpenTokenizer tokenizer = byte_tokenizer(context);
  const int64_t longest = context.config.at("_max_length");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Settings row = tokens.at(i);
    const std::string number = std::to_string(i);
    row.read("special_in_text");
    const auto ours = tokenizer->encode(row.at("text").get<std::string>(), row.value("max_length", longest));
    ids["ids." + number] = whole_numbers(row.at("ids"));
    ids["n." + number] = whole_numbers({row.at("n").get<int64_t>()});
    encoded["ids." + number] = whole_numbers(ours);
    encoded["n." + number] = whole_numbers({static_cast<int64_t>(ours.size())});
  }
  CaseResults results;
  results.emplace_back(context.name, context.folder / "glyphs.json", std::move(texts));
  for (const auto& [name, value] : formatted) results.back().compare(name, value, 0.0);
  refuse_unread(glyphs, "glyphs.json", results.back());
  results.emplace_back(context.name, context.folder / "tokens.json", std::move(ids));
  for (const auto& [name, value] : encoded) results.back().compare(name, value, 0.0);
  refuse_unread(tokens, "tokens.json", results.back());
  return results;
}

}  // namespace tessera::tools
