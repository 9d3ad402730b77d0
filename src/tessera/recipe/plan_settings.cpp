#include <limits>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/plan/unit_keys.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

template <Axis axis>
void axis_of(Recipe& recipe, const Given& given) {
  recipe.mesh[axis] = static_cast<int>(to_integer(given.text));
}
template <Axis a>
constexpr Read axis = axis_of<a>;
template <auto... members>
constexpr Read plan_key = into<&Recipe::plan, members...>;

void read_budget(Recipe& recipe, const Given& given) {
  int64_t& budget = recipe.plan.budget;
  budget = given.text.empty() ? 0 : parse_bytes(given.text, given.key);
  if (budget == 0 && !given.text.empty())
    throw UserError(Exit::usage, given.key, "expected more than 0 bytes",
                    "leave it out for most of the device, or write for example 24GiB");
}

void read_host_budget(Recipe& recipe, const Given& given) {
  recipe.plan.host_budget = given.text.empty() ? -1 : parse_bytes(given.text, given.key);
}

/// auto until job::settle_compute() decides.
void read_attention(Recipe& recipe, const Given& given) {
  recipe.plan.attention = given.text == "auto" ? plan::Attention::flash : plan::attention_of(given.text, given.key);
}

/// N of "every N", else 0.
int every_of(const Given& given) {
  const std::string word = "every ";
  if (!given.text.starts_with(word)) return 0;
  const std::string number = given.text.substr(word.size());
  const bool whole = !number.empty() && number.size() < 6 && number.find_first_not_of("0123456789") == number.npos;
  if (!whole || to_integer(number) < 1)
    given.fail("a number from 1 on after every", "\"every 4\" recomputes blocks 0, 4, 8 and so on");
  return static_cast<int>(to_integer(number));
}

void read_recompute(Recipe& recipe, const Given& given) {
  recipe.plan.recompute_every = every_of(given);
  constexpr int kAll = std::numeric_limits<int>::max();
  recipe.plan.recompute_units.reset();
  if (recipe.plan.recompute_every == 0)
    recipe.plan.recompute_units = automatic(given, {{"none", 0}, {"all", kAll}}, "\"every N\"");
}

void read_reduce(Recipe& recipe, const Given& given) {
  recipe.plan.reduce_once.reset();
  if (given.text != "auto") recipe.plan.reduce_once = given.text == "once";
}

/// auto until job::settle_compute() decides: then blocks compute in fp32, as in a recipe that is only read.
void read_compute(Recipe& recipe, const Given& given) {
  recipe.plan.set_compute(given.text == "auto" ? "fp32" : given.text, "recipe: " + given.key);
}

void read_gather(Recipe& recipe, const Given& given) {
  recipe.plan.gather.reset();
  if (given.text != "auto") recipe.plan.gather = given.text == "fp8";
}

void read_graphs(Recipe& recipe, const Given& given) {
  recipe.plan.graphs.reset();
  if (given.text != "auto") recipe.plan.graphs = given.text == "on";
}

void read_prefetch(Recipe& recipe, const Given& given) { recipe.plan.prefetch = automatic(given, {{"none", 0}}); }
void read_units(Recipe& recipe, const Given& given) {
  recipe.plan.units.clear();
  for (const std::string& table : split_list(given.text))
    recipe.plan.units.push_back(plan::unit_keys_of(table, given.key));
}
void read_chunks(Recipe& recipe, const Given& given) { recipe.plan.chunks = automatic_count(given); }
void read_update_threads(Recipe& recipe, const Given& given) {
  recipe.plan.update_threads = automatic_count(given).value_or(0);
}

bool has_ranks(const Facts& f) { return !f.searches() || f.mesh.world() > 1; }
bool names_disk(const Facts& f) { return !f.recipe.plan.nvme.empty(); }
bool may_update_on_host(const Facts& f) { return f.searches() && f.recipe.plan.update_on != plan::Tier::device; }
bool keeps_gradients(const Facts& f) {
  return f.recipe.plan.update != plan::Update::in_backward || f.recipe.plan.update_on == plan::Tier::host;
}
// true where plan.file decides: then the message names plan.file alone
bool has_stages(const Facts& f) { return !f.searches() || f.mesh[Axis::pp] > 1; }
bool has_chunks(const Facts& f) {
  constexpr auto kInterleaved = plan::PipelineSchedule::interleaved;
  return !f.searches() || (f.mesh[Axis::pp] > 1 && f.recipe.plan.pipeline.value_or(kInterleaved) == kInterleaved);
}

