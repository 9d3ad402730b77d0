// docs/lora-in-an-hour.md as a reader types it: its recipe with the sizes of a tiny model, its commands word for word.
#include "page.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

TEST(FirstLora, EachCommandOfThePageDoesWhatItSays) {
  Page p = page("lora-in-an-hour.md");
  ASSERT_GE(p.commands.size(), 9u);
  // released weights, and the sizes and encoders of a tiny model
  const TinyRun run("first-lora");
  const Result made = run.train(1, "source", {"--run.steps", "2"});
  ASSERT_EQ(made.code, 0) << made.output;
  fs::rename(run.out("source") + "/model", run.folder() / "Wan2.1-T2V-1.3B");
  fs::rename(run.folder() / "data", run.folder() / "clips");
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"vae", "\"haar:12\""},
                                                                                   {"text_encoder", ""},
                                                                                   {"text_encoder_path", ""},
                                                                                   {"tokenizer", ""},
                                                                                   {"size", "[32, 32]"},
                                                                                   {"frames", "8"},
                                                                                   {"fps", "8"},
                                                                                   {"steps", "4"},
                                                                                   {"every", "2"},
                                                                                   {"rank", "4"}})
    put(p.recipe, key, value);
  p.recipe += "steps = 2\n";  // of [sample], the last table
  std::ofstream(run.folder() / "my-lora.toml") << p.recipe;

  for (const std::string& command : p.commands) {
    const Result r = type(run.folder(), command);
    ASSERT_EQ(r.code, 0) << command << "\n" << r.output;
    EXPECT_FALSE(r.output.empty()) << command;
  }
  for (const char* file : {"runs/my-lora/report.html", "runs/my-lora/model/pytorch_lora_weights.safetensors",
                           "runs/my-lora/model/lora_comfyui.safetensors", "runs/my-lora/samples/step-000004-0.mp4",
                           "runs/my-lora/checkpoints/step-000002/lora", "kite.mp4", "weaker.mp4", "kohya.safetensors"})
    EXPECT_TRUE(fs::exists(run.folder() / file)) << file;
  EXPECT_NE(text_of(run.folder() / "kite.mp4"), text_of(run.folder() / "weaker.mp4"));
  EXPECT_EQ(run.metrics("runs/my-lora").size(), 4u);
}

}  // namespace
}  // namespace tessera::testing
