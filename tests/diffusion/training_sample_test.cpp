// A training sample's draws: each from a stream of its own, by seed, step and place; and what a micro-batch is compared with.
#include "tessera/diffusion/training_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/diffusion/flow_matching.h"
#include "tessera/plan/token_shares.h"

namespace tessera::diffusion {
namespace {

CleanSample clean(int64_t frames = 2) { return {at::full({3, frames, 2, 2}, 0.5), at::ones({5, 4})}; }

TEST(TrainingSamples, HaveNoiseOfTheirOwnByTheSeedTheStepAndThePlace) {
  NoiseSettings settings;
  const auto noise = [&](uint64_t seed, int64_t step, int64_t place) {
    settings.seed = seed;
    return noised(settings, {}, clean(), step, place).velocity + 0.5;  // velocity: noise - latent
  };
  const at::Tensor first = noise(1, 2, 3);
  EXPECT_TRUE(at::equal(first, noise(1, 2, 3)));
  for (const at::Tensor& other : {noise(2, 2, 3), noise(1, 3, 3), noise(1, 2, 4), noise(1, 0, 3)})
    EXPECT_GT((first - other).abs().min().item<double>(), 1e-6);
  EXPECT_NEAR(at::cat({first, noise(1, 5, 3), noise(1, 6, 3), noise(1, 7, 3)}).square().mean().item<double>(), 1, 0.4);
}

/// Every field of a sample, tensors of several types and of no values among its conditions.
TrainingSample full(int64_t frames, bool masked) {
  NoiseSettings settings{.seed = 3};
  TrainingSample sample = noised(settings, {}, clean(frames), 5, 7);
  sample.input.weight = 0.25, sample.weight = 1.5, sample.index = 41, sample.set = 2;
  sample.from_base = masked, sample.twin = !masked;
  sample.form.c = 0.125, sample.form[ops::ErrorKind::huber] = 0.5;
  for (int64_t f = 0; masked && f < frames; ++f) sample.frame_weights.push_back(1.0 / static_cast<double>(f + 1));
  if (masked) sample.weights = at::rand({frames, 2, 2});
  sample.input.extra["y"] = at::rand({5, frames, 3}).transpose(0, 1);
  sample.input.extra["mask_index"] = at::empty({0}, at::kLong);
  sample.input.extra["flags"] = at::ones({3}, at::kBool);
  sample.input.extra["height"] = at::scalar_tensor(32.0, at::kDouble);
  return sample;
}

TEST(TrainingSamples, ReachAnotherRankAsTheyWere) {
  for (const int64_t frames : {1, 2, 7, 500})
    for (const bool masked : {false, true}) {
      const TrainingSample sent = full(frames, masked);
      // Behind another message, as they are sent.
      const int64_t before = message_bytes(full(1, false)), bytes = message_bytes(sent);
      EXPECT_EQ(bytes % 64, 0);
      const at::Tensor all = at::zeros({before + bytes}, at::kByte);
      write_message(9, sent, static_cast<char*>(all.mutable_data_ptr()) + before);
      const auto [place, got] = read_message(all.narrow(0, before, bytes));
      EXPECT_EQ(place, 9);
      EXPECT_EQ(got->input.t, sent.input.t);
      EXPECT_EQ(got->input.weight, sent.input.weight);
      EXPECT_EQ(got->weight, sent.weight);
      EXPECT_EQ(got->form, sent.form);
      EXPECT_EQ(got->frame_weights, sent.frame_weights);
      EXPECT_EQ(got->index, sent.index);
      EXPECT_EQ(got->set, sent.set);
      EXPECT_EQ(got->from_base, sent.from_base);
      EXPECT_EQ(got->twin, sent.twin);
      EXPECT_TRUE(at::equal(got->input.x, sent.input.x));
      EXPECT_TRUE(at::equal(got->input.context, sent.input.context));
      EXPECT_TRUE(at::equal(got->velocity, sent.velocity));
      EXPECT_EQ(got->weights.defined(), masked);
      if (masked) EXPECT_TRUE(at::equal(got->weights, sent.weights));
      ASSERT_EQ(got->input.extra.size(), sent.input.extra.size());
      for (const auto& [name, value] : sent.input.extra) {
        EXPECT_EQ(got->input.extra.at(name).scalar_type(), value.scalar_type()) << name;
        EXPECT_TRUE(at::equal(got->input.extra.at(name), value)) << name;
      }
    }
}

TEST(TrainingSamples, TakeAHeadAndTheirTensorsInAMessage) {
  const TrainingSample sample = noised({}, {}, clean(), 5, 7);
  EXPECT_EQ(message_bytes(sample), kMessageHead + 2 * round_up(4 * 3 * 2 * 2 * 2, 64) + round_up(4 * 5 * 4, 64));
  EXPECT_EQ(message_bytes(full(500, true)) - message_bytes(full(500, false)), round_up(4 * 500 * 2 * 2, 64) + 4 * 1024)
      << "weights of 500 frames do not fit into the head of others";
}

TEST(TrainingSamples, DropCaptionsAndBeginCleanByTheirSharesAndNotTogether) {
  constexpr int kDrawn = 4000;
  for (const auto& [captions, images] : {std::pair(0.3, 0.3), {0.2, 0.7}, {0.0, 0.25}, {0.6, 0.0}}) {
    NoiseSettings settings{.seed = 5, .image_share = images, .caption_dropout = captions};
    settings.null_context = at::zeros({5, 4});
    net::Conditions takes;
    takes.clean_first = true;
    double dropped = 0, begun = 0, both = 0;
    for (int64_t place = 0; place < kDrawn; ++place) {
      const TrainingSample sample = noised(settings, takes, clean(), 1, place);
      const bool drop = sample.input.context.sum().item<double>() == 0,
                 begin = sample.input.extra.contains("image_latent");
      dropped += drop, begun += begin, both += drop && begin;
    }
    EXPECT_NEAR(dropped / kDrawn, captions, 0.03);
    EXPECT_NEAR(begun / kDrawn, images, 0.03);
    EXPECT_NEAR(both / kDrawn, captions * images, 0.03) << "neither draw says anything of the other";
  }
}

TEST(TrainingSamples, LeaveOutConditionsByTheirSharesEachByADrawOfItsOwn) {
  constexpr int kDrawn = 3000;
  NoiseSettings settings{.seed = 6};
  settings.condition_dropout = {{"control", 0.1}, {"start", 0.3}, {"reference", 1}, {"image", 0.5}};
  net::Conditions takes;
  takes.image_extra = "seen";
  CleanSample sample = clean();
  for (const char* name : {"control", "y", "reference", "seen", "camera"}) sample.extra[name] = at::ones({2, 3});
  std::map<std::string, double> left_out;
  double two = 0;
  for (int64_t place = 0; place < kDrawn; ++place) {
    const TrainingSample drawn = noised(settings, takes, sample, 2, place);
    for (const auto& [name, value] : drawn.input.extra) {
      EXPECT_EQ(value.sizes(), sample.extra.at(name).sizes()) << "zeros, not nothing";
      left_out[name] += (value == 0).all().item<bool>();
    }
    two +=
        (drawn.input.extra.at("y") == 0).all().item<bool>() && (drawn.input.extra.at("seen") == 0).all().item<bool>();
  }
  for (const auto& [name, share] :
       {std::pair("control", 0.1), {"y", 0.3}, {"reference", 1.0}, {"seen", 0.5}, {"camera", 0.0}})
    EXPECT_NEAR(left_out[name] / kDrawn, share, 0.03) << name;
  EXPECT_NEAR(two / kDrawn, 0.15, 0.03);
  EXPECT_EQ(sample.extra.at("y").sum().item<double>(), 6) << "the cached sample is as it was";
}

TEST(TrainingSamples, HaveWhatBelongsToTheirCaptionAndToTheirFirstFrameAlone) {
  net::Conditions takes;
  takes.clean_first = takes.given_frames = takes.image_with_first = true, takes.image_extra = "image";
  CleanSample whole = clean();
  whole.extra = {{"glyphs", at::ones({2, 3})}, {"image", at::ones({4, 6})}};
  NoiseSettings settings{.seed = 5, .image_share = 0.5, .caption_dropout = 0.5};
  settings.null_context = at::zeros({5, 4});
  const auto made = [&](const CleanSample& from, int64_t place) {
    return noised(settings, takes, from, 1, place).input;
  };
  int begun = 0, dropped = 0;
  for (int64_t place = 0; place < 40; ++place) {
    const net::Sample sample = made(whole, place);
    EXPECT_EQ(sample.extra.contains("image"), sample.extra.contains("image_latent")) << place;
    const bool drops = sample.context.sum().item<double>() == 0;
    EXPECT_EQ(sample.extra.contains("glyphs"), !drops) << "both texts go together";
    begun += sample.extra.contains("image"), dropped += drops;
  }
  EXPECT_TRUE(begun > 5 && begun < 35 && dropped > 5 && dropped < 35) << begun << " " << dropped;
  settings.caption_dropout = 1, settings.null_glyphs = at::full({1, 3}, 7);
  EXPECT_TRUE(at::equal(made(whole, 0).extra.at("glyphs"), settings.null_glyphs));
  CleanSample picture = clean(1);
  picture.extra = whole.extra;
  settings.image_share = 1;
  EXPECT_FALSE(made(picture, 0).extra.contains("image")) << "pictures are given nothing";
  settings.image_share = 0, settings.conditions = {{"i2v_head", 1}};
  whole.given = {{0, 1, 0, 1}}, whole.pieces = {whole.latent.slice(1, 0, 1)};
  EXPECT_TRUE(made(whole, 0).extra.contains("image"));
  whole.given = {{7, 1, 1, 1}};
  EXPECT_FALSE(made(whole, 0).extra.contains("image")) << "the last frame is given, the first is not seen";
  EXPECT_FALSE(held_out(settings, takes, whole, 0.5, 1).input.extra.contains("image"));
  settings.image_share = 1, whole.given.clear(), whole.pieces.clear();
  EXPECT_TRUE(held_out(settings, takes, whole, 0.5, 1).input.extra.contains("image"));
  takes.image_with_first = false;
  settings.image_share = 0, settings.conditions.clear();
  EXPECT_TRUE(made(whole, 0).extra.contains("image")) << "of a model that sees it in every sample";
}

/// The share of the draws that is below a quantile is the quantile's, and windows hold. Shares are compared and not sigmas:
/// a mixture has gaps, where a share within its error is a sigma far away.
void expect_draws_of(const Options& options, const std::string& what) {
  constexpr int kDrawn = 4000;
  std::vector<double> drawn;
  for (int64_t place = 0; place < kDrawn; ++place) {
    drawn.push_back(draw(options, 3, 1, place).sigma);
    EXPECT_TRUE(options.window.holds(drawn.back())) << what << ": " << drawn.back();
  }
  std::ranges::sort(drawn);
  for (const double share : {0.1, 0.5, 0.9})
    EXPECT_NEAR(static_cast<double>(std::ranges::lower_bound(drawn, quantile(options, share)) - drawn.begin()) / kDrawn,
                share, 3 * std::sqrt(share * (1 - share) / kDrawn))  // three deviations of the number of draws
        << what << " at " << share;
}

TEST(TimestepKinds, AreDrawnAsTheirQuantilesSayInEveryWindow) {
  for (const Timesteps timesteps :
       {Timesteps::uniform, Timesteps::logit_normal, Timesteps::mode, Timesteps::cosmap, Timesteps::logsnr,
        Timesteps::mix, Timesteps::qinglong_flux, Timesteps::qinglong_qwen})
    for (const Window& window : {Window{}, Window{0.3, 0.7}})
      for (const double shift : {1.0, 3.0}) {
        Options options{.timesteps = timesteps, .mean = 0.3, .scale = 0.8, .mode_scale = 0.9, .shift = shift};
        options.window = window;
        expect_draws_of(options, std::to_string(static_cast<int>(timesteps)) + " shift " + std::to_string(shift));
      }
}

TEST(TimestepKinds, AMixIsSevenTenthsOfItsNormalPartAndThreeOfAnEvenOne) {
  const Options normal{.timesteps = Timesteps::logit_normal, .mean = 0.3, .scale = 0.8, .shift = 3};
  Options mix = normal, even = normal;
  mix.timesteps = Timesteps::mix, even.timesteps = Timesteps::uniform;
  for (const Window& window : {Window{0, 0.1}, Window{0.2, 0.5}, Window{0.9, 1}})
    EXPECT_NEAR(window_mass(mix, window), 0.7 * window_mass(normal, window) + 0.3 * window_mass(even, window), 1e-12);
}

TEST(TimestepKinds, ModeAndTokenShiftsAreTheirFormulas) {
  EXPECT_DOUBLE_EQ(mode_of(0.25, 0), 0.75);
  EXPECT_NEAR(mode_of(0.25, 1.29), 0.75 - 1.29 * (std::pow(std::cos(M_PI / 8), 2) - 0.75), 1e-15);
  EXPECT_NEAR(token_shift(256, 4096, 1.15), std::exp(0.5), 1e-15);
  EXPECT_NEAR(token_shift(8192, 8192, 0.9), std::exp(0.9), 1e-15);
  const Options flux{.timesteps = Timesteps::flux_shift}, qwen{.timesteps = Timesteps::qwen_shift};
  EXPECT_NEAR(of_size(flux, {16, 9, 61, 105}).shift, token_shift(30 * 52, 4096, 1.15), 1e-15) << "one frame counts";
  EXPECT_NEAR(of_size(qwen, {16, 1, 60, 104}).shift, token_shift(30 * 52, 8192, 0.9), 1e-15);
  EXPECT_EQ(of_size({.timesteps = Timesteps::mode, .shift = 7}, {16, 1, 60, 104}).shift, 7);
}

TEST(TimestepKinds, BandsHaveTheirSharesOfTheDraws) {
  Options options{.timesteps = Timesteps::logit_normal, .shift = 3};
  options.bands = {{{0, 0.4}, 1}, {{0.4, 0.6}, 0}, {{0.6, 1}, 3}};
  constexpr int kDrawn = 4000;
  int low = 0, middle = 0;
  for (int64_t place = 0; place < kDrawn; ++place) {
    const double sigma = draw(options, 3, 1, place).sigma;
    low += sigma < 0.4, middle += sigma >= 0.4 && sigma < 0.6;
  }
  EXPECT_NEAR(low / double{kDrawn}, 0.25, 0.03);
  EXPECT_EQ(middle, 0);
  EXPECT_NEAR(window_mass(options, {0, 0.4}), 0.25, 1e-12);
  EXPECT_NEAR(window_mass(options, {0.6, 1}), 0.75, 1e-12);
  EXPECT_NEAR(window_mass(options, {0, 0.5}) + window_mass(options, {0.5, 1}), 1, 1e-9);
  options.window = {0.6, 1};
  expect_draws_of(options, "one band is left");
}

TEST(TimestepKinds, StrataAreEachDrawnOnceBeforeOneComesAgainWhateverTheBatch) {
  constexpr int64_t kStrata = 6;
  for (const int64_t batch : {1, 2, 4, 9}) {
    const Options options{.timesteps = Timesteps::uniform, .strata = kStrata, .batch = batch};
    std::vector<int64_t> taken;
    for (int64_t step = 1; std::ssize(taken) < 5 * kStrata; ++step)
      for (int64_t place = 0; place < batch; ++place)
        taken.push_back(static_cast<int64_t>(draw(options, 11, step, place).sigma * kStrata));
    for (size_t first = 0; first + kStrata <= taken.size(); first += kStrata) {
      std::vector<int64_t> one(taken.begin() + static_cast<int64_t>(first),
                               taken.begin() + static_cast<int64_t>(first) + kStrata);
      std::ranges::sort(one);
      for (int64_t s = 0; s < kStrata; ++s) EXPECT_EQ(one[static_cast<size_t>(s)], s) << "batch " << batch;
    }
  }
  const Options shifted{.timesteps = Timesteps::mode, .shift = 3, .strata = 7, .batch = 5};
  expect_draws_of(shifted, "strata");
}

TEST(TimestepKinds, WeightsAreTheirFormulasAndFiniteAtTheCleanEnd) {
  EXPECT_NEAR(weight_of(Weighting::sigma_sqrt, 0.25), 16, 1e-12);
  EXPECT_NEAR(weight_of(Weighting::sigma_sqrt, 0), 1e6, 1e-6);
  EXPECT_NEAR(weight_of(Weighting::cosmap, 0.5), 4 / M_PI, 1e-12);
  EXPECT_EQ(weight_of(Weighting::sigma, 0.3), 0.3);
  EXPECT_EQ(weight_of(Weighting::none, 0.3), 1);
  const Options options{.shift = 3, .weighting = Weighting::sigma};
  const TrainingDraw drawn = draw(options, 1, 1, 1);
  EXPECT_NEAR(drawn.weight, drawn.sigma, 1e-12);
}

TEST(LossForms, HaveTheSlopesOfTheirErrorsAndGoOverAtC) {
  for (size_t kind = 0; kind < ops::kErrorKinds; ++kind)
    for (const double c : {0.1, 0.7}) {
      ops::ErrorForm form{.c = c};
      form.weights = {};
      form.weights[kind] = 1.5;
      for (const double d : {-2.0, -0.3, -0.05, 0.04, 0.25, 1.5}) {
        constexpr double kStep = 1e-5;
        const double slope =
            (ops::error_of(form, d + kStep).error - ops::error_of(form, d - kStep).error) / (2 * kStep);
        EXPECT_NEAR(ops::error_of(form, d).slope, slope, 1e-6) << ops::kErrorNames[kind] << " at " << d;
      }
      EXPECT_EQ(ops::error_of(form, 0).error, 0);
    }
  const LossRule exponential{.form = {.c = 0.1}, .schedule = HuberSchedule::exponential, .scale = 2};
  EXPECT_NEAR(exponential.at(0).c, 2, 1e-12);
  EXPECT_NEAR(exponential.at(1000).c, 0.2, 1e-12);
  const LossRule snr{.form = {.c = 0.1}, .schedule = HuberSchedule::snr};
  EXPECT_NEAR(snr.at(1000).c, 1, 1e-12);
  EXPECT_NEAR(snr.at(500).c, 0.9 / std::pow(1 + std::sqrt(0.5 / 0.5001), 2) + 0.1, 1e-12);
  EXPECT_LT(snr.at(1).c, 0.11);
}

TEST(LossForms, AreTheSameOfBothTablesOfKernelsAndInParts) {
  const at::Tensor prediction = at::randn({40, 3}), target = at::randn({40, 3});
  for (size_t kind = 0; kind < ops::kErrorKinds; ++kind) {
    ops::ErrorForm form{.c = 0.4};
    form.weights = {0.2};
    form.weights[kind] += 0.7;
    at::Tensor of_cpu = at::empty_like(prediction), of_aten = at::empty_like(prediction);
    ops::SampleError cpu, aten, parts;
    ops::cpu_kernels().add_error(cpu, prediction, target, {}, form, 0.5, 3, of_cpu);
    ops::aten_kernels().add_error(aten, prediction, target, {}, form, 0.5, 3, of_aten);
    EXPECT_NEAR(cpu.value(), aten.value(), 1e-6 * std::abs(cpu.value())) << ops::kErrorNames[kind];
    EXPECT_TRUE(at::allclose(of_cpu, of_aten, 1e-5, 1e-7)) << ops::kErrorNames[kind];
    double expected = 0;
    for (int64_t i = 0; i < prediction.numel(); ++i)
      expected += ops::error_of(form, (prediction - target).view(-1)[i].item<double>()).error;
    EXPECT_NEAR(cpu.value(), 0.5 * expected / 120, 1e-6);
    at::Tensor scratch = at::empty({25, 3});
    ops::cpu_kernels().add_error(parts, prediction.narrow(0, 0, 15), target.narrow(0, 0, 15), {}, form, 0.5 * 15 / 40,
                                 1, scratch.narrow(0, 0, 15));
    ops::cpu_kernels().add_error(parts, prediction.narrow(0, 15, 25), target.narrow(0, 15, 25), {}, form, 0.5 * 25 / 40,
                                 1, scratch);
    EXPECT_NEAR(parts.value(), cpu.value(), 1e-7);
  }
}

TEST(LossForms, WithWeightsAreThoseOfEachValueInBothTables) {
  const at::Tensor prediction = at::randn({40, 3}), target = at::randn({40, 3}), weights = at::rand({40, 3});
  weights[7] = 0;
  for (size_t kind = 0; kind < ops::kErrorKinds; ++kind) {
    ops::ErrorForm form{.c = 0.4};
    form.weights = {};
    form.weights[kind] = 1;
    double expected = 0;
    at::Tensor slopes = at::empty_like(prediction);
    for (int64_t i = 0; i < prediction.numel(); ++i) {
      const double weight = weights.view(-1)[i].item<float>();
      const ops::ErrorValue one =
          ops::error_of(form, prediction.view(-1)[i].item<float>() - target.view(-1)[i].item<float>());
      expected += 0.5 * weight * one.error / 120;
      slopes.view(-1)[i] = 3 * weight * one.slope / 120;
    }
    for (const ops::Kernels* table : {&ops::cpu_kernels(), &ops::aten_kernels()}) {
      const at::Tensor gradient = at::empty_like(prediction);
      ops::SampleError error;
      table->add_error(error, prediction, target, weights.clone(), form, 0.5, 3, gradient);
      EXPECT_NEAR(error.value(), expected, 2e-6 * expected) << table->name << " " << ops::kErrorNames[kind];
      EXPECT_TRUE(at::allclose(gradient, slopes, 1e-5, 1e-7)) << table->name << " " << ops::kErrorNames[kind];
    }
  }
}

/// A mask that moves, in plain code: the means of the pixels and frames that a place of the latent stands for, whose ends
/// share a pixel where sides do not divide.
double plain_mean(const at::Tensor& frames, int64_t first, int64_t last, int64_t y, int64_t x, int64_t h, int64_t w) {
  const int64_t height = frames.size(1), width = frames.size(2);
  double sum = 0, count = 0;
  for (int64_t f = first; f < last; ++f)
    for (int64_t i = y * height / h; i < ((y + 1) * height + h - 1) / h; ++i)
      for (int64_t j = x * width / w; j < ((x + 1) * width + w - 1) / w; ++j)
        sum += frames[f][i][j].item<float>(), ++count;
  return sum / count;
}

TEST(LossMasks, AreMeansOfWhatALatentsPlaceStandsFor) {
  struct Case {
    int64_t frames, height, width;
    std::array<int64_t, 4> latent;
  };
  for (const Case& c : {Case{9, 24, 32, {4, 3, 3, 4}},
                        {13, 17, 11, {4, 4, 3, 2}},
                        {8, 16, 8, {4, 4, 2, 1}},  // groups of two, of no causal autoencoder
                        {1, 15, 9, {4, 1, 2, 2}},  // a picture
                        {1, 15, 9, {4, 3, 2, 2}},  // a picture for all frames
                        {5, 8, 8, {4, 2, 8, 8}}}) {
    const at::Tensor frames = at::rand({c.frames, c.height, c.width});
    const at::Tensor grid = latent_mask(frames, "area", c.latent);
    const auto [channels, f, h, w] = c.latent;
    ASSERT_EQ(grid.sizes(), (at::IntArrayRef{f, h, w}));
    const bool causal = c.frames == 4 * (f - 1) + 1;
    for (int64_t at = 0; at < f; ++at) {
      int64_t first = causal ? (at == 0 ? 0 : 4 * at - 3) : at * c.frames / f,
              last = causal ? 4 * at + 1 : (at + 1) * c.frames / f;
      if (c.frames == 1) first = 0, last = 1;
      for (int64_t y = 0; y < h; ++y)
        for (int64_t x = 0; x < w; ++x)
          EXPECT_NEAR(grid[at][y][x].item<float>(), plain_mean(frames, first, last, y, x, h, w), 1e-6)
              << c.frames << " frames, " << at << " " << y << " " << x;
    }
  }
  const at::Tensor edge = at::zeros({1, 8, 8});
  edge.slice(2, 0, 3).fill_(1);
  EXPECT_EQ(on_grid(edge, "nearest", 2, 2)[0][0][1].item<float>(), 0);
  EXPECT_EQ(on_grid(edge, "nearest_exact", 2, 2)[0][0][0].item<float>(), 1);
  EXPECT_EQ(on_grid(edge, "area", 2, 2)[0][0][0].item<float>(), 0.75);
  const float soft = on_grid(edge, "bilinear", 2, 2)[0][0][1].item<float>();
  EXPECT_TRUE(soft > 0 && soft < 0.5) << soft;
}

TEST(LossMasks, AreLiftedRaisedInvertedAndDividedByTheirArea) {
  const at::Tensor mask = at::rand({3, 2, 4});
  const auto at_place = [](const at::Tensor& t) { return t[2][1][3].item<float>(); };
  const float m = at_place(mask);
  EXPECT_FLOAT_EQ(at_place(mask_weights(mask, {})), m);
  EXPECT_FLOAT_EQ(at_place(mask_weights(mask, {.inverted = true})), 1 - m);
  EXPECT_NEAR(at_place(mask_weights(mask, {.least = 0.2})), 0.2 + 0.8 * m, 1e-6);
  EXPECT_FLOAT_EQ(at_place(mask_weights(mask, {.unmasked = 0.6})), std::max(m, 0.6F));
  const at::Tensor area = mask_weights(mask, {.of_area = true});
  EXPECT_NEAR(area.mean().item<float>(), 1, 1e-6);
  EXPECT_NEAR(at_place(area), m / mask.mean().item<float>(), 1e-5);
  // The first frame is given: only the others are an area.
  const at::Tensor others = mask_weights(mask, {.of_area = true}, {0, 1.5, 1.5});
  EXPECT_NEAR(others.slice(0, 1).mean().item<float>(), 1, 1e-6);
  EXPECT_EQ(mask_weights(at::zeros({1, 2, 2}), {.of_area = true}).sum().item<float>(), 0)
      << "and no number that is none";
}

TEST(LossMasks, OfASampleAreItsWeightsOrWholeByTheirShare) {
  NoiseSettings settings{.seed = 3};
  settings.loss.masks = {.on = true, .whole_share = 0.3};
  CleanSample sample = clean(3);
  sample.mask = at::zeros({2, 2, 2});  // one frame less: a reference stands in front
  constexpr int kDrawn = 2000;
  int whole = 0;
  for (int64_t place = 0; place < kDrawn; ++place) {
    const at::Tensor weights = noised(settings, {}, sample, 1, place).weights;
    EXPECT_EQ(weights[0].sum().item<float>(), 4);
    whole += weights.slice(0, 1).sum().item<float>() == 8;
  }
  EXPECT_NEAR(whole / double{kDrawn}, 0.3, 0.04);
  EXPECT_EQ(held_out(settings, {}, sample, 0.5, 1).weights.sum().item<float>(), 4) << "which is not drawn";
  sample.mask = at::Tensor();
  for (const bool inverted : {false, true}) {
    settings.loss.masks = {.on = true, .inverted = inverted};
    EXPECT_EQ(noised(settings, {}, sample, 1, 1).weights.sum().item<float>(), 12) << "without a mask all of it trains";
  }
  EXPECT_EQ(host_bytes(noised(settings, {}, sample, 1, 1)) - host_bytes(noised({}, {}, sample, 1, 1)), 4 * 12);
  EXPECT_FALSE(noised({}, {}, sample, 1, 1).weights.defined());
}

TEST(GuidedTargets, AreDrawnByTheSampleAndLieSoFarFromThePredictionWithoutACaption) {
  NoiseSettings settings{.seed = 7, .loss = {.guidance = {.low = 2, .high = 5, .weight = 0.25}}};
  settings.blank_context = at::zeros({9, 4});  // a caption of no words has no more rows than the clip's
  CleanSample from = clean();
  from.extra["glyphs"] = at::ones({2, 3});
  double least = 9, most = 0, sum = 0;
  constexpr int kDrawn = 2000;
  for (int64_t place = 0; place < kDrawn; ++place) {
    const TrainingSample sample = noised(settings, {}, from, 1, place);
    least = std::min(least, sample.guidance), most = std::max(most, sample.guidance), sum += sample.guidance;
    ASSERT_TRUE(sample.unguided);
    EXPECT_EQ(sample.weight, 0.25);
    EXPECT_TRUE(at::equal(sample.unguided->x, sample.input.x));
    EXPECT_EQ(sample.unguided->t, sample.input.t);
    EXPECT_TRUE(at::equal(sample.unguided->context, at::zeros({5, 4})));
    EXPECT_TRUE(at::equal(sample.input.context, from.context));
    EXPECT_FALSE(sample.unguided->extra.contains("glyphs"));
    EXPECT_TRUE(sample.input.extra.contains("glyphs"));
  }
  EXPECT_GE(least, 2);
  EXPECT_LT(least, 2.05);
  EXPECT_LT(most, 5);
  EXPECT_GT(most, 4.95);
  EXPECT_NEAR(sum / kDrawn, 3.5, 0.1);
  settings.loss.guidance = {.low = 3, .high = 3, .by_sigma = true};
  const TrainingSample sample = noised(settings, {}, from, 1, 0);
  EXPECT_NEAR(sample.guidance, 1 + 2 * sample.input.t / 1000, 1e-12);
  settings.loss.guidance = {};
  EXPECT_FALSE(noised(settings, {}, from, 1, 0).unguided);

  const at::Tensor v = at::tensor({1.0f, 2.0f, -1.0f}), u = at::tensor({2.0f, 0.0f, 1.0f});
  EXPECT_TRUE(at::allclose(guided_target(v, u, 3, false), at::tensor({-1.0f, 6.0f, -5.0f})));
  const float part = 1.0f / 5;  // <v, u> / |u|^2
  EXPECT_TRUE(at::allclose(guided_target(v, u, 3, true), u * part + 3 * (v - u * part)));
  EXPECT_TRUE(at::equal(guided_target(v, u, 1, false), v));
}

TEST(HeldOutSamples, HaveNoiseOfTheirOwnThatTrainingNeverDraws) {
  NoiseSettings settings{.seed = 4, .image_share = 0.5};
  const auto noise = [&](double sigma, int64_t number) {
    return held_out(settings, {}, clean(), sigma, number).velocity + 0.5;
  };
  EXPECT_TRUE(at::equal(noise(0.2, 3), noise(0.9, 3))) << "the same at each timestep";
  EXPECT_FALSE(at::allclose(noise(0.2, 3), noise(0.2, 4)));
  EXPECT_FALSE(at::allclose(noise(0.2, 3), noised(settings, {}, clean(), 1, 3).velocity + 0.5));
  const TrainingSample sample = held_out(settings, {}, clean(), 0.25, 3);
  EXPECT_TRUE(at::allclose(sample.input.x, clean().latent * 0.75 + noise(0.25, 3) * 0.25));
  EXPECT_EQ(sample.input.t, 250);
}

TEST(TrainingSamples, LogitNormalDrawsOfAWindowHaveTheirMeanAndScale) {
  const auto below = [](double u, const Options& o) {
    return 0.5 * std::erfc(-(std::log(u / (1 - u)) - o.mean) / o.scale / std::sqrt(2.0));
  };
  for (const double mean : {-1.0, 0.0, 0.8})
    for (const double scale : {0.5, 1.5}) {
      Options options{.timesteps = Timesteps::logit_normal, .mean = mean, .scale = scale, .window = {0.3, 0.9}};
      constexpr int kDrawn = 4000;
      for (const double q : {0.45, 0.6, 0.75}) {
        double found = 0;
        for (int64_t i = 0; i < kDrawn; ++i) found += draw(options, 3, i, 0).sigma < q;
        const double share = (below(q, options) - below(0.3, options)) / (below(0.9, options) - below(0.3, options));
        EXPECT_NEAR(found / kDrawn, share, 0.03) << mean << ", " << scale << ", " << q;
      }
    }
}

/// A token for each latent value, whose prediction the test makes.
class Rows final : public net::Denoiser {
 public:
  Rows() : Denoiser({.channels = 1, .context_dim = 1, .context_length = 1}) {}
  net::Batch pack(const std::vector<net::Sample>& samples) const override {
    net::Batch batch;
    std::vector<at::Tensor> rows;
    batch.tokens.offsets = {0};
    for (const net::Sample& sample : samples) {
      rows.push_back(pack_target(sample.x));
      batch.tokens.offsets.push_back(batch.tokens.offsets.back() + rows.back().size(0));
    }
    batch.inputs = {at::cat(rows)};
    return batch;
  }
  net::Sample blank(const std::array<int64_t, 4>&) const override { return {}; }
  std::vector<std::map<std::string, at::Tensor>> unpack_input_grads(const std::vector<at::Tensor>&, const net::Batch&,
                                                                    const std::vector<net::Sample>&) const override {
    return {};
  }
  std::vector<at::Tensor> unpack(const at::Tensor&, const net::Batch&) const override { return {}; }
  at::Tensor pack_target(const at::Tensor& target) const override { return target.reshape({-1, 1}).contiguous(); }
  int64_t token_count(const std::array<int64_t, 4>& latent) const override {
    return latent[0] * latent[1] * latent[2] * latent[3];
  }
  std::string foreign_name(const std::string& name, const std::string&) const override { return name; }
  void initialise(const plan::ParamSpec&, uint64_t, int64_t, int64_t, float*) const override {}
  std::string config_json() const override { return "{}"; }
};

at::Tensor normals(int64_t count, uint64_t index) {
  const at::Tensor values = at::empty({count});
  RandomKey(9, Purpose::test, index).normal(values.mutable_data_ptr<float>(), 0, static_cast<size_t>(count));
  return values;
}

/// Four samples of other sizes in two micro-batches, on ranks that share the tokens of each: the loss, and what a gate learns
/// from, are those of one rank.
TEST(FlowMatchingObjective, OfRanksThatShareTokensIsThatOfOneSampleBySampleAndMicroBatchByMicroBatch) {
  const Rows model;
  const std::vector<int64_t> sizes = {5, 9, 4, 7};
  TrainingSamples samples;
  for (size_t s = 0; s < sizes.size(); ++s) {
    TrainingSample sample;
    sample.input.x = at::zeros({1, 1, 1, sizes[s]});
    sample.velocity = normals(sizes[s], s).view({1, 1, 1, sizes[s]});
    sample.index = static_cast<int64_t>(s);
    samples[static_cast<int64_t>(s)] = std::make_shared<const TrainingSample>(sample);
  }
  const std::vector<double> weights = {0.5, 2, 1.5, 0.25};
  // what every sample is predicted as
  const auto predicted = [&](size_t s) { return normals(sizes[s], 100 + s).view({-1, 1}); };
  double expected = 0;
  std::vector<double> by_weight;
  for (size_t s = 0; s < sizes.size(); ++s) {
    const at::Tensor off = predicted(s).flatten() - samples[static_cast<int64_t>(s)]->velocity.flatten();
    expected += off.square().mean().item<double>() / 4;
    by_weight.push_back((off * predicted(s).flatten()).sum().item<double>() * 2 / static_cast<double>(sizes[s]) / 4);
  }
  for (const char* mesh : {"single", "cp=2", "sp=3", "cp=2,tp=2"}) {
    plan::Plan plan;
    plan.mesh = Mesh::parse(mesh);
    plan.global_batch = 4, plan.micro_batch = 2;
    plan.units.resize(1);
    double loss = 0;
    std::vector<double> gate(4, 0), expected_gate = by_weight;
    std::vector<at::Tensor> gradients;
    for (const int64_t size : sizes) gradients.push_back(at::zeros({size, 1}));
    for (int rank = 0; rank < plan.mesh.world(); ++rank) {
      FlowMatching objective(model, rank);
      objective.begin({.plan = &plan, .samples = &samples, .places = {0, 1, 2, 3}, .step = 1, .weighed = true});
      for (int micro = 0; micro < 2; ++micro) {
        net::Batch batch = objective.batch(micro);
        const plan::TokenRange here = plan::token_share(batch.tokens.total(), plan.mesh, rank);
        batch.tokens.begin = here.begin, batch.tokens.end = here.end;
        const auto first = static_cast<size_t>(2 * micro);
        const at::Tensor whole = at::cat({predicted(first), predicted(first + 1)});
        const at::Tensor gradient = objective.gradient(whole.slice(0, here.begin, here.end).contiguous(), batch, micro);
        at::Tensor all = at::zeros_like(whole);
        all.slice(0, here.begin, here.end).copy_(gradient);
        gradients[first] += all.slice(0, 0, sizes[first]);
        gradients[first + 1] += all.slice(0, sizes[first]);
      }
      const at::Tensor numbers = objective.numbers();
      if (numbers.defined() && numbers.numel() > 0)
        objective.read({numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())});
      else
        objective.read({});
      loss += objective.loss();
      for (size_t s = 0; s < 4; ++s) gate[s] += objective.by_weight()[s];
    }
    EXPECT_NEAR(loss, expected, 1e-5) << mesh;
    for (size_t s = 0; s < sizes.size(); ++s) {
      const at::Tensor off = predicted(s).flatten() - samples[static_cast<int64_t>(s)]->velocity.flatten();
      EXPECT_TRUE(at::allclose(gradients[s].flatten(), off * (2.0 / static_cast<double>(sizes[s]) / 4), 1e-5, 1e-6))
          << mesh << ", sample " << s;
      EXPECT_NEAR(gate[s], expected_gate[s], 1e-4) << mesh << ", sample " << s;
    }
  }
}

// Timesteps of chunks.

constexpr int kEntries = 1000;
Options of_sana(double shift = 3) { return {.timesteps = Timesteps::nvlabs, .shift = shift}; }

/// Of each entry of NVlabs' table: the probability that floor(1000 sigmoid(z)) is it, of a normal z.
std::vector<double> logit_normal_entries() {
  const auto below = [](int i) {
    if (i <= 0) return 0.0;
    if (i >= kEntries) return 1.0;
    const double u = i / static_cast<double>(kEntries);
    return 0.5 * std::erfc(-std::log(u / (1 - u)) / std::sqrt(2.0));
  };
  std::vector<double> p;
  for (int i = 0; i < kEntries; ++i) p.push_back(below(i + 1) - below(i));
  return p;
}
double choose(double n, double k) { return std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)); }

