#include <gtest/gtest.h>

#include "tessera/models/registry.h"
#include "tessera/prepare/prepare.h"

namespace tessera::prepare {

TEST(ShownSize, IsToldToModelsThatTakeItAndToNoOther) {
  const auto takes = [](const char* preset) {
    const auto model = models::make_denoiser({.preset = preset});
    return inputs_of(*model, {4, 5, 4, 4});
  };
  std::map<std::string, at::Tensor> extra;
  tell_size(takes("opensora1.2-tiny"), {.height = 117, .width = 312, .rate = 29.97}, extra);
  ASSERT_EQ(extra.size(), 3u);
  EXPECT_EQ(extra.at("height").item<float>(), 117);
  EXPECT_EQ(extra.at("width").item<float>(), 312);
  EXPECT_FLOAT_EQ(extra.at("fps").item<float>(), 29.97F);
  extra.clear();
  tell_size(takes("opensora1.2-tiny"), {.height = 117, .width = 312}, extra);
  EXPECT_FALSE(extra.contains("fps")) << "of a picture, or of a latent that another program made, it is not known";
  extra.clear();
  tell_size({"y", "pooled"}, {.height = 117, .width = 312, .rate = 24}, extra);
  EXPECT_TRUE(extra.empty());
}

}  // namespace tessera::prepare
