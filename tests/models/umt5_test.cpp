#include "tessera/models/encoders/umt5.h"

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/names.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::umt5 {

namespace {

net::WeightMap read_weights(const Umt5& encoder, const std::filesystem::path& path) {
  const TensorMap stored = read_tensors(path);
  std::vector<std::string> official, names;
  for (const auto& unit : encoder.units())
    for (const auto& param : unit->spec().params) official.push_back(param.name);
  for (const auto& [name, tensor] : stored) names.push_back(name);
  const ForeignName foreign = [&](const std::string& name, const std::string& naming) {
    return encoder.foreign_name(name, naming);
  };
  const Naming naming = detect_naming(official, foreign, kTextNamings, names, path.string());
  net::WeightMap weights;
  for (const auto& unit : encoder.units()) {
    for (const auto& param : unit->spec().params) {
      weights[param.name] = stored.at(naming.prefix + foreign(param.name, naming.naming));
      EXPECT_EQ(weights[param.name].sizes(), at::IntArrayRef(param.shape)) << param.name;
    }
  }
  return weights;
}

std::vector<std::vector<int64_t>> real_tokens(const TensorMap& tensors) {
  const at::Tensor &ids = tensors.at("in.ids"), &mask = tensors.at("in.mask");
  std::vector<std::vector<int64_t>> prompts(ids.size(0));
  for (int64_t b = 0; b < ids.size(0); ++b)
    for (int64_t i = 0; i < ids.size(1) && mask[b][i].item<int64_t>() != 0; ++i)
      prompts[b].push_back(ids[b][i].item<int64_t>());
  return prompts;
}

void compare(const std::string& config, const std::string& weights_file) {
  const Golden golden("umt5");
  const Umt5 encoder(parse_config(golden.text(config), config));
  const net::WeightMap weights = read_weights(encoder, golden.path(weights_file));
  const TensorMap tensors = golden.tensors("case.safetensors");
  const auto prompts = real_tokens(tensors);
  const net::Batch batch = encoder.pack(prompts);
  const at::Tensor hidden = net::run_plain(encoder.units(), weights, batch);
  for (size_t b = 0; b < prompts.size(); ++b) {
    const auto n = static_cast<int64_t>(prompts[b].size());
    ASSERT_GT(n, 0);
    const at::Tensor rows = hidden.slice(0, batch.tokens.offsets[b], batch.tokens.offsets[b + 1]);
    expect_close(rows, tensors.at("out.hidden")[static_cast<int64_t>(b)].slice(0, 0, n), golden.tolerance("out"),
                 "prompt " + std::to_string(b));
  }
  const at::Tensor table = weights.at("blocks.0.pos_embedding.embedding.weight");
  const at::Tensor bias =
      at::embedding(table, relative_buckets(160, encoder.config(), table)).t().reshape({-1, 160, 160});
  expect_close(bias.select(1, 0), tensors.at("out.pos_bias_block0"), 0, "first row of the bias");
  expect_close(bias.select(1, 159), tensors.at("out.pos_bias_block0_last_row"), 0, "last row of the bias");
}

}  // namespace

TEST(Umt5, PackedPromptsMatchTheGoldenHiddenStates) {
  TESSERA_NEED_GOLDENS();
  compare("config.json", "model.safetensors");
}

TEST(T5, PromptsMatchTheRecordedHiddenStatesWithTheirMaskAndWithoutOne) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("t5");
  const Umt5 encoder(parse_config(golden.text("config.json"), "config.json"));
  EXPECT_TRUE(encoder.config().shared_positions);
  const TensorMap tensors = golden.tensors("case.safetensors");
  const net::WeightMap weights = read_weights(encoder, golden.path("model.safetensors"));
  const at::Tensor &ids = tensors.at("in.input_ids"), &mask = tensors.at("in.attention_mask");
  const auto compare = [&](const at::Tensor& with, const std::string& name) {
    const net::Batch batch = encoder.pack_padded(ids, with);
    const at::Tensor& expected = tensors.at(name);
    expect_close(net::run_plain(encoder.units(), weights, batch).view(expected.sizes()), expected,
                 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
  };
  compare(mask, "out.last_hidden_state");
  compare(at::ones_like(mask), "out.last_hidden_state_nomask");
  // without a mask the tokens alone, as runs give them
  std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(ids.size(0)));
  for (int64_t b = 0; b < ids.size(0); ++b)
    for (int64_t i = 0; i < ids.size(1); ++i) prompts[static_cast<size_t>(b)].push_back(ids[b][i].item<int64_t>());
  const at::Tensor& expected = tensors.at("out.last_hidden_state_nomask");
  expect_close(net::run_plain(encoder.units(), weights, encoder.pack(prompts)).view(expected.sizes()), expected,
               1e-4 * expected.abs().max().item<double>() + 1e-6, "all tokens alike");
}