/// The distribution of the entry of chunk `f` of `chunks`, as it is stated: one chunk, any of them, has the draw, and from
/// there on entries to the right have weights C(T-1-t+K-1-f, K-1-f) from their left neighbour's on, entries to the left
/// C(t+f, f) up to their right neighbour's.
std::vector<double> stated(int f, int chunks) {
  std::vector<double> sum(kEntries, 0.0);
  for (int anchor = 0; anchor < chunks; ++anchor) {
    std::vector<double> p = logit_normal_entries();
    for (int at = anchor; at != f; at += f > anchor ? 1 : -1) {
      const int next = f > anchor ? at + 1 : at - 1, more = f > anchor ? chunks - 1 - next : next;
      std::vector<double> moved(kEntries, 0.0), weight, all(kEntries + 1, 0.0);
      for (int t = 0; t < kEntries; ++t) weight.push_back(choose((f > anchor ? kEntries - 1 - t : t) + more, more));
      for (int t = 0; t < kEntries; ++t)
        all[static_cast<size_t>(t) + 1] = all[static_cast<size_t>(t)] + weight[static_cast<size_t>(t)];
      for (int from = 0; from < kEntries; ++from) {
        const auto i = static_cast<size_t>(from);
        const double mass = f > anchor ? all[kEntries] - all[i] : all[i + 1];
        for (int t = f > anchor ? from : 0; t < (f > anchor ? kEntries : from + 1); ++t)
          moved[static_cast<size_t>(t)] += p[i] * weight[static_cast<size_t>(t)] / mass;
      }
      p = moved;
    }
    for (size_t t = 0; t < sum.size(); ++t) sum[t] += p[t] / chunks;
  }
  return sum;
}
/// The largest distance between the distribution of the entries and what is stated.
double farthest(const std::vector<int>& entries, const std::vector<double>& p) {
  std::vector<double> counts(kEntries, 0.0);
  for (const int entry : entries) counts[static_cast<size_t>(entry)] += 1.0 / static_cast<double>(entries.size());
  double drawn = 0, stated = 0, most = 0;
  for (size_t t = 0; t < p.size(); ++t)
    drawn += counts[t], stated += p[t], most = std::max(most, std::abs(drawn - stated));
  return most;
}

