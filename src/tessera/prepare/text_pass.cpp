#include "tessera/prepare/text_pass.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/data/text/text.h"
#include "tessera/job/encoders.h"
#include "tessera/job/null_caption.h"
#include "tessera/prepare/conditioner.h"
#include "tessera/prepare/stored_texts.h"

namespace tessera::prepare {

namespace fs = std::filesystem;

TextPass::TextPass(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                   const fs::path& tokenizer)
    : job_(job),
      weights_(recipe.data.text_encoder_path),
      second_weights_(recipe.data.second_encoder_path()),
      storage_(job::text_storage(recipe.data, recipe.plan)),
      second_storage_(job::second_storage(recipe.data, recipe.plan)),
      mesh_(mesh),
      comm_(comm),
      rank_(rank),
      apart_(!recipe.data.instruction_image.empty()),
      open_prompts_([tokenizer, of_clips = job::instruction_text(recipe.data),
                     of_pictures = job::instruction_text(recipe.data, /*of_picture=*/true), &job](bool pictures) {
        return data::PromptTokenizer(tokenizer, pictures ? of_pictures : of_clips, job.context_length,
                                     job.model->conditions().padded_text);
      }),
      read_null_caption_([&recipe, &job] { return job::learned_null_caption(recipe, *job.model); }) {
  if (!tokenizer.empty()) checkpoint::await_file(tokenizer);  // rank 0 may have made it
  if (data::has_tokenizer()) prompts();
  const net::Conditions takes = job.model->conditions();
  if (takes.pooled_dim > 0) pooled_tokenizer_.emplace(pooled_tokenizer_file(recipe.data, tokenizer));
  if (takes.glyph_dim > 0) glyph_tokenizer_.emplace(data::Tokenizer::of_bytes());
}

const data::PromptTokenizer& TextPass::prompts(bool of_pictures) const {
  of_pictures = of_pictures && apart_;
  std::optional<const data::PromptTokenizer>& opened = of_pictures ? picture_prompts_ : prompts_;
  if (!opened) opened.emplace(open_prompts_(of_pictures));
  return *opened;
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
  if (job_.second) open(second_run_, *job_.second, second_weights_, second_storage_);
  if (storage_.dtype != DType::f32 || run_->any_on_host()) log::info(run_->held_text("text encoder", storage_, mesh_));
  if (job_.second && (second_storage_.dtype != DType::f32 || second_run_->any_on_host()))
    log::info(second_run_->held_text("second text encoder", second_storage_, mesh_));
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
  const std::vector<int64_t> ids = pooled_tokenizer_->encode(text, std::min(kAny, job_.second->most_tokens()));
  const at::Tensor hidden = second_run_->forward(job_.second->pack({ids}));
  return hidden[job_.second->pooled_row(ids)].contiguous();
}

/// [g, G] of what stands in quotes; undefined where nothing does. Ranks that share the encoder take part all the same.
at::Tensor TextPass::glyphs(const std::string& text) {
  if (!glyph_tokenizer_) return {};
  const std::string quoted = data::glyph_text(text);
  if (quoted.empty() && mesh_.world() == 1) return {};
  load();
  const std::vector<int64_t> ids = glyph_tokenizer_->encode(quoted, job_.model->conditions().glyph_rows);
  const at::Tensor rows = second_run_->forward(job_.second->pack({ids}));
  return quoted.empty() ? at::Tensor() : rows.contiguous();
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

fs::path pooled_tokenizer_file(const recipe::Recipe::Data& data, const fs::path& tokenizer) {
  if (!data.pooled_tokenizer.empty()) return data.pooled_tokenizer;
  if (data.pooled_encoder_path.empty()) return tokenizer;
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
  const std::string conditions = conditioner_fingerprint(recipe.data, recipe.diffusion, job);
  const bool rounded_image = job.image && job::image_storage(recipe.data, recipe.plan).rounded;
  const std::string clip = job.codec->fingerprint() + conditions + (rounded_image ? "|in bf16" : "");
  if (recipe.data.texts)
    return {.clip = hash(clip + text_form(recipe.data, job)), .text = {}, .picture_text = {}, .both = {}};
  const net::Conditions takes = job.model->conditions();
  const auto made_by = [&](const std::string& instruction) {
    std::string text = job.text->fingerprint() + "|" + data::tokenizer_text(tokenizer);
    if (!instruction.empty()) text += "|" + instruction;
    text += stamp_of(recipe.data.text_encoder_path);
    if (takes.padded_text) text += "|padded to " + std::to_string(job.context_length);
    if (job.second) text += "|" + job.second->fingerprint();
    if (takes.pooled_dim > 0) text += "|" + data::tokenizer_text(pooled_tokenizer_file(recipe.data, tokenizer));
    if (takes.glyph_dim > 0) text += "|quotes of " + std::to_string(takes.glyph_rows);
    return job.second ? text + stamp_of(recipe.data.second_encoder_path()) : text;
  };
  const job::HeldWeights storage = job::text_storage(recipe.data, recipe.plan);
  const bool rounded_second = job.second && job::second_storage(recipe.data, recipe.plan).rounded;
  const std::string held = "|" + std::string(name(storage.dtype)) + (rounded_second ? "|pooled in bf16" : "") +
                           "|at most " + std::to_string(job.context_length) + " tokens";
  const std::string text = made_by(job::instruction_text(recipe.data));
  return {.clip = hash(clip),
          .text = hash(text + held),
          .picture_text = hash(made_by(job::instruction_text(recipe.data, /*of_picture=*/true)) + held),
          .both = hash(job.codec->fingerprint() + "|" + text + conditions),
          .same_texts = !storage.rounded && !rounded_second,
          .same_clips = !rounded_image};
}

std::vector<std::string> distinct_captions(const data::Items& items) {
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

void make_tokenizer(const recipe::Recipe::Data& data, const job::Job& job, const std::vector<std::string>& captions,
                    const fs::path& file) {
  if (!data.tokenizer.empty() || fs::exists(file)) return;
  checkpoint::make_folder(file.parent_path(), "check data.cache");
  data::train_tokenizer(captions, static_cast<int>(job.text->vocabulary()), file);
}

namespace {

EncodedText copy_of(const EncodedText& text) {
  const auto copy = [](const at::Tensor& of) { return of.defined() ? of.clone() : at::Tensor(); };
  return {copy(text.context), copy(text.pooled), copy(text.glyphs)};
}

}  // namespace

data::CachedTensor cached(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.to(at::kFloat).contiguous();
  return {dense.sizes().vec(), {dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel()}};
}

CachedText cached(const EncodedText& text) {
  const auto some = [](const at::Tensor& of) { return of.defined() ? cached(of) : data::CachedTensor{}; };
  return {cached(text.context), some(text.pooled), some(text.glyphs)};
}

TextBeside::TextBeside(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                       const std::filesystem::path& tokenizer)
    : place_(recipe.data.encoders) {
  const EncoderPlace here(place_);
  if (!sharded()) alone_.emplace(comm::Rendezvous{}, Mesh{});
  pass_.emplace(recipe, job, sharded() ? mesh : Mesh{}, alone_ ? *alone_ : comm, alone_ ? 0 : rank, tokenizer);
}

TextBeside::~TextBeside() {
  const EncoderPlace here(place_);
  pass_.reset();
  alone_.reset();
}

void TextBeside::load() {
  const EncoderPlace here(place_);
  const int64_t before = engine::Meter::live(engine::Part::host);
  pass_->load();
  host_bytes_ += engine::Meter::live(engine::Part::host) - before;
}

template <class Make>
EncodedText TextBeside::made_beside(const Make& make) {
  const std::lock_guard hold(mutex_);
  const EncodedText made = [&] {
    const EncoderPlace here(place_);
    return make();
  }();
  return copy_of(made);  // of the caller's part of memory
}

EncodedText TextBeside::encode(const Words& words) {
  return made_beside([&] { return pass_->encode(words); });
}

EncodedText TextBeside::encode_negative(const std::string& text) {
  return made_beside([&] { return pass_->encode_negative(text); });
}

CachedText TextBeside::caption(const Words& words) {
  const std::lock_guard hold(mutex_);
  if (!sharded()) {
    const EncoderPlace here(place_);
    return cached(pass_->encode(words));
  }
  for (const auto* texts : {&now_, &before_})
    if (const auto found = texts->find(words); found != texts->end()) return found->second;
  throw InternalError("prepare.text", "a caption that no rank asked for: " + words.text);
}

void TextBeside::together(const std::vector<std::vector<Words>>& of_ranks, size_t mine) {
  size_t rounds = 0;
  for (const auto& texts : of_ranks) rounds = std::max(rounds, texts.size());
  const auto any = std::ranges::find_if(of_ranks, [](const auto& texts) { return !texts.empty(); });
  if (any == of_ranks.end()) return;
  const std::vector<Words>& own = of_ranks.at(mine).empty() ? *any : of_ranks.at(mine);
  std::map<Words, CachedText> made;
  for (size_t round = 0; round < rounds; ++round) {  // a rank that has fewer takes part with its last
    const Words& words = own[std::min(round, own.size() - 1)];
    const EncoderPlace here(place_);
    made[words] = cached(pass_->encode(words));
  }
  const std::lock_guard hold(mutex_);
  before_ = std::exchange(now_, std::move(made));
}

void tell_cut_captions(const recipe::Recipe::Data& data, const job::Job& job, const std::vector<std::string>& captions,
                       const std::filesystem::path& tokenizer) {
  constexpr int64_t kUncut = int64_t{1} << 21;  // a caption has at most so many bytes, and a token at least one
  constexpr size_t kShown = 60;
  std::optional<data::PromptTokenizer> prompts;
  int64_t cut = 0, most = 0;
  std::string first;
  for (const std::string& caption : captions) {
    if (static_cast<int64_t>(caption.size()) < job.context_length) continue;
    if (!prompts) prompts.emplace(tokenizer, job::instruction_text(data), kUncut);
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
