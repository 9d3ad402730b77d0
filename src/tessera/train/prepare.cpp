#include "tessera/train/prepare.h"

#include <set>
#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/video.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/transfer.h"
#include "tessera/models/registry.h"

#include "tessera/train/validation.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;

/// A text encoder of any size: a unit list under a forward-only schedule, sharded over the run's mesh. All ranks encode
/// the same prompt at the same time.
class TextPass {
 public:
  TextPass(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
           const fs::path& tokenizer)
      : job_(job), tokenizer_(tokenizer) {
    // The schedule needs the units' parameters only: what a prompt's tokens take is small beside them.
    spec_.name = job.text->fingerprint();
    for (const auto& unit : job.text->units()) spec_.units.push_back(unit->spec());
    plan_.mesh = mesh;
    plan_.units.resize(spec_.units.size());
    schedule_ = plan::compile_forward(spec_, plan_, rank, "encode", 1);
    std::vector<std::string> prefixes;
    for (const auto& unit : job.text->units()) prefixes.push_back(unit->prefix());
    store_ = std::make_unique<engine::Store>(spec_, prefixes, mesh, rank, at::kCPU, /*trainable=*/false);
    store_->set_arena(schedule_.arena);
    if (recipe.data.text_encoder_path.empty()) {
      engine::fill_shards(*store_, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
        job.text->initialise(param, 0, first, count, out);
      });
    } else {
      const auto weights = checkpoint::open_weights(recipe.data.text_encoder_path);
      const bool hf = weights.contains("shared.weight") || weights.contains("encoder.embed_tokens.weight");
      engine::load_weights(
          *store_, weights,
          [&](const std::string& name) { return job.text->foreign_name(name, hf ? "hf" : "official"); }, {});
    }
    executor_ =
        std::make_unique<engine::Executor>(job.text->units(), *store_, comm, plan_, rank, engine::ExecutorOptions{});
  }

  /// [n, D]
  at::Tensor encode(const std::string& text) {
    const net::Batch batch = job_.text->pack({tokenizer_.encode(text, job_.context_length)});
    return executor_->forward(schedule_, 0, {batch})[0].contiguous();
  }

 private:
  const Job& job_;
  data::Tokenizer tokenizer_;
  plan::ModelSpec spec_;
  plan::Plan plan_;
  plan::Schedule schedule_;
  std::unique_ptr<engine::Store> store_;
  std::unique_ptr<engine::Executor> executor_;
};

/// What encodes, as a hash: a change of any of it makes the cache stale.
std::string encoder_hash(const Recipe& recipe, const Job& job, const fs::path& tokenizer) {
  std::string text = job.codec->fingerprint() + "|" + job.text->fingerprint() + "|" + checkpoint::read_text(tokenizer);
  if (!recipe.data.text_encoder_path.empty()) {
    const auto weights = checkpoint::open_weights(recipe.data.text_encoder_path);
    for (const auto& file : weights.files())
      text += "|" + file.path().filename().string() + ":" + std::to_string(fs::file_size(file.path()));
  }
  char hex[20];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash_text(text)));
  return hex;
}

/// data.tokenizer, or a small one made from the captions, kept in the cache folder.
fs::path tokenizer_file(const Recipe& recipe, const Job& job, const std::vector<data::Item>& items, comm::Comm& comm,
                        int rank) {
  if (!recipe.data.tokenizer.empty()) return recipe.data.tokenizer;
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(item.caption);
  std::string all;
  for (const auto& text : texts) all += text + "\n";
  char name[48];
  std::snprintf(name, sizeof name, "tokenizer-%016llx.model", static_cast<unsigned long long>(hash_text(all)));
  const fs::path file = fs::path(recipe.data.cache) / name;
  if (rank == 0 && !fs::exists(file)) {
    fs::create_directories(file.parent_path());
    data::train_tokenizer(texts, static_cast<int>(job.text->vocabulary()), file);
  }
  comm.barrier();
  return file;
}

data::CachedTensor cached(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.to(at::kFloat).contiguous();
  return {dense.sizes().vec(), {dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel()}};
}