TEST(Umt5, PaddedPromptsMatchEveryRowOfTheGoldenHiddenStates) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("umt5");
  const Umt5 encoder(parse_config(golden.text("config.json"), "config.json"));
  const TensorMap tensors = golden.tensors("case.safetensors");
  const net::Batch batch = encoder.pack_padded(tensors.at("in.ids"), tensors.at("in.mask"));
  const at::Tensor hidden =
      net::run_plain(encoder.units(), read_weights(encoder, golden.path("model.safetensors")), batch);
  const at::Tensor& expected = tensors.at("out.hidden");
  expect_close(hidden.view(expected.sizes()), expected, golden.tolerance("out"), "all rows, those past the mask too");
}

TEST(Umt5, HuggingFaceNamesAndConfigMatchToo) {
  TESSERA_NEED_GOLDENS();
  compare("diffusers_config.json", "diffusers.safetensors");
}

TEST(Umt5, BucketsChangeAtThePublishedDistances) {
  const at::Tensor buckets = relative_buckets(200, {}, at::zeros({})).view({200, 200});
  const auto bucket = [&](int64_t query, int64_t key) { return buckets[query][key].item<int64_t>(); };
  const std::vector<std::pair<int64_t, int64_t>> changes = {{8, 8},   {12, 9},  {16, 10}, {23, 11},
                                                            {32, 12}, {46, 13}, {64, 14}, {91, 15}};
  for (const auto& [distance, expected] : changes) {
    EXPECT_EQ(bucket(distance, 0), expected) << distance;
    EXPECT_EQ(bucket(distance - 1, 0), expected - 1) << distance;
    EXPECT_EQ(bucket(0, distance), expected + 16) << distance;
  }
  EXPECT_EQ(bucket(5, 5), 0);
  EXPECT_EQ(bucket(199, 0), 15);
}

TEST(Umt5, ReleasedEncoderHasThePublishedSize) {
  const Umt5 encoder(presets().front().second);
  int64_t numel = 0;
  size_t tensors = 0;
  for (const auto& unit : encoder.units())
    for (const auto& param : unit->spec().params) numel += param.numel(), ++tensors;
  EXPECT_EQ(numel, 5680910336);
  EXPECT_EQ(tensors, 242u);
  EXPECT_EQ(encoder.foreign_name("token_embedding.weight", "hf-embed-tokens"), "encoder.embed_tokens.weight");
}

TEST(Umt5, RandomWeightsTellPromptsApart) {
  const Umt5 encoder(presets().back().second);
  net::WeightMap weights;
  for (const auto& unit : encoder.units()) {
    for (const auto& param : unit->spec().params) {
      weights[param.name] = at::empty(param.shape, at::kFloat);
      encoder.initialise(param, 1, 0, param.numel(), weights[param.name].mutable_data_ptr<float>());
    }
  }
  const net::Batch batch = encoder.pack({{5, 6, 7, 1}, {5, 6, 8, 1}});
  const at::Tensor hidden = net::run_plain(encoder.units(), weights, batch);
  EXPECT_TRUE(hidden.isfinite().all().item<bool>());
  EXPECT_NEAR(hidden.square().mean().item<double>(), 1, 1e-3) << "the final norm";
  EXPECT_GT((hidden.slice(0, 0, 4) - hidden.slice(0, 4, 8)).abs().max().item<double>(), 0.1);
}

TEST(Umt5, IdsOutsideTheVocabularyAreRefused) {
  const Umt5 encoder(presets().back().second);
  EXPECT_THROW(encoder.pack({{1024}}), UserError);
  EXPECT_THROW(encoder.pack({{-1}}), UserError);
  EXPECT_THROW(encoder.pack({{}}), UserError);
}

}  // namespace tessera::models::umt5
