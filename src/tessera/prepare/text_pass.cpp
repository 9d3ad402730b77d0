#include "tessera/prepare/text_pass.h"

#include <set>

#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/job/null_caption.h"
#include "tessera/job/text_weights.h"
#include "tessera/prepare/conditioner.h"

namespace tessera::prepare {

namespace fs = std::filesystem;

TextPass::TextPass(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                   const fs::path& tokenizer)
    : job_(job),
      weights_(recipe.data.text_encoder_path),
      mesh_(mesh),
      comm_(comm),
      rank_(rank),
      prompts_(tokenizer, job::instruction_text(recipe), job.context_length),
      read_null_caption_([&recipe, &job] { return job::learned_null_caption(recipe, *job.model); }) {}

void TextPass::load() {
  if (run_) return;
  run_.emplace(job_.text->units(), job_.text->fingerprint(), mesh_, comm_, rank_);
  if (weights_.empty())
    initialise(*run_, *job_.text, 0);
  else
    load_text(*run_, *job_.text, weights_);
}

at::Tensor TextPass::encode_negative(const std::string& text) {
  if (text.empty()) {
    if (!null_caption_) null_caption_ = read_null_caption_();
    if (null_caption_->defined()) return *null_caption_;
  }
  return encode(prompts_.encode_plain(text));
}

at::Tensor TextPass::encode(const data::PromptIds& prompt) {
  load();
  return kept_rows(run_->forward(job_.text->pack({prompt.ids})), prompt).contiguous();
}

at::Tensor kept_rows(const at::Tensor& hidden, const data::PromptIds& prompt) {
  if (prompt.kept_from <= 1) return hidden;
  const int64_t from = std::min(prompt.kept_from, hidden.size(0));
  return at::cat({hidden.narrow(0, 0, 1), hidden.narrow(0, from, hidden.size(0) - from)});
}

std::string encoder_hash(const recipe::Recipe& recipe, const job::Job& job, const fs::path& tokenizer) {
  std::string text = job.codec->fingerprint() + "|" + job.text->fingerprint() + "|" +
                     checkpoint::read_text(data::tokenizer_in(tokenizer));
  if (const std::string instruction = job::instruction_text(recipe); !instruction.empty()) text += "|" + instruction;
  if (!recipe.data.text_encoder_path.empty()) {
    const auto weights = checkpoint::open_weights(recipe.data.text_encoder_path);
    for (const auto& file : weights.files())
      text += "|" + file.path().filename().string() + ":" + std::to_string(fs::file_size(file.path()));
  }
  text += conditioner_fingerprint(recipe, job);
  char hex[20];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash_text(text)));
  return hex;
}

std::vector<std::string> distinct_captions(const std::vector<data::Item>& items) {
  std::vector<std::string> captions;
  std::set<std::string> seen;
  for (const data::Item& item : items)
    for (const std::string& caption : item.captions)
      if (seen.insert(caption).second) captions.push_back(caption);
  return captions;
}

fs::path tokenizer_file(const recipe::Recipe& recipe, const std::vector<std::string>& captions) {
  if (!recipe.data.tokenizer.empty()) return recipe.data.tokenizer;
  std::string all;
  for (const auto& text : captions) all += text + "\n";
  char name[48];
  std::snprintf(name, sizeof name, "tokenizer-%016llx.model", static_cast<unsigned long long>(hash_text(all)));
  return fs::path(recipe.data.online() ? recipe.run.out : recipe.data.cache) / name;
}

void make_tokenizer(const recipe::Recipe& recipe, const job::Job& job, const std::vector<std::string>& captions,
                    const fs::path& file) {
  if (!recipe.data.tokenizer.empty() || fs::exists(file)) return;
  checkpoint::make_folder(file.parent_path(), "check data.cache");
  data::train_tokenizer(captions, static_cast<int>(job.text->vocabulary()), file);
}

}  // namespace tessera::prepare
