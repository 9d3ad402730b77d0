// The denoising of a prompt with predictions that the test makes: what each key of [sample] does to the latent.
#include <gtest/gtest.h>

#include <array>
#include "tessera/base/random.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"
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

// Clips that are made a chunk at a time, by a small SANA-Video of lively weights.

class Chunks : public ::testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(3);
    job_.model = models::make_denoiser({.preset = "sana-tiny-video"});
    job_.guidance_branches = 2;
    for (const auto& unit : job_.model->units())
      for (const auto& param : unit->spec().params) weights_[param.name] = at::randn(param.shape) * 0.2;
    text_ = at::randn({3, job_.model->context_dim()}), negative_ = at::randn({2, job_.model->context_dim()});
  }
  /// A clip of so many latent frames, and what its passes held at most: tokens, and numbers of states.
  at::Tensor sampled(int64_t frames, const recipe::Overrides& keys, std::map<std::string, at::Tensor> extra = {}) {
    const recipe::Recipe recipe = recipe::load_recipe("", with(keys));
    job_.latent = {job_.model->in_channels(), frames, 4, 4};
    Denoising denoising(recipe, job_, job_, /*prompt=*/0, {text_}, {negative_}, std::move(extra));
    noise_ = denoising.latent().clone();
    if (recipe.sample.chunk > 0) denoising.in_chunks(recipe.sample.chunk, recipe.sample.chunk_reach);
    tokens_ = states_ = passes_ = 0;
    while (!denoising.done())
      denoising.pass([&](const std::vector<net::Batch>& batches, double, const at::Tensor&) {
        std::vector<at::Tensor> out;
        ++passes_;
        for (const net::Batch& batch : batches) {
          out.push_back(net::run_plain(job_.model->units(), weights_, batch));
          tokens_ = std::max(tokens_, batch.tokens.total());
          int64_t held = 0;
          if (batch.tokens.history)
            for (const net::History::Left& left : batch.tokens.history->finished)
              for (const auto* sites : {&left.states, &left.frames})
                for (const auto& [site, values] : *sites) held += values.numel();
          states_ = std::max(states_, held);
        }
        return out;
      });
    return denoising.latent();
  }
  static recipe::Overrides with(const recipe::Overrides& keys) {
    recipe::Overrides all = {{"sample.steps", "3"}, {"sample.guidance", "4"}, {"diffusion.shift", "7"}};
    all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }
  /// The same model and steps with the whole clip in each pass: chunks that are done at the clean end, those that come still
  /// as noise, which none before them reads.
  at::Tensor whole(const recipe::Overrides& keys, const std::map<std::string, at::Tensor>& extra = {}) {
    const recipe::Recipe recipe = recipe::load_recipe("", with(keys));
    const std::vector<int64_t> bounds = net::chunk_bounds(noise_.size(1), recipe.sample.chunk);
    const auto sampler = diffusion::make_sampler("euler", 3, recipe.diffusion.shift);
    at::Tensor x = noise_.clone();
    for (size_t c = 0; c + 1 < bounds.size(); ++c)
      for (int step = 0; step < 3; ++step) {
        const at::Tensor t = at::zeros({x.size(1)}, at::kDouble);
        t.slice(0, bounds[c]).fill_(sampler->timesteps()[static_cast<size_t>(step)]);
        const bool given = extra.contains("image_latent");
        if (given) t[0] = 0;
        net::Sample sample{.x = x.clone(), .extra = extra};
        for (size_t done = 0; done < c && recipe.sample.cache_noise > 0; ++done) {
          const at::Tensor clean = sample.x.slice(1, bounds[done], bounds[done + 1]), noise = at::empty(clean.sizes());
          RandomKey(static_cast<uint64_t>(recipe.sample.seed), Purpose::sample, 0, (uint64_t{1} << 32) + done + 1)
              .normal(noise.mutable_data_ptr<float>(), 0, static_cast<size_t>(noise.numel()));
          clean.copy_((1 - recipe.sample.cache_noise) * clean + recipe.sample.cache_noise * noise);
        }
        sample.extra["t"] = t;
        sample.extra["chunks"] = at::tensor(std::vector<int64_t>(bounds.begin(), bounds.end() - 1), at::kLong);
        std::vector<at::Tensor> velocities;
        for (const at::Tensor& text : {negative_, text_}) {
          sample.context = text;
          net::Batch batch = job_.model->pack({sample});
          if (recipe.sample.chunk_reach > 0) {
            batch.tokens.history = std::make_shared<net::History>();
            batch.tokens.history->reach = recipe.sample.chunk_reach;
          }
          velocities.push_back(job_.model->unpack(net::run_plain(job_.model->units(), weights_, batch), batch)[0]);
        }
        const auto part = [&](const at::Tensor& of) { return of.slice(1, bounds[c], bounds[c + 1]); };
        part(x).copy_(sampler->step(step, part(x), part(diffusion::guided(velocities[0], velocities[1], 4))));
        if (given && c == 0) x.slice(1, 0, 1).copy_(extra.at("image_latent"));
      }
    return x;
  }
  static double apart(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

  job::Job job_;
  net::WeightMap weights_;
  at::Tensor text_, negative_, noise_;
  int64_t tokens_ = 0, states_ = 0, passes_ = 0;
};

