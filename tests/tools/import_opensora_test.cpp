// Open-Sora 2.0's configurations and lines: every key in effect or explained.
#include "tessera/recipe/run_recipe.h"
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

/// With the keys of the published configurations, which are in files that are each the next one's base.
void write_configs(const Folder& folder) {
  folder.file("configs/train/image.py", R"(
dataset = dict(type="video_text", transform_name="resize_crop", fps_max=24, vmaf=True)
grad_ckpt_settings = (8, 100)
bucket_config = {"256px": {1: (1.0, 50)}, "768px": {1: (0.5, 11)}}
model = dict(
    type="flux", from_pretrained=None, strict_load=False, guidance_embed=False, fused_qkv=False, use_liger_rope=True,
    grad_ckpt_settings=grad_ckpt_settings, in_channels=64, vec_in_dim=768, context_in_dim=4096, hidden_size=3072,
    mlp_ratio=4.0, num_heads=24, depth=19, depth_single_blocks=38, axes_dim=[16, 56, 56], theta=10_000, qkv_bias=True)
dropout_ratio = {"t5": 0.31622777, "clip": 0.31622777}
ae = dict(type="hunyuan_vae", from_pretrained="./ckpts/hunyuan_vae.safetensors", in_channels=3, out_channels=3,
          layers_per_block=2, latent_channels=16, use_spatial_tiling=True, use_temporal_tiling=False)
is_causal_vae = True
t5 = dict(type="text_embedder", from_pretrained="google/t5-v1_1-xxl", cache_dir="/hub", max_length=512, shardformer=True)
clip = dict(type="text_embedder", from_pretrained="openai/clip-vit-large-patch14", cache_dir="/hub", max_length=77)
lr = 1e-5
eps = 1e-15
optim = dict(cls="HybridAdam", lr=lr, eps=eps, weight_decay=0.0, adamw_mode=True)
warmup_steps = 0
update_warmup_steps = True
grad_clip = 1.0
accumulation_steps = 1
ema_decay = None
prefetch_factor = 2
num_workers = 12
num_bucket_build_workers = 64
dtype = "bf16"
plugin = "zero2"
grad_checkpoint = True
plugin_config = dict(reduce_bucket_size_in_m=128, overlap_allgather=False)
pin_memory_cache_pre_alloc_numels = [(260 + 20) * 1024 * 1024] * 24 + [(34 + 20) * 1024 * 1024] * 4
async_io = False
seed = 42
outputs = "outputs"
log_every = 10
ckpt_every = 100
keep_n_latest = 20
wandb_project = "mmdit"
save_master_weights = True
load_master_weights = True
)");
  folder.file("configs/train/stage2.py", R"(_base_ = ["image.py"]
plugin = "hybrid"
plugin_config = dict(tp_size=1, pp_size=1, sp_size=4, sequence_parallelism_mode="ring_attn",
                     enable_sequence_parallelism=True, static_graph=True, zero_stage=2)
bucket_config = {"_delete_": True, "256px": {1: (1.0, 130), 33: (1.0, 14), 129: (1.0, 6)}, "768px": {33: (1.0, 6)}}
model = dict(grad_ckpt_settings=(100, 100))
lr = 5e-5
optim = dict(lr=lr)
)");
  folder.file("configs/train/stage2_i2v.py", R"(_base_ = ["stage2.py"]
model = dict(cond_embed=True)
grad_ckpt_buffer_size = 25 * 1024**3
condition_config = dict(t2v=1, i2v_head=4, i2v_loop=0)
)");
}

