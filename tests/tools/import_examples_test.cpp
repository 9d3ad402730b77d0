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
  expect_words(
      message([&] { import_file(folder.file("pipe.toml", pipe + "[model]\ntype = 'wan'\nckpt_paths = 'c'\n"), {}); }),
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
                 import_file(folder.file("both.sh", "# two experts\n" + command + "high\n\n" + command + "low\n"), {});
               }),
               {"2 commands start a trainer, in lines 2 and 6", "a file of its own", "--from"});
}

}  // namespace
}  // namespace tessera::tools
