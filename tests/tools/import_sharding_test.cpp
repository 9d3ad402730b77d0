// What people publish for sharded training of Wan: DeepSpeed's JSON, FSDP's and Fairscale's arguments as files and as
// calls. Each key is in effect or explained; one that is not known is an error that names it.
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

Translation of_json(const std::string& text, int ranks = 8) {
  const Folder folder;
  return import_file(folder.file("x.json", text), {.ranks = ranks});
}

std::string reason(const Translation& t, const std::string& option) {
  for (const auto* list : {&t.refused, &t.warned, &t.implied})
    for (const auto& remark : *list)
      if (remark.option.starts_with(option)) return remark.why;
  return "";
}

TEST(ImportSharding, DeepSpeedWithUlyssesAndACosineByTheNamesOfSnippets) {
  const Case c = {
      R"js({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 32,
          "gradient_clipping": 1.0, "steps_per_print": 10, "communication_data_type": "torch.bfloat16",
          "ignore_unused_parameters": true, "bf16": {"enabled": true},
          "data_types": {"grad_accum_dtype": "torch.float32"},
          "ulysses": {"enabled": true, "size": 8},
          "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
            "ignore_unused_parameters": true, "offload_optimizer": {"device": "cpu", "pin_memory": true},
            "offload_param": {"device": "cpu", "pin_memory": true}},
          "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true,
            "number_checkpoints": 10},
          "optimizer": {"type": "AdamW", "params": {"lr": 2.5e-5, "betas": [0.9, 0.999], "weight_decay": 0.01}},
          "scheduler": {"type": "WarmupCosineLR",
            "params": {"warmup_steps": 1000, "max_steps": 200000, "eta_min": 2.5e-6}},
          "wandb": {"enabled": true, "project": "wan"}, "tensorboard": {"enabled": true, "output_path": "tb"}})js",
      {{"mesh.sp", "8"},
       {"ulysses.enabled", "implied"},
       {"train.global_batch", "32"},
       {"train.micro_batch", "1"},
       {"plan.reduce_dtype", "bf16"},
       {"plan.compute_dtype", "bf16"},
       {"data_types.grad_accum_dtype", "implied"},
       {"ignore_unused_parameters", "implied"},
       {"zero_optimization.ignore_unused_parameters", "implied"},
       {"plan.strategy", "full_shard"},
       {"plan.parameters", "host"},
       {"plan.states", "host"},
       {"plan.gradients", "host"},
       {"plan.activations", "recompute_offload"},
       {"activation_checkpointing.partition_activations", "implied"},
       {"train.schedule", "cosine_min"},
       {"train.warmup_steps", "1000"},
       {"run.steps", "200000"},
       {"train.eta_min", "2.5e-06"},
       {"tensorboard.output_path", "implied"}}};
  const Translation t = of_json(c.text);
  check(c, t);
  EXPECT_TRUE(t.refused.empty()) << t.to_toml();
  ASSERT_EQ(t.warned.size(), 2u) << "what is uploaded elsewhere is a warning, and training goes on";
  expect_words(t.to_toml(), {"wandb.enabled = true: metrics are not uploaded", "sp = 8"});
}

TEST(ImportSharding, UlyssesIsOffWhereItSaysSoAndNeedsItsSize) {
  const Translation off = of_json(R"js({"ulysses": {"enabled": false, "size": 4}, "gradient_clipping": 1})js");
  EXPECT_EQ(found(off, "mesh.sp"), "");
  EXPECT_EQ(found(off, "ulysses.size"), "implied");
  EXPECT_EQ(found(of_json(R"js({"ulysses": {"enabled": true}, "gradient_clipping": 1})js"), "ulysses.enabled"),
            "refused");
  EXPECT_EQ(found(of_json(R"js({"ulysses": {"size": 2}, "gradient_clipping": 1})js"), "mesh.sp"), "2");
  expect_words(
      message([] { of_json(R"js({"ulysses": {"size": 2}, "sequence_parallel_size": 4})js").refuse_to("train"); }),
      {"ulysses.size = 2", "sequence_parallel_size = 4"});
}

