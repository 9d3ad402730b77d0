#include "tessera/models/wan/vace.h"

#include "denoiser_golden.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/models/vae/haar.h"

namespace tessera::models::wan {

namespace {

const VaceConfig& vace_preset(const std::string& wanted) {
  for (const auto& [name, config] : vace_presets())
    if (name == wanted) return config;
  throw std::out_of_range(wanted);
}

Shapes shapes_of(const net::Denoiser& model) {
  Shapes shapes;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) shapes[param.name] = param.shape;
  return shapes;
}

net::WeightMap initial_weights(const net::Denoiser& model) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const at::Tensor value = at::empty(param.shape, at::kFloat);
      model.initialise(param, 5, 0, param.numel(), value.mutable_data_ptr<float>());
      weights[param.name] = value;
    }
  return weights;
}

at::Tensor run(const net::Denoiser& model, const net::WeightMap& weights, const std::vector<net::Sample>& samples,
               size_t s = 0) {
  const net::Batch batch = model.pack(samples);
  return model.unpack(net::run_plain(model.units(), weights, batch), batch).at(s);
}

at::Tensor drawn_like(const at::Tensor& like) { return at::randn(like.sizes()); }

constexpr int64_t kFrames = 8, kHeight = 16, kWidth = 24;
const Haar kCodec(4);  // two latent frames of 2 x 3 cells

at::Tensor context_of(const Vace& model, std::map<std::string, at::Tensor> clips,
                      std::vector<at::Tensor> references = {}) {
  return model.guide(kCodec, {kFrames, kHeight, kWidth, std::move(clips), std::move(references)}).at("vace_context");
}

}  // namespace

TEST(Vace, EveryTensorOfBothFormsIsAParameterAndEveryParameterIsThere) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("wan_vace");
  for (const char* config : {"config.json", "diffusers_config.json"}) {
    const auto model = make_denoiser({.family = "wan", .config_text = golden.text(config)});
    ASSERT_NE(dynamic_cast<const Vace*>(model.get()), nullptr) << config;
    for (const char* file : {"model.safetensors", "diffusers.safetensors"})
      EXPECT_EQ(read_weights(*model, golden.path(file)).size(), golden.tensors(file).size()) << file;
  }
}

