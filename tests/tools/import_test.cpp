// Texts of other trainers in, recipe keys and refusals out: a line a case.
#include <gtest/gtest.h>

#include "tessera/recipe/run_recipe.h"
#include "tessera/tools/import/command_line.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

TEST(Import, CommandsBecomeRecipeKeys) {
  const std::vector<Case> cases = {
      // the training line: 32 x 8 = 256 a data-parallel rank
      {"--task t2v-14B --ckpt_dir no/such --dit_fsdp --t5_fsdp --ulysses_size 1 --batch_size 32 "
       "--gradient_accumulation_steps 8 --learning_rate 2.5e-5 --weight_decay 0.01 --max_steps 150000 --warmup_steps "
       "10000 --save_interval 5000 --log_interval 100",
       {{"train.global_batch", "512"},
        {"train.lr", "2.5e-5"},
        {"train.weight_decay", "0.01"},
        {"train.betas", "0.9,0.999"},
        {"train.eps", "1e-8"},
        {"train.clip_norm", "1.0"},
        {"train.schedule", "cosine_min"},
        {"train.eta_min", "2.5e-06"},
        {"run.steps", "150000"},
        {"train.warmup_steps", "10000"},
        {"checkpoint.every", "5000"},
        {"plan.strategy", "full_shard"},
        {"plan.recompute", "auto"},
        {"plan.compute_dtype", "bf16"},
        {"--t5_fsdp", "implied"},
        {"--log_interval", "implied"},
        {"model.path", "no/such"},
        {"data.vae", "no/such/Wan2.1_VAE.pth"},
        {"data.text_encoder_path", "no/such/models_t5_umt5-xxl-enc-bf16.pth"},
        {"data.tokenizer", "no/such/google/umt5-xxl/spiece.model"}},
       2},
      // generate.py
      {"torchrun --nproc_per_node=8 generate.py --task t2v-1.3B --size 832*480 --ckpt_dir D --dit_fsdp --t5_fsdp "
       "--ulysses_size 1 --offload_model False --convert_model_dtype --sample_solver dpm++ --sample_steps 30 "
       "--sample_shift 8 --sample_guide_scale 6 --base_seed 7 --frame_num 41 --prompt 'two cats, boxing'",
       {{"data.size", "480,832"},
        {"data.frames", "41"},
        {"sample.sampler", "dpmpp"},
        {"sample.steps", "30"},
        {"diffusion.shift", "8"},
        {"sample.guidance", "6"},
        {"sample.seed", "7"},
        {"sample.prompts", "two cats, boxing"},
        {"plan.compute_dtype", "bf16"},
        {"--offload_model", "implied"},
        {"--nproc_per_node", "implied"}}},
      {"python generate.py --task vace-14B --ckpt_dir D --src_video v.mp4 --src_mask m.mp4 --src_ref_images a.png",
       {{"sample.guide", "v.mp4"},
        {"sample.guide_mask", "m.mp4"},
        {"sample.reference", "a.png"},
        {"diffusion.shift", "16"},
        {"data.frames", "81"}}},
      {"python generate.py --task animate-14B --ckpt_dir D --src_root_path made/of --refert_num 5 --replace_flag "
       "--use_relighting_lora",
       {{"sample.pose", "made/of/src_pose.mp4"},
        {"sample.face", "made/of/src_face.mp4"},
        {"sample.reference", "made/of/src_ref.png"},
        {"sample.guide", "made/of/src_bg.mp4"},
        {"sample.guide_mask", "made/of/src_mask.mp4"},
        {"sample.lora", "D/relighting_lora.ckpt"},
        {"sample.clips", "auto"},
        {"sample.overlap", "5"},
        {"data.frames", "77"},
        {"data.fps", "30"},
        {"sample.guidance", "1"},
        {"sample.steps", "20"}}},
      {"python generate.py --task vace-1.3B --ckpt_dir D --src_ref_images a.png,b.png --replace_flag False",
       {{"--src_ref_images", "refused"}, {"--replace_flag", "implied"}, {"data.size", "480,832"}}},
      {"python generate.py --task ti2v-5B --ckpt_dir D --prompt p",
       {{"data.size", "704,1280"},
        {"data.frames", "121"},
        {"data.fps", "24"},
        {"sample.sampler", "unipc"},
        {"sample.guidance", "5"},
        {"sample.steps", "50"},
        {"plan.compute_dtype", "bf16"}}},
      // DiffSynth, the old form
      {"python examples/wanvideo/train_wan_t2v.py --task train --train_architecture full --dataset_path data "
       "--output_path out --dit_path m/a.safetensors,m/b.safetensors --num_frames 129 --height 480 --width 832 "
       "--max_epochs 2 --steps_per_epoch 500 --learning_rate 1e-4 --accumulate_grad_batches 2 --training_strategy "
       "deepspeed_stage_3 --use_gradient_checkpointing_offload",
       {{"train.mode", "full"},
        {"data.path", "data"},
        {"run.out", "out"},
        {"model.path", "m"},
        {"data.frames", "129"},
        {"data.size", "480,832"},
        {"run.steps", "500"},
        {"train.global_batch", "2"},
        {"plan.strategy", "ZeRO-3"},
        {"plan.activations", "recompute_offload"},
        {"--task", "implied"},
        {"train.clip_norm", "0"},
        {"diffusion.timesteps", "diffsynth"},
        {"diffusion.weighting", "diffsynth"}}},
      // DiffSynth, the new form
      {R"(CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 2 --mixed_precision bf16 \
          examples/wanvideo/model_training/train.py --dataset_base_path D --dataset_metadata_path D/metadata.csv \
          --height 480 --width 832 --num_frames 81 --dataset_repeat 100 --trainable_models "dit" \
          --model_id_with_origin_paths "Wan-AI/W:diffusion_pytorch_model*.safetensors,Wan-AI/W:models_t5.pth,Wan-AI/W:Wan2.1_VAE.pth" \
          --learning_rate 1e-5 --save_steps 50 --remove_prefix_in_ckpt "pipe.dit." --output_path O \
          --use_gradient_checkpointing --gradient_accumulation_steps 4 --fp8_models x  # a comment)",
       {{"data.metadata", "D/metadata.csv"},
        {"data.repeats", "100"},
        {"model.path", "models/Wan-AI/W"},
        {"data.text_encoder_path", "models/Wan-AI/W/models_t5.pth"},
        {"data.vae", "models/DiffSynth-Studio/Wan-Series-Converted-Safetensors/Wan2.1_VAE.safetensors"},
        {"plan.activations", "recompute"},
        {"plan.compute_dtype", "bf16"},
        {"train.global_batch", "8"},
        {"checkpoint.every", "50"},
        {"--remove_prefix_in_ckpt", "implied"},
        {"--fp8_models", "refused"},
        {"CUDA_VISIBLE_DEVICES=0,1", "implied"}}},
      {"python train.py --dataset_base_path D --model_paths "
       "'[[\"m/1.safetensors\",\"m/2.safetensors\"],\"v/VAE.pth\"]' "
       "--max_pixels 921600 --training_strategy deepspeed_stage_2_offload",
       {{"model.path", "m"},
        {"data.vae", "v/VAE.pth"},
        {"--max_pixels", "refused"},
        {"plan.strategy", "ZeRO-2"},
        {"plan.states", "host"},
        {"plan.gradients", "host"},
        {"plan.parameters", ""}}},
      // musubi-tuner
      {"accelerate launch --num_cpu_threads_per_process 1 --mixed_precision bf16 src/musubi_tuner/wan_train_network.py "
       "--task t2v-14B --dit d.safetensors --vae v.pth --t5 t.pth --sdpa --fp8_base --mixed_precision bf16 "
       "--optimizer_type "
       "adamw8bit --optimizer_args weight_decay=0.1 betas=(0.9,0.99) --learning_rate 2e-4 --gradient_checkpointing "
       "--blocks_to_swap 20 --timestep_sampling shift --discrete_flow_shift 3.0 --max_train_steps 900 "
       "--save_every_n_steps 100 --seed 42 --output_dir O --output_name N --lr_scheduler cosine --lr_warmup_steps 5",
       {{"model.path", "d.safetensors"},
        {"model.preset", "wan2.1-t2v-14b"},
        {"data.vae", "v.pth"},
        {"data.text_encoder_path", "t.pth"},
        {"plan.moments", "int8"},
        {"plan.compute_dtype", "bf16"},
        {"lora.base_dtype", "fp8"},
        {"train.weight_decay", "0.1"},
        {"train.betas", "0.9,0.99"},
        {"plan.activations", "recompute"},
        {"plan.parameters", "host"},
        {"diffusion.timesteps", "logit_normal"},
        {"diffusion.shift", "3.0"},
        {"run.steps", "900"},
        {"run.out", "O/N"},
        {"run.seed", "42"},
        {"train.schedule", "cosine"},
        {"train.warmup_steps", "5"},
        {"--sdpa", "implied"}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    check(c, import_command(c.text, {.ranks = c.ranks}));
  }
}

TEST(Import, ArgumentsOfProdigyAndWhatOthersMakeOfThem) {
  const std::string command =
      "python src/musubi_tuner/wan_train_network.py --task t2v-1.3B --dit d/x.safetensors --optimizer_type ";
  check({"Prodigy",
         {{"model.preset", "wan2.1-t2v-1.3b"},
          {"train.optimizer", "prodigy"},
          {"train.d_coef", "2.0"},
          {"train.d0", "1e-5"},
          {"train.beta3", ""},
          {"train.bias_correction", "true"},
          {"train.growth_rate", "1.02"},
          {"train.weight_decay", "0.01"},
          {"train.betas", "0.9,0.99"}}},
        import_command(command + "prodigyopt.Prodigy --optimizer_args decouple=True weight_decay=0.01 betas=0.9,0.99 "
                                 "d_coef=2.0 d0=1e-5 beta3=None use_bias_correction=True growth_rate=1.02",
                       {}));
  check({"nothing to set", {{"--optimizer_args", "implied"}}},
        import_command(command + "prodigy --optimizer_args decouple=True growth_rate=inf", {}));
  for (const char* other : {"prodigy --optimizer_args decouple=False", "prodigy --optimizer_args slice_p=11",
                            "AdamW --optimizer_args d_coef=2", "AdamW --optimizer_args growth_rate=1.02"})
    check({other, {{"--optimizer_args", "refused"}}}, import_command(command + other, {}));

  const Folder folder;  // a config.json says more than a task
  folder.file("m/config.json", "{}");
  check({"config.json", {{"model.preset", ""}, {"data.fps", "16"}}},
        import_command("python src/musubi_tuner/wan_train_network.py --task t2v-1.3B --dit " +
                           (folder.path / "m" / "x.safetensors").string(),
                       {}));
}

/// What launcher, its file and the script say of ranks and accumulation, together: the script's accumulation counts where it
/// names one, else the launcher's, and every rank has a batch.
TEST(Import, TheEffectiveBatchIsThatOfLauncherFileScriptAndRanksTogether) {
  const Folder folder;
  folder.file("clips.toml",
              "[general]\nresolution = [832, 480]\nbatch_size = 3\n[[datasets]]\nvideo_directory = \"videos\"\n"
              "target_frames = [1]\n");
  struct Script {
    const char *command, *accumulation;
    int64_t batch;  ///< of a rank and micro-batch
  };
  const std::string musubi =
      "wan_train_network.py --task t2v-1.3B --dit d.safetensors --vae v.pth --t5 t.pth "
      "--dataset_config " +
      (folder.path / "clips.toml").string();
  const Script scripts[] = {
      {"train_dreambooth_lora_sana.py --instance_data_dir=dog --instance_prompt=d --train_batch_size 2",
       "--gradient_accumulation_steps", 2},
      {"train.py --dataset_base_path data --num_frames 17 --trainable_models dit", "--gradient_accumulation_steps", 1},
      {"train_wan_t2v.py --dataset_path data --num_frames 17 --train_architecture full", "--accumulate_grad_batches",
       1},
      {musubi.c_str(), "--gradient_accumulation_steps", 3}};
  for (const Script& script : scripts)
    for (const int64_t ranks : {1, 2, 4})
      for (const int64_t launcher : {0, 2, 5})
        for (const int64_t own : {0, 3})
          for (const bool in_file : {false, true}) {
            std::string file = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n";
            std::string flags;
            const auto say = [&](const std::string& name, int64_t value) {
              file += name + ": " + std::to_string(value) + "\n", flags += " --" + name + " " + std::to_string(value);
            };
            say("num_processes", ranks);
            if (launcher > 0) say("gradient_accumulation_steps", launcher);
            if (in_file && !TESSERA_HAS_YAML) continue;
            const std::string config = " --config_file " + folder.file("accelerate.yaml", file);
            const std::string command =
                "accelerate launch" + (in_file ? config : flags) + " " + script.command +
                (own > 0 ? " " + std::string(script.accumulation) + " " + std::to_string(own) : "");
            const int64_t steps = own > 0 ? own : launcher > 0 ? launcher : 1;
            EXPECT_EQ(found(import_command(command, {}), "train.global_batch"),
                      std::to_string(script.batch * steps * ranks))
                << command << (in_file ? file : "");
          }
}

TEST(Import, RanksOfAllMachinesCountInTheBatch) {
  for (const char* launcher : {"torchrun --nproc_per_node 4 --nnodes 2 ", "torchrun --nproc-per-node=4 --nnodes=2 ",
                               "deepspeed --num_gpus 4 --num_nodes 2 "})
    EXPECT_EQ(found(import_command(std::string(launcher) + "train.py --dataset_base_path data --num_frames 17 "
                                                           "--trainable_models dit --gradient_accumulation_steps 3",
                                   {}),
                    "train.global_batch"),
              "24")
        << launcher;
}

// From noise to data: index 0 of its grid is the noisiest timestep, shifted by 5.
TEST(Import, ATimestepWindowOfDiffSynthCountsFromNoise) {
  const Translation t = import_command(
      "python train.py --dataset_base_path data --trainable_models dit "
      "--max_timestep_boundary 0.25 --min_timestep_boundary 0.125",
      {});
  EXPECT_NEAR(std::stod(found(t, "diffusion.min_t")), 5 * 0.75 / (1 + 4 * 0.75), 1e-5);
  EXPECT_NEAR(std::stod(found(t, "diffusion.max_t")), 5 * 0.875 / (1 + 4 * 0.875), 1e-5);
}

TEST(Import, TheRankThatDiffSynthsScriptsHaveByThemselvesIsThatOfTheirForm) {
  EXPECT_EQ(
      found(import_command("python train_wan_t2v.py --dataset_path data --train_architecture lora", {}), "lora.rank"),
      "16");
  EXPECT_EQ(found(import_command("python train.py --dataset_base_path data --lora_base_model dit", {}), "lora.rank"),
            "32");
}

TEST(Import, AdaptersOfVaceAreThoseOfItsSecondStream) {
  const std::string vace =
      "python train.py --dataset_base_path data --lora_base_model vace --extra_inputs vace_video,vace_reference_image";
  EXPECT_EQ(found(import_command(vace, {}), "lora.targets"),
            "vace_blocks.*.q,vace_blocks.*.k,vace_blocks.*.v,vace_blocks.*.o,vace_blocks.*.ffn.0,vace_blocks.*.ffn.2");
  EXPECT_EQ(found(import_command(vace + " --lora_target_modules q,ffn.0", {}), "lora.targets"),
            "vace_blocks.*.q,vace_blocks.*.ffn.0");
}

TEST(Import, AReferenceBeforeTheClipTakesFourOfItsFrames) {
  const std::string animate =
      "python train.py --dataset_base_path data --lora_base_model dit --extra_inputs "
      "input_image,animate_pose_video,animate_face_video";
  EXPECT_EQ(found(import_command(animate + " --num_frames 81", {}), "data.frames"), "77");
  EXPECT_EQ(found(import_command(animate + " --data_file_keys video,animate_pose_video", {}), "data.frames"), "77");
  EXPECT_EQ(found(import_command("python train.py --dataset_base_path data --num_frames 17", {}), "data.frames"), "17");
}

TEST(Import, TheLowestRateOfTheTrainingLineIsNotAboveItsRate) {
  const std::string line = "--task t2v-14B --ckpt_dir no/such --batch_size 1 --learning_rate ";
  EXPECT_EQ(found(import_command(line + "1e-7", {}), "train.eta_min"), "1e-07") << "it would rise";
  EXPECT_EQ(found(import_command(line + "1e-3", {}), "train.eta_min"), "2.5e-06");
  EXPECT_EQ(found(import_command(line + "1e-3 --min_lr 1e-4", {}), "train.eta_min"), "1e-4");
}

TEST(Import, AnEpochsLastSamplesThatFillNoBatchAreNoStep) {
  const Folder folder;
  std::string rows = "video,prompt\n";
  for (int i = 0; i < 7; ++i) {
    folder.file("data/" + std::to_string(i) + ".mp4", "");
    rows += std::to_string(i) + ".mp4,a clip\n";
  }
  folder.file("data/metadata.csv", rows);
  const std::string data = (folder.path / "data").string();
  for (const auto& [batch, steps] : {std::pair(1, 21), {2, 9}, {3, 6}, {4, 3}})
    EXPECT_EQ(found(import_command("python train.py --dataset_base_path " + data + " --dataset_metadata_path " + data +
                                       "/metadata.csv --dataset_repeat 1 --trainable_models dit --num_epochs 3 "
                                       "--gradient_accumulation_steps " +
                                       std::to_string(batch),
                                   {}),
                    "run.steps"),
              std::to_string(steps))
        << batch;
}

TEST(Import, StagesOfDiffusionPipeHoldOneBatchTogether) {
  const Folder folder;
  for (const int64_t stages : {1, 2, 4}) {
    const std::string file =
        folder.file("pipe.toml",
                    "micro_batch_size_per_gpu = 2\ngradient_accumulation_steps = 3\n"
                    "pipeline_stages = " +
                        std::to_string(stages) +
                        "\noutput_dir = 'out'\nepochs = 1\n[model]\ntype = 'wan'\nckpt_path = 'm'\n"
                        "dtype = 'bfloat16'\n[optimizer]\ntype = 'adamw'\nlr = 1e-4\n");
    const Translation t = import_file(file, {.ranks = 4});
    EXPECT_EQ(found(t, "mesh.pp"), std::to_string(stages));
    EXPECT_EQ(found(t, "train.global_batch"), std::to_string(6 * 4 / stages)) << stages;
  }
}

TEST(Import, StepsOfDiffSynthsEpochsAreThoseOfAllRanks) {
  for (const int64_t ranks : {1, 4})
    for (const int64_t steps : {1, 2}) {
      const std::string command =
          "python train_wan_t2v.py --dataset_path data --steps_per_epoch 500 --max_epochs 4 "
          "--accumulate_grad_batches " +
          std::to_string(steps);
      const Translation t = import_command(command, {.ranks = static_cast<int>(ranks)});
      EXPECT_EQ(found(t, "run.steps"), std::to_string(2000 / ranks / steps)) << command;
      EXPECT_EQ(found(t, "train.global_batch"), std::to_string(ranks * steps)) << command;
    }
}

TEST(Import, OptimisersByTheNamesOfTheirClasses) {
  const std::pair<const char*, const char*> names[] = {{"Lion", "lion"},
                                                       {"lion8bit", "lion"},
                                                       {"Adafactor", "adafactor"},
                                                       {"came_pytorch.CAME", "came"},
                                                       {"CAMEWrapper", "came"},
                                                       {"CAME8BitWrapper", "came8bit"},
                                                       {"AdamW8bit", "adamw"},
                                                       {"Prodigy", "prodigy"},
                                                       {"prodigyopt.Prodigy", "prodigy"}};
  for (const auto& [name, optimiser] : names) {
    const Translation t = import_command(
        "accelerate launch src/musubi_tuner/wan_train_network.py --task t2v-14B --dit d.safetensors --vae v.pth "
        "--max_train_steps 900 --optimizer_type " +
            std::string(name),
        {});
    EXPECT_EQ(found(t, "train.optimizer"), optimiser) << name;
    if (std::string_view(name).ends_with("8bit")) EXPECT_EQ(found(t, "plan.moments"), "int8") << name;
  }
}

TEST(Import, FilesBecomeRecipeKeys) {
  const std::vector<std::pair<std::string, Case>> cases = {
      {"ds.json",
       {R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
            "gradient_clipping": 0.5, "communication_data_type": "fp32", "bf16": {"enabled": true},
            "fp16": {"enabled": false, "loss_scale": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": "auto", "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100,
                          "warmup_min_lr": 0, "warmup_max_lr": 1e-5, "warmup_type": "linear"}},
            "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": "auto", "sub_group_size": 1e9,
              "stage3_gather_16bit_weights_on_model_save": true,
              "offload_optimizer": {"device": "nvme", "nvme_path": "disk", "pin_memory": true},
              "offload_param": {"device": "cpu"}},
            "aio": {"block_size": 1048576}, "wandb": {"enabled": true}})",
        {{"train.global_batch", "64"},
         {"train.micro_batch", "2"},
         {"gradient_accumulation_steps", "implied"},
         {"train.clip_norm", "0.5"},
         {"plan.reduce_dtype", "fp32"},
         {"plan.compute_dtype", "bf16"},
         {"train.lr", "1e-05"},
         {"train.betas", "0.9,0.95"},
         {"optimizer.params.eps", "implied"},
         {"train.weight_decay", "0.1"},
         {"train.schedule", "linear"},
         {"train.warmup_steps", "10"},
         {"run.steps", "100"},
         {"plan.strategy", "full_shard"},
         {"plan.states", "nvme"},
         {"plan.gradients", "nvme"},
         {"plan.parameters", "host"},
         {"plan.nvme", "disk"},
         {"wandb.enabled", "warned"}},
        8}},
      {"hpz.json",
       {R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}, "train_micro_batch_size_per_gpu": 1,
              "data_types": {"grad_accum_dtype": "bf16"}})",
        {{"plan.grad_dtype", "bf16"},
         {"plan.strategy", "two_level"},
         {"mesh.dp_shard", "2"},
         {"mesh.dp_replicate", "2"}},
        4}},
      {"stage1.json",
       {R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
              "zero_quantized_nontrainable_weights": true},
            "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": "auto", "communication_data_type": "bf16",
            "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500},
            "seq_parallel_communication_data_type": "fp32"})",
        {{"plan.strategy", "shard_states"},
         {"plan.states", "host"},
         {"plan.gradients", ""},
         {"zero_optimization.offload_param", "refused"},
         {"train.global_batch", "6"},
         {"gradient_accumulation_steps", "implied"},
         {"plan.compute_dtype", "fp16"},
         {"plan.reduce_dtype", "bf16"},
         {"train.loss_scale", "4096"},
         {"train.loss_scale_window", "500"},
         {"lora.base_dtype", "int8"},
         {"seq_parallel_communication_data_type", "refused"}},
        2}},
      {"fsdp.yaml",
       {R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: true
  fsdp_offload_params: true    # all three
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_activation_checkpointing: true
machine_rank: 0
mixed_precision: bf16
num_machines: 2
num_processes: 16
)",
        {{"plan.strategy", "full_shard"},
         {"mesh.dp_replicate", "2"},
         {"mesh.dp_shard", "8"},
         {"plan.parameters", "host"},
         {"plan.gradients", "host"},
         {"plan.states", "host"},
         {"plan.activations", "recompute"},
         {"plan.compute_dtype", "bf16"},
         {"fsdp_config.fsdp_forward_prefetch", "implied"},
         {"fsdp_config.fsdp_backward_prefetch", "implied"}}}},
      {"words.json",
       {R"({"sharding_strategy": "ShardingStrategy.SHARD_GRAD_OP", "buffer_dtype": "torch.float32", "use_reentrant": false,
            "cpu_offload": false, "backward_prefetch": "BACKWARD_POST", "reduce_dtype": "bf16",
            "keep_low_precision_grads": true})",
        {{"plan.strategy", "shard_grad_op"},
         {"buffer_dtype", "implied"},
         {"use_reentrant", "implied"},
         {"cpu_offload", "implied"},
         {"backward_prefetch", "refused"},
         {"plan.grad_dtype", "bf16"},
         {"plan.reduce_dtype", "bf16"}}}},
      {"ds.toml",
       {R"([general]
resolution = [832, 480]
caption_extension = ".txt"
batch_size = 2
num_repeats = 5
enable_bucket = true
[[datasets]]
video_directory = "videos"
cache_directory = "cache"
target_frames = [1, 25, 45]
frame_extraction = "uniform"
frame_sample = 4
)",
        {{"data.buckets", "1xAREA_832x480,25xAREA_832x480,45xAREA_832x480"},
         {"data.clip_lengths", "every"},
         {"data.fps", "0"},
         {"data.path", "videos"},
         {"data.cache", "cache"},
         {"data.repeats", "5"},
         {"data.clip_mode", "uniform"},
         {"data.clip_samples", "4"},
         {"train.global_batch", "8"}},
        4}},
      {"full.toml",
       {R"([general]
resolution = [832, 480]
batch_size = 1
[[datasets]]
video_directory = "videos"
target_frames = [25, 45]
frame_extraction = "full"
max_frames = 81
source_fps = 30.0
)",
        {{"data.frames", "81"},
         {"data.size", "480,832"},
         {"data.clip_mode", "full"},
         {"data.fps", "16"},
         {"datasets.0.target_frames", "implied"}}}},
      {"slide.toml",
       {R"([general]
resolution = [832, 480]
batch_size = 1
[[datasets]]
video_directory = "videos"
target_frames = [45, 25, 45]
frame_extraction = "slide"
)",
        {{"data.buckets", "25x480x832,45x480x832"}, {"data.clip_mode", "slide"}, {"data.clip_stride", "1"}}}},
      {"pipe.toml",
       {R"(output_dir = "out"
max_steps = 50
micro_batch_size_per_gpu = 2
gradient_accumulation_steps = 3
gradient_clipping = 1.0
activation_checkpointing = 'unsloth'
[model]
type = 'wan'
ckpt_path = 'W'
dtype = 'bfloat16'
timestep_sample_method = 'uniform'
[optimizer]
type = 'AdamW8bitKahan'
lr = 5e-5
betas = [0.9, 0.99]
)",
        {{"run.out", "out"},
         {"run.steps", "50"},
         {"train.global_batch", "6"},
         {"plan.activations", "recompute_offload"},
         {"model.path", "W"},
         {"data.vae", "W/Wan2.1_VAE.pth"},
         {"diffusion.timesteps", "uniform"},
         {"plan.moments", "int8"},
         {"plan.masters", "split"},
         {"train.lr", "5e-05"},
         {"train.mode", "full"}}}},
      {"pipe_data.toml",
       {R"(resolutions = [[1280, 720], 512]
frame_buckets = [1, 33]
[[directory]]
path = "clips"
num_repeats = 3
[[directory]]
path = "others"
)",
        {{"data.buckets", "1x720x1280,33x720x1280,1x512x512,33x512x512"},
         {"data.set.0.path", "clips"},
         {"data.set.0.repeats", "3"},
         {"data.set.1.path", "others"},
         {"data.path", ""},
         {"data.fps", "16"}}}},
      {"sets.toml",
       {R"([general]
resolution = [832, 480]
batch_size = 2
caption_extension = ".txt"
[[datasets]]
video_directory = "videos"
cache_directory = "cache/videos"
target_frames = [25]
num_repeats = 2
[[datasets]]
image_directory = "pictures"
cache_directory = "cache/pictures"
resolution = [512, 512]
num_repeats = 5
)",
        {{"data.set.0.path", "videos"},
         {"data.set.0.repeats", "2"},
         {"data.set.0.frames", "25"},
         {"data.set.0.size", "480,832"},
         {"data.set.1.path", "pictures"},
         {"data.set.1.repeats", "5"},
         {"data.set.1.frames", "1"},
         {"data.set.1.size", "512,512"},
         {"data.cache", "cache/videos"},
         {"datasets.1.cache_directory", "implied"},
         {"data.fps", "0"},
         {"train.global_batch", "2"}},
        1}},
      {"toolkit_sets.yaml",
       {R"(job: extension
config:
  name: a
  process:
    - type: sd_trainer
      train:
        steps: 20
        batch_size: 1
      datasets:
        - folder_path: clips
          num_frames: 41
          resolution: [512]
        - folder_path: pictures
          num_repeats: 3
          resolution: [768]
)",
        {{"data.set.0.path", "clips"},
         {"data.set.1.path", "pictures"},
         {"data.set.1.repeats", "3"},
         {"run.steps", "20"}}}},
  };
  for (const auto& [name, c] : cases) {
    if (!TESSERA_HAS_YAML && name.ends_with(".yaml")) continue;
    SCOPED_TRACE(name);
    const Folder folder;
    check(c, import_file(folder.file(name, c.text), {.ranks = c.ranks}));
  }
}

