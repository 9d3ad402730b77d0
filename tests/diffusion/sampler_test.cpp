#include "tessera/diffusion/sampler.h"

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/diffusion/flow.h"

namespace tessera::diffusion {

namespace {

/// One family of golden lists: its name in the file, ours, and the shifts it was made with.
struct Case {
  const char *golden, *ours;
  std::vector<int> shifts;
};

const std::vector<Case> kCases = {{"unipc", "unipc", {5, 8}},
                                  {"dpmpp", "dpmpp", {5, 8}},
                                  {"euler", "euler_diffusers", {3, 5}},
                                  {"diffusers_unipc", "unipc_diffusers", {3, 5}},
                                  {"diffsynth", "euler", {3, 5}}};

at::Tensor list(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }

}  // namespace

TEST(Sampler, FollowsTheGoldenSchedulesAndTrajectories) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("flow");
  const TensorMap tensors = golden.tensors("case.safetensors");
  int compared = 0;
  for (const Case& c : kCases) {
    for (const int shift : c.shifts) {
      for (const int steps : {10, 20, 50}) {
        const std::string prefix =
            std::string("out.") + c.golden + ".shift" + std::to_string(shift) + ".steps" + std::to_string(steps) + ".";
        const auto sampler = make_sampler(c.ours, steps, shift);
        const at::Tensor& timesteps = tensors.at(prefix + "timesteps");
        const at::Tensor& sigmas = tensors.at(prefix + "sigmas");
        expect_close(list(sampler->timesteps()), timesteps,
                     timesteps.scalar_type() == at::kLong ? golden.tolerance("timesteps") : 1e-3, prefix + "timesteps");
        expect_close(list(sampler->sigmas()).slice(0, 0, sigmas.size(0)), sigmas, golden.tolerance("sigmas"),
                     prefix + "sigmas");

        std::vector<at::Tensor> trajectory = {tensors.at("in.x")};
        for (int i = 0; i < steps; ++i) {
          const at::Tensor& x = trajectory.back();
          const at::Tensor v = 0.3 * x.sin() + 0.1 * sampler->timesteps()[i] / 1000;
          trajectory.push_back(sampler->step(i, x, v));
        }
        expect_close(at::stack(trajectory), tensors.at(prefix + "trajectory"), steps <= 20 ? 1e-5 : 5e-5,
                     prefix + "trajectory");
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 30);
}

TEST(Sampler, FollowsTheSchedulersThatSanaIsSampledWith) {
  TESSERA_NEED_GOLDENS();
  const TensorMap tensors = Golden("sampling_sana").tensors("case.safetensors");
  struct Run {
    std::string run;
    const char* name;
    double shift = 3;
  };
  const Run runs[] = {{"dpm2", "dpmpp_diffusers"},
                      {"dpm1", "dpmpp1_diffusers"},
                      {"dpm3", "dpmpp3_diffusers"},
                      {"dpm2_heun", "dpmpp_heun_diffusers"},
                      {"euler", "euler_diffusers"},
                      {"euler_dynamic", "euler_dynamic", std::exp(0.8)},
                      {"euler_dynamic_linear", "euler_dynamic", 1.7}};
  for (const auto& [run, name, shift] : runs) {
    const std::string prefix = "out." + run + ".";
    const auto sampler = make_sampler(name, 12, shift);
    const bool whole = run.starts_with("dpm");
    expect_close(list(sampler->timesteps()), tensors.at(prefix + "timesteps"), whole ? 0 : 1e-3, prefix + "timesteps");
    expect_close(list(sampler->sigmas()), tensors.at(prefix + "sigmas"), 1e-6, prefix + "sigmas");
    at::Tensor x = tensors.at("in.x");
    for (int i = 0; i < sampler->steps(); ++i) {
      x = sampler->step(i, x, 0.3 * x.sin() + 0.1 * sampler->timesteps()[i] / 1000);
      expect_close(x, tensors.at(prefix + "x")[i], 1e-4, prefix + "x " + std::to_string(i));
    }
  }
}

// Of few steps the last but one is of second order, unless that is switched off: its steps differ then, and no other's.
TEST(Sampler, ThirdOrderIsLoweredBeforeTheEndOfFewSteps) {
  const at::Tensor start = at::linspace(-1, 1, 9);
  const auto path = [&](int steps, bool lowers) {
    const auto solver = make_dpm_solver(diffusers_dpmpp_schedule(steps, 3), {.order = 3, .lowers_order = lowers});
    std::vector<at::Tensor> path = {start};
    for (int i = 0; i < steps; ++i) path.push_back(solver->step(i, path.back(), 0.3 * path.back().sin()));
    return path;
  };
  for (const int steps : {3, 4, 14, 15, 20}) {
    const auto lowered = path(steps, true), plain = path(steps, false);
    for (size_t i = 0; i + 2 < lowered.size(); ++i) EXPECT_TRUE(lowered[i].equal(plain[i])) << steps << " " << i;
    const bool same = lowered[lowered.size() - 2].equal(plain[plain.size() - 2]);
    EXPECT_EQ(same, steps >= 15 || steps < 4) << steps;
  }
}

// The reference steps in angles: x there is x here times sin + cos, and its model gives another velocity, of which the
// end of the path (x0) is the same.
TEST(Sampler, ConsistencyStepsAreThoseOfTheReferenceInItsAngles) {
  TESSERA_NEED_GOLDENS();
  const TensorMap tensors = Golden("sampling_sana").tensors("case.safetensors");
  const at::Tensor &angles = tensors.at("out.scm.timesteps"), &noise = tensors.at("in.scm.noise");
  constexpr double kDeviation = 0.5;  // of the data: the reference's latents are larger by it
  const auto sampler = make_sampler("scm", 2, 3);
  sampler->use_noise([&](int i) { return noise[i]; });
  at::Tensor theirs = tensors.at("in.scm.x");
  for (int i = 0; i < 2; ++i) {
    const auto angle = angles[i].item<double>(), next = angles[i + 1].item<double>();
    const double scale = (std::sin(angle) + std::cos(angle)) * kDeviation;
    const double noisy = std::min(1.0, std::sin(angle) * kDeviation / scale);  // the first angle is beyond pi / 2
    EXPECT_NEAR(sampler->timesteps()[static_cast<size_t>(i)], 1000 * noisy, 1e-3);
    const at::Tensor velocity = 0.3 * theirs.sin() + 0.1 * angle;
    const at::Tensor end = (theirs * std::cos(angle) - velocity * std::sin(angle)) / kDeviation;
    const at::Tensor x = theirs / scale;
    theirs = sampler->step(i, x, (x - end) / sampler->sigmas()[i]) * (std::sin(next) + std::cos(next)) * kDeviation;
    expect_close(theirs, tensors.at("out.scm.x")[i], 1e-4, "step " + std::to_string(i));
  }
  expect_close(theirs, tensors.at("out.scm.denoised"), 1e-4, "denoised");
  EXPECT_NEAR(make_sampler("scm", 4, 3)->sigmas()[2], 0.5, 1e-6) << "half way between the angles";
}

TEST(Sampler, EndsInTheDataWhenTheVelocityIsExact) {
  const at::Tensor x0 = at::randn({64}), noise = at::randn({64});
  for (const auto& name : sampler_names()) {
    const auto sampler = make_sampler(name, 7, 3);
    sampler->use_noise([&](int) { return noise; });
    at::Tensor x = add_noise(x0, noise, sampler->sigmas()[0]);
    for (int i = 0; i < sampler->steps(); ++i) x = sampler->step(i, x, velocity(x0, noise));
    expect_close(x, x0, 1e-4, name);
  }
}

TEST(Sampler, MayBeUsedAgainFromStepZero) {
  for (const auto& name : sampler_names()) {
    const auto sampler = make_sampler(name, 5, 5);
    const at::Tensor start = at::randn({8}), noise = at::randn({5, 8});
    sampler->use_noise([&](int i) { return noise[i]; });
    const auto run = [&] {
      at::Tensor x = start;
      for (int i = 0; i < 5; ++i) x = sampler->step(i, x, x.sin());
      return x;
    };
    const at::Tensor first = run();
    EXPECT_TRUE(at::equal(first, run())) << name;
  }
}

TEST(Sampler, OneStepGoesStraightToTheData) {
  for (const auto& name : sampler_names()) {
    const auto sampler = make_sampler(name, 1, 5);
    EXPECT_TRUE(sampler->step(0, at::ones({4}), at::ones({4})).isfinite().all().item<bool>()) << name;
  }
}

TEST(Sampler, UnknownNamesAnswerWithTheNearest) {
  try {
    make_sampler("uler", 10, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("did you mean euler?"), std::string::npos) << error.what();
  }
  EXPECT_THROW(make_sampler("euler", 0, 1), UserError);
  EXPECT_THROW(make_sampler("euler", 10, -1), UserError);
}

TEST(Guidance, OfScaleOneIsTheConditionedPrediction) {
  const at::Tensor u = at::randn({9}), c = at::randn({9});
  expect_close(guided(u, c, 1), c, 1e-6, "scale 1");
  expect_close(guided(u, c, 0), u, 0, "scale 0");
  expect_close(guided(u, c, 3), 3 * c - 2 * u, 1e-5, "scale 3");
}

TEST(Sampler, TwoGuidancesAlternateAndFollowTheFrames) {
  const TwoGuidances scales{.text = 7, .image = 3, .alternate = true, .image_by_frame = true};
  EXPECT_EQ(scales.text_at(9), 7) << "the first ten steps all have guidance";
  EXPECT_EQ(scales.text_at(10), 7);
  EXPECT_EQ(scales.text_at(11), 1);
  expect_close(scales.image_at(0, 4, 3), at::tensor({1.0, 2.0, 3.0}), 1e-6, "at the first step");
  expect_close(scales.image_at(2, 4, 3), at::tensor({1.0, 1.5, 2.0}), 1e-6, "half-way");
  EXPECT_TRUE(scales.image_at(11, 20, 3).equal(at::ones({3})));
  const TwoGuidances plain{.text = 7, .image = 3};
  const at::Tensor neither = at::randn({2, 3, 2, 2}), given = at::randn({2, 3, 2, 2}), both = at::randn({2, 3, 2, 2});
  expect_close(guided(neither, given, both, plain, 11, 20), neither + 3 * (given - neither) + 7 * (both - given), 1e-5,
               "guidance");
  expect_close(guided(neither, neither, both, plain, 0, 20), guided(neither, both, 7), 1e-5,
               "without given frames it is that of the text");
  EXPECT_TRUE(shifts_by_size("euler_by_size"));
  EXPECT_FALSE(shifts_by_size("euler"));
  EXPECT_TRUE(shifts_by_area("euler_by_area"));
  EXPECT_FALSE(shifts_by_area("euler_by_size"));
  EXPECT_EQ(make_sampler("euler_by_area", 7, 2.5)->sigmas(), make_sampler("euler", 7, 2.5)->sigmas());
}

}  // namespace tessera::diffusion
