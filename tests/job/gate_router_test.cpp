// The gate of a run has the recipe's numbers: its temperature, how it is clipped and decays, and whom it asks for a sample.
#include "tessera/job/gate_router.h"

#include <gtest/gtest.h>

namespace tessera::job {
namespace {

class Router : public ::testing::Test {
 protected:
  static recipe::Recipe recipe_of(double temperature, bool hard = false) {
    recipe::Recipe recipe;
    recipe.experts.temperature = temperature, recipe.experts.hard = hard;
    recipe.run.seed = 3;
    recipe.train.betas[0] = 0.9, recipe.train.betas[1] = 0.99;
    recipe.train.eps = 1e-3;
    return recipe;
  }
  static std::vector<float> gradient(const GateRouter& router, double size) {
    std::vector<float> values(router.gate().values().size());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(size * std::cos(0.7 * static_cast<double>(i)));
    return values;
  }
};

TEST_F(Router, BeginsWithTheTemperatureOfTheRecipe) {
  for (const double temperature : {0.25, 1.0, 4.0}) {
    const recipe::Recipe recipe = recipe_of(temperature);
    EXPECT_NEAR(GateRouter(recipe, 3, 8).gate().temperature(), temperature, 1e-6);
  }
}

TEST_F(Router, IsClippedByItsOwnNormAndDecaysByTheWeightAlone) {
  const recipe::Recipe recipe = recipe_of(1);
  recipe::Recipe::Train settings = recipe.train;
  const auto moved = [&](double size, double clip, double decay = 0) {
    GateRouter router(recipe, 2, 8);
    settings.clip_norm = clip, settings.weight_decay = decay;
    const double norm = router.update(gradient(router, size), 1e-2, settings);
    EXPECT_GT(norm, 0);
    return router.gate().values();
  };
  GateRouter router(recipe, 2, 8);
  double norm = 0;
  for (const float value : gradient(router, 1)) norm += static_cast<double>(value) * static_cast<double>(value);
  norm = std::sqrt(norm);
  for (const double clip : {0.01, 0.5}) {  // as if the gradient had been as small as that
    const auto clipped = moved(1, clip), small = moved(clip / norm, 0);
    for (size_t i = 0; i < clipped.size(); ++i) EXPECT_NEAR(clipped[i], small[i], 1e-6) << clip << ", " << i;
  }
  EXPECT_NE(moved(1, 0.01), moved(1, 0));
  const auto plain = moved(1, 0), decayed = moved(1, 0, 0.5);
  for (const auto& part : router.gate().parts())
    for (size_t i = part.first; i < part.first + part.count; ++i)
      EXPECT_NEAR(decayed[i], plain[i] - (part.name == "gate.weight" ? 1e-2 * 0.5 * router.gate().values()[i] : 0),
                  1e-7)
          << part.name;
}

TEST_F(Router, AsksTheChosenExpertAloneWhereItIsHardAndAllByTheirWeightsWhereItIsSoft) {
  const at::Tensor context = at::linspace(-1, 1, 3 * 8).view({3, 8});
  for (const bool hard : {false, true}) {
    const recipe::Recipe recipe = recipe_of(1, hard);
    std::set<double> answers;
    for (const double sign : {1.0, -1.0}) {
      GateRouter router(recipe, 2, 8);
      recipe::Recipe::Train settings = recipe.train;
      settings.weight_decay = settings.clip_norm = 0;
      std::vector<float> towards(router.gate().values().size(), 0);
      for (const auto& part : router.gate().parts())
        if (part.name == "gate.bias")
          towards[part.first] = static_cast<float>(sign), towards[part.first + 1] = static_cast<float>(-sign);
      for (int i = 0; i < 20; ++i) router.update(towards, 0.05, settings);  // away from the one, to the other
      std::vector<size_t> asked;
      const auto out = router.predict(500, context, [&](size_t e) {
        asked.push_back(e);
        return std::vector<at::Tensor>{at::full({2}, 10.0 * static_cast<double>(e))};
      });
      const double found = out.at(0)[0].item<double>();
      if (hard) {
        EXPECT_EQ(asked, std::vector<size_t>{sign > 0 ? size_t{1} : size_t{0}});
        EXPECT_EQ(found, sign > 0 ? 10 : 0);
      } else {
        EXPECT_EQ(asked.size(), 2u);
        EXPECT_TRUE(sign > 0 ? found > 5 && found < 10 : found < 5 && found > 0) << found;
      }
      answers.insert(found);
    }
    EXPECT_EQ(answers.size(), 2u);
  }
}

}  // namespace
}  // namespace tessera::job
