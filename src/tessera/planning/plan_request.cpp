#include "tessera/planning/plan_request.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/diffusion/distillation.h"
#include "tessera/job/catalogue.h"
#include "tessera/job/device.h"
#include "tessera/job/experts.h"
#include "tessera/job/given_checks.h"
#include "tessera/models/registry.h"
#include "tessera/ops/session.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/plan_rows.h"
#include "tessera/plan/simulate/libraries.h"
#include "tessera/planning/encoders.h"
#include "tessera/planning/measure.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/plan_advice.h"
#include "tessera/planning/rank_share.h"
#include "tessera/recipe/stages.h"
#include "tessera/report/run_folder.h"

namespace tessera::planning {

namespace {

/// Threads that compute on the device: the step's, and those of encoders beside it (EncoderBytes::online).
int device_threads(const recipe::Recipe& recipe) {
  if (!recipe.data.online() || recipe.data.encoders == recipe::Encoders::host) return 1;
  return recipe.data.encoders == recipe::Encoders::sharded ? 3 : 2;
}

/// Why updates in the backward are impossible: something that needs all gradients of the step. Empty if nothing does.
std::string why_not_in_backward(const recipe::Recipe& recipe, DType compute, DType reduce) {
  if (recipe.train.clip_norm > 0) {
    char norm[32];
    std::snprintf(norm, sizeof norm, "%g", recipe.train.clip_norm);
    return std::string("train.clip_norm = ") + norm + " needs the norm of all gradients (0 switches clipping off)";
  }
  if (recipe.run.on_nan == "skip") return "run.on_nan = \"skip\" decides by the loss and norm of the whole step";
  if (compute == DType::f16 || reduce == DType::f16)
    return "fp16 scales the loss, and a step that overflows anywhere is skipped";
  return {};
}

/// The numbers that a run gives kernels anew in each step. Empty: none that the plan does not know.
std::string why_no_graphs(const recipe::Recipe::Lora& lora, bool student, bool gated) {
  if (lora.on && (lora.dropout > 0 || lora.rank_dropout > 0 || lora.module_dropout > 0))
    return "the dropout of adapters has random numbers of its own in each step";
  if (student) return "what a student learns weighs its losses anew in each step";
  return gated ? "a gate weighs predictions anew in each step" : "";
}

/// The latents of the recipe's samples; nothing where the autoencoder does not take their sizes.
std::optional<std::array<int64_t, 4>> latent_of(const net::VideoCodec& codec, const recipe::Recipe& recipe) {
  try {
    return codec.latent_shape(recipe.data.frames, recipe.data.height, recipe.data.width);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// A released model planned with the built-in wavelet has other tokens than it will have, unless the wavelet happens to
/// make latents of the same shape as its autoencoder. Empty where it does.
std::string other_tokens(const recipe::Recipe& recipe, const job::Job& job, const std::array<int64_t, 4>& latent) {
  if (recipe.model.preset.empty() || !models::is_built_in_codec(recipe.data.vae)) return {};
  const std::string name = job::partners_of(recipe.model.preset).autoencoder;
  if (name.empty() || models::is_built_in_codec(name)) return {};
  const auto own = latent_of(*models::make_preset_vae(name, {}), recipe);
  if (!own || (*own)[0] != latent[0]) return {};
  const int64_t tokens = job.model->token_count(latent), released = job.model->token_count(*own);
  if (released == tokens) return {};
  return "a sample has " + std::to_string(tokens) + " tokens with data.vae = " + recipe.data.vae + " and " +
         std::to_string(released) + " with the released " + name + ": to plan for the latter set data.vae = \"" + name +
         "\" or its path";
}

/// With a gate, each expert runs its own pass within a step and uses the same gradient memory.
void check_gated(const job::Job& job, plan::Update update, const std::string& where) {
  if (job.experts.gated && update != plan::Update::end)
    throw UserError(Exit::usage, where,
                    "\"" + std::string(name(update)) +
                        "\" with experts.router = \"gate\": each expert's updates end its "
                        "own part of the step",
                    "use \"end\"");
}

/// What runs before a step reads weights that it would find without the updates of the step before.
void check_base_passes(const recipe::Recipe& recipe, plan::Update update, const std::string& where) {
  if (recipe.asks() && update == plan::Update::just_in_time)
    throw UserError(Exit::usage, where,
                    std::string("\"just_in_time\" leaves updates to the next step, and passes ") +
                        (recipe.distill.matches() ? "of all networks"
                         : recipe.distill.on()    ? "of the teacher"
                         : recipe.asks_base()     ? "without adapters"
                                                  : "without captions") +
                        " come before it",
                    "use \"end\"");
}

void check_in_backward(const recipe::Recipe& recipe, DType compute, DType reduce, const std::string& where) {
  const std::string why = why_not_in_backward(recipe, compute, reduce);
  if (!why.empty())
    throw UserError(Exit::usage, where, "\"in_backward\" updates each unit before the step's norm is known, but " + why,
                    "use \"just_in_time\", or switch that off");
}

/// In a step of a gate each rank's samples choose experts as they come: one schedule serves all of them.
void check_units_of_gate(const job::Job& job, const std::vector<plan::UnitKeys>& units) {
  for (const plan::UnitKeys& keys : units)
    for (const job::Expert& expert : job.experts.list)
      if (job.experts.gated && keys.match.starts_with(expert.name + "."))
        throw UserError(Exit::usage, "plan.units",
                        "match = \"" + keys.match +
                            "\": the experts of a gate share one schedule, because samples "
                            "choose which of them run in a step",
                        "set it for all of them: match = \"" + keys.match.substr(expert.name.size() + 1) + "\"");
}

/// A plan file fixes masters, moments and other formats; a recipe key that contradicts it would have no effect.
void check_formats(const recipe::Recipe& recipe, const plan::Plan& plan) {
  const plan::Plan untouched;
  plan::Plan wanted;
  static_cast<plan::Formats&>(wanted) = recipe.plan;
  for (const plan::Row<plan::Plan>& row : plan::plan_rows()) {
    const std::string in_recipe = row.text(wanted), in_plan = row.text(plan);
    if (in_recipe == row.text(untouched) || in_recipe == in_plan) continue;
    const std::string key(row.key);
    throw UserError(Exit::usage, "plan.file",
                    recipe.plan.file + " has " + key + " = " + in_plan + ", the recipe plan." + key + " = " + in_recipe,
                    "set it in one of them");
  }
}

}  // namespace

int64_t beside_plan(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh) {
  const plan::Profile profile = plan::find_profile(recipe.plan.profile);
  if (profile.target.empty()) return 0;
  return plan::bytes_of(plan::beside_plan(profile, {mesh, unit_groups(recipe, job)(mesh)}));
}

int64_t prompt_bytes(const job::Job& job, int prompts) {
  int64_t pictures = 0;
  if (prompts > 0)
    for (const auto& [name, value] : job.model->blank(job.latent).extra)
      pictures += round_up(static_cast<int64_t>(value.nbytes()), 64);
  if (const net::Conditions takes = job.model->conditions(); takes.given_frames)  // 1.3's has no mask, and an index
    pictures += round_up(4 * (job.latent[0] + 1) * job.latent[1] * job.latent[2] * job.latent[3], 64);
  else if (takes.clean_first)
    pictures += round_up(4 * c10::multiply_integers(job.latent), 64);
  const int64_t text = round_up(job.context_length * job.model->context_dim() * 4, 64);
  return (std::max(prompts, 1) + 1) * text + prompts * pictures;
}

namespace {

bool is_prior(const recipe::Recipe::DataSet& set) { return set.role == recipe::Recipe::Role::prior; }

/// Bytes of one training sample: noisy latent, target, longest text, and the model's other inputs.
int64_t host_sample_bytes(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes) {
  constexpr int64_t kBlock = 64;  // allocation granularity of a tensor
  const net::Sample blank = job::blank_sample(recipe, *job.model, shapes.largest);
  int64_t bytes =
      2 * round_up(4 * blank.x.numel(), kBlock) + round_up(4 * job.context_length * job.model->context_dim(), kBlock);
  for (const auto& [name, value] :
       job.model->conditions().references > 0 ? blank.extra : job.model->blank(shapes.largest).extra)
    bytes += round_up(static_cast<int64_t>(value.nbytes()), kBlock);
  bytes += round_up(job::given_bytes(recipe.diffusion, *job.model, shapes.largest), kBlock);
  if (recipe.masked()) bytes += round_up(4 * blank.x.numel() / blank.x.size(0), kBlock);
  if (recipe.asks_base()) bytes += round_up(4 * blank.x.numel(), kBlock);  // what the base says
  if (recipe.distill.on())  // x_t apart from the input, what the teacher says, and the caption of no words
    bytes +=
        2 * round_up(4 * blank.x.numel(), kBlock) + round_up(4 * job.context_length * job.model->context_dim(), kBlock);
  if (recipe.distill.regresses())  // the teacher's path, and where it is
    bytes += (recipe.distill.steps + 2) * round_up(4 * blank.x.numel(), kBlock);
  return bytes;
}

}  // namespace

std::vector<std::array<int64_t, 4>> wider_than(const std::array<int64_t, 4>& largest,
                                               const std::vector<std::array<int64_t, 4>>& latents) {
  using Latent = std::array<int64_t, 4>;
  const auto covers = [](const Latent& a, const Latent& b) {  // in tokens, in a row's and in a frame's
    return a[1] * a[2] * a[3] >= b[1] * b[2] * b[3] && a[3] >= b[3] && a[2] * a[3] >= b[2] * b[3];
  };
  std::vector<Latent> kept;
  for (const Latent& latent : latents) {
    const auto by = [&](const Latent& other) { return covers(other, latent); };
    if (by(largest) || std::ranges::any_of(kept, by)) continue;
    std::erase_if(kept, [&](const Latent& other) { return covers(latent, other); });
    kept.push_back(latent);
  }
  return kept;
}

namespace {

/// Shapes with batches of their own run under one schedule: each micro-batch has samples of a rank's, of every shape.
void add_batches(PlanRequest& request, const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes) {
  const std::map<int, int64_t> batches = recipe::batches(recipe);
  for (const auto& [index, samples] : batches) {
    const data::Bucket& bucket = recipe.data.clips.buckets[static_cast<size_t>(index)];
    const int64_t least = samples / request.mesh.dp_size();  // of a rank
    if (least < 1)
      throw UserError(
          Exit::usage, "data.buckets",
          bucket.text() + "=" + std::to_string(samples) + ": a step of its shape has fewer samples than the " +
              std::to_string(request.mesh.dp_size()) + " ranks that share them",
          "give it " + std::to_string(request.mesh.dp_size()) + " or more, or let fewer ranks share samples");
    request.most_rounds = request.most_rounds == 0 ? least : std::min(request.most_rounds, least);
    const auto latent = job.codec->latent_shape(bucket.frames, bucket.height, bucket.width);
    const auto same = [&](const PlanRequest::OtherBatch& o) { return o.latent == latent && o.samples >= samples; };
    if ((latent != shapes.largest || samples != shapes.batch) && std::ranges::none_of(request.others, same))
      request.others.push_back({latent, samples});
  }
  if (batches.empty() || !job.experts.gated) return;
  throw UserError(Exit::usage, "data.buckets",
                  "a bucket has a batch of its own, and experts.router = \"gate\" needs one batch size for all",
                  "set train.global_batch for all of them");
}

/// Forward passes of one measurement of the held-out loss: a guidance branch of the sampler's program takes a sample. Where
/// nobody has read the data yet they are as many as one pass takes.
int held_out_passes(const recipe::Recipe::Eval& eval, int branches, const Mesh& mesh) {
  if (!eval.on()) return 0;
  const int64_t at_once = int64_t{branches} * mesh.dp_size();
  const int64_t points = recipe::Recipe::Eval::kQuantiles + std::ssize(eval.sigmas);
  return static_cast<int>(points * div_up(std::max<int64_t>(eval.items, 1), at_once));
}

}  // namespace

namespace {

/// How often samples choose each expert: as the recipe says, or as a run had it lately.
void place_frequencies(Routing& routing, const recipe::Recipe::ExpertKeys& experts) {
  routing.deals = experts.deals();
  routing.frequencies = experts.frequencies, routing.frequencies_from = "experts.frequencies";
  if (!experts.frequencies_of.empty()) {
    routing.frequencies_from = experts.frequencies_of;
    routing.frequencies = report::RunFolder(experts.frequencies_of).expert_frequencies();
    check_input(std::ssize(routing.frequencies) == experts.count, "experts.frequencies",
                experts.frequencies_of + " has measured " + std::to_string(routing.frequencies.size()) +
                    " experts behind a gate, experts.count is " + std::to_string(experts.count),
                "name the folder of a run with this number of experts, or give numbers");
  } else if (routing.frequencies.empty()) {
    routing.frequencies.assign(static_cast<size_t>(experts.count), 1.0);
    routing.frequencies_from = "chosen alike";
  }
  const double sum = std::accumulate(routing.frequencies.begin(), routing.frequencies.end(), 0.0);
  for (double& frequency : routing.frequencies) frequency /= sum;
}

/// Of a student's step: its own up to the one it exits at, the critic's, and the teacher's with and without a caption. Chunks
/// have such steps each, and all but the last one more, which leaves what later ones read.
std::function<plan::RunShape::Passes(int64_t)> passes_of(const recipe::Recipe& recipe, int chunks,
                                                         const std::function<int(int64_t)>& expert_of) {
  return [seed = static_cast<uint64_t>(recipe.run.seed), distill = recipe.distill, chunks, expert_of](int64_t step) {
    plan::RunShape::Passes passes;
    int& own = distill.chunk > 0 ? passes.of_chunks : passes.of_clips;
    for (int chunk = 0; chunk < chunks; ++chunk)
      own += 1 + static_cast<int>(diffusion::drawn_exit(seed, step, distill.steps, distill.same_exit ? 0 : chunk));
    own += chunks - 1;
    if (expert_of(step) == 0) passes.of_clips += 1 + (distill.guided() ? 2 : 1);
    return passes;
  };
}

/// In which a student makes each clip. All clips have as many, as all ranks run the passes of a step together.
int chunks_of(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes) {
  const int64_t base = recipe.distill.chunk, frames = shapes.largest[1];
  if (base == 0 || !recipe.distill.matches()) return 1;
  for (const data::Bucket& b : recipe.data.clips.buckets)
    if (const int64_t other = job.codec->latent_shape(b.frames, b.height, b.width)[1]; other != frames)
      throw UserError(Exit::usage, "distill.chunk",
                      "data.buckets have clips of " + std::to_string(frames) + " and " + std::to_string(other) +
                          " latent frames, and a student makes the chunks of all clips of a step together",
                      "give all clips one number of frames, or leave distill.chunk out");
  return static_cast<int>(std::ssize(net::chunk_bounds(frames, base))) - 1;
}

/// Of a student with a critic, how often its networks change places in a step, on average.
double changes_of_critic(const job::Experts& experts) {
  // The student comes, goes to the critic, that to the teacher and back, and it comes again; then it goes; then it comes and
  // goes in each step. A teacher that is the base of both, or has a place of its own, takes nobody's.
  const int of_student = experts.teachers() == 0 ? 3 : 5;
  return static_cast<double>(of_student + 1 + 2 * (experts.critic_steps - 1)) /
         static_cast<double>(experts.critic_steps + 1);
}

/// How the experts share the steps of `part`; `run` says whose each step is.
Routing routing_of(const job::Job& job, const recipe::RunPart& part, const plan::RunShape& run) {
  Routing routing{.gated = job.experts.gated, .soft = job.experts.gated && !part.recipe.experts.hard};
  if (routing.gated && !routing.soft) place_frequencies(routing, part.recipe.experts);
  routing.by_use = part.recipe.experts.plans_by_use();
  routing.together = part.recipe.experts.shares_passes();
  if (!run.expert_of) return routing;
  for (const job::Expert& expert : job.experts.list) routing.names.push_back(expert.name);
  routing.shares.assign(job.experts.size(), 0);
  int64_t changes = 0;
  for (int64_t step = part.first; step <= part.last; ++step) {
    changes += step > 1 && run.swaps_expert(step - 1);
    routing.shares.at(static_cast<size_t>(run.expert_of(step))) += 1;
  }
  routing.changes = job.experts.critic() ? changes_of_critic(job.experts)
                                         : static_cast<double>(changes) /
                                               static_cast<double>(std::max<int64_t>(1, part.last - part.first + 1));
  return routing;
}

}  // namespace

void share_steps(PlanRequest& request, const job::Job& job, const recipe::RunPart& part,
                 const std::function<int(int64_t)>& expert_of) {
  request.run.expert_of = expert_of;
  if (job.experts.critic()) request.run.passes_of = passes_of(part.recipe, request.run.chunks, expert_of);
  if (job.teacher) request.run.own_teacher = part.recipe.distill.guided() ? 2 : 1;
  request.routing = routing_of(job, part, request.run);
  request.planner.expert_shares = request.routing.shares;
}

namespace {
recipe::Recipe with_budget(recipe::Recipe recipe, int64_t budget) {
  recipe.plan.budget = budget;
  return recipe;
}
}  // namespace

PlanRequest plan_request(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes, const Mesh& mesh,
                         int prompts) {
  PlanRequest request;
  request.model = job.model.get();
  request.model_name = job.name;
  request.teacher = job.teacher.get();
  request.blank = [recipe](const net::Denoiser& model, const std::array<int64_t, 4>& latent) {
    return job::blank_sample(recipe, model, latent);
  };
  request.masked = recipe.masked();
  request.loss = job::loss_rule(recipe).form;
  request.latent = shapes.largest;  // smaller buckets use the same schedule
  std::vector<std::array<int64_t, 4>> latents;
  for (const data::Bucket& b : recipe.data.clips.buckets)
    latents.push_back(job.codec->latent_shape(b.frames, b.height, b.width));
  request.wider = wider_than(request.latent, latents);
  request.mesh = mesh;
  add_batches(request, recipe, job, shapes);
  request.notes = other_tokens(recipe, job, shapes.latent);
  request.guidance_branches = shapes.guidance_branches;
  request.machine.profile = plan::find_profile(recipe.plan.profile);
  request.machine.profile.target = job::plan_target(request.machine.profile);
  request.device_threads = device_threads(recipe);
  request.deterministic = recipe.run.deterministic;
  const ops::TargetScope scope(measured_target(request.machine.profile));
  const int64_t clips = job::sample_clips(recipe.sample, job.model->conditions());
  request.resident = job.resident + prompt_bytes(job, clips > 1 ? prompts + 1 : prompts);  // and the next clip's
  const UnitGroups sent_by = unit_groups(recipe, job);
  // A run on a GPU has its budget before anything is encoded (job::reserve_device), set or not.
  const bool unset = recipe.plan.budget <= 0 && request.machine.profile.devices > 0;
  const EncoderBytes encoders =
      unset ? encoder_bytes(with_budget(recipe, rank_budget(request.machine.profile, mesh, sent_by)), job, mesh)
            : encoder_bytes(recipe, job, mesh);
  request.share_on = [recipe, &job, shapes, encoders, sent_by, profile = request.machine.profile](const Mesh& other) {
    static std::mutex measuring;  // meshes that advice tries side by side share the encoders
    const std::lock_guard lock(measuring);
    const ops::TargetScope scope(measured_target(profile));
    return rank_share(recipe, job, shapes, other, profile,
                      recipe.data.online() ? encoder_bytes(recipe, job, other) : encoders, sent_by);
  };
  const RankShare share = rank_share(recipe, job, shapes, mesh, request.machine.profile, encoders, sent_by);
  const bool leaves_some = set_share(request, share);
  if (!leaves_some && share.kept_weights >= share.host_budget)
    throw UserError(Exit::no_fit, "sample.lora",
                    "the weights as they were take " + format_bytes(share.kept_weights) +
                        " of host memory a rank while it is in them, its share of host memory is " +
                        format_bytes(share.host_budget),
                    "sample without it, use fewer ranks a node, or raise plan.host_budget");
  if (!leaves_some)
    throw UserError(Exit::no_fit, "data.encoders",
                    "\"host\" takes " + format_bytes(share.host_encoders) + " a rank, its share of host memory is " +
                        format_bytes(share.host_budget),
                    "use \"sharded\" or \"cached\", fewer ranks a node, or raise plan.host_budget");
  if (recipe.sample.every > 0) {
    constexpr int64_t kLatents = 4;  // latents that the sampler keeps
    request.between_steps = encoders.decoding() + kLatents * 4 * c10::multiply_integers(shapes.latent);
  }
  request.encoders = encoders;
  if (!recipe.data.beside())
    request.prepare_peak = [recipe, &job, mesh, profile = request.machine.profile](int64_t budget) {
      const ops::TargetScope scope(measured_target(profile));
      return encoder_bytes(with_budget(recipe, budget), job, mesh).prepare();
    };
  request.host_sample = host_sample_bytes(recipe, job, shapes);
  if (!recipe.data.online()) {
    int64_t numbers = c10::multiply_integers(shapes.largest) + job.context_length * job.model->context_dim();
    const bool references = job.model->conditions().references > 0;  // stand before the clip's frames
    const net::Sample blank =
        references ? job::blank_sample(recipe, *job.model, shapes.largest) : job.model->blank(shapes.largest);
    for (const auto& [name, value] : blank.extra) numbers += value.numel();
    for (const data::Bucket& b : recipe.data.clips.buckets) {
      const auto latent = job.codec->latent_shape(b.frames, b.height, b.width);
      if (latent != shapes.largest) continue;
      for (const families::GivenFrames& given : job::encoded_given(recipe.diffusion, b.frames, latent[1]))
        numbers += latent[0] * given.latents * latent[2] * latent[3];
      break;
    }
    if (recipe.masked()) numbers += c10::multiply_integers(shapes.largest) / shapes.largest[0];
    request.cache_entry = 4 * numbers;
  }
  request.planner.global_batch = shapes.batch;
  request.any_micro_batch = recipe.train.micro_batch == 0;
  static_cast<plan::PlanKeys&>(request.planner) = recipe.plan;
  const bool stored_in_8_bits = recipe.lora.on && (recipe.lora.base == DType::i8 || recipe.lora.base == DType::f8_e4m3);
  if (mesh.shard_size() == 1 || recipe.plan.strategy == plan::Strategy::no_shard || stored_in_8_bits)
    request.planner.gather = false;  // nothing is gathered that could come as codes
  request.planner.gather_fp8 = recipe.plan.fp8 && request.planner.gather.value_or(false);
  if (recipe.plan.update) check_base_passes(recipe, *recipe.plan.update, "plan.update");
  if (job.experts.gated || (recipe.asks() && !recipe.plan.update)) request.planner.update = plan::Update::end;
  if (recipe.plan.update) check_gated(job, *recipe.plan.update, "plan.update");
  if (recipe.plan.update == plan::Update::in_backward)
    check_in_backward(recipe, recipe.plan.compute, recipe.plan.reduce, "plan.update");
  request.planner.may_update_in_backward = why_not_in_backward(recipe, recipe.plan.compute, recipe.plan.reduce).empty();
  request.planner.nvme = !recipe.plan.nvme.empty();
  request.no_graphs = why_no_graphs(recipe.lora, recipe.distill.on(), job.experts.gated);
  request.planner.thrifty = true;
  request.machine.update_bytes = plan::update_bytes(recipe.plan.states, recipe.plan.grad);
  request.planner.teachers = job.experts.teachers(), request.planner.shared_base = job.experts.shared_base;
  request.planner.experts = static_cast<int>(job.experts.size()) + request.planner.teachers;
  check_units_of_gate(job, recipe.plan.units);
  if (job.experts.several() && !job.experts.gated)
    for (const job::Expert& expert : job.experts.list) request.planner.expert_names.push_back(expert.name);
  request.any_idle = job.experts.several() && !recipe.plan.idle;
  if (job.teacher && recipe.plan.idle && *recipe.plan.idle != plan::Tier::device)
    request.planner.teacher = plan::Tier::host;
  if (!recipe.plan.file.empty() && recipe.plan.file != "auto") {
    std::vector<std::string> names;
    for (const auto& unit : job.model->units()) names.push_back(unit->spec().name);
    check_input(std::filesystem::is_regular_file(recipe.plan.file), "plan.file",
                recipe.plan.file + ": there is no such file",
                "tessera plan RECIPE --write FILE writes a plan, or use auto");
    const std::string text = checkpoint::read_text(recipe.plan.file);
    request.by_hand = plan::plan_of_toml(text, recipe.plan.file, names);
    for (const std::string& note : plan::plan_warnings(text, *request.by_hand, names))
      request.notes += (request.notes.empty() ? "" : "; ") + recipe.plan.file + ": " + note;
    check_formats(recipe, *request.by_hand);
    check_gated(job, request.by_hand->update, recipe.plan.file + ": update");
    check_base_passes(recipe, request.by_hand->update, recipe.plan.file + ": update");
    if (request.by_hand->update == plan::Update::in_backward)
      check_in_backward(recipe, request.by_hand->compute, request.by_hand->reduce, recipe.plan.file + ": update");
    if (const std::string why = request.by_hand->together == 1  ? std::string()
                                : request.by_hand->together > 2 ? "two of them run side by side at most"
                                : !recipe.experts.shares_passes()
                                    ? "that takes a hard gate, experts.deal = auto and experts.share = auto"
                                    : request.by_hand->keeps_apart();
        !why.empty())
      throw UserError(Exit::usage, "plan.file",
                      recipe.plan.file + " has together = " + std::to_string(request.by_hand->together) +
                          ", but this run's experts run one after the other: " + why,
                      "remove that line of the plan");
    if (request.by_hand->experts != request.planner.experts)
      throw UserError(Exit::usage, "plan.file",
                      recipe.plan.file + " has experts = " + std::to_string(request.by_hand->experts) +
                          ", the run has " + std::to_string(request.planner.experts),
                      "set experts in the plan to that number");
    if (request.by_hand->teachers != request.planner.teachers)
      throw UserError(Exit::usage, "plan.file",
                      recipe.plan.file + " has teachers = " + std::to_string(request.by_hand->teachers) +
                          ", the run has " + std::to_string(request.planner.teachers),
                      "set teachers in the plan to that number");
    if (const plan::Tier tier = request.by_hand->teacher;
        tier == plan::Tier::nvme || (tier != plan::Tier::device && !job.teacher))
      throw UserError(Exit::usage, "plan.file",
                      recipe.plan.file + " has teacher = " + std::string(name(tier)) + ", " +
                          (job.teacher ? "and its shards lie on the device or on the host"
                                       : "and the run has no teacher of other sizes"),
                      job.teacher ? "set teacher in the plan to one of these" : "remove that line of the plan");
    if (request.by_hand->shared_base != request.planner.shared_base)
      throw UserError(Exit::usage, "plan.file",
                      recipe.plan.file + " has shared_base = " + (request.by_hand->shared_base ? "true" : "false") +
                          ", the networks of the run are " + (request.planner.shared_base ? "" : "not ") +
                          "adapters of one base",
                      "set shared_base in the plan accordingly");
    request.planner.compute = request.by_hand->compute;  // shapes are measured in it
    request.planner.fp8 = request.by_hand->fp8, request.planner.gather_fp8 = request.by_hand->gather_fp8;
    request.planner.attention = request.by_hand->attention;
  }
  // CPUs without 16-bit products have no rate for them: their kernels widen and compute in fp32.
  if (request.planner.compute != DType::f32 && request.machine.profile.device.gemm.contains("bf16"))
    request.machine.dtype = "bf16";  // fp16 has the same rate
  const recipe::Recipe::Checkpoint& saves = recipe.checkpoint;
  request.saves_by_clock = saves.every_minutes > 0;
  const int64_t between = request.saves_by_clock ? 1 : std::max<int64_t>(saves.every, 1),
                more = saves.keep_steps / between + saves.keep_best;  // beside the newest
  const auto kept = [&](int64_t newest) { return newest > 0 ? newest + more : 0; };
  request.checkpoints_kept = static_cast<int>(kept(saves.keep));
  request.exported = {recipe.lora.on, 1, recipe.exports_saves(), kept(saves.keep_exports)};
  if (recipe.lora.on) {
    std::set<std::string> namings(recipe.lora.exports.begin(), recipe.lora.exports.end());
    namings.insert("diffusers");  // which the others are made from
    request.exported.files = static_cast<int>(namings.size());
  }
  request.run.steps = recipe.run.steps;
  request.run.checkpoint_every = recipe.checkpoint.every;
  request.run.sample_every = recipe.sample.every;
  request.run.eval_every = recipe.eval.on() ? recipe.eval.every : 0;
  request.run.eval_passes = held_out_passes(recipe.eval, shapes.guidance_branches, mesh);
  // Micro-batches of a bucket's own batch have other places than the plan's.
  const bool by_place =
      recipe.train.twins() && recipe::batches(recipe).empty() && std::ranges::none_of(recipe.sets, is_prior);
  if (recipe.asks_base()) request.run.base = by_place ? plan::AskBase::twins : plan::AskBase::any;
  if (recipe.train.guidance.on()) request.run.unguided = by_place ? plan::AskBase::clips : plan::AskBase::any;
  request.run.judges = recipe.distill.judges();
  request.run.misaligned = request.run.judges && recipe.distill.judge.misaligned && recipe.train.global_batch > 2;
  if (request.run.judges)
    request.heads = {recipe.distill.judge.blocks,
                     {.hinge = recipe.distill.judge.hinge, .r1_weight = recipe.distill.judge.r1_weight}};
  request.run.teacher_passes = recipe.distill.consistent() ? (recipe.distill.guided() ? 2 : 1) : 0;
  if (request.planner.gather_fp8 && request.run.distils())
    throw UserError(Exit::usage, "plan.gather",
                    "\"fp8\" with distill.method = \"" + recipe.values.at("distill.method") +
                        "\": its passes in forward mode read weights in 16 bits",
                    "leave plan.gather out, or set \"bf16\"");
  if (recipe.distill.regresses())  // the teacher makes each clip
    request.run.passes_of = [passes = static_cast<int>(recipe.distill.teacher_steps) *
                                      (recipe.distill.guided() ? 2 : 1)](int64_t) {
      return plan::RunShape::Passes{passes};
    };
  request.run.chunks = chunks_of(recipe, job, shapes);
  request.run.sample_prompts = prompts;
  request.run.sample_steps = job::sample_passes(recipe.sample, *job.model) * static_cast<int>(clips);
  if (job.experts.critic()) {  // whose passes before a step are part of it
    const std::vector<recipe::RunPart> parts = recipe::run_parts(recipe);
    share_steps(request, job, parts.front(), [order = job::plan_expert_order(job.experts, parts)](int64_t step) {
      return static_cast<int>(order.expert(step));
    });
  }
  return request;
}

void tell_of(Planned& planned, const PlanRequest& request) {
  // A capture takes all that its stream is given, and all threads that compute share one.
  const char* beside = request.device_threads > 1 ? "encoders compute on the device beside the steps" : "";
  planned.graphs =
      plan::choose_graphs(request.planner.graphs, planned.spec, planned.plan(), planned.prediction.step.compute,
                          request.no_graphs.empty() ? beside : request.no_graphs);
  // Without a GPU to plan for, its seconds are not known, and nothing is chosen.
  if (!planned.graphs.asked && planned.machine.profile.target.empty())
    planned.graphs.on = false, planned.graphs.why = "plan.profile is no GPU's";
  for (const std::string& warning :
       {useless_graphs(request, planned), advice_without_disk(request, planned), useless_grad_dtype(planned),
        useless_offload_to(request, planned), useless_prefetch(request, planned),
        useless_update_threads(request, planned), slower_mesh(request, planned)})
    planned.warn(warning);
}

Planned make_plan(const PlanRequest& request) {
  Planned planned = make_plan_as_is(request);
  if (!planned.choice.fits) {
    const Advice changes = advice(request);
    planned.choice.evaluated += changes.evaluated;
    planned.choice.advice +=
        !changes.text.empty() ? ". It fits " + changes.text
                              : ". No plan was found with other micro-batches, smaller formats, more host memory, "
                                "more ranks or fewer frames: raise plan.budget and use more ranks (--mesh dp_shard=" +
                                    std::to_string(2 * request.mesh.shard_size()) + ") together";
  }
  tell_of(planned, request);
  return planned;
}

void hold_prepare(const PlanRequest& request, Planned& planned) {
  const int64_t budget = request.planner.budget, peak = request.encoders.prepare();
  if (!request.prepare_peak || budget <= 0 || peak <= budget) return;
  constexpr int64_t kStep = int64_t{1} << 20;
  int64_t enough = round_up(budget, kStep);  // set in the recipe, it moves weights of encoders to the host
  for (int64_t takes = 0; (takes = request.prepare_peak(enough)) > enough;) enough = round_up(takes, kStep);
  planned.choice.advice += (planned.choice.fits ? "" : "; ") +
                           ("prepare, which encodes captions and clips before the steps, takes " + format_bytes(peak) +
                            " a rank at its peak, the budget is " + format_bytes(budget) +
                            ". It fits with plan.budget = " + std::to_string(enough / kStep) + "MiB");
  planned.choice.fits = false;
}

std::vector<PricedStep> priced_steps(const Planned& planned) {
  const plan::Plan& plan = planned.plan();
  std::map<std::array<int64_t, 2>, PricedStep> by_kind;
  for (const plan::RankGroup& group : planned.prediction.groups)
    by_kind[plan::rank_kind(plan, group.rank)] = {plan::instructions_hash(group.schedule), false};
  std::vector<PricedStep> by_rank;
  for (int rank = 0; rank < plan.mesh.world(); ++rank) by_rank.push_back(by_kind.at(plan::rank_kind(plan, rank)));
  for (const plan::RankGroup& group : planned.prediction.groups) by_rank[static_cast<size_t>(group.rank)].exact = true;
  return by_rank;
}

void require_priced(const plan::Schedule& schedule, const PricedStep& priced, int rank) {
  const plan::InstructionsHash compiled = plan::instructions_hash(schedule);
  check_internal(
      compiled.work == priced.instructions.work && (!priced.exact || compiled == priced.instructions), "train.plan",
      "rank " + std::to_string(rank) + " compiled a step of " + std::to_string(schedule.list.size()) +
          " instructions with hashes " + std::to_string(compiled.work) + " and " + std::to_string(compiled.exact) +
          ", its plan was priced with " + std::to_string(priced.instructions.work) + " and " +
          std::to_string(priced.instructions.exact) + (priced.exact ? "" : " on a rank like it"));
}

}  // namespace tessera::planning