TEST(Import, OfSeveralDataSetsMakesARecipeOfThem) {
  const Folder folder;
  const std::string file = folder.file("sets.toml",
                                       "[general]\nresolution = [832, 480]\nbatch_size = 1\n"
                                       "[[datasets]]\nvideo_directory = \"a\"\ntarget_frames = [25]\n"
                                       "[[datasets]]\nimage_directory = \"b\"\nnum_repeats = 4\n");
  const std::string recipe = folder.file("recipe.toml", import_file(file, {.ranks = 1}).to_toml());
  const recipe::Recipe read = recipe::load_recipe(recipe, {});
  ASSERT_EQ(read.sets.size(), 2u);
  EXPECT_EQ(read.sets[0].name, "a");
  EXPECT_EQ(read.sets[0].data.clips.buckets, (std::vector<data::Bucket>{{25, 480, 832}}));
  EXPECT_EQ(read.sets[1].repeats, 4);
  EXPECT_EQ(read.sets[1].data.clips.buckets, (std::vector<data::Bucket>{{1, 480, 832}}));
  const std::string two = folder.file("two.toml",
                                      "[[datasets]]\nvideo_directory = \"a\"\nbatch_size = 1\n"
                                      "[[datasets]]\nvideo_directory = \"b\"\nbatch_size = 2\n");
  EXPECT_EQ(import_file(two, {.ranks = 1}).mistakes.size(), 1u) << "a run has one batch";
}

