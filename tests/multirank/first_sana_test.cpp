// docs/sana-in-an-hour.md as a reader types it: its commands word for word, with a release of a tiny Sana in the place of
// the large one, and the sizes of that in the recipes that they make.
#include <cmath>

#include "learnt_clips.h"
#include "need_goldens.h"
#include "page.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRelease = "Sana_1600M_1024px_BF16_diffusers";
constexpr const char* kModel = R"(preset = "sana-tiny-norms"
config = { caption_channels = 64, caption_length = 24 })";

/// Four pictures, each with its caption beside it.
void write_pictures(const fs::path& folder) {
  for (int i = 0; i < 4; ++i) {
    const auto colour = [i](int, int x, int y) { return std::array{x * (i + 1) % 256, y, 64 * i}; };
    write_captioned(folder, "000" + std::to_string(i + 1), painted({1, 128, 128, 8, {}}, colour),
                    "a photo of sks dog, number " + std::to_string(i));
  }
}

/// Gemma-2 with the sizes of gemma-2-demo and small random weights, under the names of transformers.
void write_gemma(const fs::path& file) {
  constexpr int64_t kDim = 64, kShared = 32, kFfn = 128;
  std::vector<std::pair<std::string, std::vector<int64_t>>> weights = {{"embed_tokens.weight", {2048, kDim}}};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string at = "layers." + std::to_string(layer) + ".";
    for (const char* norm :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
      weights.push_back({at + norm + ".weight", {kDim}});
    weights.push_back({at + "self_attn.q_proj.weight", {kDim, kDim}});
    weights.push_back({at + "self_attn.k_proj.weight", {kShared, kDim}});
    weights.push_back({at + "self_attn.v_proj.weight", {kShared, kDim}});
    weights.push_back({at + "self_attn.o_proj.weight", {kDim, kDim}});
    weights.push_back({at + "mlp.gate_proj.weight", {kFfn, kDim}});
    weights.push_back({at + "mlp.up_proj.weight", {kFfn, kDim}});
    weights.push_back({at + "mlp.down_proj.weight", {kDim, kFfn}});
  }
  weights.push_back({"norm.weight", {kDim}});
  std::vector<std::vector<float>> values;
  std::vector<checkpoint::TensorData> tensors;
  for (const auto& [name, shape] : weights) {
    int64_t count = 1;
    for (const int64_t side : shape) count *= side;
    std::vector<float>& made = values.emplace_back(static_cast<size_t>(count));
    for (size_t i = 0; i < made.size(); ++i) made[i] = 0.1f * std::sin(static_cast<float>(7 * i + 3 * values.size()));
    tensors.push_back({name, DType::f32, shape, made.data()});
  }
  checkpoint::write_safetensors(file, tensors);
}

/// NVlabs' configuration of SANA-1.5 under FSDP, the keys that bear on the run.
constexpr const char* kYaml = R"(data:
  data_dir: [pictures]
  image_size: 1024
  load_vae_feat: true
  type: SanaWebDatasetMS
model:
  model: SanaMS_1600M_P1_D20
  image_size: 1024
  mixed_precision: bf16
  load_from:
  aspect_ratio_type: ASPECT_RATIO_1024
  multi_scale: true
  qk_norm: true
  class_dropout_prob: 0.1
vae:
  vae_type: AutoencoderDC
  vae_pretrained: vae
text_encoder:
  text_encoder_name: gemma-2-2b-it
  y_norm: true
  model_max_length: 300
  chi_prompt:
    - 'Make the prompt richer:'
    - 'User Prompt: '
scheduler:
  predict_flow_v: true
  noise_schedule: linear_flow
  flow_shift: 3.0
  weighting_scheme: logit_normal
  logit_mean: 0.0
  logit_std: 1.0
train:
  use_fsdp: true
  seed: 1
  train_batch_size: 32
  num_epochs: 100
  grad_checkpointing: true
  gradient_clip: 0.1
  optimizer:
    lr: 2.0e-5
    type: AdamW
  work_dir: runs/full
)";

constexpr const char* kFsdp = R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_transformer_layer_cls_to_wrap: SanaBlock
mixed_precision: bf16
num_processes: 2
)";

