#pragma once
// A data set of two small videos, and a recipe of one block over it.
#include <fstream>

#include "folder_test.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/data/video.h"
#include "tessera/prepare/prepare.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::prepare {

class PrepareTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!data::has_video()) GTEST_SKIP() << "needs a build with FFmpeg";
    engine::Meter::install();
    for (const char* name : {"a", "b"}) add_clip("data", name);
    write("recipe.toml", R"(
[model]
family = "wan"
config = { dim = 64, ffn_dim = 128, num_heads = 4, num_layers = 1, in_dim = 12, out_dim = 12, freq_dim = 32, text_dim = 64, text_len = 16 }
[data]
size = [32, 32]
frames = 4
fps = 8
)");
  }

  /// FOLDER/NAME.mp4 of four frames, and NAME.txt: "clip NAME".
  void add_clip(const std::string& folder, const std::string& name) const {
    data::Frames clip{.count = 4, .height = 32, .width = 32, .fps = 8, .rgb = {}};
    for (size_t i = 0; i < clip.frame_bytes() * 4; ++i) clip.rgb.push_back(static_cast<uint8_t>(i / 57 + name[0]));
    std::filesystem::create_directories(folder_ / folder);
    data::write_mp4(folder_ / folder / (name + ".mp4"), clip);
    write(folder + "/" + name + ".txt", "clip " + name);
  }

  recipe::Recipe recipe(const recipe::Overrides& more = {}) const {
    recipe::Overrides all = {{"data.path", (folder_ / "data").string()},
                             {"data.cache", (folder_ / "cache").string()},
                             {"run.out", (folder_ / "run").string()}};
    all.insert(all.end(), more.begin(), more.end());
    return recipe::load_recipe((folder_ / "recipe.toml").string(), all);
  }

  PreparedData prepared(const recipe::Recipe& r, const job::Job& job) const {
    comm::Comm comm(comm::rendezvous_from_env(), Mesh{}, 60);
    return prepare(r, job, Mesh{}, comm, 0, {.prompts = false});
  }
};

}  // namespace tessera::prepare