bool in_eight_bits(const Facts& f) { return f.recipe.plan.fp8; }
bool shards_weights(const Facts& f) {
  return !f.searches() || (f.mesh.shard_size() > 1 && f.recipe.plan.strategy != plan::Strategy::no_shard);
}

const Needs kInEightBits = {in_eight_bits, "plan.compute_dtype is not fp8"};
const Needs kShardsWeights = {
    shards_weights, "no rank gathers weights of another: dp_shard, cp and sp are 1, or plan.strategy = \"no_shard\""};
const Needs kBaseInHalf = {[](const Facts& f) {
                             return !f.recipe.lora.on ||
                                    (f.recipe.lora.base != DType::i8 && f.recipe.lora.base != DType::f8_e4m3);
                           },
                           "lora.base_dtype stores these weights in 8 bits already"};
const Needs kSeveralNetworks = {[](const Facts& f) { return f.recipe.distill.on() || kSeveral.met(f); },
                                kSeveral.otherwise};

}  // namespace

std::vector<Setting> mesh_settings() {
  return {
      {"mesh.pp",
       Kind::integer,
       "1",
       "pipeline parallel: each rank has some of the blocks",
       axis<Axis::pp>,
       {.range = at_least(1)}},
      {"mesh.dp_replicate",
       Kind::integer,
       "1",
       "replicas of the sharded model (HSDP)",
       axis<Axis::dp_replicate>,
       {.range = at_least(1)}},
      {"mesh.dp_shard",
       Kind::integer,
       "1",
       "ranks that shard parameters, gradients and optimiser states (FSDP, ZeRO); train gives it the remaining ranks",
       axis<Axis::dp_shard>,
       {.range = at_least(1)}},
      {"mesh.cp",
       Kind::integer,
       "1",
       "context parallel: ranks share a sample's tokens, ring attention",
       axis<Axis::cp>,
       {.range = at_least(1)}},
      {"mesh.sp",
       Kind::integer,
       "1",
       "Ulysses: ranks share a sample's tokens and exchange heads; sp x tp must divide the heads",
       axis<Axis::sp>,
       {.range = at_least(1)}},
      {"mesh.tp",
       Kind::integer,
       "1",
       "tensor parallel, with the tokens sharded between linears; must divide the heads and the feed-forward width",
       axis<Axis::tp>,
       {.range = at_least(1)}},
  };
}

