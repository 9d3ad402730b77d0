// SigLIP's image tower beside CLIP's: the golden case, sizes and names; and pictures in another size as Pillow has them.
#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/common/picture_resize.h"
#include "tessera/models/encoders/clip_vision.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::clip {

namespace {

at::Tensor bytes(const std::string& name) {
  const auto file = checkpoint::SafetensorsFile::open(Golden("siglip_vision").path("case.safetensors"));
  const auto& entry = file.at(name);
  at::Tensor value = at::empty(entry.shape, entry.dtype == DType::u8 ? at::kByte : at::kFloat);
  file.read(name, 0, entry.count(), value.mutable_data_ptr());
  return value;
}

void expect_recorded(const at::Tensor& actual, const std::string& name) {
  const at::Tensor expected = bytes(name);
  expect_close(actual, expected, 1e-4 * expected.abs().max().item<double>() + 1e-6, name);
}

}  // namespace

TEST(Siglip, PicturesAndFeaturesAreAsRecorded) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("siglip_vision");
  const ClipVision tower(parse_config(golden.text("config.json"), "config.json"));
  net::WeightMap weights;
  for (const auto& unit : tower.units())
    for (const auto& param : unit->spec().params) {
      std::vector<at::Tensor> parts;
      for (const std::string& part : stored_parts(param.name, "hf"))
        parts.push_back(read_tensors(golden.path("model.safetensors")).at("vision_model." + part));
      weights[param.name] = at::cat(parts).reshape(param.shape);
    }
  const auto features = [&](const std::vector<at::Tensor>& pixels) {
    return net::run_plain(tower.units(), weights, tower.pack(pixels)).reshape({-1, tower.rows(), tower.dim()});
  };
  std::vector<at::Tensor> pixels;
  for (const char* number : {"0", "1", "2"}) {
    const at::Tensor picture = bytes(std::string("in.image.") + number).permute({2, 0, 1});
    EXPECT_TRUE(at::equal(tower.squared(picture), bytes(std::string("out.resized.") + number))) << number;
    pixels.push_back(tower.preprocess(picture));
  }
  expect_recorded(at::stack(pixels), "out.pixels");
  expect_recorded(features(pixels), "out.features");
  const at::Tensor frame = bytes("in.frame");
  EXPECT_TRUE(at::equal(cut_to_bytes(frame).permute({0, 2, 3, 1}), bytes("out.frame_u8"))) << "cut, not rounded";
  expect_recorded(tower.preprocess(frame[0]).unsqueeze(0), "out.frame_pixels");
  expect_recorded(features({tower.preprocess(frame[0])}), "out.frame_features");
}

TEST(Siglip, SizesAreThoseOfTheReleaseAndOfWeightsAlone) {
  const auto& table = presets();
  const auto released = std::ranges::find(table, "siglip-so400m", &std::pair<std::string, Config>::first);
  ASSERT_NE(released, table.end());
  const ClipVision tower(released->second);
  EXPECT_EQ(tower.rows(), 729);
  EXPECT_EQ(tower.dim(), 1152);
  int64_t numel = 0;
  Shapes official;
  for (const auto& unit : tower.units())
    for (const auto& param : unit->spec().params) numel += param.numel(), official[param.name] = param.shape;
  EXPECT_EQ(numel, 428225600 - 15238352) << "without the head, which nothing is made of";
  EXPECT_EQ(config_of(official, "model.safetensors"), released->second) << "also the pixels that no patch has";
  Shapes stored;
  for (const auto& [name, shape] : official)
    for (const std::string& part : stored_parts(name, "hf")) stored["vision_model." + part] = shape;
  EXPECT_EQ(identify(stored).model, "siglip-so400m");
}

TEST(Siglip, ConfigsOfOtherTowersAreRefused) {
  TESSERA_NEED_GOLDENS();
  const auto with = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(Golden("siglip_vision").text("config.json"));
    config[key] = value;
    return parse_config(config.dump(), "config.json");
  };
  EXPECT_EQ(with("image_size", 43).side(), 3) << "what is left of a row is not seen";
  EXPECT_THROW(with("image_size", 13), UserError);
  EXPECT_THROW(with("hidden_act", "gelu"), UserError);
  EXPECT_THROW(with("num_channels", 4), UserError);
}

TEST(PictureResize, ShrinksAndGrowsAsItsFiltersDo) {
  const at::Tensor flat = at::full({5, 7, 3}, 200, at::kByte);
  for (const Filter filter : {Filter::bicubic, Filter::lanczos})
    EXPECT_TRUE(at::equal(resized(flat, 9, 2, filter), at::full({9, 2, 3}, 200, at::kByte)));
  const at::Tensor ramp = at::arange(0, 240, 30, at::kByte).view({1, 8, 1});
  // half of each row: the filters are twice as wide and mirror about the middle
  const at::Tensor half = resized(ramp, 1, 4, Filter::bicubic).flatten().to(at::kLong);
  EXPECT_EQ(half[1].item<int64_t>() + half[2].item<int64_t>(), 210);
  EXPECT_TRUE(at::equal(resized(ramp, 1, 8, Filter::lanczos), ramp)) << "a picture of that size stays as it is";
  const at::Tensor edge = at::cat({at::zeros({1, 4, 1}, at::kByte), at::full({1, 4, 1}, 255, at::kByte)}, 1);
  const at::Tensor wide = resized(edge, 1, 16, Filter::lanczos);
  EXPECT_EQ(wide.min().item<int>(), 0) << "overshoot is cut to bytes";
  EXPECT_EQ(wide.max().item<int>(), 255);
  EXPECT_THROW(resized(at::empty({0, 4, 3}, at::kByte), 2, 2, Filter::bicubic), UserError);
}

TEST(PictureResize, CoversASizeAndKeepsTheMiddle) {
  const at::Tensor columns = at::arange(0, 200, 10, at::kByte).view({1, 20, 1}).expand({6, 20, 1}).contiguous();
  EXPECT_TRUE(at::equal(covering(columns, 6, 20), columns)) << "a picture of that size stays as it is";
  EXPECT_TRUE(at::equal(covering(columns, 6, 8), columns.narrow(1, 6, 8))) << "six columns go at either side";
  EXPECT_TRUE(at::equal(covering(columns.transpose(0, 1).contiguous(), 7, 6), columns.transpose(0, 1).narrow(0, 6, 7)))
      << "of 13 rows 6.5 would go at either side: half to even";
  const at::Tensor small = covering(columns, 3, 5);
  EXPECT_EQ(small.sizes(), (at::IntArrayRef{3, 5, 1}));
  EXPECT_TRUE(at::equal(small, resized(columns, 3, 10, Filter::lanczos).narrow(1, 2, 5)));
}

}  // namespace tessera::models::clip
