#include "tessera/models/wan/spec.h"

#include <set>

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/wan/network.h"
#include "tessera/models/wan/parameters.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::wan {

namespace {

const Config& size_of(const std::string& name) {
  for (const auto& [preset, config] : presets())
    if (preset == name) return config;
  throw std::out_of_range(name);
}

int64_t parameters(const Wan& model) {
  int64_t sum = 0;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) sum += param.numel();
  return sum;
}

net::WeightMap initial_weights(const Wan& model, uint64_t seed) {
  net::WeightMap weights;
  for (const auto& unit : model.units()) {
    for (const auto& param : unit->spec().params) {
      const at::Tensor value = at::empty(param.shape, at::kFloat);
      model.initialise(param, seed, 0, param.numel(), value.mutable_data_ptr<float>());
      weights[param.name] = value;
    }
  }
  return weights;
}

net::Sample sample(const Config& c, int64_t f, int64_t h, int64_t w, int64_t words) {
  return {.x = at::randn({c.in_dim, f, h, w}), .t = 321.5, .context = at::randn({words, c.text_dim})};
}

}  // namespace

TEST(Wan, PresetsHaveThePublishedSizes) {
  const Wan small(size_of("wan2.1-t2v-1.3b")), large(size_of("wan2.1-t2v-14b"));
  EXPECT_EQ(parameters(small), 1418996800);
  EXPECT_EQ(parameters(large), 14288491584);
  size_t tensors = 0;
  for (const auto& unit : small.units()) tensors += unit->spec().params.size();
  EXPECT_EQ(tensors, 825u);
}

TEST(Wan, FlopsAreThePublishedOnes) {
  const Wan model(size_of("wan2.1-t2v-1.3b"));
  net::Tokens tokens;
  tokens.offsets = {0, 32760};
  double flops = 0;
  for (const auto& unit : model.units()) flops += unit->forward_flops(tokens);
  EXPECT_NEAR(flops / 1e15, 0.283, 0.001);
}

TEST(Wan, ForwardFlopsOfPackedSamplesAdd) {
  const Wan model(size_of("wan-tiny"));
  net::Tokens a, b, both;
  a.offsets = {0, 10}, b.offsets = {0, 6}, both.offsets = {0, 10, 16};
  for (const auto& unit : model.units())
    EXPECT_DOUBLE_EQ(unit->forward_flops(both), unit->forward_flops(a) + unit->forward_flops(b)) << unit->spec().name;
}

TEST(Wan, PackedSamplesComeOutAsTheyDoAlone) {
  const Wan model(size_of("wan-tiny"));
  net::WeightMap weights = initial_weights(model, 5);
  weights["head.head.weight"] = at::randn({16, 48});  // zero at first, which would hide everything
  const std::vector<net::Sample> samples = {sample(model.config(), 2, 4, 6, 3), sample(model.config(), 1, 6, 2, 6)};
  const net::Batch both = model.pack(samples);
  const auto together = model.unpack(net::run_plain(model.units(), weights, both), both);
  for (size_t i = 0; i < samples.size(); ++i) {
    const net::Batch one = model.pack({samples[i]});
    const auto alone = model.unpack(net::run_plain(model.units(), weights, one), one);
    expect_close(together[i], alone[0], 1e-5, "sample");
  }
}

TEST(Wan, TargetsPackIntoTheLayoutOfPredictions) {
  const Wan model(size_of("wan-tiny"));
  const std::vector<net::Sample> samples = {sample(model.config(), 2, 4, 6, 3), sample(model.config(), 1, 6, 2, 6)};
  const net::Batch batch = model.pack(samples);
  const at::Tensor packed = at::cat({model.pack_target(samples[0].x), model.pack_target(samples[1].x)});
  const auto back = model.unpack(packed, batch);
  EXPECT_TRUE(at::equal(back[0], samples[0].x));
  EXPECT_TRUE(at::equal(back[1], samples[1].x));
  // Token 1 of sample 0 is its row 0, columns 2 and 3; channels are fastest.
  EXPECT_EQ(packed[1][0].item<float>(), samples[0].x[0][0][0][2].item<float>());
  EXPECT_EQ(packed[1][1].item<float>(), samples[0].x[1][0][0][2].item<float>());
  // Gradients of inputs go back by the inverse of pack, channels slowest.
  const auto inputs = model.unpack_input_grads(batch.inputs, batch, samples);
  EXPECT_TRUE(at::equal(inputs[1].first, samples[1].x));
  EXPECT_TRUE(at::equal(inputs[0].second, samples[0].context));
  EXPECT_EQ(model.token_count({4, 2, 4, 6}), 12);
}

TEST(Wan, RotaryTablesShareChannelsOutOverTheAxes) {
  const auto [cos, sin] = rotary_tables(3, 2, 2, 128);  // 22 complex channels for time, 21 and 21 for rows and columns
  ASSERT_EQ(cos.sizes(), at::IntArrayRef({12, 64}));
  const int64_t token = 2 * 4 + 1 * 2 + 1;  // frame 2, row 1, column 1
  EXPECT_NEAR(sin[token][1].item<double>(), std::sin(2 * std::pow(10000.0, -2.0 / 44)), 1e-6);
  EXPECT_NEAR(sin[token][22 + 20].item<double>(), std::sin(std::pow(10000.0, -40.0 / 42)), 1e-6);
  EXPECT_NEAR(cos[token][43].item<double>(), std::cos(1.0), 1e-6);
}

