#pragma once
// Prompts as a text encoder gets them: token ids, behind an instruction where the model was trained with one (Sana's
// "complex human instruction"; the system message of a conversation), and which rows of the encoder's output are the
// prompt's embedding.
//
//   PromptTokenizer prompts("tokenizer", "Rewrite the prompt.\nUser Prompt: ", 300);
//   PromptIds p = prompts.encode("A cat");                 // ids of "Rewrite the prompt.\nUser Prompt: a cat"
//   p.kept();                                              // rows 0 and k - 1, k, ... of k tokens of the instruction
#include <algorithm>
#include <optional>
#include <string>

#include "tessera/data/text/tokenizer.h"

namespace tessera::data {

struct PromptIds {
  std::vector<int64_t> ids;  ///< unpadded
  /// Rows 0 and [kept_from, ids.size()) of the encoder's output are the embedding; 1: all.
  int64_t kept_from = 1;
  bool keeps_first = true;  ///< row 0
  int64_t kept() const;     ///< how many these are
};

/// A prompt as an encoder that was trained on conversations gets it: in ChatML, behind a system message, with the answer
/// begun.
class Conversation {
 public:
  /// Without a system message it is that of the tokenizer's template. Throws UserError (usage) where there is none.
  Conversation(const Tokenizer& tokenizer, const std::optional<std::string>& system);

  std::string text(std::string_view prompt) const;  ///< a prompt without any text is one blank
  /// The first token behind the begin of the user's message. It is looked for once, before a prompt whose first word is
  /// a letter: with one that begins with line ends, that of the begin may merge, and the place stays.
  int64_t prompt_begin() const { return prompt_begin_; }

 private:
  std::string before_;
  int64_t prompt_begin_ = 0;
};

class PromptTokenizer {
 public:
  /// `length`: most rows of an embedding. `padded`: prompts are taken as they are written, and padded to that length
  /// (net::Conditions::padded_text). Throws UserError (usage) for an instruction and a tokenizer without bos: the first
  /// row would be one of the instruction; and for an instruction in front of padded prompts. Where the tokenizer is
  /// of conversations, the instruction is the system message, of every prompt, and `length` counts what is behind it.
  PromptTokenizer(const Path& tokenizer, std::string instruction, int64_t length, bool padded = false);

  /// Instruction and prompt are split into tokens as one text, so that they may merge where they meet, and cut to
  /// k + length - 2 tokens, of which row 0 and the last length - 1 are kept. The instruction is left as it is written,
  /// the prompt is cleaned. A prompt without text has no instruction.
  PromptIds encode(std::string_view prompt) const;
  /// The same with the instruction before a prompt without text too, as pipelines have it.
  PromptIds encode_behind(std::string_view prompt) const;
  /// Most ids of a prompt.
  int64_t longest() const {
    if (conversation_) return conversation_->prompt_begin() + length_;
    return std::max(length_, instruction_tokens_ + length_ - 2);
  }
  /// Without the instruction, but for a system message: negative prompts.
  PromptIds encode_plain(std::string_view prompt) const;

 private:
  Tokenizer tokenizer_;
  std::string instruction_;
  int64_t length_;
  bool padded_;
  std::optional<Conversation> conversation_ = {};
  int64_t instruction_tokens_ = 0;  // k, bos among them
};

}  // namespace tessera::data
