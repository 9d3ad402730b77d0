// Examples of other trainers as they stand in their own repositories, and scripts around their commands.
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

/// Of the trainers' own examples: what each says of a feature that is off or of a family that is not there.
TEST(ImportExamples, ExamplesOfTheTrainersAreRead) {
  const Folder folder;
  const auto of_command = [](const std::string& text) { return import_command(text, {}); };
  const std::string ids = "Wan-AI/Wan2.2-S2V-14B:", speech = "wav2vec2-large-xlsr-53-english/",
                    line = "python train.py --dataset_base_path D --extra_inputs input_audio ",
                    folders = " --audio_processor_path " + ids + speech;
  check({"S2V with weights",
         {{"data.audio_encoder", "models/Wan-AI/Wan2.2-S2V-14B/" + speech + "model.safetensors"},
          {"--audio_processor_path", "implied"}}},
        of_command(line + "--model_id_with_origin_paths " + ids + speech + "model.safetensors" + folders));
  check({"S2V", {{"data.audio_encoder", "models/Wan-AI/Wan2.2-S2V-14B/" + speech}}}, of_command(line + folders));
  if (TESSERA_HAS_YAML)
    check(
        {"a stock fsdp.yaml", {{"plan.strategy", "full_shard"}, {"tpu_env", "implied"}, {"tpu_use_sudo", "implied"}}},
        import_file(folder.file("fsdp.yaml",
                                "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
                                "  fsdp_transformer_layer_cls_to_wrap: SanaBlock\ntpu_env: []\ntpu_use_sudo: false\n"),
                    {}));
  const std::string pipe = "micro_batch_size_per_gpu = 1\n[optimizer]\ntype = 'AdamW8bitKahan'\nstabilize = false\n";
  check({"low memory", {{"optimizer.stabilize", "implied"}}},
        import_file(folder.file("pipe.toml", pipe + "[model]\ntype = 'wan'\n"), {}));
  check({"another family", {{"model.type", "refused"}, {"model.clip_path", "implied"}}},
        import_file(folder.file("pipe.toml", pipe + "[model]\ntype = 'hunyuan-video'\nclip_path = 'c'\n"), {}));
  expect_words(message([&] {
                 import_file(folder.file("pipe.toml", pipe + "[model]\ntype = 'wan'\nckpt_paths = 'c'\n"), {})
                     .refuse_to("train");
               }),
               {"no option model.ckpt_paths", "did you mean model.ckpt_path?"});
  check(
      {"a size for each shape", {{"micro_batch_size_per_gpu", "refused"}, {"gradient_accumulation_steps", "implied"}}},
      import_file(folder.file("pipe.toml",
                              "micro_batch_size_per_gpu = [[512, 2], [1024, 1]]\ngradient_accumulation_steps = 2\n"
                              "[model]\ntype = 'wan'\n"),
                  {}));
}

TEST(ImportExamples, AScriptsVariablesAreFilledInAndItsOneCommandIsRead) {
  const Folder folder;
  const std::string script =
      "cd here\nexport MODEL=weights\nBATCH=4\n\n"
      "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py --ckpt_dir $MODEL \\\n  --batch_size ${BATCH}\n";
  const Translation t = import_file(folder.file("train.sh", script), {});
  check({"train.sh", {{"model.path", "weights"}, {"CUDA_VISIBLE_DEVICES", "implied"}, {"BATCH", ""}, {"MODEL", ""}}},
        t);
  const Translation bare = import_file(folder.file("bare.sh", "D=weights\ntorchrun train.py --ckpt_dir $D\n"), {});
  EXPECT_EQ(found(bare, "model.path"), "weights");
  EXPECT_EQ(found(bare, "D=weights"), "") << "it is the script's own";
  const std::string command = "accelerate launch train.py \\\n  --task t2v-14B \\\n  --ckpt_dir ";
  expect_words(message([&] {
                 import_file(folder.file("both.sh", "# two experts\n" + command + "high\n\n" + command + "low\n"), {})
                     .refuse_to("train");
               }),
               {"2 commands start a trainer, in lines 2 and 6", "a file of its own", "--from"});
}