/// Each mistake is named, with what to do.
TEST(Import, WrongVariantsAreNamed) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"--task s3v-14B --ckpt_dir D --batch_size 1", {"s3v-14B", "s2v-14B"}},
      {"--task t2v-14B --batch_size 1 --max_steps 2", {"--ckpt_dir"}},
      {"--task t2v-14B --ckpt_dir D --batch_sise 1 --max_steps 2", {"--batch_sise", "did you mean --batch_size"}},
      {"--task t2v-14B --ckpt_dir D --batch_size many --max_steps 2", {"--batch_size many", "whole number"}},
      {"--task t2v-14B --ckpt_dir D --batch_size 0 --max_steps 2", {"--batch_size 0", "at least 1"}},
      {"--task vace-41B --ckpt_dir D --max_steps 2", {"vace-41B", "vace-14B"}},
      {"generate.py --task t2v-14B --ckpt_dir D --size 1280", {"--size 1280", "width*height"}},
      {"generate.py --task t2v-14B --ckpt_dir D --sample_solver euler", {"euler", "unipc"}},
      {"python train.py --dataset_base_path D --training_strategy deepspeed_stage_4",
       {"deepspeed_stage_4", "did you mean"}},
      {"python train.py --dataset_base_path D --learning_rate fast", {"--learning_rate fast", "a number"}},
      {"python train.py --dataset_base_path", {"--dataset_base_path needs a value"}},
      {"python train.py --dataset_base_path 'D", {"quote"}},
      {"python train.py extra --dataset_base_path D", {"'extra'"}},
      {"python wan_cache_latents.py --vae V", {"tessera prepare"}},
      {"python train.py --no_such_program 1", {"no option of this command"}},
  };
  for (const auto& [text, words] : commands)
    expect_words(message([&, &line = text] { import_command(line, {}).refuse_to("train"); }), words);
  const std::vector<std::pair<std::string, std::vector<std::string>>> files = {
      {R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2})",
       {"train_batch_size = 7", "2 x"}},
      {R"({"zero_optimization": {"stage": 4}})", {"stage", "0 to 3"}},
      {R"({"zero_optimisation": {"stage": 3}, "gradient_clipping": 1})", {"zero_optimisation.stage", "did you mean"}},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}})",
       {"device = gpu", "none, cpu or nvme"}},
      {R"({"zero_optimization": )", {"not JSON"}},
      {R"({"sharding_strategy": "FULL_SHARDS"})", {"FULL_SHARDS", "FULL_SHARD?"}},
      {R"({"cats": 2})", {"no option in it is known"}},
  };
  const Folder folder;
  for (const auto& [text, words] : files) {
    const std::string file = folder.file("x.json", text);
    expect_words(message([&] { import_file(file, {.ranks = 1}).refuse_to("train"); }), words);
  }
  expect_words(message([&] { import_file("no/such.json", {}).refuse_to("train"); }), {"no/such.json"});
}

