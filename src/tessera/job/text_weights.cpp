#include "tessera/job/text_weights.h"

#include <algorithm>
#include <filesystem>
#include <set>

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

std::string instruction_text(const recipe::Recipe::Data& data, bool of_picture) {
  of_picture = of_picture && !data.instruction_image.empty();
  const std::string& given = of_picture ? data.instruction_image : data.instruction;
  std::error_code unreadable;  // a long text is no path
  if (!given.ends_with(".txt") && !std::filesystem::is_regular_file(given, unreadable)) return given;
  check_input(std::filesystem::exists(given), of_picture ? "data.instruction_image" : "data.instruction",
              given + ": no such file", "give the instruction itself, or a text file that holds it");
  std::string text = checkpoint::read_text(given);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

int64_t longest_prompt(const recipe::Recipe::Data& data, int64_t length) {
  int64_t longest = length;
  for (const std::string& instruction : std::set{instruction_text(data), instruction_text(data, /*of_picture=*/true)})
    if (!instruction.empty() && !data.tokenizer.empty())
      longest = std::max(longest, data::PromptTokenizer(data.tokenizer, instruction, length).longest());
  return longest;
}

}  // namespace tessera::job
