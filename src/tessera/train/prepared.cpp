#include <algorithm>

#include "tessera/data/video.h"
#include "tessera/train/prepare.h"
#include "tessera/train/text_pass.h"
#include "tessera/train/validation.h"

namespace tessera::train {

namespace {

at::Tensor tensor_of(const data::CachedTensor& cached) {
  at::Tensor tensor = at::empty(cached.shape, at::kFloat);
  std::copy(cached.values.begin(), cached.values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

}  // namespace

PreparedSample PreparedData::sample(int64_t index, int64_t epoch) const {
  const std::vector<std::string>& captions = item(index).captions;
  const auto caption = static_cast<size_t>(
      captions.size() == 1 ? 0 : data::draw_caption(seed_, epoch, index, static_cast<int64_t>(captions.size())));
  if (!cache_) return {codec_->encode(to_pixels(frames(index))), tensor_of(contexts_.at(captions[caption]))};
  const data::CachedSample loaded = cache_->load(samples_.at(index).entries.at(caption));
  return {tensor_of(loaded.latent), tensor_of(loaded.context)};
}

data::Frames PreparedData::frames(int64_t index) const {
  return data::decode_clip(item(index).path, plan_.spec(clip(index)));
}

int64_t PreparedData::clip_of_prompt(int prompt) const {
  for (int64_t i = 0; i < size(); ++i)
    if (clip(i).bucket == 0 && item(i).caption() == prompts_.at(prompt)) return i;
  return -1;
}

std::vector<data::Item> read_items(const Recipe& recipe, data::Problems& problems) {
  return data::read_dataset({recipe.data.path, recipe.data.metadata, static_cast<int>(recipe.data.repeats)}, problems);
}

std::vector<data::Item> read_items(const Recipe& recipe) {
  data::Problems told_by_prepare(/*strict=*/false);
  return read_items(recipe, told_by_prepare);
}

std::vector<std::string> sample_prompts(const Recipe& recipe, const std::vector<data::Item>& items) {
  if (!recipe.sample.prompts.empty()) return recipe.sample.prompts;
  std::vector<std::string> prompts;
  for (const auto& item : items)
    if (prompts.size() < 4 && std::find(prompts.begin(), prompts.end(), item.caption()) == prompts.end())
      prompts.push_back(item.caption());
  return prompts;
}

std::vector<at::Tensor> encode_texts(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                                     const std::vector<std::string>& texts) {
  std::filesystem::path tokenizer = recipe.data.tokenizer;
  if (tokenizer.empty()) {
    const std::vector<std::string> captions = distinct_captions(read_items(recipe));
    tokenizer = tokenizer_file(recipe, captions);
    if (rank == 0) make_tokenizer(recipe, job, captions, tokenizer);
    comm.barrier();
  }
  TextPass pass(recipe, job, mesh, comm, rank, tokenizer);
  std::vector<at::Tensor> contexts;
  for (const auto& text : texts) contexts.push_back(pass.encode(text));
  return contexts;
}

}  // namespace tessera::train
