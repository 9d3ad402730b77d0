// Command lines of other programs, run as they are typed: on a tiny checkpoint, they train and sample.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "import_forms.h"
#include "matrix.h"
#include "program.h"
#include "tessera/data/audio.h"
#include "tessera/data/video.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

/// A tiny model in a folder laid out as a release, and clips to train on.
struct Release : TinyRun {
  Release() : TinyRun("import") {
    const Result made = train(1, "source", {"--run.steps", "1"});
    EXPECT_EQ(made.code, 0) << made.output;
    fs::rename(out("source") + "/model", folder() / "release");
  }
  std::string release() const { return (folder() / "release").string(); }
  std::string data() const { return (folder() / "data").string(); }
  /// What a recipe has to say of such small clips.
  std::vector<std::string> small(const std::string& run) const {
    return {"--run.out",  out(run), "--data.path", data(),  "--data.cache",  (folder() / "cache").string(),
            "--data.fps", "8",      "--data.size", "32,32", "--data.frames", "8",
            "--data.vae", "haar:12"};
  }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder() / name) << text;
    return (folder() / name).string();
  }
};

const Release& release() {
  static const Release made;
  return made;
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_words(const Result& r, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(r.code, code) << r.output;
  for (const std::string& word : words)
    EXPECT_NE(r.output.find(word), std::string::npos) << "expected '" << word << "' in:\n" << r.output;
}

TEST(TrainingLine, TrainsAndTellsWhatEachOptionIs) {
  const Release& r = release();
  const std::vector<std::string> line = {"launch",
                                         "-n",
                                         "2",
                                         "train",
                                         "--task",
                                         "t2v-14B",
                                         "--ckpt_dir",
                                         r.release(),
                                         "--dit_fsdp",
                                         "--t5_fsdp",
                                         "--ulysses_size",
                                         "1",
                                         "--batch_size",
                                         "2",
                                         "--gradient_accumulation_steps",
                                         "2",
                                         "--learning_rate",
                                         "2.5e-5",
                                         "--weight_decay",
                                         "0.01",
                                         "--max_steps",
                                         "2",
                                         "--warmup_steps",
                                         "1",
                                         "--save_interval",
                                         "5000",
                                         "--log_interval",
                                         "100"};
  const Result result = r.tessera(line + r.small("line"));
  expect_words(
      result, 0,
      {"train.global_batch = 8", "--log_interval 100", "2 x 2 x dp_size 2", "train.eta_min = 2.5e-06", "every 4"});
  EXPECT_EQ(r.metrics("line").size(), 2u);
  const std::string recipe = text_of(r.out("line") + "/recipe.toml");
  for (const char* wanted :
       {"global_batch = 8", "schedule = \"cosine_min\"", "strategy = \"full_shard\"", "lr = 2.5e-5"})
    EXPECT_NE(recipe.find(wanted), std::string::npos) << wanted << " in:\n" << recipe;
}

TEST(TrainingLine, OneBlockInThreeRecomputesWhereThatIsAskedFor) {
  const Release& r = release();
  expect_words(r.tessera({"plan", r.recipe(), "--plan.recompute", "every 3"}), 0, {"recompute 1"});
  expect_words(r.tessera({"plan", r.recipe(), "--plan.activations", "recompute_offload"}), 0,
               {"recompute 3", "some of 3 offloaded"});
}

TEST(TrainingLine, WrongVariantsAreNamed) {
  const Release& r = release();
  const std::vector<std::string> good = {"train", "--task", "t2v-14B", "--ckpt_dir", r.release(), "--max_steps", "1"};
  expect_words(r.tessera(good + std::vector<std::string>{"--btach_size", "2"}), 2, {"--btach_size", "--batch_size"});
  expect_words(r.tessera({"train", "--task", "t2v-13B", "--ckpt_dir", r.release()}), 2,
               {"t2v-13B", "did you mean t2v-1"});
  expect_words(r.tessera({"train", "--task", "i2v-14B", "--ckpt_dir", r.release()}), 3, {"holds a t2v model", "i2v"});
  expect_words(r.tessera({"train", "--task", "t2v-A14B", "--ckpt_dir", r.release()}), 3, {"high_noise_model"});
  expect_words(r.tessera({"train", "--task", "t2v-14B"}), 2, {"--ckpt_dir"});
  expect_words(r.tessera(good + std::vector<std::string>{"--batch_size", "x"}), 2, {"--batch_size x", "whole number"});
  expect_words(r.tessera({"train", "--dit_fsdp"}), 2, {"model", "preset"});
}

TEST(DeepSpeed, EachStageTrainsWithItsOffloadToTheSameLoss) {
  const Release& r = release();
  std::map<std::string, std::string> files = {
      {"z1.json", R"({"zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "train_batch_size": 4})"},
      {"z2.json", R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}},
                      "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2})"},
      {"z3.json", R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                      "offload_optimizer": {"device": "cpu"}}, "train_batch_size": "auto"})"}};
  std::map<std::string, double> losses;
  for (const auto& [name, text] : files) {
    const Result result = r.tessera({"launch", "-n", "2", "train", r.recipe(), "--run.out", r.out("run_" + name),
                                     "--run.steps", "2", "--deepspeed", r.file(name, text)});
    expect_words(result, 0, {"zero_optimization.stage", "plan.strategy"});
    ASSERT_EQ(r.metrics("run_" + name).size(), 2u) << name;
    losses[name] = r.metrics("run_" + name)[1].at("loss");
  }
  // the same samples in other micro-batches: but for the order of sums the same loss
  EXPECT_NEAR(losses["z1.json"], losses["z2.json"], 2e-6);
  EXPECT_NEAR(losses["z1.json"], losses["z3.json"], 2e-6);
  const std::string host = text_of(r.out("run_z3.json") + "/plan.toml");
  EXPECT_NE(host.find("host"), std::string::npos) << host;
}