/// Commands of DiffSynth's scripts, by repositories, in the folder where they run.
TEST(ImportExamples, DiffSynthsFilesOfAllModelsLieInItsFolderOfConvertedOnes) {
  const Folder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path);
  const std::string common = "models/DiffSynth-Studio/Wan-Series-Converted-Safetensors/",
                    t5 = "models_t5_umt5-xxl-enc-bf16", clip = "models_clip_open-clip-xlm-roberta-large-vit-huge-14";
  const auto ids = [](const std::string& repository, const std::vector<std::string>& files) {
    std::string list;
    for (const std::string& file : files) list += (list.empty() ? "" : ",") + ("Wan-AI/" + repository + ":" + file);
    return "python train.py --dataset_base_path D --model_id_with_origin_paths " + list;
  };
  const std::string i2v = ids("Wan2.1-I2V-14B-480P",
                              {"diffusion_pytorch_model*.safetensors", t5 + ".pth", "Wan2.1_VAE.pth", clip + ".pth"});
  const std::vector<std::pair<std::string, std::string>> converted = {
      {"model.path", "models/Wan-AI/Wan2.1-I2V-14B-480P"},
      {"data.text_encoder_path", common + t5 + ".safetensors"},
      {"data.vae", common + "Wan2.1_VAE.safetensors"},
      {"data.image_encoder_path", common + clip + ".safetensors"},
      {"data.tokenizer", "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl/spiece.model"}};
  check({i2v, converted}, import_command(i2v, {}));  // before anything was fetched
  const std::string ti2v = ids("Wan2.2-TI2V-5B", {"diffusion_pytorch_model*.safetensors", "Wan2.2_VAE.pth"});
  check({ti2v, {{"data.vae", common + "Wan2.2_VAE.safetensors"}}}, import_command(ti2v, {}));
  // with redirect_common_files off the release's own are there
  folder.file("models/Wan-AI/Wan2.1-I2V-14B-480P/Wan2.1_VAE.pth", "");
  check({i2v, {{"data.vae", "models/Wan-AI/Wan2.1-I2V-14B-480P/Wan2.1_VAE.pth"}}}, import_command(i2v, {}));
  for (const std::string& file : {std::string("Wan2.1_VAE"), std::string("Wan2.2_VAE"), t5, clip})
    folder.file(common + file + ".safetensors", "");
  check({i2v, converted}, import_command(i2v, {}));
  // found where no option names them, each for the releases that read it
  const auto alone = [&](const std::string& repository) {
    return import_command(ids(repository, {"diffusion_pytorch_model*.safetensors"}), {});
  };
  for (const auto& [repository, vae, image] : {std::tuple("Wan2.1-T2V-1.3B", "Wan2.1_VAE", false),
                                               {"Wan2.2-TI2V-5B", "Wan2.2_VAE", false},
                                               {"Wan2.1-I2V-14B-720P", "Wan2.1_VAE", true}}) {
    const Translation t = alone(repository);
    EXPECT_EQ(found(t, "data.vae"), common + vae + ".safetensors") << repository;
    EXPECT_EQ(found(t, "data.text_encoder"), "umt5-xxl") << repository;
    EXPECT_EQ(found(t, "data.text_encoder_path"), common + t5 + ".safetensors") << repository;
    EXPECT_EQ(found(t, "data.image_encoder_path"), image ? common + clip + ".safetensors" : "") << repository;
  }
  EXPECT_EQ(found(alone("Another-Model"), "data.vae"), "") << "of no release";
  fs::current_path(before);
}

/// musubi-tuner shifts timesteps of kind `shift` in training; those of all others, sigma by default, in samples alone.
TEST(ImportExamples, AShiftOfMusubiIsThatOfTheTimestepsThatItShifts) {
  const std::string line =
      "accelerate launch wan_train_network.py --task t2v-1.3B --dit d.safetensors --discrete_flow_shift 5";
  for (const auto& [kind, timesteps] :
       {std::pair("", "uniform"), {"sigma", "uniform"}, {"sigmoid", "logit_normal"}, {"uniform", "uniform"}}) {
    const std::string text = *kind ? line + " --timestep_sampling " + kind : line;
    check({text, {{"diffusion.shift", "1"}, {"diffusion.timesteps", timesteps}, {"--discrete_flow_shift", "implied"}}},
          import_command(text, {}));
  }
  const std::string shifted = line + " --timestep_sampling shift";
  check({shifted, {{"diffusion.shift", "5"}}}, import_command(shifted, {}));
}

/// Kind sigma counts its indices from the noise's end; the other kinds squeeze their draws into the window, which is told.
TEST(ImportExamples, AWindowOfMusubiIsThatOfItsKind) {
  const std::string line =
      "accelerate launch wan_train_network.py --task t2v-1.3B --dit d.safetensors --min_timestep 200 --max_timestep 700";
  for (const auto& [rest, low, high, told] :
       {std::tuple("", "0.30000000000000004", "0.8", ""),
        {" --timestep_sampling uniform", "0.2", "0.7", ""},
        {" --timestep_sampling shift", "0.2", "0.7", "warned"},
        {" --timestep_sampling shift --preserve_distribution_shape", "0.2", "0.7", ""}}) {
    const Translation t = import_command(line + rest, {});
    check({rest, {{"diffusion.min_t", low}, {"diffusion.max_t", high}, {"--min_timestep", told}}}, t);
  }
}

