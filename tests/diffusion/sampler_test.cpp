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

TEST(Sampler, EndsInTheDataWhenTheVelocityIsExact) {
  const at::Tensor x0 = at::randn({64}), noise = at::randn({64});
  for (const auto& name : sampler_names()) {
    const auto sampler = make_sampler(name, 7, 3);
    at::Tensor x = add_noise(x0, noise, sampler->sigmas()[0]);
    for (int i = 0; i < sampler->steps(); ++i) x = sampler->step(i, x, velocity(x0, noise));
    expect_close(x, x0, 1e-4, name);
  }
}

TEST(Sampler, MayBeUsedAgainFromStepZero) {
  for (const auto& name : sampler_names()) {
    const auto sampler = make_sampler(name, 5, 5);
    const at::Tensor start = at::randn({8});
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

}  // namespace tessera::diffusion
