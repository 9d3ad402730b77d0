#include "tessera/job/without_effect.h"

#include <functional>

#include "tessera/base/check.h"
#include "tessera/job/experts.h"
#include "tessera/recipe/recipe_table.h"

namespace tessera::job {

namespace {

constexpr auto kInterleaved = plan::PipelineSchedule::interleaved;

/// A key that has an effect only under a condition.
struct Condition {
  const char* key;
  std::function<bool(const recipe::Recipe&)> holds;
  const char* words;  ///< after "KEY = VALUE has no effect: "
};

bool schedule_is(const recipe::Recipe& recipe, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (recipe.lr_schedule.name == name) return true;
  return false;
}
bool searches(const recipe::Recipe& recipe) { return recipe.plan.file.empty() || recipe.plan.file == "auto"; }
bool one_shape(const recipe::Recipe& recipe) { return recipe.values.at("data.buckets").empty(); }

bool has_fp16(const recipe::Recipe& r) {
  return !searches(r) || r.plan.compute == DType::f16 || r.plan.reduce == DType::f16;
}
constexpr const char* kFp16 = "it belongs to plan.compute_dtype or plan.reduce_dtype = \"fp16\"";

bool adapts(const recipe::Recipe& recipe) { return recipe.lora.on; }
constexpr const char* kAdapters = "train.mode = \"lora\" trains adapters";

bool is_gated(const recipe::Recipe& recipe) { return recipe.experts.router == "gate"; }
bool takes_turns(const recipe::Recipe& recipe) { return !is_gated(recipe); }
constexpr const char* kGate = "it belongs to experts.router = \"gate\"";
constexpr const char* kTurns = "with experts.router = \"gate\" experts take no turns and own no timesteps";
/// With a gate the rows above speak.
bool several_or_gated(const recipe::Recipe& recipe) { return is_gated(recipe) || find_experts(recipe).several(); }
bool named_or_gated(const recipe::Recipe& recipe) {
  return is_gated(recipe) || !find_experts(recipe).list.front().name.empty();
}
constexpr const char* kOneModel = "the run has one denoiser: no experts that take turns";

const std::vector<Condition>& conditions() {
  static const std::vector<Condition> table = {
      {"data.clip_stride", [](const recipe::Recipe& r) { return r.values.at("data.clip_mode") == "slide"; },
       "it belongs to data.clip_mode = \"slide\""},
      {"data.clip_samples", [](const recipe::Recipe& r) { return r.values.at("data.clip_mode") == "uniform"; },
       "it belongs to data.clip_mode = \"uniform\""},
      {"data.size", one_shape, "data.buckets lists the shapes"},
      {"data.frames", one_shape, "data.buckets lists the shapes"},
      {"data.allow_bad", [](const recipe::Recipe& r) { return !r.data.strict; },
       "data.strict stops at the first faulty row"},
      {"fault.rebalance", [](const recipe::Recipe& r) { return r.fault.slow_factor > 0; },
       "fault.slow_factor = 0 looks for no slow rank"},
      {"fault.rebalance", takes_turns,
       "with experts.router = \"gate\" ranks have the samples that they ask the gate about"},
      {"experts.count", is_gated, kGate},
      {"experts.temperature", is_gated, kGate},
      {"experts.hard", is_gated, kGate},
      {"experts.balance", is_gated, kGate},
      {"experts.boundary", takes_turns, kTurns},
      {"experts.turn", takes_turns, kTurns},
      {"experts.shares", takes_turns, kTurns},
      {"experts.boundary", named_or_gated, "the run has one denoiser, which has every timestep"},
      {"experts.turn", several_or_gated, kOneModel},
      {"experts.shares", several_or_gated, kOneModel},
      {"plan.idle", several_or_gated, kOneModel},
      {"train.loss_scale", has_fp16, kFp16},
      {"train.loss_scale_window", has_fp16, kFp16},
      {"lora.rank", adapts, kAdapters},
      {"lora.alpha", adapts, kAdapters},
      {"lora.targets", adapts, kAdapters},
      {"lora.dropout", adapts, kAdapters},
      {"lora.rslora", adapts, kAdapters},
      {"lora.dora", adapts, kAdapters},
      {"lora.base_dtype", adapts, kAdapters},
      {"lora.init", adapts, kAdapters},
      {"lora.export", adapts, kAdapters},
      {"train.eta_min",
       [](const recipe::Recipe& r) {
         return schedule_is(r, {"cosine_min", "torch_linear_then_cosine"});
       },
       "train.schedule = \"cosine_min\" and \"torch_linear_then_cosine\" have a lowest rate"},
      {"train.num_cycles", [](const recipe::Recipe& r) { return schedule_is(r, {"cosine_with_restarts"}); },
       "it belongs to train.schedule = \"cosine_with_restarts\""},
      {"train.power", [](const recipe::Recipe& r) { return schedule_is(r, {"polynomial"}); },
       "it belongs to train.schedule = \"polynomial\""},
      {"train.stable_steps", [](const recipe::Recipe& r) { return schedule_is(r, {"wsd"}); },
       "it belongs to train.schedule = \"wsd\""},
      {"train.decay_steps", [](const recipe::Recipe& r) { return schedule_is(r, {"wsd"}); },
       "it belongs to train.schedule = \"wsd\""},
      {"train.warmup_steps", [](const recipe::Recipe& r) { return !schedule_is(r, {"constant"}); },
       "train.schedule = \"constant\" has no warm-up; \"constant_with_warmup\" has"},
      {"model.path", [](const recipe::Recipe& r) { return r.model.init != "random"; },
       "but for its config.json: model.init = \"random\" leaves its weights unread"},
      {"sample.negative_prompt", [](const recipe::Recipe& r) { return r.sample.guidance != 1; },
       "sample.guidance = 1 takes one pass, without it"},
      {"train.micro_batch", searches, "plan.file decides"},
      {"plan.recompute", searches, "plan.file decides"},
      {"plan.offload_to", searches, "plan.file decides"},
      {"plan.nvme_checksum", [](const recipe::Recipe& r) { return !r.plan.nvme.empty(); }, "plan.nvme names no disk"},
      {"plan.prefetch", searches, "plan.file decides"},
      {"plan.update", searches, "plan.file decides"},
      {"plan.update_on", searches, "plan.file decides"},
      {"plan.update_threads",
       [](const recipe::Recipe& r) { return searches(r) && r.plan.update_on != plan::Tier::device; },
       "it counts threads of updates on the host (plan.update_on)"},
      {"plan.gradients",
       [](const recipe::Recipe& r) {
         return r.plan.update != plan::Update::in_backward || r.plan.update_on == plan::Tier::host;
       },
       "plan.update = \"in_backward\" uses gradients up where they are made"},
      {"plan.strategy", searches, "plan.file decides"},
      {"plan.activations", searches, "plan.file decides"},
      {"plan.parameters", searches, "plan.file decides"},
      {"plan.gradients", searches, "plan.file decides"},
      {"plan.states", searches, "plan.file decides"},
      {"plan.idle", searches, "plan.file decides"},
      {"plan.pipeline", searches, "plan.file decides"},
      {"plan.chunks", searches, "plan.file decides"},
  };
  return table;
}

/// Fields of model.config that replace those of a preset.
std::string replaced_sizes(const recipe::Recipe& recipe) {
  std::string list;
  for (const auto& [key, value] : recipe.values)
    if (key.starts_with("model.config.") && !value.empty()) list += (list.empty() ? "" : ", ") + key.substr(13);
  return list;
}

}  // namespace

std::vector<std::string> without_effect(const recipe::Recipe& recipe, const Mesh& mesh) {
  std::vector<std::string> notes;
  const Values defaults = recipe::recipe_table().defaults();
  for (const Condition& condition : conditions()) {
    const std::string& value = recipe.values.at(condition.key);
    const bool unchanged = split_list(value) == split_list(defaults.at(condition.key));  // a list of one is that one
    if (unchanged || condition.holds(recipe)) continue;
    std::string shown;
    for (const std::string& item : split_list(value)) shown += (shown.empty() ? "" : ",") + item;
    notes.push_back(std::string(condition.key) + " = " + shown + " has no effect: " + condition.words);
  }
  const std::string replaced = replaced_sizes(recipe);
  if (!recipe.model.preset.empty() && !replaced.empty())
    notes.push_back("model.preset = " + recipe.model.preset + " is changed by model.config, which gives " + replaced);
  const auto add = [&](const char* key, const std::string& words) {
    notes.push_back(std::string(key) + " = " + recipe.values.at(key) + " " + words);
  };
  if (recipe.lr_schedule.warmup_steps > recipe.run.steps && !schedule_is(recipe, {"constant"}))
    add("train.warmup_steps",
        "never ends: run.steps = " + std::to_string(recipe.run.steps) + ", so the rate does not get to train.lr");
  if (searches(recipe)) {
    const int64_t share = div_up(recipe.train.global_batch, mesh.dp_size());
    if (recipe.train.micro_batch > share)
      add("train.micro_batch", "is more than the samples of a rank: micro-batches have " + std::to_string(share));
    const bool staged = mesh[Axis::pp] > 1;
    if (recipe.plan.pipeline && !staged) add("plan.pipeline", "has no effect: mesh.pp = 1 makes no stages");
    if (recipe.plan.chunks && (!staged || recipe.plan.pipeline.value_or(kInterleaved) != kInterleaved))
      add("plan.chunks",
          "has no effect: stages in chunks belong to mesh.pp above 1 and plan.pipeline = \"interleaved\"");
    if (recipe.plan.strategy && mesh.world() == 1 && *recipe.plan.strategy != plan::Strategy::no_shard &&
        *recipe.plan.strategy != plan::Strategy::two_level)
      add("plan.strategy", "has no effect on one rank: there is no other to share with");
  }
  const int replicas = mesh[Axis::dp_replicate];
  const bool two_level = recipe.plan.strategy == plan::Strategy::two_level;
  if (replicas > 1 && mesh[Axis::dp_shard] == 1 && !two_level)
    notes.push_back("mesh.dp_replicate = " + std::to_string(replicas) +
                    " shards nothing: every rank holds the whole model with its gradients and states; dp_shard = " +
                    std::to_string(replicas) + " splits them over as many ranks");
  if (two_level && replicas == 1)
    notes.push_back(
        "plan.strategy = two_level has no effect: with mesh.dp_replicate = 1 there is one copy of the model, "
        "and it is full_shard");
  if (mesh.dp_size() > recipe.train.global_batch)
    notes.push_back("train.global_batch = " + std::to_string(recipe.train.global_batch) + " leaves " +
                    std::to_string(mesh.dp_size() - recipe.train.global_batch) + " of " +
                    std::to_string(mesh.dp_size()) + " ranks without a sample: they wait for the others");
  if (!recipe.model.path.empty() && recipe.model.init != "random") {
    const char* why =
        " while model.path holds trained weights: they expect the embeddings and latents they were trained with";
    if (recipe.data.text_encoder_path.empty())
      notes.push_back("data.text_encoder_path is empty: '" + recipe.data.text_encoder + "' gets random weights" + why);
    if (recipe.data.vae.starts_with("haar"))
      notes.push_back("data.vae = " + recipe.data.vae + " is a plain wavelet" + why);
  }
  return notes;
}

}  // namespace tessera::job
