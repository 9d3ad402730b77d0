#include "tessera/models/wan/spec.h"

#include <set>

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/wan/network.h"
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
  net::Sample sample = Wan(c).blank({c.out_dim, f, h, w});
  sample.x = at::randn({c.out_dim, f, h, w});
  sample.t = 321.5;
  sample.context = at::randn({words, c.text_dim});
  for (auto& [name, value] : sample.extra) value = at::randn(value.sizes());
  return sample;
}

/// The tiny presets, one of each type.
const std::vector<std::string> kTiny = {"wan-tiny", "wan-tiny-i2v", "wan-tiny-flf2v", "wan-tiny-i2v-2.2",
                                        "wan-tiny-ti2v"};

/// Random weights instead of the zeros that would hide what they multiply.
net::WeightMap lively_weights(const Wan& model) {
  net::WeightMap weights = initial_weights(model, 5);
  for (const char* zero : {"head.head.weight", "img_emb.emb_pos"})
    if (weights.count(zero)) weights[zero] = at::randn(weights[zero].sizes());
  return weights;
}

at::Tensor predict(const Wan& model, const net::WeightMap& weights, const net::Sample& sample) {
  const net::Batch batch = model.pack({sample});
  return model.unpack(net::run_plain(model.units(), weights, batch), batch)[0];
}

}  // namespace

TEST(Wan, PresetsHaveThePublishedSizes) {
  struct Published {
    const char* preset;
    int64_t parameters;
    size_t tensors;
  };
  const Published table[] = {{"wan2.1-t2v-1.3b", 1418996800, 825},         {"wan2.1-t2v-14b", 14288491584, 1095},
                             {"wan2.1-i2v-14b-480p", 16394878784, 1303},   {"wan2.1-i2v-14b-720p", 16394878784, 1303},
                             {"wan2.1-flf2v-14b-720p", 16395536704, 1304}, {"wan2.2-t2v-a14b", 14288491584, 1095},
                             {"wan2.2-i2v-a14b", 14288901184, 1095},       {"wan2.2-ti2v-5b", 4999787712, 825}};
  for (const Published& row : table) {
    const Wan model(size_of(row.preset));
    EXPECT_EQ(parameters(model), row.parameters) << row.preset;
    size_t tensors = 0;
    for (const auto& unit : model.units()) tensors += unit->spec().params.size();
    EXPECT_EQ(tensors, row.tensors) << row.preset;
  }
}

TEST(Wan, TheLargestSizesThatAConfigMayHaveOverflowNoBytes) {
  constexpr int64_t kMostSize = 1 << 20, kMostLayers = 1 << 12, kStates = 16;  // bytes of a parameter and its states
  Config largest = size_of("wan-tiny");
  largest.dim = largest.ffn_dim = largest.text_dim = largest.freq_dim = kMostSize;
  largest.num_heads = kMostSize / 64, largest.num_layers = 1;
  const int64_t numel = parameters(Wan(largest));
  EXPECT_GT(numel, 10 * kMostSize * kMostSize);
  EXPECT_LT(static_cast<double>(kStates * kMostLayers) * static_cast<double>(numel), 9e18);
}

TEST(Wan, PackedSamplesComeOutAsTheyDoAlone) {
  at::manual_seed(c10::default_rng_seed_val);  // whichever tests have drawn before
  for (const std::string& preset : kTiny) {
    const Wan model(size_of(preset));
    const net::WeightMap weights = lively_weights(model);
    const std::vector<net::Sample> samples = {sample(model.config(), 2, 4, 6, 3), sample(model.config(), 1, 6, 2, 6)};
    const net::Batch both = model.pack(samples);
    const auto together = model.unpack(net::run_plain(model.units(), weights, both), both);
    for (size_t i = 0; i < samples.size(); ++i)
      expect_close(together[i], predict(model, weights, samples[i]), 1e-5, preset);
  }
}

TEST(Wan, EveryConditionChangesThePrediction) {
  for (const std::string& preset : kTiny) {
    const Wan model(size_of(preset));
    const net::WeightMap weights = lively_weights(model);
    const net::Sample one = sample(model.config(), 2, 4, 6, 3);
    const at::Tensor before = predict(model, weights, one);
    for (const auto& [name, value] : one.extra) {
      net::Sample other = one;
      other.extra[name] = at::randn(value.sizes());
      EXPECT_GT((predict(model, weights, other) - before).abs().max().item<double>(), 1e-4) << preset << " " << name;
    }
  }
}

