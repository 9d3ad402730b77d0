// CLIP's image tower: sizes, names, and the golden case under both namings on one rank.
#include "tessera/models/encoders/clip_vision.h"

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/registry.h"
#include "tessera/net/plain_context.h"

namespace tessera::models::clip {

namespace {

/// Weights under official names, put together of the parts a file has them in.
net::WeightMap read_weights(const ClipVision& tower, const std::filesystem::path& path, const std::string& naming) {
  const TensorMap stored = read_tensors(path);
  const std::string prefix = stored.count("vision_model.pre_layrnorm.weight") ? "vision_model." : "";
  net::WeightMap weights;
  for (const auto& unit : tower.units()) {
    for (const auto& param : unit->spec().params) {
      std::vector<at::Tensor> parts;
      for (const std::string& part : stored_parts(param.name, naming)) parts.push_back(stored.at(prefix + part));
      weights[param.name] = at::cat(parts).reshape(param.shape);
    }
  }
  return weights;
}

}  // namespace

TEST(ClipVision, MatchesTheReferenceUnderBothNamings) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("clip_vision");
  const TensorMap tensors = golden.tensors("case.safetensors");
  for (const auto& [weights, config_file, naming] : {std::tuple{"model.safetensors", "config.json", "official"},
                                                     {"diffusers.safetensors", "diffusers_config.json", "hf"}}) {
    const Config config = parse_config(golden.text(config_file), config_file);
    for (const bool last : {false, true}) {
      const ClipVision tower(config, last);
      std::vector<at::Tensor> pixels;
      for (const char* image : {"in.image.0", "in.image.1"}) pixels.push_back(tower.preprocess(tensors.at(image)));
      expect_close(at::stack(pixels), tensors.at("out.pixels"), golden.tolerance("out.pixels"), "out.pixels");
      const net::WeightMap map = read_weights(tower, golden.path(weights), naming);
      const at::Tensor out = net::run_plain(tower.units(), map, tower.pack(pixels));
      const char* expected = last ? "out.last_block" : "out.features";
      expect_close(out.reshape({2, tower.rows(), tower.dim()}), tensors.at(expected), golden.tolerance("out"), weights);
    }
  }
}

TEST(ClipVision, WeightsAloneTellTheSizes) {
  TESSERA_NEED_GOLDENS();
  const Golden golden("clip_vision");
  Config expected = parse_config(golden.text("config.json"), "config.json");
  expected.num_heads = 1;  // no preset is as narrow, and shapes do not tell
  for (const char* file : {"model.safetensors", "diffusers.safetensors"}) {
    Shapes stored;
    for (const auto& [name, tensor] : golden.tensors(file)) stored[name] = tensor.sizes().vec();
    EXPECT_EQ(config_of(official_shapes(identify(stored), stored), file), expected) << file;
  }
  EXPECT_THROW(config_of({{"x", {1}}}, "x.pth"), UserError);
}

TEST(ClipVision, TheReleasedTowerHasThePublishedSize) {
  const ClipVision tower({}, /*last_block=*/true);
  int64_t parameters = 0;
  for (const auto& unit : tower.units())
    for (const auto& param : unit->spec().params) parameters += param.numel();
  constexpr int64_t kUnused = 1280 * 1024 + 2 * 1280;  // the head and the last norm, which nothing here reads
  EXPECT_EQ(parameters + kUnused, 632076800);
  EXPECT_EQ(tower.rows(), 257);
  EXPECT_EQ(ClipVision({}).units().size(), 32u) << "the embedding and 31 of 32 blocks";
}

}  // namespace tessera::models::clip