TEST(Import, ARecipeNamesTheOptionBehindEachKeyAndLoads) {
  const Translation t = import_command(
      "python train.py --dataset_base_path D --height 480 --width 832 --learning_rate 1e-5 --enable_wandb_log", {});
  const std::string text = t.to_toml();
  expect_words(text, {"lr = 1e-5", "# --learning_rate 1e-5", "size = [480, 832]", "--height 480 --width 832",
                      "--enable_wandb_log", "Refused"});
  const Folder folder;
  const recipe::Recipe recipe = recipe::load_recipe(folder.file("recipe.toml", text), {});
  EXPECT_EQ(recipe.train.lr, 1e-5);
  EXPECT_EQ(recipe.data.width, 832);
}

TEST(Import, EpochsAreCountedInTheDataSet) {
  const Folder folder;
  for (const char* name : {"a", "b", "c"}) {
    folder.file(std::string("data/") + name + ".mp4", "");
    folder.file(std::string("data/") + name + ".txt", "a cat");
  }
  const std::string data = (folder.path / "data").string();
  const Translation t = import_command("python train.py --dataset_base_path " + data +
                                           " --dataset_repeat 10 --num_epochs 2 --gradient_accumulation_steps 3",
                                       {.ranks = 2});
  EXPECT_EQ(found(t, "train.global_batch"), "6");
  EXPECT_EQ(found(t, "run.steps"), "10");
  EXPECT_EQ(found(import_command("python train.py --dataset_base_path no/such --num_epochs 2", {}), "--num_epochs"),
            "refused");
}