TEST(ChunksOfFrames, HaveTheStatedDistributions) {
  constexpr int kDrawn = 20000;
  constexpr double kNear = 0.0136;  // that of one draw in a thousand, 1.92 / sqrt(20000)
  const Options options = of_sana(1);
  for (const bool incremental : {false, true})
    for (const std::vector<int64_t>& starts : {std::vector<int64_t>{0, 4}, {0, 2, 5}}) {
      const auto chunks = static_cast<int>(starts.size());
      std::vector<std::vector<int>> entries(starts.size());
      double together = 0;
      for (int64_t place = 0; place < kDrawn; ++place) {
        const auto frames = draw_frames(options, {starts, incremental}, 7, false, 9, 2, place);
        ASSERT_EQ(frames.size(), 7U);
        for (size_t c = 0; c < starts.size(); ++c) {
          const auto first = static_cast<size_t>(starts[c]),
                     end = c + 1 < starts.size() ? static_cast<size_t>(starts[c + 1]) : 7;
          for (size_t f = first; f < end; ++f) ASSERT_EQ(frames[f].sigma, frames[first].sigma) << "one timestep";
          entries[c].push_back(static_cast<int>(std::lround(1000 * frames[first].sigma)));
          if (c > 0 && incremental) ASSERT_GE(entries[c].back(), entries[c - 1].back());
        }
        together += (entries[0].back() < 500) == (entries[1].back() < 500);
      }
      for (int c = 0; c < chunks; ++c)
        EXPECT_LE(farthest(entries[static_cast<size_t>(c)], incremental ? stated(c, chunks) : logit_normal_entries()),
                  kNear)
            << "chunk " << c << " of " << chunks << (incremental ? ", incremental" : "");
      if (!incremental) EXPECT_NEAR(together / kDrawn, 0.5, 0.02) << "chunks know nothing of each other";
    }
}

