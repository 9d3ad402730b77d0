#include "tessera/diffusion/flow.h"

#include <map>
#include <set>

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/diffusion/loss.h"
#include "tessera/diffusion/training_sample.h"

namespace tessera::diffusion {

TEST(Flow, ShiftsComposeAndHaveAnInverse) {
  for (const double u : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    EXPECT_NEAR(shift_sigma(shift_sigma(u, 3), 4), shift_sigma(u, 12), 1e-15);
    EXPECT_NEAR(unshift_sigma(shift_sigma(u, 5), 5), u, 1e-15);
  }
}

TEST(Flow, TrainingTableIsTheGoldenOne) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("flow");
  const TensorMap tensors = golden.tensors("case.safetensors");
  const std::string prefix = "out.diffsynth_train.shift5.steps1000.";
  const TrainingTable table = training_table(5);
  const auto list = [](const std::vector<double>& values) { return at::tensor(values, at::kDouble); };
  expect_close(list(table.sigmas), tensors.at(prefix + "sigmas"), golden.tolerance("sigmas"), "sigmas");
  expect_close(list(table.timesteps), tensors.at(prefix + "timesteps"), 1e-3, "timesteps");
  expect_close(list(table.weights), tensors.at(prefix + "weights"), 1e-5, "weights");
  EXPECT_EQ(table.weights[0], 0);

  const at::Tensor &x = tensors.at("in.x"), &noise = tensors.at("in.noise"), &ids = tensors.at(prefix + "ids");
  expect_close(velocity(x, noise), tensors.at(prefix + "target"), golden.tolerance("out"), "target");
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const auto id = ids[i].item<int64_t>();
    expect_close(add_noise(x, noise, table.sigmas[id]), tensors.at(prefix + "noisy")[i], golden.tolerance("out"),
                 "noisy");
    EXPECT_NEAR(table.weight_at(table.timesteps[id]), tensors.at(prefix + "weight_at_ids")[i].item<double>(), 1e-5);
  }
}

TEST(Flow, DrawsDependOnSeedStepAndSampleOnly) {
  Options options;
  const TrainingDraw a = draw(options, 1, 2, 3);
  EXPECT_EQ(a.sigma, draw(options, 1, 2, 3).sigma);
  std::set<double> seen = {a.sigma, draw(options, 2, 2, 3).sigma, draw(options, 1, 3, 3).sigma,
                           draw(options, 1, 2, 4).sigma};
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_EQ(a.t, 1000 * a.sigma);
  EXPECT_EQ(a.weight, 1);
}

/// Share of draws with sigma below `bound`.
double share_below(const Options& options, double bound) {
  int below = 0;
  for (int64_t i = 0; i < 20000; ++i) below += draw(options, 7, i, 0).sigma < bound;
  return below / 20000.0;
}

TEST(Flow, DrawsHaveTheirDistributions) {
  Options options;
  EXPECT_NEAR(share_below(options, 0.3), 0.3, 0.015);
  options.shift = 5;  // over 0.875 lie 41.7 % of the shifted uniform draws
  EXPECT_NEAR(share_below(options, 0.875), 1 - 0.417, 0.015);
  options.timesteps = Timesteps::diffsynth;
  EXPECT_NEAR(share_below(options, 0.875), 1 - 0.417, 0.015);
  options.timesteps = Timesteps::logit_normal;  // and 36.8 % of the logit-normal ones
  EXPECT_NEAR(share_below(options, 0.875), 1 - 0.368, 0.015);
}

/// The share of shifted sigmas below q that the formula of a kind says. `towards`: 1 where large normals are noise.
double share_of(const Options& options, double q) {
  const double u = q / (options.shift - (options.shift - 1) * q);  // before the shift
  const bool even = options.timesteps == Timesteps::uniform || options.timesteps == Timesteps::diffsynth;
  const double towards = options.timesteps == Timesteps::diffusers ? 1 : -1;  // its noisiest entry is the first
  return even ? u : 0.5 * std::erfc(-(std::log(u / (1 - u)) + towards * options.mean) / options.scale / std::sqrt(2.0));
}

