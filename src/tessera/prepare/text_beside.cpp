#include "tessera/prepare/text_beside.h"

#include "tessera/base/check.h"

namespace tessera::prepare {

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

}  // namespace tessera::prepare