/// What is left of its saves in the golden case `retention`: a window of steps, a number of epochs, all where none is said.
TEST(ImportExamples, MusubiKeepsAWindowOfStepsANumberOfEpochsOrAll) {
  const std::string line = "accelerate launch wan_train_network.py --task t2v-1.3B --dit d.safetensors ";
  struct Kept {
    const char *options, *states, *files;  ///< files: empty, all of them
  };
  const Kept cases[] = {
      {"--save_every_n_steps 10", "0", ""},
      {"--save_every_n_steps 10 --save_last_n_steps 30", "4", "4"},
      {"--save_every_n_steps 10 --save_last_n_steps 30 --save_state", "4", "4"},
      {"--save_every_n_steps 10 --save_last_n_steps 30 --save_last_n_steps_state 10 --save_state", "2", "4"},
      {"--save_every_n_steps 10 --save_last_n_steps 10 --save_last_n_steps_state 40 --save_state", "5", "2"},
      {"--save_every_n_steps 10 --save_last_n_steps 10 --save_last_n_steps_state 40", "2", "2"},
      {"--save_every_n_steps 10 --save_last_n_steps 5", "1", "1"},
      {"--save_every_n_steps 7 --save_last_n_steps 20", "4", "4"},  // 84, 91, 98 and the last of 100
      {"--save_every_n_steps 10 --save_last_n_steps_state 20 --save_state", "3", ""},
      {"--save_last_n_steps 20", "0", ""}};
  for (const auto& [options, states, files] : cases) {
    const Translation t =
        import_command(line + "--network_module networks.lora_wan --max_train_steps 100 " + options, {});
    check({options, {{"checkpoint.keep", states}, {"checkpoint.keep_exports", files}}}, t);
  }
  const Folder folder;
  for (int i = 0; i < 4; ++i) folder.file("clips/" + std::to_string(i) + ".mp4", "");
  EXPECT_EQ(found(import_command(line + "--save_every_n_epochs 1 --save_last_n_epochs 2", {}), "checkpoint.keep"), "3");
  EXPECT_EQ(found(import_command("train.py --dataset_base_path D --save_steps 10", {}), "checkpoint.keep"), "0");
}

/// Configurations of programs that are not read, as their documentation has them: none is taken for another program's.
TEST(ImportExamples, ProgramsThatAreNotReadAreCalledByTheirNames) {
  const Folder folder;
  const auto file = [&](const std::string& name, const std::string& text) {
    return message([&] { import_file(folder.file(name, text), {}); });
  };
  const auto command = [](const std::string& text) { return message([&] { import_command(text, {}); }); };
  expect_words(file("llama.toml",
                    "[job]\ndump_folder = 'o'\n[model]\nname = 'llama3'\nflavor = '8B'\n[optimizer]\n"
                    "name = 'AdamW'\nlr = 3e-4\n[training]\nlocal_batch_size = 1\nsteps = 1000\n"),
               {"a torchtitan configuration", "optimizer.lr: `train.lr`", "training.steps: `run.steps`"});
  expect_words(file("lora.toml",
                    "pretrained_model_name_or_path = 'm'\nnetwork_module = 'networks.lora_flux'\n"
                    "network_dim = 16\nlearning_rate = 1e-4\noptimizer_type = 'AdamW8bit'\nt5xxl = 't'\n"
                    "clip_skip = 2\nmax_train_steps = 9\nmixed_precision = 'bf16'\nsave_precision = 'bf16'\n"),
               {"kohya's sd-scripts", "network_dim: `lora.rank`", "max_train_steps: `run.steps`"});
  expect_words(file("set.toml",
                    "[general]\nenable_bucket = true\n[[datasets]]\nresolution = 512\nbatch_size = 4\n"
                    "[[datasets.subsets]]\nimage_dir = 'd'\nclass_tokens = 'cat'\nnum_repeats = 10\n"),
               {"kohya's sd-scripts"});
  expect_words(
      command(
          "torchrun --nproc_per_node 8 train.py --parallel_backend ptd --dp_degree 2 --dp_shards 4 --model_name wan "
          "--pretrained_model_name_or_path W --rank 32 --lr 1e-5 --train_steps 1000"),
      {"train.py is a finetrainers command", "--rank: `lora.rank`", "--lr: `train.lr`"});
  expect_words(
      command(
          "accelerate launch flux_train_network.py --network_module networks.lora_flux --network_dim 4 --clip_skip 1 "
          "--t5xxl t --learning_rate 1e-4 --save_precision bf16 --mixed_precision bf16"),
      {"kohya's sd-scripts", "--network_dim: `lora.rank`"});
}

