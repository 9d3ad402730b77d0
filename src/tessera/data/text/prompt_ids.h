#pragma once
// Prompts as a text encoder gets them: token ids, behind an instruction where the model was trained with one (Sana's
// "complex human instruction"), and which rows of the encoder's output are the prompt's embedding.
//
//   PromptTokenizer prompts("tokenizer", "Rewrite the prompt.\nUser Prompt: ", 300);
//   PromptIds p = prompts.encode("A cat");                 // ids of "Rewrite the prompt.\nUser Prompt: a cat"
//   p.kept();                                              // rows 0 and k - 1, k, ... of k tokens of the instruction
#include <algorithm>
#include <string>

#include "tessera/data/text/tokenizer.h"

namespace tessera::data {

struct PromptIds {
  std::vector<int64_t> ids;  ///< unpadded
  /// Rows 0 and [kept_from, ids.size()) of the encoder's output are the embedding; 1: all.
  int64_t kept_from = 1;
  int64_t kept() const;  ///< how many these are
};

class PromptTokenizer {
 public:
  /// `length`: most rows of an embedding. `padded`: prompts are taken as they are written, and padded to that length
  /// (net::Conditions::padded_text). Throws UserError (usage) for an instruction and a tokenizer without bos: the first
  /// row would be one of the instruction; and for an instruction in front of padded prompts.
  PromptTokenizer(const Path& tokenizer, std::string instruction, int64_t length, bool padded = false);

  /// Instruction and prompt are split into tokens as one text, so that they may merge where they meet, and cut to
  /// k + length - 2 tokens, of which row 0 and the last length - 1 are kept. The instruction is left as it is written,
  /// the prompt is cleaned. A prompt without text has no instruction.
  PromptIds encode(std::string_view prompt) const;
  /// The same with the instruction before a prompt without text too, as pipelines have it.
  PromptIds encode_behind(std::string_view prompt) const;
  /// Most ids of a prompt.
  int64_t longest() const { return std::max(length_, instruction_tokens_ + length_ - 2); }
  /// Without the instruction: negative prompts.
  PromptIds encode_plain(std::string_view prompt) const;

 private:
  Tokenizer tokenizer_;
  std::string instruction_;
  int64_t length_;
  bool padded_;
  int64_t instruction_tokens_ = 0;  // k, bos among them
};

}  // namespace tessera::data
