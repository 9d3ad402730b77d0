// What `prepare` finds in a cache and what it makes again: a cache of version 1, and weights of text encoders that are
// held in bf16.
#include <gtest/gtest.h>

#include <cstring>

#include "prepare/prepare_test.h"
#include "tessera/base/random.h"
#include "tessera/data/cache_search.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/job/encoder_plan.h"
#include "tessera/prepare/text_pass.h"

namespace tessera::prepare {
namespace {

namespace fs = std::filesystem;

class CachedTexts : public PrepareTest {
 protected:
  /// Rewrites the cache as version 1 had it: clip and text in one file, under the key of both.
  void write_first_version(const recipe::Recipe& r, const job::Job& job, const PreparedData& data) const {
    const fs::path cache = folder_ / "cache";
    std::vector<std::pair<data::Path, data::CachedText>> texts;
    for (const auto& file : fs::directory_iterator(cache / "texts"))
      texts.emplace_back(file.path(), data::read_caption({file.path(), {}, true, ""}));
    const std::string encoder = encoder_hashes(r, job, data.tokenizer()).both;
    std::vector<fs::path> clips;
    for (const auto& file : fs::directory_iterator(cache))
      if (file.path().extension() == ".safetensors") clips.push_back(file.path());
    for (const fs::path& file : clips) {
      const auto header = checkpoint::SafetensorsFile::open(file).metadata();
      const data::CachedClip clip = data::read_clip({file, {}, false, ""});
      for (const auto& [path, text] : texts) {
        const std::string caption = checkpoint::SafetensorsFile::open(path).metadata().at("caption");
        if (!header.at("source").ends_with(caption.substr(5) + ".mp4")) continue;  // "clip a" of a.mp4
        checkpoint::Metadata fields = {
            {"source", header.at("source")}, {"caption", caption}, {"encoder", encoder},
            {"shape", header.at("shape")},   {"version", "1"},     {"preprocessing", header.at("preprocessing")}};
        const std::string name = data::CacheKey{fields, {}, {}}.hash() + ".safetensors";
        fields["stamp"] = header.at("stamp");
        checkpoint::write_safetensors(cache / name,
                                      {{"latent", DType::f32, clip.latent.shape, clip.latent.values.data()},
                                       {"context", DType::f32, text.context.shape, text.context.values.data()}},
                                      fields);
      }
      fs::remove(file);
    }
    fs::remove_all(cache / "texts");
  }

  size_t entries(const char* folder) const {
    std::error_code none;
    size_t count = 0;
    for (const auto& file : fs::directory_iterator(folder_ / folder, none))
      count += file.path().extension() == ".safetensors";
    return count;
  }

  /// The weights of an encoder, rounded to bf16, in a file of bf16 or of fp32.
  template <class Encoder>
  fs::path weights_of(const Encoder& encoder, const std::string& name, DType dtype, bool rounded) const {
    std::vector<std::vector<float>> wide;
    std::vector<std::vector<uint16_t>> narrow;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& unit : encoder.units())
      for (const plan::ParamSpec& param : unit->spec().params) {
        std::vector<float>& values = wide.emplace_back(static_cast<size_t>(param.numel()));
        std::vector<uint16_t>& halves = narrow.emplace_back(values.size());
        encoder.initialise(param, 3, 0, param.numel(), values.data());
        const at::Tensor as = at::from_blob(values.data(), {param.numel()}, at::kFloat).to(at::kBFloat16).contiguous();
        std::memcpy(halves.data(), as.const_data_ptr(), 2 * halves.size());
        if (rounded) std::memcpy(values.data(), as.to(at::kFloat).const_data_ptr(), 4 * values.size());
        const void* data = dtype == DType::bf16 ? static_cast<const void*>(halves.data()) : values.data();
        tensors.push_back({param.name, dtype, param.shape, data});
      }
    const fs::path path =
        folder_ / (name + (rounded ? "rounded-" : "exact-") + std::string(tessera::name(dtype)) + ".safetensors");
    checkpoint::write_safetensors(path, tensors, {});
    return path;
  }
  fs::path encoder_file(const job::Job& job, DType dtype, bool rounded) const {
    return weights_of(*job.text, "", dtype, rounded);
  }
};

TEST_F(CachedTexts, ACacheOfVersionOneIsUsedWhereItIsRight) {
  const recipe::Recipe r = recipe();
  const job::Job job = job::make_job(r);
  const PreparedData made = prepared(r, job);
  const std::string tokenizer = made.tokenizer().string();
  const recipe::Recipe fixed = recipe({{"data.tokenizer", tokenizer}});
  const std::vector<PreparedSample> samples = {made.sample(0), made.sample(1)};
  write_first_version(fixed, job, made);
  ASSERT_EQ(entries("cache"), 2u);

  const PreparedData found = prepared(fixed, job);
  EXPECT_EQ(entries("cache"), 2u) << "nothing was encoded";
  EXPECT_EQ(entries("cache/texts"), 0u);
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(found.sample(i).latent.equal(samples[static_cast<size_t>(i)].latent)) << i;
    EXPECT_TRUE(found.sample(i).context.equal(samples[static_cast<size_t>(i)].context)) << i;
  }