TEST_F(Chunks, AreTheClipOfTheSameModelThatIsCausalInTimeWithAllOfItInEachPass) {
  for (const recipe::Overrides& keys :
       std::vector<recipe::Overrides>{{{"sample.chunk", "2"}},
                                      {{"sample.chunk", "3"}},
                                      {{"sample.chunk", "1"}, {"sample.chunk_reach", "2"}},
                                      {{"sample.chunk", "2"}, {"sample.cache_noise", "0.1"}}}) {
    const at::Tensor made = sampled(7, keys);
    const at::Tensor same = whole(keys);
    EXPECT_LE(apart(made, same), 2e-5) << keys[0].second;
    EXPECT_GT(apart(made, sampled(7, {})), 1e-2) << "a clip that is made at once sees what comes later";
  }
}

TEST_F(Chunks, BeginWithAGivenFirstFrame) {
  const std::map<std::string, at::Tensor> given = {{"image_latent", at::randn({job_.model->in_channels(), 1, 4, 4})}};
  const recipe::Overrides keys = {{"sample.chunk", "2"}};
  const at::Tensor made = sampled(5, keys, given);
  EXPECT_TRUE(at::equal(made.slice(1, 0, 1), given.at("image_latent")));
  EXPECT_LE(apart(made, whole(keys, given)), 2e-5);
}

TEST_F(Chunks, NeedNoMoreMemoryForALongerClip) {
  for (const char* reach : {"0", "2"}) {
    const recipe::Overrides keys = {{"sample.chunk", "2"}, {"sample.chunk_reach", reach}};
    sampled(6, keys);
    const int64_t tokens = tokens_, states = states_;
    EXPECT_EQ(tokens, 2 * 4) << "four tokens a frame";
    EXPECT_EQ(passes_, 3 * (3 + 1) - 1) << "none is stored behind the last";
    EXPECT_GT(states, 0);
    sampled(20, keys);
    EXPECT_EQ(tokens_, tokens);
    EXPECT_EQ(states_, states);
    EXPECT_EQ(passes_, 10 * (3 + 1) - 1);
  }
}

TEST_F(Chunks, AreReadWithNoiseByThoseBehindThemAlone) {
  const at::Tensor clean = sampled(6, {{"sample.chunk", "2"}}),
                   noisy = sampled(6, {{"sample.chunk", "2"}, {"sample.cache_noise", "0.1"}});
  EXPECT_TRUE(at::equal(noisy.slice(1, 0, 2), clean.slice(1, 0, 2)));
  EXPECT_GT(apart(noisy.slice(1, 2), clean.slice(1, 2)), 1e-3);
}

/// As a student trains on its own chunks: in one pass, which says what a pass for each chunk says.
TEST_F(Chunks, AreReadAsTheyWereFinishedByAPassOverAllOfThem) {
  const std::vector<int64_t> bounds = net::chunk_bounds(7, 2);
  const auto drawn = [&] { return at::randn({job_.model->in_channels(), 7, 4, 4}); };
  const std::array<at::Tensor, 2> noisy = {drawn(), drawn()}, clean = {drawn(), drawn()};
  const auto run = [&](const std::vector<net::Sample>& samples, const std::shared_ptr<net::History>& history) {
    net::Batch batch = job_.model->pack(samples);
    batch.tokens.history = history;
    return job_.model->unpack(net::run_plain(job_.model->units(), weights_, batch), batch);
  };
  for (const int64_t reach : {0, 1}) {
    const auto history = std::make_shared<net::History>();
    history->reach = reach;
    std::vector<at::Tensor> chunks;
    for (size_t c = 0; c + 1 < bounds.size(); ++c) {
      const auto part = [&](const at::Tensor& of, double t) {
        net::Sample sample{.x = of.slice(1, bounds[c], bounds[c + 1]).contiguous(), .t = t, .context = text_};
        sample.extra["first_frame"] = at::tensor({bounds[c]}, at::kLong);
        return sample;
      };
      const double t = 500 + 100 * static_cast<double>(c);
      chunks.push_back(at::stack(run({part(noisy[0], t), part(noisy[1], t)}, history)));
      net::History::Left left;
      history->storing = &left;
      run({part(clean[0], 0), part(clean[1], 0)}, history);
      history->storing = nullptr;
      if (c + 2 < bounds.size()) history->finished.push_back(left);
    }
    std::vector<net::Sample> whole;
    for (const at::Tensor& x : noisy) {
      net::Sample sample{.x = x, .context = text_};
      sample.extra["chunks"] = at::tensor(std::vector<int64_t>(bounds.begin(), bounds.end() - 1), at::kLong);
      const at::Tensor t = at::empty({7}, at::kDouble);
      for (size_t c = 0; c + 1 < bounds.size(); ++c)
        t.slice(0, bounds[c], bounds[c + 1]).fill_(500 + 100 * static_cast<double>(c));
      sample.extra["t"] = t;
      whole.push_back(sample);
    }
    history->of_all = true;
    const at::Tensor made = at::cat(chunks, 2);
    EXPECT_LE(apart(at::stack(run(whole, history)), made), 2e-5) << reach;
    EXPECT_GT(apart(at::stack(run(whole, nullptr)), made), 1e-3) << "as they are, with noise";
  }
}

TEST_F(Chunks, TakeTheNoiseOfTheWholeClip) {
  sampled(6, {{"sample.chunk", "2"}});
  const at::Tensor of_chunks = noise_.clone();
  sampled(6, {});
  EXPECT_TRUE(at::equal(of_chunks, noise_));
}

}  // namespace
}  // namespace tessera::sample
