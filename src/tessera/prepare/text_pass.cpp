#include "tessera/prepare/text_pass.h"

#include <limits>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/job/null_caption.h"
#include "tessera/job/text_weights.h"
#include "tessera/prepare/conditioner.h"
#include "tessera/prepare/stored_texts.h"

namespace tessera::prepare {

namespace fs = std::filesystem;

TextPass::TextPass(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                   const fs::path& tokenizer)
    : job_(job),
      weights_(recipe.data.text_encoder_path),
      pooled_weights_(recipe.data.pooled_encoder_path),
      storage_(job::text_storage(recipe)),
      pooled_storage_(job::pooled_storage(recipe)),
      mesh_(mesh),
      comm_(comm),
      rank_(rank),
      open_prompts_([tokenizer, instruction = job::instruction_text(recipe.data), &job] {
        return data::PromptTokenizer(tokenizer, instruction, job.context_length, job.model->conditions().padded_text);
      }),
      read_null_caption_([&recipe, &job] { return job::learned_null_caption(recipe, *job.model); }) {
  if (data::has_tokenizer()) prompts();
  if (job.pooled) pooled_tokenizer_.emplace(pooled_tokenizer_file(recipe, tokenizer));
}

const data::PromptTokenizer& TextPass::prompts() const {
  if (!prompts_) prompts_.emplace(open_prompts_());
  return *prompts_;
}

void TextPass::load() {
  if (run_) return;
  const auto open = [&](std::optional<EncoderRun>& run, const net::TextEncoder& encoder, const std::string& weights,
                        const job::HeldWeights& held) {
    run.emplace(encoder.units(), encoder.fingerprint(), mesh_, comm_, rank_, held);
    if (weights.empty())
      initialise(*run, encoder, 0);
    else
      load_text(*run, encoder, weights);
  };
  open(run_, *job_.text, weights_, storage_);
  if (job_.pooled) open(pooled_run_, *job_.pooled, pooled_weights_, pooled_storage_);
  if (storage_.dtype != DType::f32 || run_->any_on_host()) log::info(run_->held_text("text encoder", storage_, mesh_));
  if (job_.pooled && (pooled_storage_.dtype != DType::f32 || pooled_run_->any_on_host()))
    log::info(pooled_run_->held_text("pooled text encoder", pooled_storage_, mesh_));
}

EncodedText TextPass::encode_negative(const std::string& text) {
  if (text.empty()) {
    if (!null_caption_) null_caption_ = read_null_caption_();
    if (null_caption_->defined()) return {*null_caption_, pool(text)};
  }
  return {encode(prompts().encode_plain(text)), pool(text)};
}

/// [P] of the second encoder; undefined for models without one.
at::Tensor TextPass::pool(const std::string& text) {
  if (!pooled_tokenizer_) return {};
  load();
  constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
  const std::vector<int64_t> ids = pooled_tokenizer_->encode(text, std::min(kAny, job_.pooled->most_tokens()));
  const at::Tensor hidden = pooled_run_->forward(job_.pooled->pack({ids}));
  return hidden[job_.pooled->pooled_row(ids)].contiguous();
}

at::Tensor TextPass::encode(const data::PromptIds& prompt) {
  load();
  return kept_rows(run_->forward(job_.text->pack({prompt.ids})), prompt).contiguous();
}

at::Tensor kept_rows(const at::Tensor& hidden, const data::PromptIds& prompt) {
  if (prompt.keeps_first && prompt.kept_from <= 1) return hidden;
  const int64_t from = std::min(prompt.kept_from, hidden.size(0));
  if (!prompt.keeps_first) return hidden.narrow(0, from, hidden.size(0) - from);
  return at::cat({hidden.narrow(0, 0, 1), hidden.narrow(0, from, hidden.size(0) - from)});
}

namespace {

/// Of an encoder's weights; empty without weights.
std::string stamp_of(const std::string& path) {
  return path.empty() ? std::string() : "|" + checkpoint::fingerprint(checkpoint::open_weights(path));
}

}  // namespace

fs::path pooled_tokenizer_file(const recipe::Recipe& recipe, const fs::path& tokenizer) {
  if (!recipe.data.pooled_tokenizer.empty()) return recipe.data.pooled_tokenizer;
  if (recipe.data.pooled_encoder_path.empty()) return tokenizer;
  throw UserError(Exit::usage, "data.pooled_tokenizer",
                  "data.pooled_encoder_path has weights, and no tokenizer is given",
                  "set data.pooled_tokenizer to the tokenizer's folder that came with the encoder: tokenizer_2/ or "
                  "tokenizer/ of a diffusers pipeline, with vocab.json and merges.txt");
}

EncoderHashes encoder_hashes(const recipe::Recipe& recipe, const job::Job& job, const fs::path& tokenizer) {
  const auto hash = [](const std::string& text) {
    char hex[20];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash_text(text)));
    return std::string(hex);
  };
  const std::string conditions = conditioner_fingerprint(recipe, job);
  const bool rounded_image = job.image && job::image_storage(recipe).rounded;
  const std::string clip = job.codec->fingerprint() + conditions + (rounded_image ? "|in bf16" : "");
  if (recipe.data.texts) return {.clip = hash(clip + text_form(recipe, job)), .text = {}, .both = {}};
  std::string text = job.text->fingerprint() + "|" + data::tokenizer_text(tokenizer);
  if (const std::string instruction = job::instruction_text(recipe.data); !instruction.empty())
    text += "|" + instruction;
  text += stamp_of(recipe.data.text_encoder_path);
  if (job.model->conditions().padded_text) text += "|padded to " + std::to_string(job.context_length);
  if (job.pooled)
    text += "|" + job.pooled->fingerprint() + "|" + data::tokenizer_text(pooled_tokenizer_file(recipe, tokenizer)) +
            stamp_of(recipe.data.pooled_encoder_path);
  const job::HeldWeights storage = job::text_storage(recipe);
  const bool rounded_pooled = job.pooled && job::pooled_storage(recipe).rounded;
  return {.clip = hash(clip),
          .text = hash(text + "|" + std::string(name(storage.dtype)) + (rounded_pooled ? "|pooled in bf16" : "") +
                       "|at most " + std::to_string(job.context_length) + " tokens"),
          .both = hash(job.codec->fingerprint() + "|" + text + conditions),
          .same_texts = !storage.rounded && !rounded_pooled,
          .same_clips = !rounded_image};
}

std::vector<std::string> distinct_captions(const std::vector<data::Item>& items) {
  std::vector<std::string> captions;
  std::set<std::string> seen;
  for (const data::Item& item : items)
    for (const auto* texts : {&item.captions, &item.class_captions})
      for (const std::string& caption : *texts)
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
