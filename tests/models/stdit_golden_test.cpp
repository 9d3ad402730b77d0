#include "models/denoiser_golden.h"
#include "tessera/models/stdit/case.h"

namespace tessera::models::stdit {

namespace {

/// The recorded output of another call with the same weights; `change` makes a sample that of the call.
template <class Change>
void compare_output(const DenoiserCase& kind, const std::string& output, const Change& change) {
  SCOPED_TRACE(kind.kind + " " + output);
  const Golden golden(kind.kind);
  const CaseFileTensors file(golden.tensors("case.safetensors"));
  const auto model = make_denoiser({.config_text = kind.config(golden.text("config.json"), file)});
  std::vector<net::Sample> samples = kind.samples(file, "");
  for (size_t i = 0; i < samples.size(); ++i) change(samples[i], file, static_cast<int64_t>(i));
  const net::Batch batch = model->pack(samples);
  const at::NoGradGuard no_grad;
  const at::Tensor out = net::run_plain(model->units(), read_weights(*model, golden.path("model.safetensors")), batch);
  const at::Tensor& expected = file.tensor(output);
  const LargestRule rule{1e-4, 1e-6};  // of case.json
  expect_close(kind.outputs(model->unpack(out, batch))[0].second, expected, rule.bound(expected), output);
}

void without_given_frames(net::Sample& sample) {
  for (const char* given : {"cond", "cond_mask", "mask_index", "y_null"}) sample.extra.erase(given);
}

}  // namespace

TEST(StditGolden, OutputsLossAndGradientsMatch) {
  TESSERA_NEED_GOLDENS();
  for (const DenoiserCase& kind : stdit_cases()) compare_with_case(kind, kind.kind, "model.safetensors");
}

TEST(StditGolden, FramesWithoutNoiseAreModulatedForTimestepZeroAndTwiceByTheHead) {
  TESSERA_NEED_GOLDENS();
  for (const DenoiserCase& kind : stdit_cases())
    compare_output(kind, "out.sample_xmask", [](net::Sample& sample, const CaseTensors& file, int64_t i) {
      without_given_frames(sample);
      sample.extra["x_mask"] = file.tensor("in.x_mask")[i];
    });
}

TEST(StditGolden, TextWithoutAMaskCountsWithItsPadding) {
  TESSERA_NEED_GOLDENS();
  compare_output(stdit_cases()[0], "out.sample_nomask", [](net::Sample& sample, const CaseTensors& file, int64_t i) {
    sample.context = file.tensor("in.y")[i][0];
  });
}

TEST(StditGolden, AModelThatTakesGivenFramesMakesVideosWithoutThem) {
  TESSERA_NEED_GOLDENS();
  compare_output(stdit_cases()[1], "out.sample_t2v",
                 [](net::Sample& sample, const CaseTensors&, int64_t) { without_given_frames(sample); });
}

}  // namespace tessera::models::stdit
