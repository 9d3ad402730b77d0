// Configurations of models that nobody has: refused by their field before anything is made of them.
#include <functional>

#include "bounded.h"
#include "tessera/models/encoders/configs.h"
#include "tessera/models/encoders/gemma2.h"
#include "tessera/models/encoders/umt5.h"
#include "tessera/models/encoders/wav2vec2.h"
#include "tessera/models/hunyuan/files.h"
#include "tessera/models/opensora/files.h"
#include "tessera/models/sana/files.h"
#include "tessera/models/stdit/files.h"
#include "tessera/models/vae/opensora_configs.h"
#include "tessera/models/vae/wan_config.h"
#include "tessera/models/wan/config.h"

namespace tessera::models {
namespace {

struct Reader {
  std::string before, field;  // what the reader asks for before the field that counts its blocks
  std::function<void(const std::string&)> read;
};

TEST(ModelAttacks, ABillionLayersAreRefused) {
  const std::string file = "config.json";
  const Reader readers[] = {
      {"", "num_layers", [&](const std::string& text) { sana::parse_config(text, file); }},
      {"", "depth", [&](const std::string& text) { opensora::parse_config(text, file); }},
      {"", "depth_single_blocks", [&](const std::string& text) { opensora::parse_config(text, file); }},
      {"", "depth", [&](const std::string& text) { stdit::parse_config(text, file); }},
      {"", "mm_double_blocks_depth", [&](const std::string& text) { hunyuan::parse_config(text, file); }},
      {"", "num_res_blocks", [&](const std::string& text) { wan_vae::parse_config(text, file); }},
      {"", "num_hidden_layers", [&](const std::string& text) { wav2vec::parse_config(text, file); }},
      {R"("vocab_size":8,"num_heads":1,)", "num_layers",
       [&](const std::string& text) { umt5::parse_config(text, file); }},
      {R"("vocab_size":8,"hidden_size":8,"intermediate_size":8,)", "num_hidden_layers",
       [&](const std::string& text) { gemma2::parse_config(text, file); }},
  };
  for (const Reader& reader : readers)
    for (const char* layers : {"1000000000", "1048576", "18446744073709551615"}) {
      SCOPED_TRACE(reader.field + " " + layers);
      expect_refused_cheaply(
          [&] { reader.read("{" + reader.before + "\"" + reader.field + "\":" + layers + "}"); },
          {"config.json: ", reader.field.find("depth") != std::string::npos ? "depth" : reader.field, "expected"});
    }
}

TEST(ModelAttacks, WidthsThatFollowFromOtherFieldsAreBounded) {
  const std::string file = "config.json";
  struct Case {
    std::string text, told;
    std::function<void(const std::string&)> read;
  };
  const Case cases[] = {
      {R"("num_attention_heads":1048576,"attention_head_dim":1048576)", "attention_head_dim is 1099511627776",
       [&](const std::string& text) { wan::parse_config(text, file); }},
      {R"("num_attention_heads":1048576,"attention_head_dim":32)", "attention_head_dim is 33554432",
       [&](const std::string& text) { sana::parse_config(text, file); }},
      {R"("mlp_ratio":1e300)", "mlp_ratio", [&](const std::string& text) { sana::parse_config(text, file); }},
      {R"("mlp_ratio":1e300)", "mlp_ratio", [&](const std::string& text) { opensora::parse_config(text, file); }},
      {R"("mlp_ratio":-1e300)", "mlp_ratio", [&](const std::string& text) { stdit::parse_config(text, file); }},
      {R"("dim":16,"num_heads":2,"num_layers":3,"mlp_ratio":1e300)", "mlp_ratio",
       [&](const std::string& text) { clip::parse_config(text, file); }},
      {R"("vocab_size":8,"num_layers":1,"num_heads":1048576,"d_model":8,"d_ff":8,"d_kv":2)", "d_kv times num_heads",
       [&](const std::string& text) { umt5::parse_config(text, file); }},
      {R"("conv_dim":[8,8,8,8],"conv_kernel":[9,9,9,9],"conv_stride":[1048576,1048576,1048576,1048576])", "conv_stride",
       [&](const std::string& text) { wav2vec::parse_config(text, file); }},
      {R"("dim":1048576,"dim_mult":[1,2,4,4])", "dim times dim_mult",
       [&](const std::string& text) { wan_vae::parse_config(text, file); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.text);
    expect_refused_cheaply([&] { one.read("{" + one.text + "}"); }, {"config.json: ", one.told, "at most 1048576"});
  }
}

TEST(ModelAttacks, TensorsWithoutElementsAreRefusedWhereSizesFollowFromThem) {
  for (const int64_t side : {int64_t{0}, int64_t{1} << 40}) {
    const ShapeOf shape = [side](const std::string& name) {
      const bool there = name.starts_with("encoder.down.") && name.ends_with(".block.0.conv1.conv.weight");
      return there ? std::vector<int64_t>{side, 1, 3, 3, 3} : std::vector<int64_t>{};
    };
    expect_refused_cheaply([&] { opensora13_vae::config_of_weights(shape, "model.safetensors"); },
                           {"model.safetensors: tensor 'encoder.down.0.block.0.conv1.conv.weight'", "expected 1 to"});
  }
}

TEST(ModelAttacks, AClipTowerWithoutPositionsIsRefused) {
  const Shapes shapes = {{"visual.patch_embedding.weight", {24, 3, 14, 14}},
                         {"visual.transformer.0.mlp.0.weight", {48, 24}}};
  expect_refused_cheaply([&] { clip::config_of(shapes, "clip.pth"); }, {"clip.pth: visual.pos_embedding is missing"});
}

}  // namespace
}  // namespace tessera::models