TEST(ImportSharding, TheSchedulesNamesMayNotDisagreeAndALowestRateNeedsACosine) {
  expect_words(message([] {
                 of_json(R"js({"scheduler": {"type": "WarmupCosineLR",
                   "params": {"warmup_steps": 10, "warmup_num_steps": 20, "total_num_steps": 100}}})js")
                     .refuse_to("train");
               }),
               {"warmup_steps = 10", "warmup_num_steps = 20"});
  const Translation t = of_json(R"js({"scheduler": {"type": "WarmupDecayLR", "params": {"eta_min": 1e-6}}})js");
  expect_words(reason(t, "scheduler.params.eta_min"), {"WarmupCosineLR"});
  EXPECT_EQ(found(t, "train.eta_min"), "");
}

TEST(ImportSharding, AKeyThatNobodyKnowsIsAnErrorThatNamesIt) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> files = {
      {R"js({"zero_optimization": {"stage": 3, "overlap_com": true}})js", {"overlap_com", "overlap_comm?"}},
      {R"js({"zero_optimization": {"stage": 3}, "ulysses": {"enabled": true, "size": 8, "rings": 2}})js",
       {"ulysses.rings"}},
      {R"js({"sharding_strategy": "FULL_SHARD", "forward_prefech": true})js", {"forward_prefech", "forward_prefetch?"}},
      {R"js({"fsdp": {"sharding_strategy": "FULL_SHARD", "cpu_ofload": true}})js", {"fsdp.cpu_ofload", "cpu_offload?"}},
      {R"js({"sharding_strategy": "FULL_SHARD", "mixed_precision": "MixedPrecision(parm_dtype=torch.bfloat16)"})js",
       {"parm_dtype"}},
      {R"js({"sharding_strategy": "FULL_SHARD", "cpu_offload": "perhaps"})js",
       {"cpu_offload = perhaps", "true or false"}},
      {R"js({"sharding_strategy": "FULL_SHARD", "mixed_precision": "MixedPrecision(param_dtype=torch.bfloat16"})js",
       {"no end"}},
  };
  for (const auto& [text, words] : files)
    expect_words(message([&, &json = text] { of_json(json).refuse_to("train"); }), words);
}

TEST(ImportSharding, FsdpsArgumentsAsPeopleWriteThem) {
  const std::vector<Case> cases = {
      {R"js({"fsdp": {"sharding_strategy": "ShardingStrategy.SHARD_GRAD_OP", "cpu_offload": {"offload_params": true},
            "backward_prefetch": "BackwardPrefetch.BACKWARD_PRE", "forward_prefetch": true, "limit_all_gathers": true,
            "use_orig_params": true, "sync_module_states": true, "ignore_unused_parameters": true,
            "mixed_precision": {"param_dtype": "torch.bfloat16", "reduce_dtype": "torch.float32",
              "buffer_dtype": "torch.bfloat16", "cast_forward_inputs": true},
            "auto_wrap_policy": {"transformer_layer_cls": ["WanAttentionBlock"]}},
          "activation_checkpointing": {"enabled": true, "checkpoint_wrapper": true,
            "checkpoint_impl": "CheckpointImpl.NO_REENTRANT", "offload_to_cpu": true}})js",
       {{"plan.strategy", "shard_grad_op"},
        {"plan.parameters", "host"},
        {"plan.gradients", "host"},
        {"plan.states", "host"},
        {"plan.compute_dtype", "bf16"},
        {"plan.reduce_dtype", "fp32"},
        {"fsdp.mixed_precision.buffer_dtype", "implied"},
        {"fsdp.ignore_unused_parameters", "implied"},
        {"plan.activations", "recompute_offload"},
        {"activation_checkpointing.checkpoint_impl", "implied"}}},
      {R"js({"sharding_strategy": "ShardingStrategy.FULL_SHARD", "cpu_offload": "CPUOffload(offload_params=False)",
          "mixed_precision": "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)",
          "auto_wrap_policy": "partial(transformer_auto_wrap_policy, transformer_layer_cls={WanAttentionBlock})",
          "checkpoint_wrapper_fn": "partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)"})js",
       {{"plan.strategy", "full_shard"},
        {"plan.parameters", ""},
        {"cpu_offload.offload_params", "implied"},
        {"plan.compute_dtype", "bf16"},
        {"plan.reduce_dtype", "bf16"},
        {"auto_wrap_policy", "implied"},
        {"plan.activations", "recompute"},
        {"checkpoint_wrapper_fn.checkpoint_impl", "implied"}}},
      {R"js({"sharding_strategy": "FULL_SHARD", "state_dict_config": {"offload_to_cpu": true}, "checkpoint_wrapper": false})js",
       {{"plan.activations", ""}, {"checkpoint_wrapper", "implied"}, {"state_dict_config.offload_to_cpu", "implied"}}},
  };
  for (const Case& c : cases) {
    const Translation t = of_json(c.text);
    check(c, t);
    EXPECT_TRUE(t.refused.empty()) << t.to_toml();
  }
  const Translation t = of_json(R"js({"sharding_strategy": "FULL_SHARD", "offload_to_cpu": true})js");
  expect_words(reason(t, "offload_to_cpu"), {"checkpoint_wrapper", "offload_params"});
}