TEST(DeepSpeed, WhatCannotBeHadStopsTheRunWithItsReason) {
  const Release& r = release();
  const std::string apex = r.file("apex.json", R"({"amp": {"enabled": true}, "elasticity": {"enabled": true}})");
  expect_words(r.tessera({"train", r.recipe(), "--deepspeed", apex}), 2,
               {"amp.enabled", "elasticity.enabled", "cannot be converted"});
  const std::string batch =
      r.file("batch.json",
             R"({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})");
  expect_words(r.tessera({"launch", "-n", "2", "train", r.recipe(), "--deepspeed", batch}), 2,
               {"train_batch_size = 5", "dp_size 2"});
  expect_words(r.tessera({"train", r.recipe(), "--deepspeed", "no.json"}), 3, {"no.json"});
}

TEST(Import, CommandsBecomeRecipesThatTrain) {
  const Release& r = release();
  const std::string weights = r.release() + "/diffusion_pytorch_model.safetensors";
  const std::string model = fs::exists(weights) ? weights : r.release();
  const std::string set =
      r.file("set.toml", "[general]\nresolution = [32, 32]\nbatch_size = 2\n[[datasets]]\nvideo_directory = \"" +
                             r.data() + "\"\ntarget_frames = [8]\n");
  const std::string pipe =
      r.file("pipe.toml",
             "output_dir = \"x\"\nmax_steps = 1\nmicro_batch_size_per_gpu = 2\n[model]\ntype = 'wan'\n"
             "transformer_path = '" +
                 r.release() + "'\n[optimizer]\ntype = 'adamw_optimi'\nlr = 1e-4\n");
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"diffsynth",
       {"--from",
        "accelerate launch --num_processes 2 examples/wanvideo/model_training/train.py --dataset_base_path " +
            r.data() + " --model_paths '[\"" + r.release() +
            "\"]' --height 32 --width 32 --num_frames 8 --num_epochs 1 --learning_rate 1e-4 --trainable_models "
            "dit --use_gradient_checkpointing"}},
      {"diffsynth_old",
       {"--from",
        "python train_wan_t2v.py --task train --train_architecture lora --lora_rank 4 --lora_alpha 4 "
        "--lora_target_modules q,k,v,o,ffn.0,ffn.2 --dataset_path " +
            r.data() + " --dit_path " + r.release() +
            " --height 32 --width 32 --num_frames 8 --steps_per_epoch 2 "
            "--max_epochs 1 --training_strategy deepspeed_stage_3 --use_gradient_checkpointing_offload"}},
      {"musubi",
       {"--from", "accelerate launch wan_train_network.py --task t2v-14B --dit " + r.release() + " --dataset_config " +
                      set + " --max_train_steps 1 --timestep_sampling sigmoid --gradient_checkpointing"}},
      {"pipe", {pipe}}};
  for (const auto& [name, words] : commands) {
    SCOPED_TRACE(name);
    const std::string recipe = (r.folder() / (name + "-recipe.toml")).string();
    expect_words(r.tessera(std::vector<std::string>{"import", "-o", recipe} + words), 0, {recipe, "refused"});
    if (name.starts_with("diffsynth")) {
      const std::string text = text_of(recipe);
      EXPECT_NE(text.find("compute_dtype = \"bf16\""), std::string::npos) << text;
    }
    expect_words(
        r.tessera(std::vector<std::string>{"launch", "-n", "2", "train", recipe, "--run.steps", "1"} + r.small(name)),
        0, {});
    EXPECT_EQ(r.metrics(name).size(), 1u);
  }
}

