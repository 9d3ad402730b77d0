// Prompts behind an instruction, compared with the reference's pipeline: ids, the rows that are kept, embeddings.
#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"
#include "tessera/prepare/text_pass.h"

namespace tessera::prepare {

namespace {

std::string joined(const nlohmann::json& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) text += (i ? "\n" : "") + lines[i].get<std::string>();
  return text;
}

/// What the reference pads to and masks, of one run.
class InstructionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEED_GOLDENS();
    golden_.emplace("sana_prompt");
    recorded_ = golden_->tensors("case.safetensors");
    encoder_ = models::make_text_encoder({.config = golden_->path("config.json").string()});
    for (auto& [name, value] : golden_->tensors("model.safetensors")) weights_[name] = value;
  }

  at::Tensor embedding(const data::PromptIds& prompt) const {
    return kept_rows(net::run_plain(encoder_->units(), weights_, encoder_->pack({prompt.ids})), prompt);
  }

  /// Row b of `name` holds `ids`, then padding, under the mask of that name.
  void expect_ids(const std::vector<int64_t>& ids, const std::string& name, const std::string& mask, int64_t b) const {
    const at::Tensor row = recorded_.at(name)[b], real = recorded_.at(mask)[b];
    const auto n = static_cast<int64_t>(ids.size());
    ASSERT_EQ(real.sum().item<int64_t>(), n) << name << " " << b;
    EXPECT_TRUE(row.slice(0, 0, n).equal(at::tensor(ids, at::kLong))) << name << " " << b;
  }

  void expect_rows(const at::Tensor& rows, const std::string& name, const std::string& mask, int64_t b) const {
    const at::Tensor expected = recorded_.at(name)[b], real = recorded_.at(mask)[b];
    ASSERT_EQ(real.sum().item<int64_t>(), rows.size(0)) << name << " " << b;
    EXPECT_EQ(real.slice(0, 0, rows.size(0)).min().item<int64_t>(), 1) << "the kept rows are the first ones";
    const double bound = 1e-4 * expected.abs().max().item<double>() + 1e-6;
    expect_close(rows, expected.slice(0, 0, rows.size(0)), bound, name + " " + std::to_string(b));
  }

  std::optional<Golden> golden_;
  TensorMap recorded_;
  std::unique_ptr<net::TextEncoder> encoder_;
  net::WeightMap weights_;
};

}  // namespace

TEST_F(InstructionTest, EveryRunOfTheReferenceIsRepeated) {
  const auto runs = nlohmann::json::parse(golden_->text("prompts.json"));
  for (const auto& [name, run] : runs.items()) {
    const auto& lines = run.at("complex_human_instruction");
    const std::string instruction = lines.is_null() ? "" : joined(lines), out = "out." + name + ".";
    const data::PromptTokenizer prompts(golden_->path("tokenizer.json"), instruction, run.at("max_sequence_length"));
    const auto& texts = run.at("prompts");
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto b = static_cast<int64_t>(i);
      const data::PromptIds prompt = prompts.encode(texts[i].get<std::string>());
      expect_ids(prompt.ids, out + "input_ids", out + "attention_mask", b);
      EXPECT_EQ(prompt.kept_from, recorded_.at(out + "select")[1].item<int64_t>()) << name;
      const at::Tensor rows = embedding(prompt);
      EXPECT_EQ(rows.size(0), prompt.kept());
      expect_rows(rows, out + "prompt_embeds", out + "prompt_attention_mask", b);

      const auto& negative = run.at("negative_prompt");
      const data::PromptIds plain =
          prompts.encode_plain((negative.is_array() ? negative[i] : negative).get<std::string>());
      expect_ids(plain.ids, out + "negative_input_ids", out + "negative_attention_mask", b);
      expect_rows(embedding(plain), out + "negative_embeds", out + "negative_attention_mask", b);
    }
  }
}

TEST_F(InstructionTest, InstructionAndPromptMergeWhereTheyMeet) {
  const data::PromptTokenizer prompts(golden_->path("tokenizer.model"), "User Prompt: ", 300),
      none(golden_->path("tokenizer.model"), "", 300);
  const auto whole = prompts.encode("A cat").ids, end = none.encode("a cat").ids;
  EXPECT_NE(std::vector<int64_t>(whole.end() - (static_cast<int64_t>(end.size()) - 1), whole.end()),
            std::vector<int64_t>(end.begin() + 1, end.end()));
  EXPECT_EQ(prompts.encode("  ").ids, none.encode("").ids) << "a prompt without text has no instruction";
  EXPECT_EQ(prompts.encode("  ").kept_from, 1);
}

TEST_F(InstructionTest, ATokenizerWithoutABeginningIsRefused) {
  if (!data::has_tokenizer()) GTEST_SKIP() << "built without SentencePiece";
  TESSERA_NEED_GOLDENS();
  EXPECT_THROW(data::PromptTokenizer(Golden("tokenizers").path("t5/spiece.model"), "Rewrite: ", 300), UserError);
}

}  // namespace tessera::prepare
