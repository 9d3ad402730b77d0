// The denoising of a prompt with predictions that the test makes: what each key of [sample] does to the latent.
#include <gtest/gtest.h>

#include "tessera/base/random.h"
#include "tessera/models/registry.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/sample/validation.h"

namespace tessera::sample {
namespace {

class DenoisingKeys : public ::testing::Test {
 protected:
  job::Job job(int branches) const {
    job::Job job;
    job.model = models::make_denoiser({.preset = "wan-tiny-ti2v"});
    job.latent = {job.model->in_channels(), 2, 4, 4};
    job.guidance_branches = branches;
    return job;
  }
  /// The latent after every pass; branch b predicts b + 1 times a wave.
  std::vector<at::Tensor> latents(const recipe::Overrides& keys, int branches, int prompt = 0,
                                  std::map<std::string, at::Tensor> extra = {}) const {
    recipe::Overrides all = {{"sample.steps", "4"}};
    all.insert(all.end(), keys.begin(), keys.end());
    const recipe::Recipe recipe = recipe::load_recipe("", all);
    const job::Job job = this->job(branches);
    const at::Tensor text = at::ones({3, job.model->context_dim()});
    Denoising denoising(recipe, job, job, prompt, {text}, {text * 0}, std::move(extra));
    std::vector<at::Tensor> found = {denoising.latent().clone()};
    const at::Tensor wave = at::sin(at::arange(found[0].numel()).to(at::kFloat)).view(found[0].sizes());
    while (!denoising.done()) {
      denoising.pass([&](const std::vector<net::Batch>& batches, double, const at::Tensor&) {
        std::vector<at::Tensor> out;
        for (size_t b = 0; b < batches.size(); ++b) {
          const at::Tensor rows = job.model->pack_target(wave * static_cast<double>((b + 1) * (b + 1)));
          const int64_t tokens = batches[b].tokens.total();  // of given frames too, which are not predicted
          out.push_back(at::cat({at::zeros({tokens - rows.size(0), rows.size(1)}), rows}));
        }
        return out;
      });
      found.push_back(denoising.latent().clone());
    }
    return found;
  }
};

TEST_F(DenoisingKeys, TheSeedAndThePromptGiveTheFirstNoiseAndThatOfEveryStep) {
  for (const char* sampler : {"euler", "scm"}) {
    const auto one = latents({{"sample.seed", "3"}, {"sample.sampler", sampler}}, 1);
    const auto same = latents({{"sample.seed", "3"}, {"sample.sampler", sampler}}, 1);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], same[i]));
    at::Tensor noise = at::empty_like(one[0]);
    RandomKey(3, Purpose::sample, 0).normal(noise.mutable_data_ptr<float>(), 0, static_cast<size_t>(noise.numel()));
    EXPECT_TRUE(at::equal(one[0], noise)) << "whatever the layout and the rank";
    EXPECT_FALSE(at::equal(one[0], latents({{"sample.seed", "4"}, {"sample.sampler", sampler}}, 1)[0]));
    EXPECT_FALSE(at::equal(one[0], latents({{"sample.seed", "3"}, {"sample.sampler", sampler}}, 1, /*prompt=*/1)[0]));
  }
  // a sampler that adds noise, with the draws that are promised: by seed, prompt and step
  const auto found = latents({{"sample.seed", "5"}, {"sample.sampler", "scm"}}, 1);
  const recipe::Recipe recipe = recipe::load_recipe("", {});
  const auto sampler = diffusion::make_sampler("scm", 4, recipe.diffusion.shift);
  sampler->use_noise([&](int step) {
    at::Tensor noise = at::empty_like(found[0]);
    RandomKey(5, Purpose::sample, 0, static_cast<uint64_t>(step) + 1)
        .normal(noise.mutable_data_ptr<float>(), 0, static_cast<size_t>(noise.numel()));
    return noise;
  });
  const at::Tensor wave = at::sin(at::arange(found[0].numel()).to(at::kFloat)).view(found[0].sizes());
  at::Tensor x = found[0];
  for (int step = 0; step < 4; ++step) {
    x = sampler->step(step, x, wave);
    EXPECT_TRUE(at::allclose(x, found[static_cast<size_t>(step) + 1], 1e-5, 1e-5)) << step;
  }
}

TEST_F(DenoisingKeys, EveryKeyOfGuidanceActs) {
  const recipe::Overrides usual = {{"sample.steps", "14"}, {"sample.guidance", "5"}, {"sample.image_guidance", "3"}};
  const std::vector<at::Tensor> all = latents(usual, 3);
  const at::Tensor& with = all.back();
  for (const auto& [key, value] : {std::pair("sample.guidance", "4"),
                                   {"sample.image_guidance", "2"},
                                   {"sample.alternate_guidance", "true"},
                                   {"sample.image_guidance_by_frame", "true"}}) {
    recipe::Overrides changed = usual;
    changed.emplace_back(key, value);
    const std::vector<at::Tensor> found = latents(changed, 3);
    EXPECT_GT((found.back() - with).abs().max().item<double>(), 1e-3) << key;
    if (std::string_view(key) == "sample.alternate_guidance")
      EXPECT_TRUE(at::equal(found[11], all[11])) << "steps 0 to 10 have all of it";
  }
  EXPECT_GT((latents({{"sample.guidance", "4"}}, 2).back() - latents({{"sample.guidance", "5"}}, 2).back())
                .abs()
                .max()
                .item<double>(),
            1e-3);
}

TEST_F(DenoisingKeys, AGivenFirstFrameStaysAsItIsAfterEveryStep) {
  const job::Job shape = job(1);
  const at::Tensor given = at::full({shape.latent[0], 1, 4, 4}, 0.25);
  const auto found = latents({}, 1, 0, {{"image_latent", given}});
  for (size_t i = 1; i < found.size(); ++i)
    EXPECT_TRUE(at::equal(found[i].slice(1, 0, 1), given)) << "after step " << i;
  EXPECT_FALSE(at::equal(found.back().slice(1, 1), found[0].slice(1, 1)));
}

}  // namespace
}  // namespace tessera::sample