TEST(Wan, TheTwoPicturesOfFlf2vAreToldApart) {
  const Wan model(size_of("wan-tiny-flf2v"));
  const net::WeightMap weights = lively_weights(model);
  const net::Sample one = sample(model.config(), 2, 4, 6, 3);
  net::Sample swapped = one;
  swapped.extra["clip_fea"] = one.extra.at("clip_fea").roll(5, 0);
  EXPECT_GT((predict(model, weights, swapped) - predict(model, weights, one)).abs().max().item<double>(), 1e-4);
}

// Features of variance 1e-6: an epsilon of 1e-6, the config's, would make them twice as large as one of 1e-5.
TEST(Wan, TheImageBranchHasItsOwnEpsilonAndTheExactGelu) {
  const Wan model(size_of("wan-tiny-i2v"));
  const net::WeightMap weights = lively_weights(model);
  net::Sample one = sample(size_of("wan-tiny-i2v"), 2, 4, 4, 3);
  one.extra.at(model.conditions().image_extra).mul_(1e-3);
  const net::Batch batch = model.pack({one});
  net::PlainContext ctx(weights, "", batch.tokens);
  const at::Tensor got = model.units()[0]->forward(ctx, {batch.inputs, {}}).cond.at(3);
  const auto norm = [&](const at::Tensor& x, const std::string& site) {
    return at::layer_norm(x, {x.size(-1)}, weights.at(site + ".weight"), weights.at(site + ".bias"), 1e-5);
  };
  const auto linear = [&](const at::Tensor& x, const std::string& site) {
    return at::linear(x, weights.at(site + ".weight"), weights.at(site + ".bias"));
  };
  const at::Tensor hidden = at::gelu(linear(norm(batch.inputs[3], "img_emb.proj.0"), "img_emb.proj.1"));
  const at::Tensor expected = norm(linear(hidden, "img_emb.proj.3"), "img_emb.proj.4");
  EXPECT_LT((got.view_as(expected) - expected).abs().max().item<double>(), 1e-4);
}

TEST(Wan, ACleanFirstFrameIsTimestepsByTokenAndReplacesTheNoise) {
  const Wan model(size_of("wan-tiny-ti2v"));
  const net::WeightMap weights = lively_weights(model);
  net::Sample image = sample(model.config(), 3, 4, 6, 3);
  image.extra["image_latent"] = at::randn({4, 1, 4, 6});
  const net::Batch batch = model.pack({image});
  EXPECT_EQ(batch.inputs[2].size(0), 2) << "two rows of time, not one for each of the 18 tokens";
  EXPECT_EQ(batch.tokens.rows.of_token.sum().item<int64_t>(), 6);
  EXPECT_EQ(batch.predictions_of(0), (std::array<int64_t, 2>{6, 18})) << "the given frame is no prediction";
  net::Sample by_token = image;
  by_token.extra = {{"t", at::full({18}, 321.5, at::kDouble)}};
  by_token.extra["t"].slice(0, 0, 6).zero_();
  by_token.x = at::cat({image.extra["image_latent"], image.x.slice(1, 1)}, 1);
  EXPECT_TRUE(at::equal(predict(model, weights, image), predict(model, weights, by_token)));
  net::Sample text = image;
  text.extra.clear();
  EXPECT_EQ(model.pack({text}).tokens.rows.of_token.sum().item<int64_t>(), 0) << "text to video: t for all";
  EXPECT_FALSE(at::equal(predict(model, weights, image), predict(model, weights, text)));
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
  EXPECT_TRUE(at::equal(inputs[1].at("x"), samples[1].x));
  EXPECT_TRUE(at::equal(inputs[0].at("context"), samples[0].context));
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
  const Wan model(size_of("wan-tiny-flf2v"));
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
  const Wan model(size_of("wan-tiny-flf2v"));
  const net::WeightMap w = initial_weights(model, 11);
  const auto deviation = [&](const char* name) { return w.at(name).std().item<double>(); };
  EXPECT_NEAR(deviation("blocks.1.ffn.0.weight"), std::sqrt(2.0 / (48 + 80)), 0.005);
  EXPECT_LE(w.at("blocks.1.ffn.0.weight").abs().max().item<double>(), std::sqrt(6.0 / (48 + 80)));
  EXPECT_EQ(w.at("img_emb.emb_pos").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("img_emb.proj.4.weight").min().item<double>(), 1);
  EXPECT_NEAR(deviation("patch_embedding.weight"), std::sqrt(2.0 / (48 + 48)), 0.02) << "flattened to [d, c * 4]";
  EXPECT_NEAR(deviation("blocks.0.modulation"), 1 / std::sqrt(48.0), 0.03);
  EXPECT_EQ(w.at("head.head.weight").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("blocks.0.norm3.bias").abs().max().item<double>(), 0);
  EXPECT_EQ(w.at("blocks.0.norm3.weight").min().item<double>(), 1);
  EXPECT_EQ(w.at("blocks.0.self_attn.norm_q.weight").min().item<double>(), 1);
  EXPECT_FALSE(at::equal(w.at("blocks.0.ffn.0.weight"), w.at("blocks.1.ffn.0.weight")));
}

