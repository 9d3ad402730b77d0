#include "tessera/prepare/stored_texts.h"

#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/data/files/tensor_file.h"

namespace tessera::prepare {

namespace {

constexpr const char* kContext = "text.context";  // tensors of a clip's entry
constexpr const char* kPooled = "text.pooled";

data::CachedTensor without_ones(const data::Path& file, size_t dims) {
  data::NpyArray array = data::read_tensor_file(file);
  while (array.shape.size() > dims && array.shape.front() == 1) array.shape.erase(array.shape.begin());
  return {std::move(array.shape), std::move(array.values)};
}

data::CachedTensor embedding(const data::Path& file, const job::Job& job) {
  data::CachedTensor tensor = without_ones(file, 2);
  const int64_t most = job.context_length, width = job.model->context_dim();
  const bool padded = job.model->conditions().padded_text;
  const bool fits = tensor.shape.size() == 2 && tensor.shape[1] == width && tensor.shape[0] <= most &&
                    (!padded || tensor.shape[0] == most);
  check_input(fits, "data.texts",
              file.string() + ": an embedding of " + checkpoint::shape_text(tensor.shape) + ", the model takes " +
                  (padded ? "" : "up to ") + std::to_string(most) + " rows of " + std::to_string(width),
              padded ? "encode the caption padded to as many tokens, or set model.config.context_length to the rows "
                       "that there are"
                     : "encode the caption with the encoder that the model was trained with");
  return tensor;
}

data::CachedTensor pooled_vector(const data::Path& file, const job::Job& job) {
  const int64_t width = job.model->conditions().pooled_dim;
  check_input(!file.empty(), "data.texts",
              "the row names no file of the pooled caption, and the model takes one of " + std::to_string(width),
              "add the column: see data.texts");
  data::CachedTensor tensor = without_ones(file, 1);
  check_input(tensor.shape == checkpoint::Shape{width}, "data.texts",
              file.string() + ": a pooled caption of " + checkpoint::shape_text(tensor.shape) +
                  ", the model takes one of " + std::to_string(width),
              "save the pooled vector of the second text encoder");
  return tensor;
}

}  // namespace

at::Tensor tensor_of(const data::CachedTensor& stored) {
  at::Tensor tensor = at::empty(stored.shape, at::kFloat);
  std::ranges::copy(stored.values, tensor.mutable_data_ptr<float>());
  return tensor;
}

std::vector<data::RowFile> text_files(const data::Item& item) {
  std::vector<data::RowFile> files;
  if (!item.context.empty()) files.emplace_back("context", item.context);
  if (!item.pooled.empty()) files.emplace_back("pooled", item.pooled);
  return files;
}

std::string text_form(const recipe::Recipe::Data& data, const job::Job& job) {
  if (!data.texts) return {};
  return "|texts of " + std::to_string(job.context_length) + "x" + std::to_string(job.model->context_dim()) + "+" +
         std::to_string(job.model->conditions().pooled_dim);
}

CachedText stored_text(const data::Path& context, const data::Path& pooled, const job::Job& job) {
  CachedText text{embedding(context, job)};
  if (job.model->conditions().pooled_dim > 0) text.pooled = pooled_vector(pooled, job);
  return text;
}

EncodedText stored_null_text(const recipe::Recipe::Data& data, const job::Job& job) {
  const std::vector<std::string>& files = data.null_text;
  if (files.empty()) return {};
  const CachedText text = stored_text(files.front(), data::Path(files.size() > 1 ? files[1] : ""), job);
  return {tensor_of(text.context), text.pooled.shape.empty() ? at::Tensor() : tensor_of(text.pooled)};
}

void tell_random_prompts(const recipe::Recipe::Data& data) {
  if (!data.texts || !data.text_encoder_path.empty()) return;
  log::warn(
      "data.texts: captions come from files, prompts of samples are encoded here, and data.text_encoder_path is empty: " +
      data.text_encoder +
      " has random weights; give those of the encoders that made the files (data.text_encoder_path, "
      "data.tokenizer, data.pooled_encoder_path, data.pooled_tokenizer), or set sample.every = 0");
}

void put_text(CachedText text, data::CachedClip& clip) {
  clip.extras[kContext] = std::move(text.context);
  if (!text.pooled.shape.empty()) clip.extras[kPooled] = std::move(text.pooled);
}

CachedText take_text(data::CachedClip& clip) {
  CachedText text{std::move(clip.extras.at(kContext))};
  clip.extras.erase(kContext);
  if (const auto pooled = clip.extras.find(kPooled); pooled != clip.extras.end()) {
    text.pooled = std::move(pooled->second);
    clip.extras.erase(pooled);
  }
  return text;
}

}  // namespace tessera::prepare