std::vector<Setting> plan_settings() {
  return {
      {"plan.file", Kind::text, "auto", "auto: the planner chooses; or a plan.toml, see tessera plan --write",
       plan_key<&Recipe::Planning::file>},
      {"plan.profile", Kind::text, "cpu",
       "machine to plan for: cpu, GPUs by any usual name (h200, 1xh200, \"RTX 4090\", 8x4090 ...: tessera list profiles), a GPU as it is described (\"16GiB,90TFLOPs,600GB/s\") or a file from tessera probe",
       plan_key<&Recipe::Planning::profile>},
      {"plan.budget", Kind::bytes, "",
       "device memory of a rank, e.g. 24GiB; empty: that of the profile's device less 3 GiB and 3 % (small devices: less a tenth), or less what driver and NCCL take if that is more; with profile cpu nine tenths of this machine's memory, shared by its ranks",
       read_budget},
      {"plan.host_budget", Kind::bytes, "",
       "host memory for offload, all ranks of a node together; empty: nine tenths of the profile's node, none with profile cpu",
       read_host_budget},
      {"plan.nvme", Kind::text, "", "folder on a disk for offload; empty: none", plan_key<&Recipe::Planning::nvme>},
      {"plan.nvme_checksum",
       Kind::choice,
       "false",
       "check the CRC-32C of everything read back from plan.nvme",
       plan_key<&Recipe::Planning::nvme_checksum>,
       {.choices = "true|false", .needs = {{names_disk, "plan.nvme names no disk"}}}},
      {"plan.recompute",
       Kind::text,
       "auto",
       "blocks that recompute (activation checkpointing): auto, none, all, a number (the first so many), or \"every 4\" (blocks 0, 4, 8 and so on of the whole model)",
       read_recompute,
       {.needs = {kSearched}, .in_stages = true}},
      {"plan.strategy",
       Kind::text,
       "auto",
       "auto, full_shard (ZeRO-3), shard_grad_op (ZeRO-2), shard_states (ZeRO-1), no_shard (DDP) or two_level (hpZ: full_shard within a replica, states sharded over all replicas)",
       plan_key<&plan::Choices::strategy>,
       {.needs = {kSearched}}},
      {"plan.reduce",
       Kind::choice,
       "auto",
       "how often gradients are reduced over ranks: after each micro-batch, or once a step (no_sync of FSDP and DDP), "
       "with less traffic and a whole gradient of every unit in memory; auto: each",
       read_reduce,
       {.choices = "auto|each|once", .needs = {kSearched, {has_ranks, "one rank has nothing to reduce"}}}},
      {"plan.activations",
       Kind::choice,
       "auto",
       "what blocks save for the backward; rebuild: all but the outputs of norms and residual sums, which are recomputed (as with offload and the quantised ones); recompute_offload: recompute, with inputs offloaded; bf16, fp16, int8, fp8: quantised (lossy, the error is in metrics.jsonl); offload_*: quantised and offloaded",
       plan_key<&plan::Choices::activations>,
       {.choices =
            "auto|keep|rebuild|recompute|recompute_offload|offload|bf16|fp16|int8|fp8|offload_bf16|offload_fp16|offload_int8|offload_fp8",
        .needs = {kSearched},
        .in_stages = true}},
      {"plan.parameters",
       Kind::choice,
       "auto",
       "where parameter shards are kept (offload)",
       plan_key<&plan::Choices::parameters>,
       {.choices = "auto|device|host|nvme", .needs = {kSearched}}},
      {"plan.gradients",
       Kind::choice,
       "auto",
       "where reduced gradients are kept (offload)",
       plan_key<&plan::Choices::gradients>,
       {.choices = "auto|device|host|nvme",
        .needs = {{keeps_gradients, "plan.update = \"in_backward\" applies each gradient at once and keeps none"},
                  kSearched}}},
      {"plan.states",
       Kind::choice,
       "auto",
       "where optimiser states are kept (offload)",
       plan_key<&plan::Choices::states_tier>,
       {.choices = "auto|device|host|nvme", .needs = {kSearched}}},
      {"plan.offload_to",
       Kind::choice,
       "auto",
       "where offloaded activations are kept; auto: on the host, and in plan.nvme what does not fit there",
       plan_key<&plan::Choices::offload_to>,
       {.choices = "auto|host|nvme", .needs = {kSearched}}},
      {"plan.units",
       Kind::list,
       "",
       "settings of some units, the planner chooses the rest: [[plan.units]] with match = \"blocks.0-3\" (of one expert: \"EXPERT.blocks.0-3\") and keys of plan.toml: strategy, activations, parameters ...; as text \"blocks.* strategy=shard_grad_op\"",
       read_units,
       {.needs = {kSearched}}},
      {"plan.idle",
       Kind::choice,
       "auto",
       "where the inactive expert's shards and states are kept, or the teacher's shards; auto: on the device if they fit",
       plan_key<&plan::PlanKeys::idle>,
       {.choices = "auto|device|host|nvme", .needs = {kSeveralNetworks, kSearched}}},
      {"plan.compute_dtype",
       Kind::choice,
       "auto",
       "dtype of the blocks' matrix products and attention, and of their gathered parameters; norms, residual sums, time embedding, head and loss are fp32; auto: that of the checkpoint a run resumes from, else bf16 for GPUs of sm_80 and newer (those of plan.profile, else this machine's) and fp32 for CPUs; fp8: as bf16, but the blocks' linears multiply 8-bit floats, e4m3 forward and e5m2 gradients, on sm_89 and newer (docs/precision.md), never chosen by auto",
       read_compute,
       {.choices = "auto|fp32|bf16|fp16|fp8"}},
      {"plan.param_dtype",
       Kind::choice,
       "auto",
       "dtype that parameters are gathered in; auto: plan.compute_dtype, or bf16 where plan.masters is not fp32",
       nullptr,
       {.choices = "auto|fp32|bf16|fp16"}},
      {"plan.gather",
       Kind::choice,
       "auto",
       "what sharded blocks gather of the weights that multiply in 8 bits: bf16, or their codes with the scales of their lines (fp8), the same numbers; auto: what the plan finds faster",
       read_gather,
       {.choices = "auto|bf16|fp8", .needs = {kInEightBits, kSearched, kShardsWeights, kBaseInHalf}}},
      {"plan.attention",
       Kind::choice,
       "auto",
       "library whose kernel computes attention in 16 bits on a GPU; auto: cudnn on sm_90 (that of plan.profile, else this machine's), flash elsewhere and with run.deterministic, since cuDNN's backward gives other bits each time; the plan and the run say what each attention took, and why",
       read_attention,
       {.choices = "auto|cudnn|flash"}},
      {"plan.reduce_dtype",
       Kind::choice,
       "fp32",
       "dtype that gradients are sent in; they are summed in fp32",
       plan_key<&plan::Formats::reduce>,
       {.choices = "fp32|bf16|fp16"}},
      {"plan.grad_dtype",
       Kind::choice,
       "fp32",
       "dtype that reduced gradients are kept in until the update; bf16 halves their memory; norm, clipping and update use the rounded values",
       plan_key<&plan::Formats::grad>,
       {.choices = "fp32|bf16"}},
      {"plan.masters",
       Kind::choice,
       "fp32",
       "the optimiser's copy of the parameters; split: bf16 and the 16-bit remainder, exact; bf16: rounded stochastically",
       plan_key<&plan::Formats::states, &plan::StateFormat::masters>,
       {.choices = "fp32|split|bf16"}},
      {"plan.moments",
       Kind::choice,
       "fp32",
       "dtype of the optimiser's moments; int8: blocks of 256 with a scale each, tensors under 4096 elements stay fp32",
       plan_key<&plan::Formats::states, &plan::StateFormat::moments>,
       {.choices = "fp32|bf16|int8"}},
      {"plan.update",
       Kind::choice,
       "auto",
       "when the optimiser runs; end: after the last backward; just_in_time: each block before its next gather (same result); in_backward: each block once its gradient is reduced (least gradient memory, needs train.clip_norm 0)",
       plan_key<&plan::Choices::update>,
       {.choices = "auto|end|just_in_time|in_backward", .needs = {kSearched}, .in_stages = true}},
      {"plan.update_on",
       Kind::choice,
       "auto",
       "where updates are computed; host: on the CPU, where parameters, gradients and states are kept on the host",
       plan_key<&plan::Choices::update_on>,
       {.choices = "auto|device|host", .needs = {kSearched}}},
      {"plan.update_threads",
       Kind::text,
       "auto",
       "CPU threads of a rank for updates on the host; auto: its share of the machine",
       read_update_threads,
       {.needs = {{may_update_on_host, "no update runs on the host (plan.update_on)"}}}},
      {"plan.graphs",
       Kind::choice,
       "auto",
       "training steps as CUDA graphs: on, off, or auto, where launches take longer than the work",
       read_graphs,
       {.choices = "auto|on|off"}},
      {"plan.prefetch",
       Kind::text,
       "auto",
       "gathers issued ahead of use: auto or a number",
       read_prefetch,
       {.needs = {kSearched}, .in_stages = true}},
      {"plan.pipeline",
       Kind::choice,
       "auto",
       "pipeline schedule, with mesh.pp; auto: the fastest",
       plan_key<&plan::PlanKeys::pipeline>,
       {.choices = "auto|gpipe|1f1b|interleaved|zero_bubble",
        .needs = {kSearched, {has_stages, "mesh.pp = 1 makes no stages"}}}},
      {"plan.chunks",
       Kind::text,
       "auto",
       "stages of a rank, with pipeline interleaved: auto or a number",
       read_chunks,
       {.needs = {kSearched,
                  {has_chunks, "several stages a rank need mesh.pp above 1 and plan.pipeline = \"interleaved\""}}}},
  };
}

}  // namespace tessera::recipe