TEST(ImportOpenSora, TakesAConfigurationWithItsBases) {
  const Folder folder;
  write_configs(folder);
  const Case c{"stage2_i2v.py",
               {{"model.family", "opensora"},
                {"model.preset", "opensora2-11b"},
                {"model.config.hidden_size", "3072"},
                {"model.config.axes_dim", "16,56,56"},
                {"data.fps", "24"},
                {"data.vae", "./ckpts/hunyuan_vae.safetensors"},
                {"data.text_encoder", "t5-v1_1-xxl"},
                {"data.pooled_encoder", "clip-l"},
                {"data.buckets", "1x256px=260,33x256px=28,129x256px=12,33x768px=12"},
                {"train.global_batch", "12"},  // 8 ranks, 4 of them share a sample; 6 is the smallest batch
                {"diffusion.conditions", "t2v=1,i2v_head=4,i2v_loop=0"},
                {"diffusion.caption_dropout", "0.31622777"},
                {"diffusion.pooled_dropout", "0.31622777"},
                {"diffusion.timesteps", "by_size"},
                {"plan.strategy", "shard_grad_op"},
                {"mesh.cp", "4"},
                {"mesh.tp", "1"},
                {"plan.activations", "recompute_offload"},
                {"plan.compute_dtype", "bf16"},
                {"train.lr", "5e-05"},
                {"train.eps", "1e-15"},
                {"train.clip_norm", "1"},
                {"checkpoint.keep", "20"},
                {"dataset.vmaf", "warned"},
                {"pin_memory_cache_pre_alloc_numels", "implied"}},
               8};
  const Translation t = import_file((folder.path / "configs/train/stage2_i2v.py").string(), {.ranks = c.ranks});
  check(c, t);
  EXPECT_TRUE(t.refused.empty()) << t.refused[0].option;
  const recipe::Recipe r = recipe::load_recipe("", t.overrides());
  EXPECT_EQ(r.data.clips.buckets.size(), 11u * 3 + 15u) << "of 256px 11 ratios, of 768px 15";
}

TEST(ImportOpenSora, TakesALineOverTheConfiguration) {
  const Folder folder;
  write_configs(folder);
  const Case c{
      "torchrun --nproc_per_node 8 scripts/diffusion/train.py configs/train/image.py --dataset.data-path x.csv "
      "--optim.lr 2e-5 --plugin hybrid --plugin_config.tp-size 2 --plugin_config.zero_stage 1 --epochs None "
      "--ema_decay 0.99 --lora_config.r 16 --lora_config.target_modules \"['q_proj', 'k_proj']\"",
      {{"data.path", "x.csv"},
       {"train.lr", "2e-05"},
       {"mesh.tp", "2"},
       {"plan.strategy", "shard_states"},
       {"train.ema", "0.99"},
       {"train.mode", "lora"},
       {"lora.rank", "16"},
       {"lora.alpha", "8"},
       {"lora.targets", "q_proj,k_proj"},
       {"model.preset", "opensora2-11b-t2v"},
       {"train.global_batch", "44"}}};
  const Translation t = import_command(c.text, {.folder = folder.path.string()});
  check(c, t);
  EXPECT_EQ(t.ranks, 8);
}

TEST(ImportOpenSora, ACheckpointOfItsTrainerIsResumedFrom) {
  const Folder folder;
  const Translation t =
      import_file(folder.file("config.py", "seed = 1\nload = 'outputs/epoch0-global_step100'\n"), {.ranks = 4});
  EXPECT_EQ(found(t, "run.resume"), "outputs/epoch0-global_step100");
}

/// Its trainer looks for "v2v_head" in the name.
TEST(ImportOpenSora, NoisyFramesAreThoseOfTheKindWithoutNoise) {
  const Folder folder;
  const auto read = [&](const std::string& kinds) {
    return import_file(folder.file("config.py", "seed = 1\ncondition_config = dict(" + kinds + ")\n"), {.ranks = 4});
  };
  EXPECT_EQ(found(read("t2v=1, v2v_head_noisy=2"), "diffusion.conditions"), "t2v=1,v2v_head=2");
  const Translation both = read("v2v_head=1, v2v_head_noisy=2, v2v_tail_easy_noisy=1");
  EXPECT_EQ(found(both, "diffusion.conditions"), "v2v_head=3,v2v_tail_easy=1");
  EXPECT_EQ(found(both, "condition_config.v2v_head_noisy"), "warned");
}

