// byT5 with glyphs: T5 over bytes, under the names of each release.
#include "golden.h"
#include "tessera/models/common/weight_form.h"
#include "tessera/models/encoders/prompts.h"
#include "tessera/models/encoders/umt5.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::umt5 {

TEST(Byt5, HiddenStatesAreAsRecordedUnderTheNamesOfEachRelease) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("byt5");
  const Umt5 encoder(parse_config(golden.text("config.json"), "config.json"));
  const TensorMap recorded = golden.tensors("case.safetensors");
  const at::Tensor& ids = recorded.at("in.input_ids");
  const net::Batch batch = encoder.pack(real_tokens(ids, recorded.at("in.attention_mask")));
  for (const auto& [file, naming] : {std::pair("model.safetensors", "hf"), {"original.safetensors", "hf-encoder"}}) {
    const TensorMap stored = golden.tensors(file);
    std::vector<std::string> official, names;
    for (const auto& [name, value] : stored) names.push_back(name);
    net::WeightMap weights;
    for (const auto& unit : encoder.units())
      for (const auto& param : unit->spec().params) {
        official.push_back(param.name);
        weights[param.name] = stored.at(encoder.foreign_name(param.name, naming));
      }
    const auto foreign = [&](const std::string& name, const std::string& to) { return encoder.foreign_name(name, to); };
    EXPECT_EQ(detect_naming(official, foreign, kTextNamings, names, file).naming, naming);
    for (std::string& name : names) name = "module.text_tower.encoder." + name;
    if (naming == std::string("hf-encoder"))
      EXPECT_EQ(detect_naming(official, foreign, kTextNamings, names, file).prefix, "module.text_tower.encoder.");
    const at::Tensor rows = net::run_plain(encoder.units(), weights, batch);
    const at::Tensor& expected = recorded.at("out.last_hidden_state");
    expect_close(padded_rows(rows, batch.tokens.offsets, ids.size(1)), expected,
                 1e-4 * expected.abs().max().item<double>() + 1e-6, file);
  }
}

TEST(Byt5, ItsFilesAreKnownByTheirTensors) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("byt5");
  Shapes ours;
  for (const auto& [file, prefix, naming] : {std::tuple("model.safetensors", "", "diffusers"),
                                             {"original.safetensors", "", "official"},
                                             {"original.safetensors", "module.text_tower.encoder.", "official"}}) {
    Shapes stored;
    for (const auto& [name, tensor] : golden.tensors(file)) stored[prefix + name] = tensor.sizes().vec();
    const Identity what = identify(stored);
    EXPECT_EQ(what.naming, naming) << file;
    EXPECT_EQ(what.model, "t5") << "no preset has these sizes";
    if (ours.empty()) ours = official_shapes(what, stored);
    EXPECT_EQ(official_shapes(what, stored), ours) << file;
    for (const auto& [name, shape] : stored) EXPECT_EQ(prefix + what.foreign(*what.official(name), naming), name);
    const auto made = nlohmann::json::parse(config_for(naming, what, ours, golden.text("config.json"), "c"));
    EXPECT_EQ(made.at("model_type"), "t5") << "the layers share their positions under either name";
  }
}

TEST(Byt5, TheReleasedEncoderHasThePublishedSize) {
  const auto encoder = make_text_encoder({.preset = "byt5-glyph"});
  int64_t numel = 0;
  for (const auto& unit : encoder->units())
    for (const auto& param : unit->spec().params) numel += param.numel();
  EXPECT_EQ(numel, 219314944);
  EXPECT_EQ(encoder->dim(), 1472);
  EXPECT_EQ(encoder->vocabulary(), 1510);
}

}  // namespace tessera::models::umt5