TEST(Import, AReleaseIsLookedIntoAndMustBeOfTheTask) {
  const Folder folder;
  folder.file("W/config.json", R"({"model_type": "i2v"})");
  folder.file("W/some_VAE.pth", "");
  const std::string root = (folder.path / "W").string();
  const Translation t = import_command("--task i2v-14B --ckpt_dir " + root + " --max_steps 2", {});
  EXPECT_EQ(found(t, "data.vae"), root + "/some_VAE.pth");
  EXPECT_EQ(found(t, "data.tokenizer"), "");
  expect_words(
      message([&] { import_command("--task t2v-14B --ckpt_dir " + root + " --max_steps 2", {}).refuse_to("train"); }),
      {"holds a i2v model", "t2v-14B"});
  expect_words(
      message([&] { import_command("--task i2v-A14B --ckpt_dir " + root + " --max_steps 2", {}).refuse_to("train"); }),
      {"holds one model", "high_noise_model"});
}

TEST(Import, ATaskTrainsBothExpertsThatAFolderHolds) {
  const Folder folder;
  for (const char* expert : {"high_noise_model", "low_noise_model"}) {
    folder.file(std::string("S/") + expert + "/config.json", R"({"model_type": "s2v"})");
    folder.file(std::string("S/") + expert + "/diffusion_pytorch_model.safetensors", "");
  }
  folder.file("S/Wan2.1_VAE.pth", "");
  folder.file("S/wav2vec2-large-xlsr-53-english/config.json", "{}");
  const std::string root = (folder.path / "S").string();
  const Translation t = import_command("--task s2v-14B --ckpt_dir " + root + " --max_steps 2", {});
  EXPECT_EQ(found(t, "model.path"), root) << "the folder of both, which a run trains one a step";
  EXPECT_EQ(found(t, "data.vae"), root + "/Wan2.1_VAE.pth");
  EXPECT_EQ(found(t, "data.audio_encoder"), root + "/wav2vec2-large-xlsr-53-english");
  EXPECT_EQ(found(t, "model.preset"), "") << "its config.json has the sizes";
  expect_words(
      message([&] { import_command("--task t2v-14B --ckpt_dir " + root + " --max_steps 2", {}).refuse_to("train"); }),
      {"holds a s2v model", "t2v-14B"});
}