  std::ofstream(folder_ / "data/a.txt") << "clip a, corrected";
  const PreparedData corrected = prepared(fixed, job);
  EXPECT_EQ(entries("cache"), 2u) << "the latent of another caption's entry is that of the clip";
  EXPECT_EQ(entries("cache/texts"), 1u);
  EXPECT_TRUE(corrected.sample(0).latent.equal(samples[0].latent));
  EXPECT_FALSE(corrected.sample(0).context.equal(samples[0].context));
}

TEST_F(CachedTexts, TheHashOfVersionOneIsThatOfAllEncodersTogether) {
  const recipe::Recipe r = recipe();
  const job::Job job = job::make_job(r);
  const fs::path tokenizer = prepared(r, job).tokenizer();
  char hex[20];
  std::snprintf(hex, sizeof hex, "%016llx",
                static_cast<unsigned long long>(hash_text(job.codec->fingerprint() + "|" + job.text->fingerprint() +
                                                          "|" + data::tokenizer_text(tokenizer))));
  EXPECT_EQ(encoder_hashes(r, job, tokenizer).both, hex);
}

job::HeldWeights held_of(decltype(job::text_storage) storage, const recipe::Recipe& recipe) {
  return storage(recipe.data, recipe.plan);
}

TEST_F(CachedTexts, TheEncoderIsHeldInTheDtypeOfItsFileOrOfTheRecipe) {
  const job::Job job = job::make_job(recipe());
  const std::string bf16 = encoder_file(job, DType::bf16, true), same = encoder_file(job, DType::f32, true),
                    exact = encoder_file(job, DType::f32, false);
  const std::string tokenizer = prepared(recipe(), job).tokenizer().string();
  const auto with = [&](const std::string& weights, const char* compute) {
    return recipe({{"data.text_encoder_path", weights},
                   {"data.tokenizer", tokenizer},
                   {"plan.compute_dtype", compute},
                   {"data.cache", (folder_ / ("cache-" + fs::path(weights).stem().string() + compute)).string()}});
  };
  const auto held = [&](const recipe::Recipe& r) { return held_of(job::text_storage, r).dtype; };
  EXPECT_EQ(held(recipe()), DType::f32);
  EXPECT_EQ(held(recipe({{"plan.compute_dtype", "bf16"}})), DType::f32) << "random weights have no file";
  EXPECT_EQ(held(with(same, "fp32")), DType::f32);
  EXPECT_EQ(held(with(bf16, "fp32")), DType::bf16);
  EXPECT_EQ(held(with(exact, "bf16")), DType::bf16);
  EXPECT_FALSE(held_of(job::text_storage, with(bf16, "bf16")).rounded);
  EXPECT_TRUE(held_of(job::text_storage, with(exact, "bf16")).rounded);

  const auto context = [&](const recipe::Recipe& r) { return prepared(r, job).sample(0).context; };
  const at::Tensor plain = context(with(same, "fp32"));
  EXPECT_TRUE(context(with(bf16, "fp32")).equal(plain)) << "the bits of fp32 weights of the same values";
  EXPECT_TRUE(context(with(exact, "bf16")).equal(plain)) << "rounded once, computed in fp32";
  EXPECT_FALSE(context(with(exact, "fp32")).equal(plain)) << "a recipe in fp32 rounds nothing";

  const auto hashes = [&](const recipe::Recipe& r) { return encoder_hashes(r, job, tokenizer); };
  EXPECT_NE(hashes(with(exact, "bf16")).text, hashes(with(exact, "fp32")).text);
  EXPECT_EQ(hashes(with(exact, "bf16")).clip, hashes(with(exact, "fp32")).clip) << "clips do not depend on it";
  EXPECT_FALSE(hashes(with(exact, "bf16")).same_texts) << "version 1 did not round";
  EXPECT_TRUE(hashes(with(bf16, "bf16")).same_texts);
}