/// VideoX-Fun's own scripts, with the values that they are published with.
TEST(ImportExamples, ScriptsOfVideoXFun) {
  const auto command = [](const std::string& release, const std::string& script, const std::string& rest) {
    return import_command(
        "accelerate launch --mixed_precision=bf16 --num_processes 4 scripts/" + script + " --config_path=config/" +
            release +
            " --pretrained_model_name_or_path=M --train_data_dir=D/ --train_data_meta=D/metadata.json "
            "--video_sample_size=640 --image_sample_size=640 --token_sample_size=640 --train_batch_size=1 "
            "--gradient_accumulation_steps=2 --max_train_steps=1000 --gradient_checkpointing "
            "--adam_weight_decay=3e-2 --adam_epsilon=1e-10 --max_grad_norm=0.05 --vae_mini_batch=1 " +
            rest,
        {});
  };
  const std::string drawn =
      "--enable_bucket --uniform_sampling --low_vram --video_sample_n_frames=81 --video_repeat=1 ";
  check(
      {"Wan 2.1, LoRA",
       {{"train.mode", "lora"},
        {"model.path", "M"},
        {"data.vae", "M/Wan2.1_VAE.pth"},
        {"data.text_encoder_path", "M/models_t5_umt5-xxl-enc-bf16.pth"},
        {"data.path", "D/"},
        {"data.metadata", "D/metadata.json"},
        {"data.buckets", "81xAREA_640x640"},
        {"data.repeats", "1"},
        {"lora.rank", "64"},
        {"lora.alpha", "32"},
        {"lora.targets", "q,k,v,ffn.0,ffn.2"},
        {"train.lr", "1e-04"},
        {"train.schedule", "constant"},
        {"train.weight_decay", "3e-2"},
        {"train.eps", "1e-10"},
        {"train.clip_norm", "0.05"},
        {"train.global_batch", "8"},
        {"run.steps", "1000"},
        {"diffusion.timesteps", "uniform"},
        {"diffusion.shift", "5"},
        {"diffusion.caption_dropout", "0.1"},
        {"plan.activations", "recompute"},
        {"plan.compute_dtype", "bf16"},
        {"checkpoint.every", "50"},
        {"checkpoint.keep", "0"},
        {"--random_hw_adapt", "warned"},
        {"--video_sample_stride 2", "warned"}}},
      command("wan2.1/wan_civitai.yaml", "wan2.1/train_lora.py",
              drawn +
                  "--video_sample_stride=2 --checkpointing_steps=50 --learning_rate=1e-04 --random_hw_adapt --rank=64 "
                  "--network_alpha=32 --target_name=q,k,v,ffn.0,ffn.2 --use_peft_lora"));
  const std::string full = drawn + "--lr_scheduler=constant_with_warmup --lr_warmup_steps=100 --trainable_modules . ";
  check({"Wan 2.2, the low-noise expert",
         {{"train.mode", "full"},
          {"model.path", "M/low_noise_model"},
          {"diffusion.max_t", "0.875"},
          {"diffusion.min_t", ""},
          {"diffusion.shift", "12"},
          {"train.schedule", "constant_with_warmup"},
          {"train.warmup_steps", "100"},
          {"--train_mode normal", "implied"}}},
        command("wan2.2/wan_civitai_t2v.yaml", "wan2.2/train.py", full + "--boundary_type=low --train_mode=normal"));
  check({"Wan 2.2, the high-noise expert of i2v",
         {{"model.path", "M/high_noise_model"},
          {"diffusion.min_t", "0.9"},
          {"diffusion.max_t", ""},
          {"diffusion.shift", "5"}}},
        command("wan2.2/wan_civitai_i2v.yaml", "wan2.2/train.py", full + "--boundary_type=high --train_mode=i2v"));
  check({"Wan 2.2's 5B",
         {{"model.path", "M"},
          {"data.vae", "M/Wan2.2_VAE.pth"},
          {"diffusion.image_share", "0.5"},
          {"diffusion.max_t", ""},
          {"--boundary_type full", "implied"}}},
        command("wan2.2/wan_civitai_5b.yaml", "wan2.2/train.py", full + "--boundary_type=full --train_mode=ti2v"));
  check({"S2V",
         {{"diffusion.shift", "3"},
          {"--control_ref_image random", "refused"},
          {"data.size", "640,640"},
          {"data.frames", "80"}}},
        command("wan2.2/wan_civitai_s2v.yaml", "wan2.2/train_s2v.py",
                "--video_sample_n_frames=80 --trainable_modules . --boundary_type=full --control_ref_image=random"));
  const std::string fun = full + "--train_mode=control_ref --control_ref_image=random ";
  check({"Fun's controls of 2.1, with a reference",
         {{"diffusion.condition_draws", "8"},
          {"diffusion.condition_dropout", "control=0.1,start=0.1,reference=0.1,image=0.1"},
          {"--control_ref_image random", "implied"},
          {"--add_full_ref_image_in_self_attention", "implied"},
          {"diffusion.shift", "5"}}},
        command("wan2.1/wan_civitai.yaml", "wan2.1_fun/train_control.py",
                fun + "--add_full_ref_image_in_self_attention"));
  check({"Fun's controls of 2.2, with what is filled in",
         {{"diffusion.condition_draws", "8"},
          {"diffusion.condition_dropout", "control=0.1,reference=0.1"},
          {"model.path", "M/low_noise_model"}}},
        command("wan2.2/wan_civitai_i2v.yaml", "wan2.2_fun/train_control.py",
                fun + "--add_inpaint_info --add_full_ref_image_in_self_attention --boundary_type=low"));
  check({"Fun's cameras",
         {{"diffusion.condition_dropout", "start=0.1,image=0.1"},
          {"diffusion.draw_shares", "first_frame=1"},
          {"--add_inpaint_info", ""}}},
        command("wan2.1/wan_civitai.yaml", "wan2.1_fun/train_control.py",
                full + "--train_mode=control_camera_ref --control_ref_image=first_frame"));
  check(
      {"Fun's masks of 2.2",
       {{"diffusion.condition_draws", "8"}, {"diffusion.condition_dropout", ""}, {"model.path", "M/high_noise_model"}}},
      command("wan2.2/wan_civitai_i2v.yaml", "wan2.2_fun/train.py",
              full + "--train_mode=inpaint --boundary_type=high"));
  check({"VACE",
         {{"diffusion.condition_draws", "8"},
          {"data.references", "4"},
          {"diffusion.condition_dropout", ""},
          {"train.only", "*vace*"}}},
        command("wan2.2/wan_civitai_t2v.yaml", "wan2.2_vace_fun/train.py",
                "--trainable_modules vace --control_ref_image=random --boundary_type=low"));
  check({"Animate",
         {{"diffusion.condition_draws", "8"},
          {"data.references", ""},
          {"lora.rank", "64"},
          {"--boundary_type full", "implied"},
          {"diffusion.shift", "5"}}},
        command("wan2.2/wan_civitai_animate.yaml", "wan2.2/train_animate_lora.py",
                "--boundary_type=full --rank=64 --network_alpha=32 --target_name=q,k,v,ffn.0,ffn.2 --use_peft_lora"));
  check({"a mode whose script stops, and what belongs to another",
         {{"--train_mode control", "refused"}, {"--add_inpaint_info", "refused"}, {"diffusion.condition_draws", ""}}},
        command("wan2.1/wan_civitai.yaml", "wan2.1_fun/train_control.py",
                full + "--train_mode=control --add_inpaint_info"));
  check({"other numbers",
         {{"diffusion.timesteps", "diffusers"},
          {"plan.moments", "int8"},
          {"train.ema", "0.9999"},
          {"train.betas", "0.8,0.999"},
          {"data.fps", "0"},
          {"data.size", "480,832"},
          {"data.frames", "33"},
          {"--config_path config/wan2.2/wan_civitai_dancer.yaml", "refused"},
          {"train.mode", "full"},
          {"train.only", "*attn*,*modulation*"},
          {"train.group", "*attn* lr_factor=1,*modulation* lr_factor=0.5"},
          {"--motion_sub_loss", "refused"},
          {"--lora_skip_name x", "refused"}}},
        command("wan2.2/wan_civitai_dancer.yaml", "wan2.2/train.py",
                "--weighting_scheme logit_normal --use_8bit_adam --use_ema --adam_beta1 0.8 --video_sample_stride 1 "
                "--fix_sample_size 480 832 --video_sample_n_frames 33 --trainable_modules attn "
                "--trainable_modules_low_learning_rate modulation --motion_sub_loss --lora_skip_name x"));
}