TEST(Import, MissingEncodersAreNamedByTheirFiles) {
  const Folder folder;
  folder.file("W/config.json", R"({"model_type": "i2v"})");
  const std::string root = (folder.path / "W").string();
  const Translation t = import_command("--task i2v-14B --ckpt_dir " + root + " --max_steps 2", {});
  expect_words(t.to_toml(),
               {"no Wan2.1_VAE.pth in it", "set data.vae", "models_t5_umt5-xxl-enc-bf16.pth",
                "google/umt5-xxl/spiece.model", "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"});
  EXPECT_EQ(t.warned.size(), 4u);
}

TEST(Import, ATaskSetsThePresetWhereNoConfigDoes) {
  const Folder folder;
  folder.file("W/diffusion_pytorch_model.safetensors", "");
  const std::string root = (folder.path / "W").string();
  EXPECT_EQ(found(import_command("--task t2v-1.3B --ckpt_dir " + root, {}), "model.preset"), "wan2.1-t2v-1.3b");
  EXPECT_EQ(found(import_command("--task s2v-14B --ckpt_dir no/such", {}), "model.preset"), "wan2.2-s2v-14b");
}

TEST(Import, DiffSynthsWeightsAreTheShardsOfOneModel) {
  const std::string train = "python train_wan_t2v.py --task train --dataset_path D --dit_path ";
  for (const char* list : {R"('["W/a.safetensors", "W/b.safetensors"]')", "'W/a.safetensors, W/b.safetensors'",
                           R"('[["W/a.safetensors","W/b.safetensors"]]')", "W/a.safetensors,W/b.safetensors"})
    EXPECT_EQ(found(import_command(train + list, {}), "model.path"), "W") << list;
  EXPECT_EQ(found(import_command(train + "W/a.safetensors", {}), "model.path"), "W/a.safetensors");
  EXPECT_EQ(found(import_command(train + "W/high_noise_model/a.safetensors,W/low_noise_model/a.safetensors", {}),
                  "model.path"),
            "W")
      << "both experts";
  expect_words(message([&] { import_command(train + "V/a.safetensors,W/b.safetensors", {}).refuse_to("train"); }),
               {"--dit_path names two models, V and W"});
  expect_words(message([&] { import_command(train + "'[1]'", {}).refuse_to("train"); }),
               {"--dit_path: expected a JSON list"});
}