TEST(Vace, ConfigsOfTheModelAreKnownAndComeBackAsTheyWere) {
  for (const auto& [name, config] : vace_presets()) {
    EXPECT_TRUE(is_vace_config(to_json(config)));
    EXPECT_EQ(parse_vace_config(to_json(config), "config.json"), config) << name;
    EXPECT_NE(dynamic_cast<Vace*>(make_denoiser({.preset = name}).get()), nullptr);
    EXPECT_NE(dynamic_cast<Vace*>(make_denoiser({.config_text = to_json(config)}).get()), nullptr);
  }
  EXPECT_FALSE(is_vace_config(R"({"model_type": "t2v"})"));
  const auto layers = [](const std::string& list, int64_t count) {
    return parse_vace_config(R"({"model_type": "t2v", "dim": 48, "ffn_dim": 96, "num_heads": 3, "num_layers": )" +
                                 std::to_string(count) + R"(, "vace_layers": )" + list + "}",
                             "config.json")
        .layers;
  };
  EXPECT_EQ(layers("null", 5), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(layers("[0, 1, 6]", 7), (std::vector<int64_t>{0, 1, 6}));
  for (const char* list : {"[1, 2]", "[0, 7]", "[0, 2, 2]", "[0, 4, 2]", "[0.5]", "[-1, 0]", "[]"})
    EXPECT_THROW(layers(list, 7), UserError) << list;
}

TEST(Vace, FilesAreKnownByTheirTensorsAlone) {
  const auto known = [](const std::string& preset) {
    const auto model = make_denoiser({.preset = preset});
    return identify(shapes_of(*model));
  };
  EXPECT_EQ(known("wan2.1-vace-1.3b").model, "wan2.1-vace-1.3b");
  EXPECT_EQ(known("wan2.1-vace-14b").model, "wan2.1-vace-14b");
  EXPECT_EQ(known("wan2.1-vace-14b").variant, "vace");
  EXPECT_EQ(known("wan2.1-t2v-1.3b").variant, "t2v");
  EXPECT_EQ(known("wan-vace-tiny").model, "wan-vace");
}

TEST(Vace, AtFirstTheSecondStreamChangesNothing) {
  const at::NoGradGuard no_grad;
  at::manual_seed(4);
  const Vace model(vace_preset("wan-vace-tiny"));
  const Wan base(model.config().base);
  net::WeightMap weights = initial_weights(model);
  weights["head.head.weight"] = drawn_like(weights["head.head.weight"]);
  net::Sample sample = model.blank({4, 3, 4, 6});
  sample.x = drawn_like(sample.x), sample.context = drawn_like(sample.context);
  sample.extra["vace_context"] = drawn_like(sample.extra["vace_context"]);
  const at::Tensor out = run(model, weights, {sample});
  EXPECT_TRUE(at::equal(out, run(base, weights, {sample})));
  weights["vace_blocks.1.after_proj.weight"] = drawn_like(weights["vace_blocks.1.after_proj.weight"]);
  const at::Tensor led = run(model, weights, {sample});
  EXPECT_GT((led - out).abs().max().item<double>(), 1e-3);
  // one factor, or one of each block, of which only the second adds something
  for (const at::Tensor& factors : {at::zeros({1}), at::tensor({1.0F, 0.0F})}) {
    sample.extra["vace_scale"] = factors;
    EXPECT_LT((run(model, weights, {sample}) - out).abs().max().item<double>(), 1e-5);
  }
  sample.extra["vace_scale"] = at::tensor({0.0F, 1.0F});
  EXPECT_LT((run(model, weights, {sample}) - led).abs().max().item<double>(), 1e-5);
  sample.extra["vace_scale"] = at::ones({3});
  EXPECT_THROW(model.pack({sample}), UserError);
}

TEST(Vace, ASamplesResultIsItsOwnWhateverIsBesideIt) {
  const at::NoGradGuard no_grad;
  at::manual_seed(6);
  const Vace model(vace_preset("wan-vace-tiny"));
  net::WeightMap weights = initial_weights(model);
  for (auto& [name, value] : weights) value = value + 0.1 * drawn_like(value);
  std::vector<net::Sample> samples;
  for (const int64_t frames : {1, 3, 2}) {
    net::Sample sample = model.blank({4, frames, 4, 2 * (1 + frames)});
    sample.x = drawn_like(sample.x), sample.context = at::randn({frames, model.context_dim()});
    sample.extra["vace_context"] = drawn_like(sample.extra["vace_context"]);
    if (frames == 3) sample.extra["vace_scale"] = at::full({1}, 0.5);
    samples.push_back(std::move(sample));
  }
  for (size_t s = 0; s < samples.size(); ++s)
    expect_close(run(model, weights, samples, s), run(model, weights, {samples[s]}), 1e-5, std::to_string(s));
}

TEST(Vace, MasksOfNothingAndOfAllAndNoClip) {
  const VaceConfig& tiny = vace_preset("wan-vace-tiny");  // 2 * 4 + 64 channels
  const Vace model(tiny);
  at::manual_seed(2);
  const at::Tensor clip = at::rand({3, kFrames, kHeight, kWidth}) * 2 - 1, black = at::full_like(clip, -1),
                   white = at::full_like(clip, 1), grey = at::zeros_like(clip);
  const at::Tensor latent = kCodec.encode(clip), of_grey = kCodec.encode(grey);
  const auto expect = [&](const at::Tensor& context, const at::Tensor& kept, const at::Tensor& changed, double mask) {
    EXPECT_EQ(context.size(0), tiny.vace_dim);
    EXPECT_TRUE(at::equal(context.slice(0, 0, 4), kept));
    EXPECT_TRUE(at::equal(context.slice(0, 4, 8), changed));
    EXPECT_TRUE(context.slice(0, 8).eq(mask).all().item<bool>());
  };
  expect(context_of(model, {{"guide", clip}, {"guide_mask", black}}), latent, of_grey, 0);
  expect(context_of(model, {{"guide", clip}, {"guide_mask", white}}), of_grey, latent, 1);
  expect(context_of(model, {{"guide", clip}}), of_grey, latent, 1);
  expect(context_of(model, {}), of_grey, of_grey, 1);
  expect(context_of(model, {{"guide_mask", black}}), of_grey, of_grey, 1);  // of no clip nothing is kept
  // a soft mask: pixels by its half, the mask as it is
  const at::Tensor soft = at::full_like(clip, 0.5);
  expect(context_of(model, {{"guide", clip}, {"guide_mask", soft}}), of_grey, latent, 0.75);
}

TEST(Vace, EachChannelOfTheMaskIsAPixelOfTheCellInTheMiddleOfItsFrames) {
  const Vace model(vace_preset("wan-vace-tiny"));
  at::Tensor mask = at::full({3, kFrames, kHeight, kWidth}, -1.0);
  mask[0][2][8 + 3][16 + 5] = 1;  // frame 2 is nearest to the middle of frames 0 to 3; cell (1, 2), row 3, column 5
  mask[0][3].fill_(1);            // which no latent frame takes
  mask[1].fill_(1);               // as no other channel of the picture
  const at::Tensor shown = context_of(model, {{"guide", at::zeros_like(mask)}, {"guide_mask", mask}}).slice(0, 8);
  EXPECT_EQ(shown.sum().item<double>(), 1);
  EXPECT_EQ((shown[8 * 3 + 5][0][1][2].item<double>()), 1);
}

TEST(Vace, ReferencesStandInFrontInTheirOrderInTheMiddleOfWhite) {
  const Vace model(vace_preset("wan-vace-tiny"));
  at::manual_seed(8);
  const at::Tensor exact = at::rand({3, kHeight, kWidth}), tall = at::full({3, 40, 10}, -1.0);
  const at::Tensor clip = at::rand({3, kFrames, kHeight, kWidth}), alone = context_of(model, {{"guide", clip}});
  const at::Tensor context = context_of(model, {{"guide", clip}}, {exact, tall});
  ASSERT_EQ(context.size(1), 4);
  EXPECT_TRUE(at::equal(context.slice(1, 2), alone));
  EXPECT_TRUE(at::equal(context.slice(0, 0, 4).slice(1, 0, 1), kCodec.encode(exact.unsqueeze(1))));
  EXPECT_TRUE(at::equal(context.slice(0, 0, 4).slice(1, 1, 2), kCodec.encode(letterboxed(tall, kHeight, kWidth))));
  EXPECT_TRUE(context.slice(0, 4).slice(1, 0, 2).eq(0).all().item<bool>());
  const at::Tensor canvas = letterboxed(tall, kHeight, kWidth);  // 16 x 4, ten columns before it
  EXPECT_EQ(canvas.lt(0).sum().item<int64_t>(), 3 * 16 * 4);
  EXPECT_TRUE(canvas.slice(3, 10, 14).eq(-1).all().item<bool>());

  const at::Tensor latent = drawn_like(kCodec.encode(clip));
  const at::Tensor whole = model.with_references(latent, {{"vace_context", context}});
  EXPECT_TRUE(at::equal(whole.slice(1, 0, 2), context.slice(0, 0, 4).slice(1, 0, 2)));
  EXPECT_TRUE(at::equal(whole.slice(1, 2), latent));
  EXPECT_TRUE(at::equal(model.with_references(latent, {{"vace_context", alone}}), latent));
}

TEST(Vace, AContextOfAnotherSizeIsRefused) {
  const Vace model(vace_preset("wan-vace-tiny"));
  net::Sample sample = model.blank({4, 3, 4, 6});
  sample.extra["vace_context"] = sample.extra["vace_context"].slice(1, 1);
  EXPECT_THROW(model.pack({sample}), UserError);
  sample.extra.clear();
  EXPECT_THROW(model.pack({sample}), UserError);
  const Vace other(VaceConfig{model.config().base, {0}, 96});
  EXPECT_THROW(context_of(other, {}), UserError) << "the codec makes 72 channels";
}

}  // namespace tessera::models::wan