TEST(ImportExamples, OfAConceptsSubfoldersThoseWithPicturesAreRead) {
  const Folder folder;
  for (const char* name :
       {"clips/one/a.png", "clips/one/deep/b.mp4", "clips/notes/readme.md", "clips/empty/inside/.keep"})
    folder.file(name, "");
  const std::string path = (folder.path / "clips").string();
  const auto file = [&](const char* below) {
    return import_file(
        folder.file("one.json", R"({"model_type": "SANA", "base_model_name": "S", "concepts": [{"path": ")" + path +
                                    R"(", "include_subdirectories": )" + below + "}]}"),
        {.ranks = 1});
  };
  check({"below", {{"data.path", path + "/one," + path + "/one/deep"}}}, file("true"));
  check({"alone", {{"data.path", path}}}, file("false"));
  folder.file("clips/c.webp", "");
  check({"its own too", {{"data.path", path + "," + path + "/one," + path + "/one/deep"}}}, file("true"));
}

TEST(ImportExamples, ConfigurationsOfOneTrainer) {
  const Folder folder;
  const auto file = [&](const std::string& text) { return import_file(folder.file("one.json", text), {.ranks = 2}); };
  folder.file("concepts.json", R"([{"name": "off", "path": "P0", "enabled": false},
      {"path": "P1", "enabled": true, "balancing": 3.0, "balancing_strategy": "REPEATS", "loss_weight": 1.0,
       "image": {"enable_crop_jitter": true, "enable_random_flip": false, "random_rotate_max_angle": 0.0},
       "text": {"prompt_source": "sample", "enable_tag_shuffling": false}}])");
  const std::string head =
      R"({"__version": 10, "base_model_name": "S", "model_type": "SANA", "concept_file_name": "concepts.json",
      "train_dtype": "BFLOAT_16", "optimizer_defaults": {"ADAMW": {"beta1": 0.5}}, "secrets": {"huggingface_token": ""}, )";
  check(
      {"a LoRA", {{"train.mode", "lora"},        {"model.path", "S"},
                  {"data.vae", "S/vae"},         {"data.path", "P1"},
                  {"data.repeats", "3"},         {"data.buckets", "1xAREA_1024x1024"},
                  {"train.lr", "3e-04"},         {"train.schedule", "constant_with_warmup"},
                  {"train.warmup_steps", "200"}, {"train.optimizer", "adamw"},
                  {"train.betas", "0.9,0.99"},   {"train.weight_decay", "0.01"},
                  {"train.global_batch", "16"},  {"train.clip_norm", "1"},
                  {"lora.rank", "16"},           {"lora.alpha", "1"},
                  {"lora.targets", "all"},       {"diffusion.timesteps", "logit_normal(0, 1.2)"},
                  {"diffusion.shift", "3"},      {"plan.compute_dtype", "bf16"},
                  {"checkpoint.every", "250"},   {"checkpoint.keep", "2"},
                  {"concept 0 (P0)", "implied"}}},
      file(head +
           R"("training_method": "LORA", "lora_rank": 16, "resolution": "1024", "learning_rate": 3e-4, "batch_size": 4,
      "gradient_accumulation_steps": 2, "optimizer": {"optimizer": "ADAMW", "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01,
      "stochastic_rounding": true}, "timestep_distribution": "LOGIT_NORMAL", "noising_bias": 0.0, "noising_weight": 0.2,
      "timestep_shift": 3, "save_every": 250, "save_every_unit": "STEP", "rolling_backup": true, "rolling_backup_count": 2,
      "ema": "OFF", "ema_decay": 0.999, "loss_weight_fn": "CONSTANT", "masked_training": false, "mse_strength": 1.0})"));
  check({"all parameters",
         {{"train.mode", "full"},
          {"data.size", "512,512"},
          {"train.schedule", "cosine"},
          {"train.optimizer", "lion"},
          {"plan.moments", "int8"},
          {"train.ema", "0.9998"},
          {"diffusion.timesteps", "uniform"},
          {"checkpoint.keep", "0"},
          {"lora_rank", "implied"},
          {"data.mask_suffix", "-masklabel.png"},
          {"data.mask_resize", "bilinear"},
          {"timestep_distribution", ""}}},
        file(head +
             R"("training_method": "FINE_TUNE", "lora_rank": 16, "aspect_ratio_bucketing": false, "resolution": "512",
      "learning_rate_scheduler": "COSINE", "optimizer": {"optimizer": "LION_8BIT"}, "ema": "GPU", "ema_decay": 0.9990004,
      "ema_update_step_interval": 5, "mae_strength": 0.5, "masked_training": true, "backup_after": 30,
      "backup_after_unit": "NEVER"})"));
  check({"muon",
         {{"train.optimizer", "muon"},
          {"train.adjust_lr_fn", "original"},
          {"train.muon_hidden_layers", "ffn,self_attn.Q"},
          {"train.muon_adam_lr", "0.5"},
          {"train.nesterov", "false"},
          {"optimizer.ns_steps", "implied"}}},
        file(head + R"("training_method": "FINE_TUNE", "optimizer": {"optimizer": "MUON", "muon_hidden_layers":
      "ffn,self_attn.Q", "muon_adam_lr": 0.5, "nesterov": false, "ns_steps": null}})"));
  check({"another model", {{"model_type", "refused"}, {"training_method", "refused"}}},
        file(R"({"model_type": "FLUX_DEV_1", "training_method": "EMBEDDING", "learning_rate": 1e-3})"));
  check(
      {"two concepts", {{"data.set.0.path", "A"}, {"data.set.1.path", "B"}, {"diffusion.timesteps", "cosmap"}}},
      file(
          R"({"model_type": "SANA", "concepts": [{"path": "A"}, {"path": "B"}], "timestep_distribution": "COS_MAP"})"));
}