TEST(Import, DiffSynthsEncodersLieBesideTheWeights) {
  const Folder folder;
  for (const char* file : {"high_noise_model/a.safetensors", "low_noise_model/a.safetensors", "Wan2.1_VAE.pth",
                           "models_t5_umt5-xxl-enc-bf16.pth", "google/umt5-xxl/spiece.model"})
    folder.file(std::string("W/") + file, "");
  const std::string root = (folder.path / "W").string();
  const std::string line =
      "python train.py --dataset_base_path D --dit_path " + root + "/high_noise_model/a.safetensors";
  const Translation t = import_command(line, {});
  EXPECT_EQ(found(t, "data.vae"), root + "/Wan2.1_VAE.pth");
  EXPECT_EQ(found(t, "data.text_encoder"), "umt5-xxl");
  EXPECT_EQ(found(t, "data.text_encoder_path"), root + "/models_t5_umt5-xxl-enc-bf16.pth");
  EXPECT_EQ(found(t, "data.tokenizer"), root + "/google/umt5-xxl/spiece.model");
  EXPECT_EQ(found(import_command(line + " --vae_path other.pth", {}), "data.vae"), "other.pth")
      << "what is said counts";
}

TEST(Import, ShellWordsAreThoseOfAShell) {
  EXPECT_EQ(shell_words("a 'b c' \"d \\\" e\" f\\ g \\\n h # i"),
            (std::vector<std::string>{"a", "b c", "d \" e", "f g", "h"}));
  const CommandLine line = read_command("A=1 python -m torch.distributed.run --nproc_per_node 2 x/train.py --lr 1");
  EXPECT_EQ(line.launcher, "torchrun");
  EXPECT_EQ(line.launcher_words, (std::vector<std::string>{"--nproc_per_node", "2"}));
  EXPECT_EQ(line.words, (std::vector<std::string>{"--lr", "1"}));
}

