#include "fuzz/readers.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/torch_bytes.h"
#include "tessera/base/json.h"
#include "tessera/base/mesh.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/torch_file.h"
#include "tessera/data/buckets.h"
#include "tessera/data/listing.h"
#include "tessera/data/text/text.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/schedule_json.h"
#include "tessera/plan/search/scenario.h"
#include "tessera/plan/simulate/profile.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/report/run_folder.h"
#include "tessera/report/run_report.h"
#include "tessera/tools/import/import.h"

namespace tessera::fuzz {

namespace {

namespace fs = std::filesystem;

void read_json(const std::string& bytes, const std::string&) {
  json_or_nothing(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  parse_ordered_json(bytes, "fuzz");
}
void read_recipe(const std::string&, const std::string& file) { recipe::load_recipe(file, {}); }
void read_plan(const std::string& bytes, const std::string& file) {
  plan::plan_of_toml(bytes, file, {"embedding", "blocks.0", "blocks.1", "head"});
}
void read_profile(const std::string& bytes, const std::string& file) { plan::parse_profile(bytes, file).to_toml(); }
void read_scenario(const std::string& bytes, const std::string& file) { plan::parse_scenarios(bytes, file); }
void read_schedule(const std::string& bytes, const std::string&) { to_json(plan::parse_line(bytes)); }
void read_run(const std::string&, const std::string& file) {
  const fs::path folder = fs::path(file).parent_path() / "run";
  fs::create_directories(folder);
  for (const char* name : {"metrics.jsonl", "schedule.jsonl", "trace.json", "plan.json"})
    fs::copy_file(file, folder / name, fs::copy_options::overwrite_existing);
  report::RunFolder run(folder);
}
void read_safetensors(const std::string&, const std::string& file) {
  const auto weights = checkpoint::SafetensorsFile::open(file);
  for (const auto& entry : weights.entries()) weights.bytes(entry.name);
}
void read_torch(const std::string&, const std::string& file) {
  const auto weights = checkpoint::TorchFile::open(file);
  for (const auto& entry : weights.entries()) {
    std::vector<char> out(static_cast<size_t>(entry.count() * size_of(entry.dtype)));
    weights.read(entry, 0, entry.count(), out.data());
  }
}
void read_manifest(const std::string& bytes, const std::string&) {
  for (const auto& tensor : checkpoint::parse_manifest(parse_json(bytes, "fuzz"), "fuzz").tensors)
    checkpoint::tiling_problem(tensor);
}
void read_rows(const std::string&, const std::string& file) {
  data::Problems problems(/*strict=*/false);
  data::read_rows(file, problems);
}
void read_text(const std::string& bytes, const std::string&) {
  data::clean_text(bytes);
  data::lower_and_strip(printable(bytes));
}
void read_mesh(const std::string& bytes, const std::string&) { Mesh::parse(bytes).world(); }
void read_bucket(const std::string& bytes, const std::string&) { data::parse_bucket(bytes); }
void import_config(const std::string&, const std::string& file) { tools::import_file(file, {}).to_toml(); }
void import_words(const std::string& bytes, const std::string&) { tools::import_command(bytes, {}).to_toml(); }

std::string safetensors_of(const std::string& header, size_t data) {
  const uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header + std::string(data, 'x');
}

/// As torch.save writes it, by the tests' own maker.
std::string torch_seed() {
  using checkpoint::PickleMaker;
  PickleMaker pickle;
  pickle.dict({{"a", PickleMaker::tensor("0", 6, 0, {2, 3}, {3, 1})},
               {"b", "}(" + PickleMaker::text("c") + PickleMaker::tensor("0", 6, 2, {2}, {2}) + "u"},
               {"step", PickleMaker::integer(7)}});
  return checkpoint::torch_file_bytes(pickle, std::vector<float>(6));
}

const std::vector<std::string> kJsonWords = {"{",
                                             "}",
                                             "[",
                                             "]",
                                             ",",
                                             ":",
                                             "null",
                                             "true",
                                             "1e999",
                                             "-1",
                                             "1e300",
                                             "\"\"",
                                             "{\"a\":[]}",
                                             "\\u0000",
                                             "//",
                                             "9223372036854775807",
                                             "18446744073709551615",
                                             "0.5"};
const std::vector<std::string> kTomlWords = {"[",        "]",
                                             "[[",       "]]",
                                             "{",        "}",
                                             "\"",       "\"\"\"",
                                             "'''",      "\\u00e9",
                                             "=",        ".",
                                             ",",        "\n",
                                             "#",        "inf",
                                             "nan",      "true",
                                             "1e400",    "9223372036854775807",
                                             "-1",       "1979-05-27T07:32:00Z",
                                             "\xc3\xa9", "0x"};

std::vector<Reader> basic_readers() {
  return {
      {"json", read_json, ".json", {R"({"a": [1, -2.5e3, "x\u00e9", null], "b": {"c": true}})"}, kJsonWords},
      {"recipe",
       read_recipe,
       ".toml",
       {"[run]\nout = \"runs/a\"\nsteps = 10\n[model]\npreset = \"wan-demo\"\n[data]\nsize = [32, 48]\nframes = 9\n"
        "buckets = [\"9x32x48\"]\n[train]\nlr = 1e-4\nglobal_batch = 4\nbetas = [0.9, 0.99]\n[mesh]\ndp_shard = 2\n"
        "[plan]\nbudget = \"2GiB\"\n[fault]\ntimeout = 30.5\n[[stage]]\nfrom = 5\n[stage.train]\nlr = 1e-5\n"},
       kTomlWords},
      {"plan",
       read_plan,
       ".toml",
       {"micro_batch = 2\n[mesh]\ndp_shard = 2\n"
        "[[units]]\nname = \"*\"\nstrategy = \"full_shard\"\n[[units]]\nname = \"blocks.*\"\nactivations = \"recompute\"\n"},
       kTomlWords},
      {"profile", read_profile, ".toml", {plan::find_profile("h200").to_toml()}, kTomlWords},
      {"scenario",
       read_scenario,
       ".toml",
       {"[[run]]\nname = \"a\"\ndim = 1024\nffn_dim = 4096\nlayers = 4\ntokens = 100\nmesh = \"dp_shard=8\"\n"
        "profile = \"h200\"\nglobal_batch = 8\nmicro_batch = 1\nseconds = 1.5\n"},
       kTomlWords},
      {"schedule",
       read_schedule,
       ".jsonl",
       {R"({"rank":0,"step":1,"i":3,"phase":"train","op":"gather","unit":"blocks.0","micro":0,"lane":"gather","bytes":64,)"
        R"("group":"dp_shard","slot":1,"wait":[1,2],"comm":[{"axis":"dp_shard","kind":"all_gather","bytes":64}],"t0":0.5,"t1":1})"},
       kJsonWords},
      {"run",
       read_run,
       ".jsonl",
       {R"({"type":"step","step":1,"loss":0.5,"grad_norm":1,"lr":1e-4,"seconds":0.1,"samples":4,"tokens":9,"ranks":[{"rank":0,)"
        R"("bytes":{"parameters":1},"peak_bytes":2,"sent_bytes":{"tp":3},"busy":{"compute":0.1},"exposed":{"comm":0.1}}]})"
        "\n"
        R"({"type":"sample","step":1,"file":"samples/a.mp4","prompt":"p","psnr":20.5})"
        "\n",
        R"({"summary":"s","mesh":{"dp_shard":2},"model":{"name":"m","parameters":5},"device":{"peak_bytes":9},)"
        R"("traceEvents":[{"name":"process_name","pid":1,"args":{"name":"predicted: rank 0"}},{"ph":"X","pid":1,"dur":5,"cat":"c"}]})",
        R"({"phase":"train","t0":0,"t1":1,"op":"forward","unit":"u","step":2,"rank":0,"lane":"compute"})"
        "\n"},
       kJsonWords},
      {"safetensors",
       read_safetensors,
       ".safetensors",
       {safetensors_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                       R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})",
                       22)},
       kJsonWords},
      {"torch",
       read_torch,
       ".pth",
       {torch_seed()},
       {"(", ")", "}", "]", "t", "u", "R", "b", "Q", "h\x01", "q\x01", "\x85", "\x94", "\xff\xff\xff\xff",
        "PK\x01\x02"}},
      {"manifest",
       read_manifest,
       ".json",
       {R"({"format":"tessera","version":1,"step":3,"mesh":{"pp":1,"dp_replicate":1,"dp_shard":2,"cp":1,"sp":1,"tp":1},)"
        R"("tensors":[{"name":"a","kind":"param","dtype":"F32","shape":[2,2],"parts":[{"file":"f","key":"k","box":[[0,2],[0,2]],)"
        R"("flat":[0,4],"crc32c":7}]}],"data":{"epoch":0,"cursor":5},"rng":{"seed":1},"schedule_lr":0.1,"experts":{}})"},
       kJsonWords},
      {"csv", read_rows, ".csv", {"video,prompt\na.mp4,\"a, b\"\"c\"\r\nb.mp4,x\n"}, {",", "\"", "\r", "\n", "\"\""}},
      {"jsonl", read_rows, ".jsonl", {"{\"video\":\"a.mp4\",\"prompt\":[\"x\",\"y\"]}\n{\"a\":1}\n"}, kJsonWords},
      {"text",
       read_text,
       ".txt",
       {"A &lt;b&gt; &#x41; &amp;amp; caf\xc3\xa9 \xef\xac\x81 \xe2\x80\x9cq\xe2\x80\x9d"},
       {"&", ";", "&#", "&#x", "&amp", "\xe2\x80\x8f", "\xcc\x81", "\xf0\x9f\x8e\xac", "99999999999"}},
      {"mesh", read_mesh, ".txt", {"dp_shard=2,tp=2"}, {"=", ",", "2147483647", "pp", "99999999999999999999"}},
      {"bucket", read_bucket, ".txt", {"33x480x832"}, {"x", "-", "2147483647", "99999999999999999999"}},
      {"import-json",
       import_config,
       ".json",
       {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}},"
        " \"fp16\": {\"enabled\": false}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4, \"betas\": [0.9, 0.9]}}}"},
       kJsonWords},
      {"import-yaml",
       import_config,
       ".yaml",
       {"distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
        "  fsdp_offload_params: false\n",
        "data:\n  data_dir: [D]\n  image_size: 512\n  caption_proportion:\n    prompt: 1\n  load_vae_feat: false\nmodel:\n"
        "  model: SanaMS_600M_P1_D28\n  mixed_precision: bf16\n  multi_scale: true\n  aspect_ratio_type: ASPECT_RATIO_512\n"
        "vae:\n  vae_pretrained: v\nscheduler:\n  flow_shift: 3.0\n  weighting_scheme: logit_normal\ntrain:\n  num_epochs: 2\n"
        "  train_batch_size: 4\n  use_fsdp: true\n  gradient_clip: 0.1\n  optimizer:\n    type: CAMEWrapper\n    lr: 1.0e-4\n"
        "    betas: [0.9, 0.999, 0.9999]\n  lr_schedule: constant\n  lr_schedule_args:\n    num_warmup_steps: 10\n"},
       {"- ", ": ", "&a ", "*a", "[", "]", "{", "}", "? ", "!!", "|", ">", "\"", "\n  ", "---", "<<: "}},
      {"import-python",
       import_config,
       ".py",
       {"\"\"\"stage\"\"\"\nlr = 5e-5  # rate\nbucket_config = {\n  \"256px\": {1: (1.0, 45), 33: (0.5, 12)},\n  \"_delete_\": True,\n}\n"
        "model = dict(type=\"flux\", axes_dim=[16, 56, 56], theta=10_000, mlp_ratio=4.0)\noptim = dict(cls='HybridAdam', lr=lr)\n"
        "pin_memory_cache_pre_alloc_numels = [(260 + 20) * 1024 * 1024] * 24 + [54 * 2**20] * 4\nplugin = \"hybrid\"\n"
        "plugin_config = dict(tp_size=2, sp_size=4, sequence_parallelism_mode=\"ring_attn\", zero_stage=2)\nema_decay = None\n"
        "condition_config = dict(t2v=1, i2v_head=5)\nlora_config = dict(r=16, target_modules=['q'])\n"},
       {"dict(", "(",    ")",      "[",  "{",   "**",        "//",       "%",    "-",
        "*",     "\\\n", "\"\"\"", "r'", "x1",  "_base_ = ", "_delete_", "None", "9223372036854775807",
        "1e308", "0x",   " for ",  "lr", "\n  "}},
      {"import-toml",
       import_config,
       ".toml",
       {"output_dir = \"o\"\nepochs = 3\nmicro_batch_size_per_gpu = 1\n[model]\ntype = \"wan\"\nckpt_path = \"p\"\n"
        "[adapter]\ntype = \"lora\"\nrank = 32\n[optimizer]\ntype = \"adamw\"\nlr = 2e-5\nbetas = [0.9, 0.99]\n",
        "resolutions = [[1280, 720], [512]]\nframe_buckets = [1, 33]\nenable_ar_bucket = false\nsize_buckets = [[512, 512, 1]]\n"
        "[[directory]]\npath = \"clips\"\nnum_repeats = 3\n",
        "[general]\nresolution = [960, 544]\nbatch_size = 2\n[[datasets]]\nvideo_directory = \"v\"\ntarget_frames = [1, 25]\n"
        "frame_extraction = \"head\"\nnum_repeats = 2\n"},
       kTomlWords},
      {"import-words",
       import_words,
       ".sh",
       {"accelerate launch --num_processes 8 examples/train.py --dataset_base_path D --learning_rate 1e-4 --height 480 \\\n"
        "  --width 832 --num_frames 49 --lora_rank 32 --model_paths '[[\"a.safetensors\"],\"b.pth\"]'",
        "accelerate launch --num_cpu_threads_per_process 1 src/musubi_tuner/wan_train_network.py --task t2v-14B --dit a --dit_high_noise b "
        "--optimizer_type adamw8bit --optimizer_args weight_decay=0.1 --network_dim 32 --max_train_epochs 3 --timestep_sampling shift",
        "torchrun --nproc_per_node 8 --nnodes 2 generate.py --task s2v-14B --ckpt_dir D --infer_frames 80 --size '1024*704' --ulysses_size 8"},
       {"'", "\"", "\\\n", "--", "=", "$(", "2147483648", "-1", "1e400", "[["}},
  };
}

}  // namespace

const std::vector<Reader>& readers() {
  static const std::vector<Reader> all = [] {
    std::vector<Reader> result = basic_readers();
    for (const auto& more : {data_readers(), media_readers(), model_readers(), store_readers()})
      result.insert(result.end(), more.begin(), more.end());
    return result;
  }();
  return all;
}

}  // namespace tessera::fuzz