/// The form of ai-toolkit's own example of Wan 2.2: both experts in turns of ten steps, a quantised base.
TEST(ImportExamples, AJobOfAiToolkit) {
  if (!TESSERA_HAS_YAML) GTEST_SKIP() << "this build reads no YAML";
  const Folder folder;
  const auto job = [&](const std::string& train, const std::string& model) {
    const std::string text = R"(job: extension
config:
  name: lora_v1
  process:
  - type: sd_trainer
    training_folder: output
    device: cuda:0
    network: {type: lora, linear: 32, linear_alpha: 16}
    save: {dtype: float16, save_every: 250, max_step_saves_to_keep: 4, push_to_hub: false}
    datasets:
    - {folder_path: clips, caption_ext: txt, caption_dropout_rate: 0.05, num_frames: 41, resolution: [512, 768]}
    train:
      batch_size: 2
      steps: 2000
      gradient_accumulation: 4
      train_unet: true
      train_text_encoder: false
      gradient_checkpointing: true
      noise_scheduler: flowmatch
      optimizer: adamw8bit
      lr: 1e-4
      optimizer_params: {weight_decay: 1e-4}
      dtype: bf16
)" + train + "    model:\n      name_or_path: W\n      arch: wan22_14b\n" +
                             model + R"(    sample:
      sampler: flowmatch
      sample_every: 250
      width: 1024
      prompts: ["a cat, a dog", a horse]
      neg: ''
      seed: 42
      walk_seed: true
      guidance_scale: 3.5
      sample_steps: 25
meta: {name: x}
)";
    return import_file(folder.file("job.yaml", text), {.ranks = 2});
  };
  const Translation t = job("      timestep_type: linear\n      switch_boundary_every: 10\n",
                            "      quantize: true\n      qtype: qfloat8\n      model_kwargs: {train_high_noise: true, "
                            "train_low_noise: true}\n");
  check({"wan22",
         {{"model.path", "W"},
          {"train.mode", "lora"},
          {"lora.rank", "32"},
          {"lora.alpha", "16"},
          {"lora.base_dtype", "fp8"},
          {"experts.train", "both"},
          {"experts.turn", "10"},
          {"run.out", "output/lora_v1"},
          {"run.steps", "2000"},
          {"train.global_batch", "16"},
          {"train.lr", "1e-4"},
          {"train.optimizer", "adamw"},
          {"plan.moments", "int8"},
          {"train.weight_decay", "1e-4"},
          {"plan.compute_dtype", "bf16"},
          {"plan.activations", "recompute"},
          {"diffusion.timesteps", "uniform"},
          {"diffusion.shift", "1"},
          {"diffusion.caption_dropout", "0.05"},
          {"data.path", "clips"},
          {"data.buckets", "41xAREA_512x512,41xAREA_768x768"},
          {"checkpoint.every", "250"},
          {"checkpoint.keep", "4"},
          {"sample.every", "250"},
          {"sample.prompts", "a cat, a dog,a horse"},
          {"sample.guidance", "3.5"},
          {"sample.steps", "25"},
          {"sample.seed", "42"}}},
        t);
  EXPECT_TRUE(t.mistakes.empty()) << t.mistakes.front().option;
  EXPECT_TRUE(t.refused.empty()) << t.refused.front().option << t.refused.front().why;
  const Translation low =
      job("      ema_config: {use_ema: true, ema_decay: 0.99}\n      timestep_type: weighted\n",
          "      quantize: true\n      qtype: uint4|a.safetensors\n      model_kwargs: {train_high_noise: false, "
          "train_low_noise: true}\n");
  check({"low",
         {{"experts.train", "low_noise"},
          {"train.ema", "0.99"},
          {"lora.base_dtype", ""},
          {"config.process.0.train.timestep_type", "refused"},
          {"config.process.0.model.qtype", "refused"}}},
        low);
  EXPECT_EQ(job("      learning_rat: 3\n", "").mistakes.size(), 1u);
}

