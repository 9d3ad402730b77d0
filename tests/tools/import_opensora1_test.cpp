// Open-Sora 1.2's and 1.3's configurations and lines: every key in effect or explained.
#include "tessera/tools/import/dialects.h"
#include "tools/import_cases.h"

namespace tessera::tools {
namespace {

/// With the keys of the published configurations.
constexpr const char* kOf12 = R"(
dataset = dict(type="VariableVideoTextDataset", transform_name="resize_crop")
bucket_config = {
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27)},
    "256": {1: (0.4, 297), 51: (0.5, 20)},
    "480p": {1: (0.1, 89), 408: (0.0, None)},
}
grad_checkpoint = True
num_workers = 8
num_bucket_build_workers = 16
dtype = "bf16"
plugin = "zero2"
model = dict(type="STDiT3-XL/2", from_pretrained=None, qk_norm=True, enable_flash_attn=True,
             enable_layernorm_kernel=True, freeze_y_embedder=True)
vae = dict(type="OpenSoraVAE_V1_2", from_pretrained="/ckpts/vae-pipeline", micro_frame_size=17, micro_batch_size=4)
text_encoder = dict(type="t5", from_pretrained="DeepFloyd/t5-v1_1-xxl", model_max_length=300, shardformer=True,
                    local_files_only=True)
scheduler = dict(type="rflow", use_timestep_transform=True, sample_method="logit-normal")
mask_ratios = {"random": 0.05, "intepolate": 0.005, "quarter_head_tail": 0.005, "image_random": 0.0, "image_head": 0.05}
seed = 42
outputs = "outputs"
wandb = False
epochs = None
log_every = 10
ckpt_every = 200
load = None
grad_clip = 1.0
lr = 1e-4
ema_decay = 0.99
adam_eps = 1e-15
warmup_steps = 1000
)";

constexpr const char* kOf13 = R"(
dataset = dict(type="VariableVideoTextDataset", transform_name="resize_crop")
bucket_config = {"720p": {1: (1.0, 30), 49: (1.0, 2), 113: (1.0, 1)}}
grad_checkpoint = True
dtype = "bf16"
plugin = "zero1"
model = dict(type="STDiT3-XL/2", from_pretrained=None, qk_norm=True, enable_flash_attn=True,
             enable_layernorm_kernel=True, kernel_size=(8, 8, -1), use_spatial_rope=True)
vae = dict(type="OpenSoraVAE_V1_3", from_pretrained="/ckpts/OpenSora-VAE-v1.3", z_channels=16, micro_batch_size=1,
           micro_batch_size_2d=4, micro_frame_size=17, use_tiled_conv3d=True, tile_size=4, normalization="video",
           temporal_overlap=True, force_huggingface=True)
text_encoder = dict(type="t5", from_pretrained="DeepFloyd/t5-v1_1-xxl", model_max_length=300, shardformer=True)
scheduler = dict(type="rflow", use_timestep_transform=True, sample_method="logit-normal")
seed = 42
outputs = "outputs"
wandb = False
log_every = 10
ckpt_every = 250
lr = 5e-5
warmup_steps = 1000
grad_clip = 1.0
adam_eps = 1e-15
ema_decay = 0.99
accumulation_steps = 2
)";

/// What this version has no key or no autoencoder for is refused by its name, and nothing else is.
void expect_refused_alone(const Translation& t, const std::vector<std::string>& perhaps) {
  for (const auto& remark : t.refused)
    EXPECT_TRUE(std::any_of(perhaps.begin(), perhaps.end(),
                            [&](const std::string& name) { return remark.option.starts_with(name); }))
        << remark.option << ": " << remark.why;
}