TEST(Wan, DiffusersNamesAreAllDifferentAndOfficialOnesStay) {
  const Wan model(size_of("wan-tiny-flf2v"));
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
  wrong = sample(model.config(), 2, 4, 4, 3);
  wrong.extra["image_latent"] = at::zeros({4, 1, 4, 4});
  refuses(wrong, "not ti2v");

  const Wan picture(size_of("wan-tiny-i2v"));
  const auto refuses_picture = [&](const std::string& name, at::Tensor value, const std::string& text) {
    net::Sample bad = sample(picture.config(), 2, 4, 4, 3);
    bad.extra[name] = value;
    EXPECT_THROW(picture.pack({bad}), UserError) << text;
    try {
      picture.pack({bad});
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refuses_picture("y", at::Tensor(), "has no y");
  refuses_picture("y", at::zeros({4, 2, 4, 4}), "expected [8, 2, 4, 4]");
  refuses_picture("clip_fea", at::zeros({257, 24}), "expected [5, 24]");
}

TEST(WanConfig, SurvivesItsOwnJson) {
  for (const auto& [preset, sizes] : presets()) {
    Config expected = sizes;
    EXPECT_EQ(parse_config(to_json(sizes), "config.json"), expected) << preset;
  }
  Config config = size_of("wan2.1-t2v-14b");
  config.text_dim = 64;
  EXPECT_EQ(parse_config(to_json(config), "config.json"), config);
}

TEST(WanConfig, TheImageBranchIsWhatTheWeightsHave) {
  const std::string official =
      R"({"_class_name": "WanModel", "model_type": "i2v", "dim": 5120, "num_heads": 40, "ffn_dim": 13824,
                                   "num_layers": 40, "in_dim": 36, "out_dim": 16})";
  EXPECT_EQ(parse_config(official, "a/config.json").image_dim, 1280) << "Wan 2.1, by what the file says";
  EXPECT_EQ(parse_config(official, "a/high_noise_model/config.json").image_dim, 0) << "an expert of Wan 2.2";
  EXPECT_EQ(parse_config(official, "a/config.json", {{"patch_embedding.weight", {5120, 36, 1, 2, 2}}}).image_dim, 0);
  const Config flf2v = parse_config(official, "a/config.json",
                                    {{"img_emb.proj.1.weight", {1280, 1280}}, {"img_emb.emb_pos", {1, 514, 1280}}});
  EXPECT_EQ(flf2v.type, Type::flf2v);
  EXPECT_EQ(flf2v.image_rows(), 514);
  const std::string sizes = R"({"dim": 64, "num_heads": 2, "ffn_dim": 5, "num_layers": 1, "in_dim": 36})";
  EXPECT_EQ(parse_config(sizes, "a/config.json").type, Type::i2v) << "36 channels in, 16 out";
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
  refuses(R"({"dim": 64, "num_heads": 2, "model_type": "vace"})", "supported are t2v, i2v");
  refuses(R"({"dim": 64, "num_heads": 2, "ffn_dim": -5, "num_layers": 1})", "ffn_dim is -5");
  refuses(R"({"dim": 65, "num_heads": 2, "ffn_dim": 5, "num_layers": 1})", "not a multiple");
  refuses(R"({"dim": 64, "num_heads": 2, "ffn_dim": 5, "num_layers": 1, "in_dim": 36, "model_type": "t2v"})",
          "an image-to-video model has model_type i2v");
  refuses(R"({"dim": 64, "num_heads": 2, "ffn_dim": 5, "num_layers": 1, "in_dim": 33, "model_type": "i2v"})",
          "with out_dim 16 that is 36");
  refuses(R"({"dim": 64, "num_heads": 2, "ffn_dim": 5, "num_layers": 1, "image_dim": 1280})", "takes no pictures");
}

}  // namespace tessera::models::wan