TEST(ImportExamples, AConfigurationOfSimpleTunerWithItsDataSets) {
  const Folder folder;
  folder.file("data.json",
              R"([{"id": "videos", "type": "local", "dataset_type": "video", "crop": false, "resolution": 480,
      "resolution_type": "pixel_area", "instance_data_dir": "clips", "caption_strategy": "textfile", "repeats": 2,
      "cache_dir_vae": "c", "video": {"num_frames": 75, "min_frames": 75}},
      {"id": "more", "type": "local", "dataset_type": "image", "instance_data_dir": "pictures"},
      {"id": "t", "type": "local", "dataset_type": "text_embeds", "default": true, "cache_dir": "c"}])");
  const std::string text = R"({"--model_type": "lora", "model_family": "wan", "pretrained_model_name_or_path": "W",
      "lora_rank": 16, "learning_rate": 6e-5, "train_batch_size": 2, "gradient_accumulation_steps": 3,
      "max_train_steps": 200, "num_train_epochs": 0, "optimizer": "optimi-lion", "lr_scheduler": "constant_with_warmup",
      "lr_warmup_steps": 50, "max_grad_norm": 0.1, "mixed_precision": "bf16", "base_model_precision": "int8-torchao",
      "data_backend_config": "data.json", "report_to": "none", "checkpoint_step_interval": 100,
      "checkpoints_total_limit": 5, "flow_schedule_shift": 5.0, "validation_guidance": 6.0,
      "validation_prompt": "hills, green", "validation_steps": 50, "resume_from_checkpoint": "latest",
      "gradient_checkpointing": true, "output_dir": "o", "seed": 42, "minimum_image_size": 0, "vae_batch_size": 1})";
  const Translation t = import_file(folder.file("config.json", text), {});
  check({"SimpleTuner",
         {{"train.mode", "lora"},
          {"model.path", "W"},
          {"lora.rank", "16"},
          {"train.lr", "6e-05"},
          {"train.optimizer", "lion"},
          {"train.schedule", "constant_with_warmup"},
          {"train.warmup_steps", "50"},
          {"train.clip_norm", "0.1"},
          {"train.global_batch", "6"},
          {"run.steps", "200"},
          {"plan.compute_dtype", "bf16"},
          {"lora.base_dtype", "int8"},
          {"checkpoint.every", "100"},
          {"checkpoint.keep", "5"},
          {"diffusion.shift", "5"},
          {"diffusion.timesteps", "logit_normal"},
          {"diffusion.caption_dropout", "0.1"},
          {"sample.guidance", "6"},
          {"sample.prompts", "hills, green"},
          {"sample.every", "50"},
          {"run.resume", "auto"},
          {"run.out", "o"},
          {"run.seed", "42"},
          {"data.set.0.path", "clips"},
          {"data.set.0.repeats", "3"},
          {"data.set.0.buckets", "75xAREA_480x480"},
          {"data.set.1.path", "pictures"}}},
        t);
  EXPECT_TRUE(t.mistakes.empty()) << t.mistakes.front().option;
  EXPECT_TRUE(t.refused.empty()) << t.refused.front().option << t.refused.front().why;
  const auto of = [&](const std::string& options) {
    return import_file(folder.file("c.json", "{\"model_family\": \"wan\", " + options + "}"), {});
  };
  check({"8 bit", {{"train.optimizer", "adamw"}, {"plan.moments", "int8"}, {"checkpoint.keep", "0"}}},
        of(R"("optimizer": "bnb-adamw8bit-paged")"));
  check({"muon", {{"train.optimizer", "muon"}}}, of(R"("optimizer": "muon")"));
  check({"soap", {{"optimizer", "refused"}, {"diffusion.shift", "3"}}}, of(R"("optimizer": "soap")"));
  check({"uniform", {{"diffusion.timesteps", "uniform"}, {"diffusion.shift", "1"}}},
        of(R"("flow_use_uniform_schedule": true, "flow_schedule_shift": 0)"));
  check({"area", {{"data.buckets", "1xAREA_1008x1008"}}}, of(R"("resolution": 1.02, "resolution_type": "area")"));
}

}  // namespace
}  // namespace tessera::tools