TEST(ImportOpenSora1, TakesTheSecondVersion) {
  const Folder folder;
  const Translation t = import_file(folder.file("stage1.py", kOf12), {.ranks = 8});
  check({kOf12,
         {{"model.family", "stdit"},
          {"model.preset", "opensora1.2"},
          {"model.config.model_max_length", "300"},
          {"data.text_encoder", "t5-v1_1-xxl"},
          {"data.fps", "0"},
          {"diffusion.timesteps", "by_area"},
          {"diffusion.caption_dropout", "0.1"},
          {"plan.strategy", "shard_grad_op"},
          {"plan.activations", "recompute"},
          {"plan.compute_dtype", "bf16"},
          {"train.lr", "1e-04"},
          {"train.eps", "1e-15"},
          {"train.clip_norm", "1"},
          {"train.ema", "0.99"},
          {"train.warmup_steps", "1000"},
          {"train.schedule", "opensora_linear_warmup"},
          {"checkpoint.every", "200"},
          {"model.freeze_y_embedder", "warned"},
          {"mask_ratios.image_random", "implied"},
          {"epochs", "implied"},
          {"vae.micro_batch_size", "implied"},
          {"model.enable_flash_attn", "implied"},
          {"load", "implied"},
          {"num_bucket_build_workers", "implied"}}},
        t);
  EXPECT_NE(found(t, "data.buckets").find("51xASPECT_RATIO_144P=408,"), std::string::npos) << found(t, "data.buckets");
  EXPECT_NE(found(t, "data.buckets").find("1xASPECT_RATIO_256_40="), std::string::npos) << "its table has 40 ratios";
  for (const auto& remark : t.warned) EXPECT_EQ(remark.why.find("2.0"), std::string::npos) << remark.why;
  expect_refused_alone(t, {"vae.", "mask_ratios."});
}

/// (1, 0.33), 27 there: every clip is taken, of these a third keeps the frames.
TEST(ImportOpenSora1, SharesOfABucketThatKeepItsFramesAreTheRecipes) {
  const auto buckets = [](std::vector<Given> given) {
    given.push_back({"model.type", "STDiT3-XL/2"});
    return translate_opensora_config(std::move(given), {});
  };
  const auto list = [](const std::string& first, const std::string& second) {
    return first + kListSeparator + second + kListSeparator;
  };
  const Translation t = buckets({{"bucket_config.144p.102", list("1,0.25", "27")},
                                 {"bucket_config.512.1", list("0.1", "141")},
                                 {"bucket_config.2k.1", list("0.1", "5")},
                                 {"plugin", "zero2-seq"},
                                 {"sp_size", "2"}});
  EXPECT_EQ(found(t, "data.buckets"),
            "102xASPECT_RATIO_144P=27:1:0.25,1xASPECT_RATIO_512_40=141:0.1,1xASPECT_RATIO_2K=5:0.1");
  EXPECT_EQ(found(t, "mesh.sp"), "2") << "of the plugin, and named as it was typed";
  EXPECT_EQ(found(buckets({{"bucket_config.720p_16d.49", list("0.5", "2")}}), "data.buckets"),
            "49xASPECT_RATIO_720P_16D=2:0.5");
  expect_words(message([&] { buckets({{"bucket_config.300p.1", list("1", "2")}}); }), {"'300p'", "144p", "4k"});
}

TEST(ImportOpenSora1, TakesTheThirdVersionAndItsLine) {
  const Folder folder;
  folder.file("configs/stage2.py", kOf13);
  const Case c{
      "colossalai run --nproc_per_node 8 scripts/train.py configs/stage2.py --data-path x.csv "
      "--ckpt-path ckpts/stdit3 --lr 2e-5 --flash-attn True --start-from-scratch --record-time",
      {{"model.family", "stdit"},
       {"model.preset", "opensora1.3"},
       {"model.path", "ckpts/stdit3"},
       {"data.path", "x.csv"},
       {"diffusion.mask_types", "none=1"},
       {"train.lr", "2e-05"},
       {"train.global_batch", "16"},  // 8 ranks, 2 rounds, 1 is the smallest batch
       {"plan.strategy", "shard_states"},
       {"model.kernel_size", "implied"},
       {"vae.use_tiled_conv3d", "implied"},
       {"accumulation_steps", "implied"},
       {"start_from_scratch", "implied"},
       {"record_time", "implied"}}};
  const Translation t = import_command(c.text, {.folder = folder.path.string()});
  check(c, t);
  EXPECT_EQ(t.ranks, 8);
  expect_refused_alone(t, {"vae."});
}