at::Tensor tensor_of(const data::CachedTensor& cached) {
  at::Tensor tensor = at::empty(cached.shape, at::kFloat);
  std::copy(cached.values.begin(), cached.values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

}  // namespace

std::vector<data::Item> read_items(const Recipe& recipe) {
  return data::read_dataset({recipe.data.path, recipe.data.metadata, static_cast<int>(recipe.data.repeats)});
}

std::vector<std::string> sample_prompts(const Recipe& recipe, const std::vector<data::Item>& items) {
  if (!recipe.sample.prompts.empty()) return recipe.sample.prompts;
  std::vector<std::string> prompts;
  for (const auto& item : items)
    if (prompts.size() < 4 && std::find(prompts.begin(), prompts.end(), item.caption) == prompts.end())
      prompts.push_back(item.caption);
  return prompts;
}

PreparedSample PreparedData::sample(int64_t index) const {
  const data::CachedSample loaded = cache_->load(index);
  return {tensor_of(loaded.latent), tensor_of(loaded.context)};
}

int64_t PreparedData::clip_of_prompt(int prompt) const {
  for (int64_t i = 0; i < size(); ++i)
    if (items_[i].caption == prompts_.at(prompt)) return i;
  return -1;
}

std::vector<at::Tensor> encode_texts(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank,
                                     const std::vector<std::string>& texts) {
  const fs::path tokenizer = recipe.data.tokenizer.empty() ? tokenizer_file(recipe, job, read_items(recipe), comm, rank)
                                                           : fs::path(recipe.data.tokenizer);
  TextPass pass(recipe, job, mesh, comm, rank, tokenizer);
  std::vector<at::Tensor> contexts;
  for (const auto& text : texts) contexts.push_back(pass.encode(text));
  return contexts;
}

PreparedData prepare(const Recipe& recipe, const Job& job, const Mesh& mesh, comm::Comm& comm, int rank) {
  PreparedData prepared;
  prepared.items_ = read_items(recipe);
  prepared.prompts_ = sample_prompts(recipe, prepared.items_);
  const fs::path folder = recipe.data.cache;
  const fs::path tokenizer = tokenizer_file(recipe, job, prepared.items_, comm, rank);
  prepared.tokenizer_ = tokenizer;
  const std::string encoder = encoder_hash(recipe, job, tokenizer);
  const auto& d = recipe.data;
  const std::string shape = std::to_string(d.frames) + "x" + std::to_string(d.height) + "x" + std::to_string(d.width);
  char preprocessing[64];
  std::snprintf(preprocessing, sizeof preprocessing, "cover+crop fps=%g", d.fps);
  std::vector<data::CacheKey> keys;
  for (const auto& item : prepared.items_)
    keys.push_back(data::cache_key(item.path, item.caption, encoder, shape, preprocessing));

  // Every rank looks before any rank writes, so all have the same list.
  std::vector<size_t> missing;
  std::set<std::string> seen;
  for (size_t i = 0; i < keys.size(); ++i)
    if (data::cache_problem(folder, keys[i]) && seen.insert(keys[i].hash()).second) missing.push_back(i);
  comm.barrier();

  TextPass text(recipe, job, mesh, comm, rank, tokenizer);
  if (!missing.empty())
    log::info("prepare: encoding " + std::to_string(missing.size()) + " of " + std::to_string(keys.size()) +
              " samples into " + folder.string());
  for (size_t n = 0; n < missing.size(); ++n) {
    const size_t i = missing[n];
    const at::Tensor context = text.encode(prepared.items_[i].caption);  // together
    if (static_cast<int>(n % mesh.world()) != rank) continue;
    const data::Frames frames = data::decode_clip(prepared.items_[i].path, {.frames = static_cast<int>(d.frames),
                                                                            .height = static_cast<int>(d.height),
                                                                            .width = static_cast<int>(d.width),
                                                                            .fps = d.fps});
    data::CachedSample sample;
    sample.latent = cached(job.codec->encode(to_pixels(frames)));
    sample.context = cached(context);
    data::write_cached(folder, keys[i], sample);
  }
  for (const auto& prompt : prepared.prompts_) prepared.prompt_contexts_.push_back(text.encode(prompt));
  prepared.negative_context_ = text.encode(recipe.sample.negative_prompt);
  comm.barrier();
  prepared.cache_.emplace(folder, keys);
  prepared.order_.emplace(static_cast<uint64_t>(recipe.run.seed), prepared.size());
  return prepared;
}

}  // namespace tessera::train
