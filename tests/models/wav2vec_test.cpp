#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/encoders/wav2vec2.h"
#include "tessera/models/registry.h"

namespace tessera::models::wav2vec {

TEST(Wav2Vec, StatesOfAllLayersMatchTheReferenceUnderBothNamings) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("wav2vec");
  const Config config = parse_config(golden.text("config.json"), "config.json");
  const TensorMap tensors = golden.tensors("case.safetensors");
  for (const std::string file : {"model.safetensors", "diffusers.safetensors"}) {
    const TensorMap stored = golden.tensors(file);
    const auto read = [&](const std::string& name) {
      const auto found = stored.find(name);
      return found == stored.end() ? Tensor() : found->second;
    };
    const std::vector<Tensor> states = Wav2Vec2(config, read, file).hidden_states(tensors.at("in.waveform"));
    ASSERT_EQ(static_cast<int64_t>(states.size()), config.states());
    for (size_t i = 0; i < states.size(); ++i)
      expect_close(states[i], tensors.at("out.hidden." + std::to_string(i)), golden.tolerance("out"), file);
    const Tensor steady = to_rate(at::stack(states));
    expect_close(steady, tensors.at("out.feat_30fps"), golden.tolerance("out"), "30 a second");
    expect_close(pick_rows(steady, 16, 80).transpose(1, 2).unsqueeze(0), tensors.at("out.bucket_80"),
                 golden.tolerance("out"), "rows");
  }
}

TEST(Wav2Vec, AMissingTensorIsNamed) {
  try {
    Wav2Vec2(
        {}, [](const std::string&) { return Tensor(); }, "speech/model.safetensors");
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("wav2vec2.feature_extractor.conv_layers.0.conv.weight"),
              std::string::npos);
  }
}

TEST(Wav2Vec, TheLargeModelHasThePublishedSizeAndTheSmallOneAsManyStates) {
  int64_t count = 0;
  for (const auto& [name, shape] : parameters(Config{})) {
    int64_t numel = 1;
    for (const int64_t n : shape) numel *= n;
    count += numel;
  }
  EXPECT_EQ(count, 315437696);  // of transformers' Wav2Vec2Model, without masked_spec_embed
  for (const auto& [name, config] : presets()) EXPECT_EQ(config.states(), 25) << name;
}

TEST(Wav2Vec, IsKnownByItsTensors) {
  Shapes shapes;
  for (const auto& [name, shape] : parameters(Config{})) shapes["wav2vec2." + name] = shape;
  const Identity what = identify(shapes);
  EXPECT_EQ(what.kind, ModelKind::audio_encoder);
  EXPECT_EQ(what.model, "wav2vec2");
}

TEST(Wav2Vec, ASoundTooShortForARowIsRefused) {
  Config small = presets().back().second;
  EXPECT_EQ(small.shortest(), 400);
  const Wav2Vec2 encoder(small, 0);
  EXPECT_EQ(encoder.hidden_states(at::randn({400})).front().size(0), 1);
  EXPECT_THROW(encoder.hidden_states(at::randn({399})), UserError);
}

TEST(SpeechRows, AreTheNearestAndZeroWhereTheSoundHasEnded) {
  EXPECT_EQ(nearest_rows(16, 9), (std::vector<int64_t>{0, 2, 4, 6, 8, 9, 11, 13, 15}));  // 7.5 goes to the even 8
  const Tensor steady = at::arange(1, 11, at::kFloat).view({1, 10, 1});
  const Tensor rows = pick_rows(steady, 15, 8);
  EXPECT_TRUE(rows.flatten().equal(at::tensor({1.f, 3.f, 5.f, 7.f, 9.f, 0.f, 0.f, 0.f})));
  const Tensor wide = pick_rows(steady, 15, 2, 1);
  EXPECT_TRUE(wide.flatten().equal(at::tensor({1.f, 1.f, 3.f, 1.f, 3.f, 5.f}))) << "the first stands in before itself";
}

}  // namespace tessera::models::wav2vec