TEST(ImportOpenSora1, AMethodThatIsRefusedWithItsTransformIsAnswered) {
  const Folder folder;
  const Translation t = import_file(folder.file("config.py",
                                                "model = dict(type='STDiT3-XL/2')\nscheduler = dict(type='rflow', "
                                                "use_timestep_transform=True, sample_method='uniform')\n"),
                                    {.ranks = 4});
  EXPECT_EQ(found(t, "scheduler.use_timestep_transform"), "refused");
  EXPECT_EQ(found(t, "scheduler.sample_method"), "implied");
}

TEST(ImportOpenSora1, FramesBesideTheNoisyOnesAreThoseOfTheThirdVersion) {
  const Folder folder;
  const auto read = [&](const std::string& text) {
    return import_file(folder.file("config.py",
                                   "model = dict(type='STDiT3-XL/2', kernel_size=(8, 8, -1), "
                                   "use_spatial_rope=True)\n" +
                                       text),
                       {.ranks = 4});
  };
  const std::string drops =
      "drop_condition = {'cond': 0.05, 'text': 0.05, 'null': 0.05, 'keep': 0.85}\n"
      "scheduler = dict(type='rflow', drop_condition=drop_condition)\n";
  const Translation t = read("mask_types = {'i2v': 5, 'v2v_head_noisy': 2, 'other': 0, 'none': 2}\n" + drops);
  check({"adapt_i2v",
         {{"diffusion.mask_types", "i2v_head=5,v2v_head_noisy=2,other=0,none=2"},
          {"diffusion.drop_condition", "cond=0.05,text=0.05,null=0.05,keep=0.85"},
          {"drop_condition", "implied"}}},
        t);
  expect_refused_alone(t, {});
  const Translation none = read(drops);
  EXPECT_EQ(found(none, "diffusion.mask_types"), "none=1") << "its trainer tells the model that no frame is given";
  EXPECT_EQ(found(none, "scheduler.drop_condition.cond"), "implied");
  EXPECT_EQ(found(read("mask_types = {'i2v_haed': 1}\n" + drops), "mask_types.i2v_haed"), "refused");
  EXPECT_EQ(found(read("mask_types = {'none': 0}\n" + drops), "mask_types.none"), "refused");
}

/// As hpcai-tech publishes them: a folder with config.json and model.safetensors, or its name on the hub.
TEST(ImportOpenSora1, TakesAPublishedFolderAsItsConfigSaysAndNamesWhatToDownload) {
  const Folder folder;
  folder.file("v4/config.json", R"({"model_type": "STDiT3", "kernel_size": null, "use_spatial_rope": false})");
  const auto read = [&](const std::string& model) {
    return import_file(
        folder.file("config.py", "model = dict(type='STDiT3-XL/2', kernel_size=None, from_pretrained='" + model +
                                     "')\nscheduler = dict(type='rflow')\nvae = dict(type='OpenSoraVAE_V1_3', "
                                     "from_pretrained='hpcai-tech/OpenSora-VAE-v1.3')\n"),
        {.ranks = 1});
  };
  const std::string here = (folder.path / "v4").string();
  const Translation local = read(here);
  EXPECT_EQ(found(local, "model.path"), here);
  EXPECT_EQ(found(local, "model.family"), "stdit");
  EXPECT_EQ(found(local, "model.preset"), "") << "it would count more than the folder's config.json";
  EXPECT_EQ(found(local, "model.kernel_size"), "implied");
  EXPECT_TRUE(local.refused.empty());
  EXPECT_EQ(found(local, "data.vae"), "opensora1.3-vae");
  EXPECT_EQ(found(local, "vae.from_pretrained"), "warned");
  const Translation named = read("hpcai-tech/OpenSora-STDiT-v4");
  EXPECT_EQ(found(named, "model.path"), "");
  EXPECT_EQ(found(named, "model.from_pretrained"), "warned");
}