TEST_F(CachedTexts, CaptionsBehindAnotherInstructionAreOthers) {
  const job::Job job = job::make_job(recipe());
  const fs::path tokenizer = prepared(recipe(), job).tokenizer();
  std::set<std::string> texts, clips;
  for (const char* instruction : {"", "Describe it: ", "Say it: "}) {
    const EncoderHashes hashes = encoder_hashes(recipe({{"data.instruction", instruction}}), job, tokenizer);
    texts.insert(hashes.text), clips.insert(hashes.clip);
  }
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_EQ(clips.size(), 1u);
}

/// CLIP's image tower and a second text encoder follow the same rule.
TEST_F(CachedTexts, TheImageEncoderIsHeldInTheDtypeOfItsFileOrOfTheRecipe) {
  const auto looking = [&](const std::string& weights, const char* compute) {
    return recipe({{"model.config.model_type", "i2v"},
                   {"model.config.in_dim", "28"},
                   {"model.config.image_dim", "24"},
                   {"model.config.image_len", "5"},
                   {"data.image_encoder_path", weights},
                   {"plan.compute_dtype", compute},
                   {"data.cache", (folder_ / ("cache-" + fs::path(weights).stem().string() + compute)).string()}});
  };
  const job::Job job = job::make_job(looking("", "fp32"));
  ASSERT_TRUE(job.image);
  const std::string bf16 = weights_of(*job.image, "clip-", DType::bf16, true),
                    same = weights_of(*job.image, "clip-", DType::f32, true),
                    exact = weights_of(*job.image, "clip-", DType::f32, false);
  EXPECT_EQ(held_of(job::image_storage, looking("", "bf16")).dtype, DType::f32) << "random weights have no file";
  EXPECT_EQ(held_of(job::image_storage, looking(same, "fp32")).dtype, DType::f32);
  EXPECT_EQ(held_of(job::image_storage, looking(bf16, "fp32")).dtype, DType::bf16);
  EXPECT_EQ(held_of(job::second_storage, recipe({{"data.pooled_encoder_path", bf16}})).dtype, DType::bf16);
  EXPECT_TRUE(
      held_of(job::second_storage, recipe({{"data.pooled_encoder_path", exact}, {"plan.compute_dtype", "bf16"}}))
          .rounded);

  const auto seen = [&](const std::string& weights, const char* compute) {
    const recipe::Recipe r = looking(weights, compute);
    return prepared(r, job::make_job(r)).sample(0).extra.at("clip_fea");
  };
  const at::Tensor plain = seen(same, "fp32");
  EXPECT_TRUE(seen(bf16, "fp32").equal(plain)) << "the bits of fp32 weights of the same values";
  EXPECT_TRUE(seen(exact, "bf16").equal(plain)) << "rounded once, computed in fp32";
  EXPECT_FALSE(seen(exact, "fp32").equal(plain)) << "a recipe in fp32 rounds nothing";

  const recipe::Recipe rounded = looking(exact, "bf16"), not_rounded = looking(exact, "fp32");
  const std::string tokenizer = prepared(rounded, job).tokenizer().string();
  EXPECT_NE(encoder_hashes(rounded, job, tokenizer).clip, encoder_hashes(not_rounded, job, tokenizer).clip);
  EXPECT_FALSE(encoder_hashes(rounded, job, tokenizer).same_clips) << "version 1 did not round";
}

}  // namespace
}  // namespace tessera::prepare
