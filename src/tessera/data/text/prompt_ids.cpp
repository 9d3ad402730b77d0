#include "tessera/data/text/prompt_ids.h"

#include <algorithm>
#include <limits>

#include "tessera/base/check.h"

namespace tessera::data {

int64_t PromptIds::kept() const {
  const auto count = static_cast<int64_t>(ids.size());
  return (keeps_first ? std::min<int64_t>(1, count) : 0) + std::max<int64_t>(0, count - kept_from);
}

namespace {

constexpr auto kWhole = static_cast<int64_t>(std::numeric_limits<int32_t>::max());
constexpr const char *kUser = "<|im_start|>user\n", *kMessageEnd = "<|im_end|>\n";

}  // namespace

Conversation::Conversation(const Tokenizer& tokenizer, const std::optional<std::string>& system) {
  const std::optional<std::string>& said = system ? system : tokenizer.default_system();
  if (!said)
    throw UserError(Exit::usage, "data.instruction",
                    "the text encoder was trained on conversations, and there is no system message: the tokenizer's "
                    "folder has no template that says one",
                    "set data.instruction to the message that the model was trained with");
  before_ = "<|im_start|>system\n" + *said + kMessageEnd + kUser;
  const std::vector<int64_t> mark = tokenizer.encode_clean(kUser, kWhole),
                             ids = tokenizer.encode_clean(text("a photo of a cat"), kWhole);
  const auto found = std::ranges::search(ids, mark);
  check_input(!found.empty(), "data.tokenizer", "the begin of the user's message is not among a conversation's tokens",
              "give the tokenizer that came with the text encoder");
  prompt_begin_ = found.end() - ids.begin();
}

std::string Conversation::text(std::string_view prompt) const {
  return before_ + std::string(prompt.empty() ? " " : prompt) + kMessageEnd + "<|im_start|>assistant\n";
}

PromptTokenizer::PromptTokenizer(const Path& tokenizer, std::string instruction, int64_t length, bool padded)
    : tokenizer_(tokenizer), instruction_(std::move(instruction)), length_(length), padded_(padded) {
  if (tokenizer_.chats())
    conversation_.emplace(tokenizer_, instruction_.empty() ? std::nullopt : std::optional(instruction_));
  if (instruction_.empty() || (conversation_ && !padded_)) return;
  if (padded_)
    throw UserError(Exit::usage, "data.instruction", "this model's captions are encoded without an instruction",
                    "leave data.instruction empty");
  if (tokenizer_.bos_id() < 0 || length < 2)
    throw UserError(Exit::usage, "data.instruction",
                    "an instruction needs a tokenizer whose texts begin with a token of their own, and embeddings of "
                    "two rows or more: that of " +
                        tokenizer.string() + " has no such token, or the model takes " + std::to_string(length) +
                        " rows",
                    "leave data.instruction empty for this text encoder");
  instruction_tokens_ = static_cast<int64_t>(tokenizer_.encode_clean(instruction_, kWhole).size());
}

PromptIds PromptTokenizer::encode(std::string_view prompt) const {
  if (padded_ || conversation_) return encode_plain(prompt);
  const std::string clean = tokenizer_.clean(prompt);
  if (instruction_.empty() || clean.empty()) return {tokenizer_.encode_clean(clean, length_)};
  return encode_behind(prompt);
}

PromptIds PromptTokenizer::encode_behind(std::string_view prompt) const {
  if (conversation_) return encode_plain(prompt);
  return {tokenizer_.encode_clean(instruction_ + tokenizer_.clean(prompt), instruction_tokens_ + length_ - 2),
          std::max<int64_t>(1, instruction_tokens_ - 1)};
}

PromptIds PromptTokenizer::encode_plain(std::string_view prompt) const {
  if (conversation_)
    return {tokenizer_.encode_clean(conversation_->text(prompt), longest()), conversation_->prompt_begin(),
            /*keeps_first=*/false};
  if (!padded_) return {tokenizer_.encode(prompt, length_)};
  PromptIds padded = {tokenizer_.encode_written(prompt, length_)};
  padded.ids.resize(static_cast<size_t>(length_), tokenizer_.pad_id());
  return padded;
}

}  // namespace tessera::data