TEST(Flow, EveryKindHasTheDistributionOfItsFormula) {
  constexpr Timesteps kKinds[] = {Timesteps::uniform, Timesteps::logit_normal, Timesteps::diffsynth,
                                  Timesteps::nvlabs,  Timesteps::diffusers,    Timesteps::by_size,
                                  Timesteps::by_area};
  for (const Timesteps kind : kKinds)
    for (const auto& [shift, mean, scale] : {std::array{1.0, 0.0, 1.0}, {3.0, 0.7, 1.4}, {0.6, -0.5, 0.8}}) {
      Options options;
      options.timesteps = kind, options.shift = shift;
      if (kind != Timesteps::by_size) options.mean = mean, options.scale = scale;  // whose normals are plain
      for (const double q : {0.1, 0.37, 0.6, 0.9})
        EXPECT_NEAR(share_below(options, q), share_of(options, q), 0.015)
            << static_cast<int>(kind) << " shift " << shift << " below " << q;
    }
}

TEST(Flow, DiffsynthWeightsAverageToOneOverItsTable) {
  Options options;
  options.timesteps = Timesteps::diffsynth;
  options.shift = 5;
  options.weighting = Weighting::diffsynth;
  double sum = 0;
  for (int64_t i = 0; i < 2000; ++i) sum += draw(options, 3, i, 1).weight;
  EXPECT_NEAR(sum / 2000, 1, 0.05);
}

TEST(Flow, DiffusersTableIsDrawnFromAsRecorded) {
  TESSERA_NEED_GOLDENS();
  const TensorMap tensors = Golden("sampling_sana").tensors("case.safetensors");
  Options options;
  options.timesteps = Timesteps::diffusers;
  options.shift = 3;
  const auto number = [&](const char* name, int64_t i) { return tensors.at(name)[i].item<double>(); };
  for (int64_t i = 0; i < 8; ++i) {
    const double u = 1 / (1 + std::exp(-number("in.train.normal", i)));
    EXPECT_NEAR(u, number("out.train.u", i), 1e-6);
    const TrainingDraw d = draw_of(options, u);
    EXPECT_NEAR(d.sigma, number("out.train.sigma", i), 1e-6);
    EXPECT_NEAR(d.t, number("out.train.timestep", i), 1e-3) << "not truncated";
    EXPECT_NEAR(d.sigma, number("out.train.table_sigmas", tensors.at("out.train.index")[i].item<int64_t>()), 1e-6);
    const at::Tensor latent = tensors.at("in.train.latent")[i], noise = tensors.at("in.train.noise")[i];
    expect_close(add_noise(latent, noise, d.sigma), tensors.at("out.train.noisy")[i], 1e-5, "noisy");
    expect_close(velocity(latent, noise), tensors.at("out.train.target")[i], 1e-6, "target");
  }
}

TEST(Flow, SanaTablesRunFromTheCleanestAndTimestepsAreWholeNumbers) {
  Options options;
  options.timesteps = Timesteps::nvlabs;
  options.shift = 3;
  const TrainingDraw low = draw_of(options, 0.0004), high = draw_of(options, 0.9999),
                     middle = draw_of(options, 0.25049);
  EXPECT_EQ(low.sigma, 0) << "entry 0 has no noise";
  EXPECT_NEAR(high.sigma, shift_sigma(0.999, 3), 1e-12) << "the last one is not all noise";
  EXPECT_EQ(high.t, 999);
  EXPECT_NEAR(middle.sigma, 0.5, 1e-12) << "entry 250, whatever lies behind it";
  EXPECT_EQ(draw_of(options, 0.3).t, 562) << "of 562.5";
  Options other = options;
  other.timesteps = Timesteps::diffusers;
  EXPECT_NEAR(draw_of(other, 0.75).sigma, middle.sigma, 1e-12) << "there the noisiest entry is the first";
}

TEST(Flow, TablesOfLogitNormalDrawsKeepToTheirWindowWithItsShareOfThem) {
  for (const Timesteps kind : {Timesteps::nvlabs, Timesteps::diffusers}) {
    Options all, part;
    all.timesteps = part.timesteps = kind;
    all.shift = part.shift = 3;
    part.window = {0.5, 0.8};
    int inside = 0;
    for (int64_t i = 0; i < 20000; ++i) {
      inside += part.window.holds(draw(all, 7, i, 0).sigma);
      ASSERT_TRUE(part.window.holds(draw(part, 7, i, 0).sigma));
    }
    EXPECT_NEAR(inside / 20000.0, window_mass(all, part.window), 0.015);
    EXPECT_NEAR(window_mass(all, {0, 1}), 1, 1e-12);
  }
}

