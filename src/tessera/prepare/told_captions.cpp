#include "tessera/prepare/told_captions.h"

#include <algorithm>
#include <optional>

#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/job/text_weights.h"

namespace tessera::prepare {

void tell_cut_captions(const recipe::Recipe& recipe, const job::Job& job, const std::vector<std::string>& captions,
                       const std::filesystem::path& tokenizer) {
  constexpr int64_t kUncut = int64_t{1} << 21;  // a caption has at most so many bytes, and a token at least one
  constexpr size_t kShown = 60;
  std::optional<data::PromptTokenizer> prompts;
  int64_t cut = 0, most = 0;
  std::string first;
  for (const std::string& caption : captions) {
    if (static_cast<int64_t>(caption.size()) < job.context_length) continue;
    if (!prompts) prompts.emplace(tokenizer, job::instruction_text(recipe.data), kUncut);
    const int64_t tokens = prompts->encode(caption).kept();
    if (tokens <= job.context_length) continue;
    if (cut++ == 0) first = caption.substr(0, kShown);
    most = std::max(most, tokens);
  }
  if (cut == 0) return;
  log::warn("data: " + std::to_string(cut) + " of " + std::to_string(captions.size()) +
            " captions have more than the " + std::to_string(job.context_length) +
            " tokens that the model reads (up to " + std::to_string(most) +
            "): the rest of them is cut off; the first: " + shown(first) + "...");
}

}  // namespace tessera::prepare