TEST(ImportOpenSora1, SequencesAreShardedByTheirPluginAlone) {
  const Folder folder;
  const auto read = [&](const std::string& text) {
    return import_file(
        folder.file("config.py", "model = dict(type='STDiT3-XL/2')\nscheduler = dict(type='rflow')\n" + text),
        {.ranks = 8});
  };
  const Translation split =
      read("plugin = 'zero2-seq'\nsp_size = 4\nbatch_size = 3\ndataset = dict(num_frames=51, image_size=(240, 432))\n");
  check({"zero2-seq",
         {{"mesh.sp", "4"},
          {"plan.strategy", "shard_grad_op"},
          {"train.global_batch", "6"},
          {"data.frames", "51"},
          {"data.size", "240,432"},
          {"diffusion.timesteps", "uniform"},
          {"plan.activations", "keep"}}},
        split);
  EXPECT_EQ(found(read("plugin = 'zero1-seq'\nsp_size = 2\n"), "plan.strategy"), "shard_states");
  EXPECT_EQ(found(read("plugin = 'zero2'\nsp_size = 2\n"), "sp_size"), "refused");
  const std::string error = message([&] { read("plugin = 'zero2-seq'\nsp_size = 3\nbatch_size = 1\n"); });
  expect_words(error, {"8 ranks do not divide by the 3", "a multiple of 3"});
}

TEST(ImportOpenSora1, ACheckpointOfItsTrainerIsResumedFrom) {
  const Folder folder;
  const std::string head = "model = dict(type='STDiT3-XL/2')\nscheduler = dict(type='rflow')\n";
  const auto read = [&](const std::string& text) {
    return import_file(folder.file("config.py", head + "load = 'outputs/000-STDiT3/epoch0-global_step100'\n" + text),
                       {.ranks = 4});
  };
  EXPECT_EQ(found(read(""), "run.resume"), "outputs/000-STDiT3/epoch0-global_step100");
  EXPECT_EQ(found(read("start_from_scratch = True\n"), "start_from_scratch"), "refused");
  EXPECT_EQ(found(read("start_from_scratch = False\n"), "start_from_scratch"), "implied");
}

TEST(ImportOpenSora1, RefusesWithAReasonWhatIsNotThere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"load_text_features = True\n", "load_text_features"},
      {"dataset = dict(type='BatchFeatureDataset')\n", "dataset.type"},
      {"dataset = dict(frame_interval=3)\n", "dataset.frame_interval"},
      {"mask_types = {'i2v_head': 5, 'none': 2}\n", "mask_types.i2v_head"},  // 1.2
      {"scheduler = dict(type='rflow', drop_condition={'cond': 0.05})\n", "scheduler.drop_condition.cond"},
      {"scheduler = dict(type='rflow', x_cond_weight=0.5)\n", "scheduler.x_cond_weight"},
      {"model = dict(type='STDiT3-XL/2', v2v_noise_max_weight=0.5)\n", "model.v2v_noise_max_weight"},
      {"noise_augmentation = True\n", "noise_augmentation"},
      {"vae = dict(type='VideoAutoencoderKL')\n", "vae.type"},
      {"text_encoder = dict(type='clip')\n", "text_encoder.type"},
      {"scheduler = dict(type='iddpm')\n", "scheduler.type"},
      {"scheduler = dict(type='rflow', use_timestep_transform=True)\n", "scheduler.use_timestep_transform"},
      {"model = dict(type='STDiT3-XL/2', kernel_size=(4, 4, -1), use_spatial_rope=True)\n", "model.kernel_size"},
      {"model = dict(type='STDiT3-XL/2', only_train_temporal=True)\n", "model.only_train_temporal"},
      {"vae = dict(type='OpenSoraVAE_V1_3')\n", "model.type"},  // without windows
      {"plugin = 'ddp'\n", "plugin"},
  };
  const std::string head = "model = dict(type='STDiT3-XL/2')\nscheduler = dict(type='rflow')\n";
  for (const auto& [text, option] : cases) {
    const Folder folder;
    EXPECT_EQ(found(import_file(folder.file("config.py", head + text), {.ranks = 4}), option), "refused") << text;
  }
  const Folder folder;
  for (const char* model : {"STDiT2-XL/2", "PixArt-XL/2", "OpenSoraVAE_V1_2"}) {
    const std::string file =
        folder.file("config.py", "model = dict(type='" + std::string(model) + "')\nscheduler = dict(type='iddpm')\n");
    expect_words(message([&] { import_file(file, {}).refuse_to("train"); }), {model, "STDiT3-XL/2"});
  }
  expect_words(message([&] {
                 import_file(folder.file("config.py", head + "mask_ratios = {'random': 0.9, 'image_head': 0.2}\n"), {})
                     .refuse_to("train");
               }),
               {"mask_ratios sum to 1.1"});
}

}  // namespace
}  // namespace tessera::tools