TEST(Flow, CaptionsAreDroppedByShareAndNothingElseChanges) {
  const at::Tensor latent = at::randn({4, 1, 2, 2}), own = at::ones({3, 8}), null = at::zeros({1, 8});
  const NoiseSettings never{.seed = 3}, often{.seed = 3, .caption_dropout = 0.25, .null_context = null};
  int dropped = 0;
  for (int64_t step = 0; step < 4000; ++step) {
    const TrainingSample plain = noised(never, {}, {latent, own}, step, 1),
                         other = noised(often, {}, {latent, own}, step, 1);
    ASSERT_TRUE(plain.input.context.equal(own));
    ASSERT_TRUE(other.input.x.equal(plain.input.x)) << "noise and timestep are those of a run without dropout";
    const bool drops = other.input.context.equal(null);
    ASSERT_TRUE(drops || other.input.context.equal(own));
    dropped += drops;
  }
  EXPECT_NEAR(dropped / 4000.0, 0.25, 0.03);
}

TEST(Flow, APooledCaptionIsDroppedByADrawOfItsOwn) {
  const at::Tensor latent = at::randn({4, 1, 2, 2}), own = at::ones({3, 8}), null = at::zeros({3, 8});
  const CleanSample clean{latent, own, {{"pooled", at::ones({5})}}};
  const NoiseSettings often{
      .seed = 3, .caption_dropout = 0.25, .null_context = null, .pooled_dropout = 0.5, .null_pooled = at::zeros({5})};
  int captions = 0, pooled = 0, both = 0;
  for (int64_t step = 0; step < 4000; ++step) {
    const net::Sample sample = noised(often, {}, clean, step, 1).input;
    const bool caption = sample.context.equal(null), vector = sample.extra.at("pooled").equal(often.null_pooled);
    ASSERT_TRUE(vector || sample.extra.at("pooled").equal(at::ones({5})));
    captions += caption, pooled += vector, both += caption && vector;
  }
  EXPECT_NEAR(captions / 4000.0, 0.25, 0.03);
  EXPECT_NEAR(pooled / 4000.0, 0.5, 0.03);
  EXPECT_NEAR(both / 4000.0, 0.125, 0.03) << "independent of one another";
}

TEST(Flow, GivenFramesAreDrawnByWeightAndAClipHasThoseThatItIsLongEnoughFor) {
  const net::Conditions takes{.given_frames = true};
  const NoiseSettings settings{.seed = 3, .conditions = {{"t2v", 1}, {"i2v_head", 2}, {"v2v_head", 1}}};
  std::map<int64_t, int> counts;  // by the frames that are given, 0: none
  for (int64_t step = 0; step < 4000; ++step) {
    const auto given = given_frames(settings, takes, 37, 10, step, 1);
    ++counts[given.empty() ? 0 : given[0].count];
    EXPECT_EQ(given, given_frames(settings, takes, 37, 10, step, 1));
    for (const families::GivenFrames& of_short : given_frames(settings, takes, 33, 9, step, 1))
      EXPECT_EQ(of_short.count, 1) << "33 frames are not longer than 33";
  }
  EXPECT_NEAR(counts[0], 1000, 130);
  EXPECT_NEAR(counts[1], 2000, 130);
  EXPECT_NEAR(counts[33], 1000, 130);
  EXPECT_TRUE(given_frames(settings, takes, 1, 1, 0, 0).empty()) << "a picture";
  EXPECT_TRUE(given_frames(settings, {}, 37, 10, 0, 0).empty()) << "another model";
}

