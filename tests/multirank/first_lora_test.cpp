// docs/lora-in-an-hour.md as a reader types it, word for word: of its recipe sizes and counts alone are those of a tiny
// model, whose release lies where the page says.
#include "need_goldens.h"
#include "page.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = R"(family = "wan"
config = { dim = 64, ffn_dim = 128, num_heads = 4, num_layers = 3, in_dim = 16, out_dim = 16, freq_dim = 32, text_dim = 64, text_len = 16 })";

/// The official folder of a tiny Wan 2.1: denoiser, autoencoder, text encoder and tokenizer under the release's names.
void write_release(const TinyRun& run, const fs::path& folder) {
  const Result made = run.train(1, "source", {"--run.steps", "1", "--data.vae", "haar:16"});
  ASSERT_EQ(made.code, 0) << made.output;
  fs::rename(run.out("source") + "/model", folder);
  const fs::path goldens = TESSERA_GOLDENS;
  for (const auto& [from, to] : {std::pair("wan21_vae/model.safetensors", "Wan2.1_VAE.pth"),
                                 {"umt5/model.safetensors", "models_t5_umt5-xxl-enc-bf16.pth"}}) {
    const Result converted = run.tessera({"convert", (goldens / from).string(), (folder / to).string()});
    ASSERT_EQ(converted.code, 0) << converted.output;
  }
  fs::create_directories(folder / "google/umt5-xxl");
  fs::copy(goldens / "umt5/spiece.model", folder / "google/umt5-xxl/spiece.model");
}

TEST(FirstLora, EachCommandOfThePageDoesWhatItSays) {
  TESSERA_NEED_GOLDENS();
  Page p = page("lora-in-an-hour.md");
  ASSERT_GE(p.commands.size(), 9u);
  const TinyRun run("first-lora", TESSERA_BINARY, kModel);
  ASSERT_NO_FATAL_FAILURE(write_release(run, run.folder() / "Wan2.1-T2V-1.3B"));
  fs::rename(run.folder() / "data", run.folder() / "clips");
  // the encoder's size stands in its name; every path is the page's
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"text_encoder", "\"umt5-demo\""},
                                                                                   {"size", "[32, 32]"},
                                                                                   {"frames", "5"},
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