/// The released model in the folders and names of diffusers, and what NVlabs' trainer reads.
void write_release(const TinyRun& run) {
  const fs::path here = run.folder(), release = here / kRelease, goldens = TESSERA_GOLDENS;
  for (const char* part : {"vae", "text_encoder", "tokenizer"}) fs::create_directories(release / part);
  const Result made =
      run.train(1, "source",
                {"--run.steps", "1", "--data.path", (here / "pictures").string(), "--data.size", "128,128",
                 "--data.frames", "1", "--data.vae", (goldens / "dc_ae").string(), "--data.text_encoder",
                 "gemma-2-demo", "--data.tokenizer", (goldens / "tokenizers/gemma").string()});
  ASSERT_EQ(made.code, 0) << made.output;
  fs::rename(run.out("source") + "/model", release / "transformer");
  fs::copy(goldens / "dc_ae/config.json", release / "vae/config.json");
  fs::copy(goldens / "dc_ae/model.safetensors", release / "vae/diffusion_pytorch_model.safetensors");
  write_gemma(release / "text_encoder/model.safetensors");
  for (const char* file : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"})
    fs::copy(goldens / "tokenizers/gemma" / file, release / "tokenizer" / file);
  std::ofstream(release / "model_index.json") << R"({"_class_name": "SanaPipeline"})";
  fs::create_directories(here / "gemma-2-2b-it");
  for (const char* part : {"text_encoder", "tokenizer"})
    fs::copy(release / part, here / "gemma-2-2b-it", fs::copy_options::recursive);
  const Result pth =
      type(here, std::string("tessera convert ") + kRelease + "/transformer SANA1.5_1.6B_1024px.pth --to official");
  ASSERT_EQ(pth.code, 0) << pth.output;
}

/// The sizes of the tiny release in a recipe that a command of the page made.
void make_tiny(const fs::path& file) {
  std::string recipe = text_of(file);
  put(recipe, "text_encoder", "\"gemma-2-demo\"");
  if (file.filename() == "sana.toml") {
    put(recipe, "size", "[128, 128]");
    put(recipe, "steps", "4");
  } else {
    put(recipe, "buckets", "[\"1x128x128\"]");
    put(recipe, "caption_length", "24\ncaption_channels = 64");
    recipe.insert(recipe.find("[model]\n") + 8, "preset = \"sana-tiny-norms\"\n");
  }
  std::ofstream(file) << recipe;
}

TEST(FirstSana, EachCommandOfThePageDoesWhatItSays) {
  TESSERA_NEED_GOLDENS();
  const Page p = page("sana-in-an-hour.md");
  ASSERT_GE(p.commands.size(), 16u);
  const TinyRun run("first-sana", TESSERA_BINARY, kModel);
  const fs::path here = run.folder();
  write_pictures(here / "pictures");
  ASSERT_NO_FATAL_FAILURE(write_release(run));
  std::ofstream(here / "Sana_1600M_1024px_AdamW_fsdp.yaml") << kYaml;
  std::ofstream(here / "fsdp.yaml") << kFsdp;
  std::ofstream(here / "train.sh")
      << "torchrun --nproc_per_node=2 train_scripts/train.py --config_path=Sana_1600M_1024px_AdamW_fsdp.yaml\n";

  for (const std::string& command : p.commands) {
    // the tiny run ends at step 4, not 500
    const Result r = type(here, std::regex_replace(std::regex_replace(command, std::regex("steps 600"), "steps 6"),
                                                   std::regex("steps 700"), "steps 8"));
    ASSERT_EQ(r.code, 0) << command << "\n" << r.output;
    if (command.ends_with("-o sana.toml")) {
      EXPECT_NE(text_of(here / "sana.toml")
                    .find("fsdp_transformer_layer_cls_to_wrap = SanaBlock: not needed: units are "
                          "the transformer blocks"),
                std::string::npos);
      ASSERT_NO_FATAL_FAILURE(make_tiny(here / "sana.toml"));
    }
    if (command.ends_with("-o full.toml")) {
      EXPECT_NE(r.output.find(" 0 refused"), std::string::npos) << r.output;
      ASSERT_NO_FATAL_FAILURE(make_tiny(here / "full.toml"));
    }
  }
  for (const char* file :
       {"yaml.toml", "script.toml", "plan-keys.toml", "dog.png", "weaker.png", "merged/config.json", "merged.pth",
        "runs/sana-lora/report.html", "runs/sana-lora/model/pytorch_lora_weights.safetensors"})
    EXPECT_TRUE(fs::exists(here / file)) << file;
  EXPECT_NE(text_of(here / "dog.png"), text_of(here / "weaker.png"));
  EXPECT_EQ(data::decode_clip((here / "dog.png").string(), {}).count, 1);
  EXPECT_EQ(run.metrics("runs/sana-lora").size(), 8u);

  const Result full = type(here, "tessera launch -n 2 train full.toml --run.steps 2");
  ASSERT_EQ(full.code, 0) << full.output;
  const Result back = type(here, "tessera convert runs/full/model full.pth --to official");
  EXPECT_EQ(back.code, 0) << back.output;
}

}  // namespace
}  // namespace tessera::testing