TEST(Flow, GivenFramesComeInCondAndChangeNeitherNoiseNorTarget) {
  const at::Tensor latent = at::randn({4, 3, 2, 2}), first = at::randn({4, 1, 2, 2});
  const net::Conditions takes{.clean_first = true, .given_frames = true};
  const NoiseSettings plain{.seed = 3}, gives{.seed = 3, .conditions = {{"i2v_head", 1}}};
  const TrainingSample without = noised(plain, {}, {latent, at::ones({3, 8})}, 5, 1);
  const TrainingSample sample =
      noised(gives, takes, {latent, at::ones({3, 8}), {}, given_frames(gives, takes, 9, 3, 5, 1), {first}}, 5, 1);
  EXPECT_TRUE(sample.input.x.equal(without.input.x));
  EXPECT_TRUE(sample.velocity.equal(without.velocity));
  EXPECT_FALSE(sample.input.extra.count("image_latent"));
  const at::Tensor cond = sample.input.extra.at("cond");
  EXPECT_TRUE(cond.slice(0, 1).slice(1, 0, 1).equal(first)) << "as it was encoded on its own";
  EXPECT_TRUE(cond[0].equal(at::tensor({1.0F, 0.0F, 0.0F}).view({3, 1, 1}).expand({3, 2, 2})));
  EXPECT_EQ(cond.slice(1, 1).abs().max().item<float>(), 0);
}

TEST(Flow, MaskedFramesHaveNoNoiseAndTheLossIsTheMeanOverTheOthers) {
  const at::Tensor latent = at::randn({2, 6, 3, 3});
  const net::Conditions takes{.frame_masks = true};
  const NoiseSettings plain{.seed = 3}, masks{.seed = 3, .mask_ratios = {{"random", 0.3}, {"image_head", 0.2}}};
  int none = 0, heads = 0;
  for (int64_t step = 0; step < 2000; ++step) {
    const TrainingSample without = noised(plain, {}, {latent, at::ones({3, 8})}, step, 1),
                         sample = noised(masks, takes, {latent, at::ones({3, 8})}, step, 1);
    ASSERT_TRUE(sample.velocity.equal(without.velocity));
    if (sample.frame_weights.empty()) {
      ++none;
      ASSERT_TRUE(sample.input.x.equal(without.input.x));
      ASSERT_FALSE(sample.input.extra.count("x_mask"));
      continue;
    }
    const at::Tensor mask = sample.input.extra.at("x_mask");
    double weights = 0;
    for (int64_t f = 0; f < 6; ++f) {
      const bool given = mask[f].item<float>() == 0;
      const double weight = sample.frame_weights[static_cast<size_t>(f)];
      ASSERT_EQ(weight == 0, given);
      ASSERT_TRUE(sample.input.x.select(1, f).equal((given ? latent : without.input.x).select(1, f)));
      weights += weight;
    }
    ASSERT_NEAR(weights, 6, 1e-9) << "a mean: at least one frame is trained";
    heads += mask[0].item<float>() == 0 && mask.sum().item<float>() == 5;
  }
  EXPECT_NEAR(none / 2000.0, 0.5, 0.04);
  EXPECT_GT(heads, 300);
}