TEST(Wan, InitialValuesAreTheSameForEveryCutOfAParameter) {
  const Wan model(size_of("wan-tiny"));
  for (const auto& unit : model.units()) {
    for (const auto& param : unit->spec().params) {
      std::vector<float> whole(param.numel()), cut(param.numel());
      model.initialise(param, 3, 0, param.numel(), whole.data());
      const int64_t middle = param.numel() / 3 | 1;  // odd, for pairs of normals
      model.initialise(param, 3, 0, middle, cut.data());
      model.initialise(param, 3, middle, param.numel() - middle, cut.data() + middle);
      EXPECT_EQ(whole, cut) << param.name;
    }
  }
}

TEST(Wan, InitialValuesHaveTheOfficialSpread) {
  const Wan model(size_of("wan-tiny"));
  const net::WeightMap w = initial_weights(model, 11);
  const auto deviation = [&](const char* name) { return w.at(name).std().item<double>(); };
  EXPECT_NEAR(deviation("text_embedding.0.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("blocks.1.ffn.0.weight"), std::sqrt(2.0 / (48 + 80)), 0.005);
  EXPECT_LE(w.at("blocks.1.ffn.0.weight").abs().max().item<double>(), std::sqrt(6.0 / (48 + 80)));
  EXPECT_NEAR(deviation("patch_embedding.weight"), std::sqrt(2.0 / (48 + 16)), 0.02) << "flattened to [d, c * 4]";
  EXPECT_NEAR(deviation("blocks.0.modulation"), 1 / std::sqrt(48.0), 0.03);
  EXPECT_EQ(w.at("head.head.weight").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("blocks.0.norm3.bias").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("blocks.0.norm3.weight").min().item<double>(), 1);
  EXPECT_EQ(w.at("blocks.0.self_attn.norm_q.weight").min().item<double>(), 1);
  EXPECT_FALSE(at::equal(w.at("blocks.0.ffn.0.weight"), w.at("blocks.1.ffn.0.weight")));
}

TEST(Wan, DiffusersNamesAreAllDifferentAndOfficialOnesStay) {
  const Wan model(size_of("wan-tiny"));
  std::set<std::string> seen;
  for (const auto& unit : model.units()) {
    for (const auto& param : unit->spec().params) {
      EXPECT_EQ(model.foreign_name(param.name, "official"), param.name);
      EXPECT_TRUE(seen.insert(model.foreign_name(param.name, "diffusers")).second) << param.name;
    }
  }
  EXPECT_EQ(model.foreign_name("blocks.12.norm3.weight", "diffusers"), "blocks.12.norm2.weight");
  EXPECT_EQ(model.foreign_name("head.modulation", "diffusers"), "scale_shift_table");
  EXPECT_EQ(model.foreign_name("patch_embedding.bias", "diffusers"), "patch_embedding.bias");
}

TEST(Wan, WrongLatentsAndTextsAreRefusedWithTheirShape) {
  const Wan model(size_of("wan-tiny"));
  const auto refuses = [&](net::Sample wrong, const std::string& text) {
    try {
      model.pack({wrong});
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  net::Sample wrong = sample(model.config(), 2, 4, 5, 3);
  refuses(wrong, "[4, 2, 4, 5]");
  wrong.x = at::zeros({3, 2, 4, 4});
  refuses(wrong, "expected [4, frames, height, width]");
  refuses(sample(model.config(), 2, 4, 4, 7), "at most 6 rows of 20");
}

TEST(WanConfig, SurvivesItsOwnJson) {
  Config config = size_of("wan2.1-t2v-14b");
  EXPECT_EQ(parse_config(to_json(config), "config.json"), config);
  config.text_dim = 64;
  EXPECT_EQ(parse_config(to_json(config), "config.json"), config);
}

TEST(WanConfig, WhatIsNotSupportedIsRefusedByName) {
  const auto refuses = [](const std::string& json, const std::string& text) {
    try {
      parse_config(json, "a/config.json");
      ADD_FAILURE() << json;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::input);
      EXPECT_NE(std::string(error.what()).find("a/config.json"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refuses("[1", "not a JSON object");
  refuses(R"({"dim": 64})", "num_heads is missing");
  refuses(R"({"dim": "wide", "num_heads": 2})", "dim is \"wide\"");
  refuses(R"({"dim": 64, "num_heads": 2, "model_type": "i2v"})", "model_type");
  refuses(R"({"dim": 64, "num_heads": 2, "ffn_dim": -5, "num_layers": 1})", "ffn_dim is -5");
  refuses(R"({"dim": 65, "num_heads": 2, "ffn_dim": 5, "num_layers": 1})", "not a multiple");
  refuses(R"({"dim": 64, "num_heads": 2, "ffn_dim": 5, "num_layers": 1, "in_dim": 36})", "image-to-video");
  refuses(R"({"num_attention_heads": 2, "attention_head_dim": 32, "image_dim": 1280})", "image_dim");
}

}  // namespace tessera::models::wan
