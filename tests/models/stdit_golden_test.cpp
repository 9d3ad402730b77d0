#include <algorithm>

#include "models/denoiser_golden.h"
#include "tessera/models/common/family.h"

namespace tessera::models::stdit {

namespace {

/// The recorded output of a further call of the case, with the same weights.
void compare_call(const DenoiserCase& kind, const std::string& output) {
  SCOPED_TRACE(kind.kind + " " + output);
  const Golden golden(kind.kind);
  const CaseFileTensors file(golden.tensors("case.safetensors"));
  const auto model = make_denoiser({.config_text = kind.config(golden.text("config.json"), file)});
  const auto call = std::ranges::find(kind.calls, output, &DenoiserCall::output);
  ASSERT_NE(call, kind.calls.end());
  std::vector<net::Sample> samples = kind.samples(file, "");
  for (size_t i = 0; i < samples.size(); ++i) call->change(samples[i], file, static_cast<int64_t>(i));
  const net::Batch batch = model->pack(samples);
  const at::NoGradGuard no_grad;
  const at::Tensor out = net::run_plain(model->units(), read_weights(*model, golden.path("model.safetensors")), batch);
  const at::Tensor& expected = file.tensor(output);
  const LargestRule rule{1e-4, 1e-6};  // of case.json
  expect_close(kind.outputs(model->unpack(out, batch))[0].second, expected, rule.bound(expected), output);
}

}  // namespace

TEST(StditGolden, OutputsLossAndGradientsMatch) {
  TESSERA_NEED_GOLDENS();
  for (const DenoiserCase& kind : stdit::family().cases) compare_with_case(kind, kind.kind, "model.safetensors");
}

TEST(StditGolden, FramesWithoutNoiseAreModulatedForTimestepZeroAndTwiceByTheHead) {
  TESSERA_NEED_GOLDENS();
  for (const DenoiserCase& kind : stdit::family().cases) compare_call(kind, "out.sample_xmask");
}

TEST(StditGolden, TextWithoutAMaskCountsWithItsPadding) {
  TESSERA_NEED_GOLDENS();
  compare_call(stdit::family().cases[0], "out.sample_nomask");
}

TEST(StditGolden, AModelThatTakesGivenFramesMakesVideosWithoutThem) {
  TESSERA_NEED_GOLDENS();
  compare_call(stdit::family().cases[1], "out.sample_t2v");
}

}  // namespace tessera::models::stdit
