#include "tessera/job/text_weights.h"

#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/models/common/names.h"

namespace tessera::job {

weights::NamedWeights open_text_weights(const net::TextEncoder& encoder, const std::string& path) {
  const auto foreign = [&encoder](const std::string& name, const std::string& naming) {
    return encoder.foreign_name(name, naming);
  };
  return weights::NamedWeights(path, encoder.units(), foreign, models::kTextNamings);
}

std::string likely_text_cause(const std::string&, const std::vector<int64_t>&) {
  return "does data.text_encoder name the encoder of these weights?";
}

std::string instruction_text(const recipe::Recipe::Data& data) {
  const std::string& given = data.instruction;
  std::error_code unreadable;  // a long text is no path
  if (!given.ends_with(".txt") && !std::filesystem::is_regular_file(given, unreadable)) return given;
  check_input(std::filesystem::exists(given), "data.instruction", given + ": no such file",
              "give the instruction itself, or a text file that holds it");
  std::string text = checkpoint::read_text(given);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

int64_t longest_prompt(const recipe::Recipe::Data& data, int64_t length) {
  const std::string instruction = instruction_text(data);
  if (instruction.empty() || data.tokenizer.empty()) return length;
  return data::PromptTokenizer(data.tokenizer, instruction, length).longest();
}

}  // namespace tessera::job