#if TESSERA_HAS_YAML
TEST(Import, YamlIsReadOrRefusedByLine) {
  const std::vector<Given> given = read_yaml("a: 1\nb:\n  c: 'x # y'  # z\n  d:\n  - 1\n  - 2\ne: [p, q]\n", "f");
  ASSERT_EQ(given.size(), 4u);
  EXPECT_EQ(given[1].name + "=" + given[1].value, "b.c=x # y");
  EXPECT_EQ(split_list(given[2].value), (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(given[3].name, "e");
  expect_words(message([] { read_yaml("a: 1\n   b: 2\n", "f"); }), {"f, line 2"});
  expect_words(message([] { read_yaml("- 1\n- 2\n", "f"); }), {"expected `key: value`"});
}

TEST(Import, YamlOfAnyLegalFormIsRead) {
  // flow maps, folded text, anchors and a key without a value, which accelerate's own loader takes
  const std::vector<Given> given = read_yaml(
      "fsdp_config: {fsdp_offload_params: true, fsdp_version: 2}\nnote: >\n  two\n  lines\n"
      "x: &n 4\nnum_processes: *n\nmachine_rank:\n",
      "f");
  ASSERT_EQ(given.size(), 5u);
  EXPECT_EQ(given[0].name + "=" + given[0].value, "fsdp_config.fsdp_offload_params=true");
  EXPECT_EQ(given[1].name + "=" + given[1].value, "fsdp_config.fsdp_version=2");
  EXPECT_EQ(given[2].value, "two lines\n");
  EXPECT_EQ(given[4].name + "=" + given[4].value, "num_processes=4");
}
#else
TEST(Import, ABuildThatReadsNoYamlSaysWhatToInstall) {
  expect_words(message([] { read_yaml("a: 1\n", "f.yaml"); }), {"f.yaml", "reads no YAML", "libyaml-cpp-dev"});
}
#endif

TEST(Import, OneOptionThatNobodyKnowsTakesNothingFromTheRest) {
  const Translation t = import_command(
      "python train.py --task t2v-14B --ckpt_dir W --batch_sise 4 --learning_rate 1e-5 --colour red --max_steps 9", {});
  EXPECT_EQ(found(t, "train.lr"), "1e-5");
  EXPECT_EQ(found(t, "run.steps"), "9");
  ASSERT_EQ(t.mistakes.size(), 2u);
  EXPECT_EQ(t.mistakes[0].option, "--batch_sise 4");
  expect_words(t.mistakes[0].why, {"has no option --batch_sise", "did you mean --batch_size?"});
  EXPECT_EQ(t.mistakes[1].option, "--colour red");
  const std::string recipe = t.to_toml();
  expect_words(recipe, {"# To be mended, and not in this recipe:\n#   --batch_sise 4: ", "#   --colour red: "});
  expect_words(message([&] { t.refuse_to("train"); }), {"2 options", "--batch_sise 4", "--colour red"});
}

TEST(Import, TwoOptionsThatSayDifferentThingsAreBothNamedAndTheFirstHolds) {
  const Folder folder;
  const std::string file = folder.file("ds.json", R"({"scheduler": {"type": "WarmupLR", "params":
      {"warmup_num_steps": 10, "warmup_steps": 20, "total_num_steps": 7}}, "gradient_clipping": 0.5})");
  const Translation t = import_file(file, {});
  EXPECT_EQ(found(t, "train.warmup_steps"), "10");
  EXPECT_EQ(found(t, "run.steps"), "7");
  EXPECT_EQ(found(t, "train.clip_norm"), "0.5");
  ASSERT_EQ(t.mistakes.size(), 1u);
  expect_words(t.mistakes[0].option + t.mistakes[0].why,
               {"warmup_steps = 20", "train.warmup_steps = 20", "warmup_num_steps = 10", "leave one of them away"});
}

TEST(Import, OurOwnRecipeIsNoOtherTrainersConfiguration) {
  for (const auto& entry : fs::directory_iterator(TESSERA_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    const std::string recipe = entry.path().string();
    expect_words(message([&] { import_file(recipe, {}).refuse_to("train"); }),
                 {recipe + " is already a Tessera recipe", "tessera train " + recipe});
  }
}

TEST(Import, TheTableHasEveryOptionOfEveryProgramOrOfOne) {
  const std::string all = import_table();
  for (const Dialect* dialect : dialects()) {
    const std::string one = import_table(dialect->name);
    EXPECT_NE(all.find(one), std::string::npos) << dialect->name;
    for (const Rule& rule : dialect->rules)
      if (!rule.becomes.starts_with("it belongs to "))
        EXPECT_NE(one.find("`" + rule.option + "`"), std::string::npos) << dialect->name << ": " << rule.option;
  }
  EXPECT_NE(import_table("MUSUBI").find("video_directory"), std::string::npos);
  EXPECT_EQ(import_table("musubi").find("zero_optimization"), std::string::npos);
  expect_words(message([] { import_table("kohya"); }), {"--table kohya", "musubi-tuner's commands"});
}

/// The page that says how imports work names each program whose options are read, how many these are, and how many are always refused.
TEST(Import, ThePageNamesEveryProgram) {
  std::ifstream in(TESSERA_SOURCE_DIR "/docs/coming-from.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const Dialect* dialect : dialects()) {
    const auto refused =
        std::ranges::count_if(dialect->rules, [](const Rule& rule) { return rule.becomes.starts_with("refused: "); });
    const std::string known = std::to_string(dialect->rules.size());
    const std::string row = "| " + dialect->name + " | " + known + " | " + std::to_string(refused) + " |";
    EXPECT_NE(text.find(row), std::string::npos) << row;
    EXPECT_NE(import_table(dialect->name).find(known + " options are known, " + std::to_string(refused) + " of them"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::tools