TEST(ImportSharding, ColossalAisPluginByItself) {
  check({"tp and pp",
         {{"mesh.tp", "2"}, {"mesh.pp", "2"}, {"plan.compute_dtype", "bf16"}, {"plan.strategy", "no_shard"}}},
        of_json(R"js({"tp_size": 2, "pp_size": 2, "precision": "bf16"})js"));
  check(
      {"sequence",
       {{"mesh.sp", "4"}, {"plan.strategy", "shard_states"}, {"train.clip_norm", "0.5"}, {"enable_flash", "implied"}}},
      of_json(R"js({"tp_size": 1, "sp_size": 4, "sequence_parallelism_mode": "all_to_all", "zero_stage": 1,
                      "enable_sequence_parallelism": true, "max_norm": 0.5, "enable_flash_attention": true})js"));
  expect_words(message([] { of_json(R"js({"tp_size": 2, "tp_sise": 2})js").refuse_to("train"); }),
               {"no option tp_sise"});
  const Folder folder;
  check({"in Open-Sora's", {{"plan.compute_dtype", "fp32"}}},
        import_file(folder.file("c.py",
                                "plugin = 'hybrid'\nplugin_config = dict(tp_size=2, precision='fp32')\n"
                                "dataset = dict(data_path='x.csv')\n"),
                    {.ranks = 8}));
}

TEST(ImportSharding, ASnippetThatTurnsCheckpointingOffIsRead) {
  check({"off", {{"plan.strategy", "full_shard"}, {"checkpoint_wrapper", "implied"}, {"plan.activations", ""}}},
        of_json(R"js({"sharding_strategy": "FULL_SHARD", "checkpoint_wrapper": "CheckpointImpl.NO_CHECKPOINT"})js"));
}

TEST(ImportSharding, FairscalesArguments) {
  const Case c = {R"js({"reshard_after_forward": false, "move_params_to_cpu": true, "move_grads_to_cpu": false,
                      "mixed_precision": true, "compute_dtype": "torch.bfloat16", "fp32_reduce_scatter": true,
                      "flatten_parameters": true, "bucket_cap_mb": 25})js",
                  {{"plan.strategy", "shard_grad_op"},
                   {"plan.parameters", "host"},
                   {"plan.states", "host"},
                   {"plan.gradients", "device"},
                   {"plan.compute_dtype", "bf16"},
                   {"mixed_precision", "implied"},
                   {"plan.reduce_dtype", "fp32"},
                   {"flatten_parameters", "implied"}}};
  const Translation t = of_json(c.text);
  check(c, t);
  EXPECT_TRUE(t.refused.empty()) << t.to_toml();
  const Translation half =
      of_json(R"js({"reshard_after_forward": true, "mixed_precision": true, "move_params_to_cpu": true})js");
  EXPECT_EQ(found(half, "plan.compute_dtype"), "fp16") << "what Fairscale computes in";
  EXPECT_EQ(found(half, "plan.gradients"), "host") << "they follow the parameters";
  const Translation sent = of_json(
      R"js({"reshard_after_forward": true, "compute_dtype": "torch.bfloat16", "fp32_reduce_scatter": false})js");
  EXPECT_EQ(found(sent, "plan.reduce_dtype"), "bf16");
}

TEST(ImportSharding, WhatASnippetComesToIsARecipeThatLoads) {
  const Translation t = of_json(
      R"js({"train_batch_size": 8, "ulysses": {"enabled": true, "size": 8}, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupCosineLR",
          "params": {"warmup_steps": 10, "max_steps": 100, "eta_min": 1e-6}}})js");
  const Folder folder;
  const recipe::Recipe recipe = recipe::load_recipe(folder.file("recipe.toml", t.to_toml()), {});
  EXPECT_EQ(recipe.run.steps, 100);
  EXPECT_EQ(recipe.values.at("mesh.sp"), "8");
}

}  // namespace
}  // namespace tessera::tools