TEST(ChunksOfFrames, GrowOfContinuousDistributionsToo) {
  for (int64_t place = 0; place < 2000; ++place) {
    const auto frames = draw_frames({.shift = 5}, {{0, 1, 2, 3}, true}, 4, false, 1, 1, place);
    for (size_t f = 1; f < frames.size(); ++f) ASSERT_GE(frames[f].t, frames[f - 1].t);
    ASSERT_GE(frames[0].t, 0);
    ASSERT_LE(frames[3].t, 1000);
  }
}

TEST(ChunksOfFrames, HaveOneTimestepInTheirShareOfClipsAndOfAClipThatIsNoLonger) {
  int same = 0;
  constexpr int kDrawn = 4000;
  for (int64_t place = 0; place < kDrawn; ++place) {
    const auto frames = draw_frames(of_sana(), {{0, 3}, false, 0.3}, 5, false, 4, 7, place);
    same += frames[0].t == frames[4].t;
    const auto shorter = draw_frames(of_sana(), {{0, 3}}, 3, false, 4, 7, place);
    ASSERT_EQ(shorter.size(), 3U);
    ASSERT_EQ(shorter[0].t, draw(of_sana(), 4, 7, place).t) << "the clip's own";
    ASSERT_EQ(shorter[2].t, shorter[0].t);
  }
  EXPECT_NEAR(same / static_cast<double>(kDrawn), 0.3, 0.025);
}