TEST(Flow, FramesBesideAreDrawnByTheirWeightsAndLeftOutByTheirDraw) {
  const at::Tensor latent = at::randn({2, 6, 3, 3}), noisy = at::randn({2, 6, 3, 3}), caption = at::randn({3, 8}),
                   null = at::randn({5, 8});
  const net::Conditions takes{.given_frames = true, .frame_masks = true};
  const NoiseSettings plain{.seed = 3, .caption_dropout = 1, .null_context = null},
      beside{.seed = 3,
             .mask_ratios = {{"image_head", 1}},
             .mask_types = {{"none", 2}, {"i2v_head", 1}, {"i2v_loop", 1}, {"v2v_head_noisy", 1}, {"other", 1}},
             .drop_condition = {{"cond", 1}, {"text", 1}, {"null", 1}, {"keep", 1}},
             .caption_dropout = 1,
             .null_context = null};
  std::map<std::string, int> kinds;
  std::map<std::pair<bool, bool>, int> drops;  // caption, frames
  for (int64_t step = 0; step < 3000; ++step) {
    const auto given = given_frames(beside, takes, 21, 6, step, 1);
    const CleanSample clean{latent, caption, {}, given, given.empty() ? std::vector<at::Tensor>() : std::vector{noisy}};
    const TrainingSample without = noised(plain, {}, clean, step, 1), sample = noised(beside, takes, clean, step, 1);
    ASSERT_TRUE(sample.velocity.equal(without.velocity));
    const at::Tensor index = sample.input.extra.at("mask_index");
    std::string mask(6, '.');
    for (int64_t i = 0; i < index.numel(); ++i) mask[static_cast<size_t>(index[i].item<int64_t>())] = 'x';
    ++kinds[mask];
    if (index.numel() == 0) {
      ASSERT_TRUE(sample.input.extra.count("x_mask")) << "frames without noise belong to the others";
      ASSERT_TRUE(sample.input.context.equal(null.slice(0, 0, 3))) << "and so do captions that are dropped";
      continue;
    }
    ASSERT_FALSE(sample.input.extra.count("x_mask"));
    ASSERT_TRUE(sample.frame_weights.empty()) << "the loss counts all frames";
    ASSERT_TRUE(sample.input.x.equal(without.input.x)) << "they have noise in x";
    ASSERT_TRUE(sample.input.extra.at("y_null").equal(null.slice(0, 0, 3))) << "as many rows as the caption";
    const bool has_caption = sample.input.context.equal(caption), has_frames = sample.input.extra.count("cond");
    ASSERT_TRUE(has_caption || sample.input.context.equal(null.slice(0, 0, 3)));
    ++drops[{has_caption, has_frames}];
    if (!has_frames) continue;
    ASSERT_TRUE(given.empty() || (given[0].noisy && given[0].name() == "given.noisy"));
    const at::Tensor& source = given.empty() ? latent : noisy;
    for (int64_t f = 0; f < 6; ++f) {
      const at::Tensor frame = sample.input.extra.at("cond").select(1, f);
      ASSERT_TRUE(mask[static_cast<size_t>(f)] == 'x' ? frame.equal(source.select(1, f))
                                                      : frame.abs().max().item<float>() == 0);
    }
  }
  EXPECT_NEAR(kinds["......"] / 3000.0, 2 / 6.0, 0.03);
  EXPECT_NEAR(kinds["x....x"] / 3000.0, 1 / 6.0, 0.03);
  EXPECT_NEAR(kinds["xxx..."] / 3000.0, 1 / 6.0 + 1 / 6.0 / 2 / 4, 0.03) << "half of them, and one of four of other";
  EXPECT_EQ(drops.size(), 4U);
  for (const auto& [what, count] : drops) EXPECT_NEAR(count / 2000.0, 0.25, 0.04);
  const CleanSample picture{latent.slice(1, 0, 1).contiguous(), caption};
  const TrainingSample still = noised(beside, takes, picture, 5, 1);
  EXPECT_EQ(still.input.extra.at("mask_index").numel(), 0);
  EXPECT_TRUE(given_frames(beside, takes, 1, 1, 5, 1).empty());
}

TEST(Flow, FrameWeightsAreTheSameLossWhateverRowsARankHas) {
  const int64_t rows = 5;  // of a frame
  const std::vector<double> weights = {0, 2, 2, 0, 1.5, 0.5};
  net::Batch batch;
  batch.tokens.offsets = {0, 6 * rows};
  const at::Tensor prediction = at::randn({6 * rows, 4}), target = at::randn({6 * rows, 4});
  double expected = 0;
  for (size_t f = 0; f < weights.size(); ++f) {
    const auto frame = static_cast<int64_t>(f) * rows;
    expected += weights[f] / 6 *
                (prediction.narrow(0, frame, rows) - target.narrow(0, frame, rows)).square().mean().item<double>();
  }
  at::Tensor whole = at::zeros_like(prediction);
  EXPECT_NEAR(sample_error(prediction, batch, 0, {target}, 1, whole, weights).value(), expected, 1e-6);
  EXPECT_EQ(whole.narrow(0, 0, rows).abs().max().item<float>(), 0) << "frames that are given have no gradient";
  double sum = 0;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 13), {13, 30}}) {
    net::Batch part = batch;
    part.tokens.begin = begin, part.tokens.end = end;
    at::Tensor gradient = at::zeros({end - begin, 4});
    sum += sample_error(prediction.slice(0, begin, end).contiguous(), part, 0, {target.slice(0, begin, end), begin}, 1,
                        gradient, weights)
               .value();
    EXPECT_TRUE(at::allclose(gradient, whole.slice(0, begin, end), 1e-5, 1e-8)) << begin;
  }
  EXPECT_NEAR(sum, expected, 1e-6);
}

