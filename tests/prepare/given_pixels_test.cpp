#include "tessera/prepare/encoded.h"

#include <gtest/gtest.h>

namespace tessera::prepare {

namespace {

/// Its latent is the mean of eight by eight pixels of a latent frame's last frame, and one more: grey is not zero.
class Means final : public net::VideoCodec {
 public:
  std::string fingerprint() const override { return "means"; }
  std::array<int64_t, 4> latent_shape(int64_t f, int64_t h, int64_t w) const override {
    return {3, 1 + (f - 1) / 4, h / 8, w / 8};
  }
  at::Tensor encode(const at::Tensor& pixels) const override {
    return at::avg_pool2d(pixels.slice(1, 0, std::nullopt, 4), 8) + 1;
  }
  at::Tensor decode(const at::Tensor& latent) const override { return latent; }
};

at::Tensor mask(int64_t frames, int64_t given) {
  at::Tensor all = at::ones({1, frames, 16, 24}, at::kFloat);
  all.slice(1, 0, given).zero_();
  return all;
}

}  // namespace

TEST(GivenPixels, NothingGivenIsZerosOrTheLatentOfGrey) {
  const Means codec;
  const at::Tensor pixels = at::rand({3, 9, 16, 24}) * 2 - 1;
  EXPECT_EQ(given_latent(codec, pixels, mask(9, 0)).abs().max().item<double>(), 0);
  const at::Tensor grey = given_latent(codec, pixels, mask(9, 0), /*nothing_is_zero=*/false);
  EXPECT_EQ(grey.slice(0, 0, 4).abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(grey.slice(0, 4), at::ones({3, 3, 2, 3})));
}

TEST(GivenPixels, AGivenFirstFrameFillsTheFirstLatentFramesMask) {
  const at::Tensor given = given_channels(mask(9, 1), {3, 3, 2, 3});
  EXPECT_TRUE(at::equal(given.select(1, 0), at::ones({4, 2, 3})));
  EXPECT_EQ(given.slice(1, 1).abs().max().item<double>(), 0);
  const at::Tensor two = given_channels(mask(9, 2), {3, 3, 2, 3});  // the second frame is the first of four
  EXPECT_TRUE(at::equal(two.select(1, 1)[0], at::ones({2, 3})));
  EXPECT_EQ(two.select(1, 1).slice(0, 1).abs().max().item<double>(), 0);
}

TEST(GivenPixels, MasksHaveValuesBetweenAtTheirEdges) {
  at::Tensor box = at::ones({1, 5, 16, 24}, at::kFloat);
  box.slice(3, 0, 12).zero_();  // half of the middle cell
  const at::Tensor given = given_channels(box, {3, 2, 2, 3});
  EXPECT_EQ(given[0][0][0][0].item<double>(), 1);
  EXPECT_NEAR(given[0][0][0][1].item<double>(), 0.5, 1e-6);
  EXPECT_EQ(given[0][0][0][2].item<double>(), 0);
}

TEST(GivenPixels, AFrameGivenWholeStandsInTheLatentAndAPartDoesNot) {
  const at::Tensor noise = at::randn({3, 2, 2, 3}), given = at::randn({3, 2, 2, 3});
  const at::Tensor whole = made_cells(mask(5, 1), {3, 2, 2, 3});
  EXPECT_TRUE(gives_first(whole));
  const at::Tensor put = with_first(noise, given, whole);
  EXPECT_TRUE(at::equal(put.select(1, 0), given.select(1, 0)));
  EXPECT_TRUE(at::equal(put.select(1, 1), noise.select(1, 1)));
  at::Tensor part = mask(5, 0);
  part.slice(2, 0, 8).zero_();
  const at::Tensor cells = made_cells(part, {3, 2, 2, 3});
  EXPECT_FALSE(gives_first(cells));
  EXPECT_TRUE(at::equal(with_first(noise, given, cells), noise));
  EXPECT_TRUE(at::equal(cells.select(1, 1), at::ones({1, 2, 3}))) << "frames behind the first are made";
}

TEST(GivenPixels, AStartHasZerosBehindIt) {
  const at::Tensor latent = at::randn({3, 1, 2, 3}), y = in_front(latent, 4);
  EXPECT_TRUE(at::equal(y.slice(1, 0, 1), latent));
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{3, 4, 2, 3}));
  EXPECT_EQ(y.slice(1, 1).abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(in_front(latent, 1), latent));
}

}  // namespace tessera::prepare