TEST(ChunksOfFrames, GiveEachFrameTheNoiseOfItsTimestepAndAGivenOneItsOwn) {
  net::Conditions takes;
  takes.clean_first = takes.chunks_in_time = true;
  const at::Tensor latent = at::randn({3, 6, 2, 2});
  NoiseSettings settings{.seed = 8, .timesteps = of_sana()};
  std::vector<int> first;
  for (int64_t place = 0; place < 3000; ++place) {
    settings.image_share = place % 2 ? 1 : 0;
    settings.chunks = {{0, 2}, place % 4 > 1, 0.2, 0.25};
    const TrainingSample sample = noised(settings, takes, {latent, at::ones({5, 4})}, 3, place);
    const at::Tensor noise = sample.velocity + latent, t = sample.input.extra.at("t");
    ASSERT_EQ(t.scalar_type(), at::kDouble);
    ASSERT_EQ(t.numel(), 6);
    const auto drawn = draw_frames(settings.timesteps, settings.chunks, 6, place % 2 == 1, 8, 3, place);
    double sum = 0;
    for (int64_t f = 0; f < 6; ++f) {
      const double sigma = drawn[static_cast<size_t>(f)].sigma;
      ASSERT_EQ(t[f].item<double>(), std::trunc(1000 * sigma)) << "as NVlabs' trainer tells the model";
      sum += t[f].item<double>();
      const at::Tensor noisy = (1 - sigma) * latent.select(1, f) + sigma * noise.select(1, f);
      ASSERT_TRUE(at::allclose(sample.input.x.select(1, f), noisy, 1e-5, 1e-5));
      if (f == 0 && place % 2) {
        ASSERT_TRUE(at::allclose(sample.input.extra.at("image_latent").select(1, 0), noisy, 1e-5, 1e-5));
        const double u = unshift_sigma(sigma, 3);
        first.push_back(static_cast<int>(std::lround(1000 * u)));
      }
    }
    ASSERT_EQ(sample.input.extra.contains("image_latent"), place % 2 == 1);
    ASSERT_NEAR(sample.input.t, sum / 6, 1e-9);
    ASSERT_EQ(sample.weight, 1);
    ASSERT_TRUE(sample.frame_weights.empty());
  }
  std::vector<double> even(kEntries, 0.0);
  for (int i = 0; i < 250; ++i) even[static_cast<size_t>(i)] = 1 / 250.0;
  EXPECT_LE(farthest(first, even), 0.05) << "of the whole part of a quarter of an even number";
}