TEST(ImportOpenSora, CachedLatentsAndTextsAreReadFromTheTablesColumns) {
  const Folder folder;
  const auto read = [&](const std::string& more) {
    return import_file(folder.file("config.py", "seed = 1\ncached_video = True\ncached_text = True\n" + more),
                       {.ranks = 4});
  };
  const Translation both = read(
      "dataset = dict(type='cached_video_text', data_path='set.csv', cached_video=True, cached_text=True, "
      "return_latents_path=True, load_original_video=False)\ndropout_ratio = {'t5': 0.3, 'clip': 0.3}\n");
  EXPECT_TRUE(both.refused.empty()) << both.refused[0].option;
  EXPECT_EQ(found(both, "data.latents"), "column");
  EXPECT_EQ(found(both, "data.texts"), "column");
  EXPECT_NE(both.find("data.texts")->because.find("data.null_text"), std::string::npos);
  const recipe::Recipe r = recipe::load_recipe("", both.overrides());
  EXPECT_TRUE(r.data.latents && r.data.latent_column && r.data.texts);
  EXPECT_EQ(read("").find("data.texts")->because.find("data.null_text"), std::string::npos) << "none is dropped";
  const Translation neither =
      import_file(folder.file("config.py", "seed = 1\ncached_video = False\ncached_text = False\n"), {.ranks = 4});
  EXPECT_EQ(neither.find("data.latents"), nullptr);
  EXPECT_EQ(found(neither, "cached_text"), "implied");
}

TEST(ImportOpenSora, RefusesWithAReasonWhatIsNotThere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"condition_config = dict(t2v=1, i2v_middle=1)\n", "condition_config.i2v_middle"},
      {"plugin = 'gemini'\nplugin_config = dict(tp_size=2, zero_stage=1)\n", "plugin"},
      {"plugin = 'hybrid'\nplugin_config = dict(tp_size=2, zero_stage=24)\n", "plugin_config.zero_stage"},
      {"plugin = 'zero2'\nplugin_config = dict(sp_size=2)\n", "plugin_config.sp_size"},
      {"plugin_config = dict(sp_size=4, sequence_parallelism_mode='ring_attn')\n", "plugin_config.sp_size"},
      {"plugin = 'hybrid'\nplugin_config = dict(sp_size=4, enable_sequence_parallelism=False, sequence_parallelism_mode='ring_attn')\n",
       "plugin_config.sp_size"},
      {"plugin = 'hybrid'\nplugin_config = dict(sp_size=2, tp_size=2, sequence_parallelism_mode='split_gather')\n",
       "plugin_config.sequence_parallelism_mode"},
      {"wandb = True\n", "wandb"},
      {"optim = dict(cls='CAME')\n", "optim.cls"},
  };
  for (const auto& [text, option] : cases) {
    const Folder folder;
    const Translation t = import_file(folder.file("config.py", "seed = 1\n" + text), {.ranks = 4});
    EXPECT_EQ(found(t, option), "refused") << text;
  }
  const Folder folder;
  try {
    import_file(folder.file("config.py", "seed = 1\nmodel = dict(type='STDiT2-XL/2', qk_norm=True)\n"), {});
    ADD_FAILURE() << "1.1 has another model";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("model.type = STDiT2-XL/2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(import_file(folder.file("config.py", "seed = 1\nlerning_rate = 1\n"), {}).refuse_to("train"), UserError);
  for (const char* buckets : {"{'256px': 3}", "{'256px': {33: ('most', 4)}}", "{'256px': {33: (1.5, 4)}}"})
    EXPECT_THROW(import_file(folder.file("config.py", std::string("bucket_config = ") + buckets + "\nseed = 1\n"), {}),
                 UserError)
        << buckets;
}

}  // namespace
}  // namespace tessera::tools