TEST(Flow, TheShiftFollowsFromTheSizeOfEachSample) {
  Options options;
  parse_timesteps("by_size", options);
  EXPECT_DOUBLE_EQ(of_size(options, {16, 1, 32, 32}).shift, 1) << "256 tokens";
  EXPECT_DOUBLE_EQ(of_size(options, {16, 1, 128, 128}).shift, 3) << "4096 tokens";
  EXPECT_DOUBLE_EQ(of_size(options, {16, 9, 128, 128}).shift, 9) << "times the root of the frames";
  Options others;
  parse_timesteps("logit_normal", others);
  EXPECT_DOUBLE_EQ(of_size(others, {16, 9, 128, 128}).shift, others.shift);
  const NoiseSettings settings{.seed = 3, .timesteps = options};
  double small = 0, large = 0;
  for (int64_t step = 0; step < 200; ++step) {
    small += noised(settings, {}, {at::zeros({1, 1, 32, 32}), at::ones({1, 2})}, step, 0).input.t;
    large += noised(settings, {}, {at::zeros({1, 9, 32, 32}), at::ones({1, 2})}, step, 0).input.t;
  }
  EXPECT_GT(large, small + 200 * 100) << "longer clips have more noise";
  const at::Tensor latent = at::randn({2, 1, 4, 4}), noise = at::randn({2, 1, 4, 4});
  EXPECT_TRUE(add_noise(latent, noise, 0.25, 0).equal(add_noise(latent, noise, 0.25)));
  EXPECT_NEAR((add_noise(latent, noise, 0, 0.5) - latent - 0.5 * noise).abs().max().item<double>(), 0, 1e-6);
  options.rounds_to_bf16 = true;
  const double sigma = draw_of(options, 0.7301).sigma;
  EXPECT_EQ(sigma, 0.73046875) << "eight bits";
  EXPECT_EQ(draw_of(options, 0.7301).t, 1000 * sigma);
}

TEST(Flow, TheShiftFollowsFromTheAreaOfEachSample) {
  Options options;
  parse_timesteps("by_area", options);
  EXPECT_DOUBLE_EQ(of_size(options, {4, 1, 64, 64}).shift, 1) << "512 x 512 pixels";
  EXPECT_DOUBLE_EQ(of_size(options, {4, 9, 64, 256}).shift, 6) << "four times the area, nine frames";
  EXPECT_DOUBLE_EQ(of_size(options, {4, 4, 29, 30}, 235.0 * 256).shift, 2 * std::sqrt(235.0 * 256 / (512 * 512)))
      << "pixels that are given count, not the latent's cells";
  EXPECT_EQ(options.least_noise, 0) << "the first sample of a path is noise alone";
  options.piece = 5;  // 113 frames are seven pieces of 17, each of which begins with the last frame of the one before
  EXPECT_DOUBLE_EQ(of_size(options, {16, 35, 64, 64}).shift, std::sqrt((113 - 1) / 4));
  EXPECT_DOUBLE_EQ(of_size(options, {16, 12, 64, 64}).shift, std::sqrt(9)) << "37 frames: pieces of 17, 17 and 5";
  EXPECT_DOUBLE_EQ(of_size(options, {16, 1, 64, 64}).shift, 1) << "a picture";
}

TEST(Flow, TimestepNamesAreRead) {
  Options options;
  parse_timesteps("logit_normal(0.5, 1.25)", options);
  EXPECT_EQ(options.timesteps, Timesteps::logit_normal);
  EXPECT_EQ(options.mean, 0.5);
  EXPECT_EQ(options.scale, 1.25);
  parse_timesteps("sana", options);
  EXPECT_EQ(options.timesteps, Timesteps::nvlabs);
  parse_timesteps("diffusers", options);
  EXPECT_EQ(options.timesteps, Timesteps::diffusers);
  parse_timesteps("shift", options);
  EXPECT_EQ(options.timesteps, Timesteps::uniform);
  for (const char* wrong : {"logit_normal(1", "logit_normal(1,0)", "logit_normal(1,2)x", "unifrom"}) {
    try {
      parse_timesteps(wrong, options);
      ADD_FAILURE() << wrong;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
    }
  }
  EXPECT_EQ(parse_weighting("diffsynth"), Weighting::diffsynth);
  EXPECT_THROW(parse_weighting("bell"), UserError);
}

}  // namespace tessera::diffusion