TEST(ChunksOfFrames, WeighEachFrameByItsOwnTimestepAndLeavePicturesAndOtherModelsAsTheyAre) {
  NoiseSettings settings{.seed = 8, .timesteps = {.weighting = Weighting::sigma}};
  const NoiseSettings plain = settings;
  settings.chunks = {{0, 2}};
  net::Conditions takes;
  takes.chunks_in_time = true;
  const CleanSample clip{at::randn({3, 4, 2, 2}), at::ones({5, 4})}, picture{at::randn({3, 1, 2, 2}), at::ones({5, 4})};
  const TrainingSample sample = noised(settings, takes, clip, 1, 2);
  ASSERT_EQ(sample.frame_weights.size(), 4U);
  for (int64_t f = 0; f < 4; ++f)
    EXPECT_NEAR(sample.frame_weights[static_cast<size_t>(f)], sample.input.extra.at("t")[f].item<double>() / 1000,
                1e-6);
  EXPECT_EQ(sample.weight, 1);
  takes.clean_first = true, settings.image_share = 1;
  const TrainingSample begun = noised(settings, takes, clip, 1, 2);
  ASSERT_EQ(begun.frame_weights.size(), 3U) << "of the frames that are predicted";
  for (int64_t f = 1; f < 4; ++f)
    EXPECT_NEAR(begun.frame_weights[static_cast<size_t>(f) - 1], begun.input.extra.at("t")[f].item<double>() / 1000,
                1e-6);
  takes.clean_first = false;
  for (const auto& [of, model] : {std::pair(picture, takes), {clip, net::Conditions()}}) {
    const TrainingSample without = noised(plain, model, of, 1, 2), with = noised(settings, model, of, 1, 2);
    EXPECT_TRUE(at::equal(with.input.x, without.input.x));
    EXPECT_FALSE(with.input.extra.contains("t"));
    EXPECT_EQ(with.weight, without.weight);
  }
}

}  // namespace
}  // namespace tessera::diffusion