/// What import wrote it writes anew; what somebody edited it leaves.
TEST(Import, ARecipeThatWasEditedIsNotReplaced) {
  const Release& r = release();
  const std::string recipe = (r.folder() / "kept.toml").string();
  const auto write = [&](const std::string& rate) {
    return std::vector<std::string>{"import", "-o", recipe, "--from",
                                    "train.py --dataset_base_path D --learning_rate " + rate};
  };
  expect_words(r.tessera(write("1e-5")), 0, {recipe});
  expect_words(r.tessera(write("2e-5")), 0, {recipe});
  EXPECT_NE(text_of(recipe).find("lr = 2e-5"), std::string::npos);
  std::ofstream(recipe, std::ios::app) << "# mine\n";
  expect_words(r.tessera(write("3e-5")), 2, {recipe, "edits would be lost", "--force"});
  EXPECT_NE(text_of(recipe).find("lr = 2e-5"), std::string::npos) << "it was replaced";
  expect_words(r.tessera(write("3e-5") + std::vector<std::string>{"--force"}), 0, {recipe});
  EXPECT_EQ(text_of(recipe).find("# mine"), std::string::npos);
}

TEST(Import, PrintsARecipeAndNamesWhatIsUnknown) {
  const Release& r = release();
  const Result printed = r.tessera({"import", "--from", "train.py --dataset_base_path D --learning_rate 1e-5"});
  expect_words(printed, 0, {"lr = 1e-5", "# --learning_rate 1e-5"});
  const std::vector<std::string> wrong = {"import", "--from",
                                          "train.py --dataset_base_path D --learning_rates 1 --num_frames 5"};
  expect_words(
      r.tessera(wrong), 2,
      {"#   --learning_rates 1: ", "did you mean --learning_rate?", "frames = 5", "1 to be mended", "--force"});
  expect_words(r.tessera(wrong + std::vector<std::string>{"--force"}), 0, {"#   --learning_rates 1: ", "frames = 5"});
  expect_words(r.tessera({"import"}), 2, {"no file given"});
  expect_words(r.tessera({"import", "no.json"}), 3, {"no.json"});
}

TEST(Generate, SamplesWithTheOptionsOfTheOfficialProgram) {
  const Release& r = release();
  const std::string clip = (r.folder() / "clip.mp4").string();
  const std::vector<std::string> line = {"sample",      "--task",
                                         "t2v-14B",     "--ckpt_dir",
                                         r.release(),   "--size",
                                         "32*32",       "--frame_num",
                                         "8",           "--sample_steps",
                                         "2",           "--sample_shift",
                                         "3",           "--sample_guide_scale",
                                         "2",           "--base_seed",
                                         "3",           "--offload_model",
                                         "True",        "--convert_model_dtype",
                                         "--save_file", clip,
                                         "--prompt",    "a square"};
  // the release has no tokenizer: a small one is made of the captions
  const std::vector<std::string> tiny = {"--data.path", r.data(),       "--data.vae",
                                         "haar:12",     "--data.cache", (r.folder() / "cache").string()};
  expect_words(r.tessera(line + tiny), 0, {"sample.sampler = unipc", "--offload_model True", clip});
  EXPECT_TRUE(fs::exists(clip));
  expect_words(r.tessera({"sample", "--task", "t2v-14B", "--ckpt_dir", r.release(), "--sample_solver", "eular"}), 2,
               {"eular", "unipc"});
  expect_words(r.tessera({"sample", "--task", "t2v-14B", "--ckpt_dir", r.release(), "--use_prompt_extend"}), 2,
               {"--use_prompt_extend", "extend prompts beforehand"});
}

/// A kind of Wan model at the size of TinyRun, and its task's name.
struct Family {
  const char* task;
  const char* told;  ///< what is said of the model
  std::vector<std::string> flags;
  std::vector<std::string> conditions;  ///< of generate.py
  const char* wrong;                    ///< a task that its folder is not of
  std::string foreign = {};             ///< another trainer's command, of the weights $D and the clips in $C
};

std::vector<std::string> kind(const std::string& type, const std::string& in_dim,
                              const std::vector<std::string>& more = {}) {
  return std::vector<std::string>{"--model.config.model_type", type, "--model.config.in_dim", in_dim} + more;
}

/// Clips with sound, and two pictures.
void add_conditions(const TinyRun& run) {
  data::Sound hum{16000, {}};
  for (int i = 0; i < 16000; ++i) hum.samples.push_back(static_cast<float>(0.5 * std::sin(0.1 * i)));
  for (int clip = 0; clip < 3; ++clip) {
    const fs::path file = run.folder() / "data" / ("clip" + std::to_string(clip) + ".mp4");
    data::write_mp4(file, data::decode_clip(file, {}), hum);
  }
  for (const char* name : {"first.png", "last.png"}) {
    const data::Frames clip = data::decode_clip(run.folder() / "data/clip0.mp4", {});
    const std::vector<uint8_t> bytes = data::write_png(clip, name[0] == 'f' ? 0 : clip.count - 1);
    std::ofstream(run.folder() / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
}

std::string filled(std::string text, const std::vector<std::pair<std::string, std::string>>& signs) {
  for (const auto& [sign, meaning] : signs)
    for (size_t at; (at = text.find(sign)) != std::string::npos;) text.replace(at, sign.size(), meaning);
  return text;
}

/// Trains a step by the file, on two ranks.
void train_by(const TinyRun& run, const FileForm& form, const std::string& folder,
              const std::vector<std::string>& small) {
  SCOPED_TRACE(std::string(form.name) + " of " + form.task);
  const std::string name = std::string(form.task) + "-" + form.name, file = (run.folder() / ("of-" + name)).string();
  const std::vector<std::pair<std::string, std::string>> signs = {
      {"$D", folder}, {"$C", (run.folder() / "data").string()}, {"$F", file}};
  std::ofstream(file) << filled(form.text, signs);
  std::vector<std::string> words = {"launch", "-n", "2", "train", "--run.out", run.out(name), "--run.steps", "1"};
  if (std::string(form.name).ends_with(".json")) {
    words = words + std::vector<std::string>{"--task", form.task, "--ckpt_dir", folder, "--deepspeed", file};
  } else {
    const std::string recipe = (run.folder() / ("recipe-" + name)).string();
    std::vector<std::string> import = {"import", "-o", recipe};
    if (form.command.empty())
      import.push_back(file);
    else
      import = import + std::vector<std::string>{"--from", filled(form.command, signs)};
    expect_words(run.tessera(import), 0, {recipe});
    words.insert(words.begin() + 4, recipe);
  }
  expect_words(run.tessera(words + small), 0, {});
  EXPECT_EQ(run.metrics(name).size(), 1u);
}

TEST(EveryFamily, ATaskTrainsBothExpertsThatItsFolderHolds) {
  const TinyRun run("both");
  add_conditions(run);
  const Result made = run.train(1, "source",
                                std::vector<std::string>{"--run.steps", "1"} +
                                    kind("s2v", "12",
                                         {"--model.config.cond_dim", "12", "--model.config.audio_dim", "32",
                                          "--model.config.audio_inject_layers", "0,2", "--experts.train", "both"}));
  ASSERT_EQ(made.code, 0) << made.output;
  const std::string folder = run.out("source") + "/model", data = (run.folder() / "data").string();
  ASSERT_TRUE(fs::is_directory(folder + "/high_noise_model")) << made.output;
  const Result trained = run.tessera({"train",         "--task",     "s2v-14B",      "--ckpt_dir",
                                      folder,          "--dit_fsdp", "--batch_size", "2",
                                      "--max_steps",   "6",          "--run.out",    run.out("both"),
                                      "--data.path",   data,         "--data.cache", (run.folder() / "cache").string(),
                                      "--data.fps",    "8",          "--data.size",  "32,32",
                                      "--data.frames", "8",          "--data.vae",   "haar:12"});
  expect_words(trained, 0,
               {"audio, an image", "two experts", "models_t5_umt5-xxl-enc-bf16.pth", "wav2vec2-large-xlsr-53-english"});
  std::set<std::string> experts;
  for (const auto& step : run.metrics("both")) experts.insert(step.at("expert").get<std::string>());
  EXPECT_EQ(experts, (std::set<std::string>{"high_noise", "low_noise"}));
  for (const char* expert : {"high_noise_model", "low_noise_model"})
    EXPECT_TRUE(fs::is_directory(run.out("both") + "/model/" + expert)) << expert;
}

TEST(EveryFamily, TrainsAndSamplesByTheCommandsOfOtherPrograms) {
  const TinyRun run("families");
  add_conditions(run);
  const std::string first = (run.folder() / "first.png").string(), last = (run.folder() / "last.png").string(),
                    sound = (run.folder() / "data/clip1.mp4").string();
  const std::vector<std::string> clip = {"--model.config.image_dim", "24", "--model.config.image_len", "5"};
  const std::vector<Family> families = {
      {"t2v-1.3B",
       "conditioned on text",
       kind("t2v", "12"),
       {},
       "ti2v-5B",
       "accelerate launch wan_train_network.py --task t2v-1.3B --dit $D --dataset_config $C.toml --max_train_steps 1 "
       "--network_module networks.lora_wan --network_dim 4"},
      {"i2v-14B",
       "a first image (latent and CLIP",
       kind("i2v", "28", clip),
       {"--image", first},
       "t2v-14B",
       "accelerate launch wan_train_network.py --task i2v-14B --dit $D --dataset_config $C.toml --max_train_steps 1 "
       "--gradient_checkpointing"},
      {"flf2v-14B",
       "a last image",
       kind("flf2v", "28", clip),
       {"--first_frame", first, "--last_frame", last},
       "i2v-14B",
       "accelerate launch train.py --dataset_base_path $C --model_paths '[\"$D\"]' --height 32 --width 32 "
       "--num_frames 8 --num_epochs 1 --trainable_models dit --extra_inputs input_image,end_image"},
      {"t2v-A14B",
       "two experts",
       kind("t2v", "12", {"--experts.train", "both"}),
       {},
       "i2v-14B",
       "accelerate launch wan_train_network.py --task t2v-A14B --dit $D/low_noise_model --dit_high_noise "
       "$D/high_noise_model --dataset_config $C.toml --max_train_steps 1"},
      {"i2v-A14B",
       "two experts",
       kind("i2v", "28", {"--experts.train", "both"}),
       {"--image", first},
       "t2v-14B",
       "accelerate launch train.py --dataset_base_path $C --model_paths '[\"$D/high_noise_model\"]' --height 32 "
       "--width 32 --num_frames 8 --num_epochs 1 --trainable_models dit --extra_inputs input_image "
       "--max_timestep_boundary 0.358 --min_timestep_boundary 0"},
      {"ti2v-5B",
       "or a first image",
       kind("ti2v", "12"),
       {"--image", first},
       "s2v-14B",
       "python train_wan_t2v.py --task train --train_architecture lora --lora_rank 4 --lora_alpha 4 --dataset_path $C "
       "--dit_path $D --height 32 --width 32 --num_frames 8 --steps_per_epoch 1 --max_epochs 1 "
       "--training_strategy deepspeed_stage_3"},
      {"s2v-14B",
       "audio, an image",
       kind("s2v", "12",
            {"--model.config.cond_dim", "12", "--model.config.audio_dim", "32", "--model.config.audio_inject_layers",
             "0,2"}),
       {"--image", first, "--audio", sound, "--num_clip", "1"},
       "t2v-A14B",
       "accelerate launch train.py --dataset_base_path $C --model_paths '[\"$D\"]' --height 32 --width 32 "
       "--num_frames 8 --num_epochs 1 --trainable_models dit --extra_inputs input_image,input_audio --data_file_keys "
       "video,input_audio --use_gradient_checkpointing_offload"}};
  std::ofstream(run.folder() / "data.toml")
      << "[general]\nresolution = [32, 32]\nbatch_size = 1\n[[datasets]]\nvideo_directory = \""
      << (run.folder() / "data").string() << "\"\ntarget_frames = [8]\n";
  MatrixPart imported("other programs' commands by family", static_cast<int>(families.size()));
  const std::set<int> chosen = [&] {
    std::set<int> all;
    for (const int i : imported) all.insert(i);
    return all;
  }();
  MatrixPart files("other programs' files by family", static_cast<int>(kForms.size()));
  for (size_t i = 0; i < families.size(); ++i) {
    const Family& family = families[i];
    SCOPED_TRACE(family.task);
    const std::string name = family.task, folder = (run.folder() / ("release-" + name)).string();
    const Result made = run.train(1, "source-" + name, std::vector<std::string>{"--run.steps", "1"} + family.flags);
    ASSERT_EQ(made.code, 0) << made.output;
    fs::rename(run.out("source-" + name) + "/model", folder);
    const std::vector<std::string> small = {"--data.path",   (run.folder() / "data").string(),
                                            "--data.cache",  (run.folder() / "cache").string(),
                                            "--data.fps",    "8",
                                            "--data.size",   "32,32",
                                            "--data.frames", "8",
                                            "--data.vae",    "haar:12"};
    const Result trained = run.tessera(std::vector<std::string>{"launch", "-n", "2", "train", "--task", name,
                                                                "--ckpt_dir", folder, "--dit_fsdp", "--t5_fsdp",
                                                                "--batch_size", "1", "--gradient_accumulation_steps",
                                                                "2", "--max_steps", "2", "--run.out", run.out(name)} +
                                       small);
    expect_words(trained, 0, {family.told, "train.global_batch = 4"});
    EXPECT_EQ(run.metrics(name).size(), 2u);
    const std::string file = (run.folder() / (name + ".mp4")).string();
    const Result sampled =
        run.tessera(std::vector<std::string>{"sample", "--task", name, "--ckpt_dir", folder, "--sample_steps", "2",
                                             "--save_file", file, "--prompt", "a square"} +
                    family.conditions + small);
    expect_words(sampled, 0, {family.told, file});
    EXPECT_TRUE(fs::exists(file));
    expect_words(run.tessera({"train", "--task", family.wrong, "--ckpt_dir", folder, "--max_steps", "1"}), 3,
                 {"--task " + std::string(family.wrong), "give the "});
    for (const int form : files)
      if (kForms[form].task == name) train_by(run, kForms[form], folder, small);
    if (!chosen.contains(static_cast<int>(i))) continue;
    const std::string command = filled(family.foreign, {{"$D", folder}, {"$C", (run.folder() / "data").string()}});
    const std::string recipe = (run.folder() / (name + ".toml")).string(), out = name + "-imported";
    expect_words(run.tessera({"import", "-o", recipe, "--from", command}), 0, {recipe});
    expect_words(run.tessera(std::vector<std::string>{"launch", "-n", "2", "train", recipe, "--run.steps", "1",
                                                      "--run.out", run.out(out)} +
                             small),
                 0, {});
    EXPECT_EQ(run.metrics(out).size(), 1u);
  }
}

}  // namespace
}  // namespace tessera::testing
