#include "tessera/planning/plan_view.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/random.h"
#include "tessera/base/target.h"
#include "tessera/base/units.h"
#include "tessera/device/staging.h"
#include "tessera/job/base_report.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/simulate/libraries.h"
#include "tessera/plan/unit_sizes.h"
#include "tessera/planning/disk_need.h"
#include "tessera/planning/rank_share.h"

namespace tessera::planning {

namespace {

using Json = nlohmann::ordered_json;

/// The bytes of the plan's device whose peak takes `peak`, as a run reserves them.
int64_t planned_bytes(const Planned& planned, const plan::MemoryCurve& memory) {
  return planned.budget > 0 ? planned.budget : memory.peak;
}

/// Lines of libraries as JSON.
Json library_json(const std::vector<plan::LibraryBytes>& lines) {
  Json list = Json::array();
  for (const plan::LibraryBytes& line : lines)
    list.push_back({{"name", line.name}, {"bytes", line.bytes}, {"note", line.note}});
  return list;
}

Json device_json(const Planned& planned, const plan::MemoryCurve& memory) {
  Json parts = Json::object();
  for (const MemoryRow& part : memory_rows(planned, memory)) parts[part.name] = part.bytes;
  Json device = {{"peak_bytes", memory.peak},
                 {"persistent_bytes", memory.persistent},
                 {"budget_bytes", planned.budget},
                 {"at", memory.at_name},
                 {"by_part", parts}};
  const plan::Profile& profile = planned.machine.profile;
  if (profile.target.empty()) return device;
  device["target"] = profile.target;
  device["libraries"] = library_json(planned.workspaces());
  device["beside"] = library_json(planned.beside());
  device["driver_bytes"] = planned.driver_bytes(planned_bytes(planned, memory));
  return device;
}

/// Bytes of a tier by part, as JSON; buffers in transit between tiers count as buffers.
Json tier_json(const plan::MemoryParts& parts) {
  return {{"parameters", parts.parameters},
          {"gradients", parts.gradients},
          {"states", parts.states},
          {"activations", parts.activations},
          {"buffers", parts.slots}};
}

std::string tier_text(const plan::MemoryParts& parts) {
  std::string text;
  for (const auto& [name, bytes] : {std::pair("parameters", parts.parameters),
                                    {"gradients", parts.gradients},
                                    {"states", parts.states},
                                    {"activations and buffers", parts.slots + parts.activations}})
    if (bytes > 0) text += (text.empty() ? "" : ", ") + std::string(name) + " " + format_bytes(bytes);
  return text.empty() ? "nothing" : text;
}

/// null: no frozen parameters are stored in fewer bits.
Json base_json(const plan::ModelSpec& model) {
  const auto base = job::base_facts(model);
  if (!base) return nullptr;
  return {
      {"form", name(base->form)}, {"linears", base->linears}, {"bytes", base->bytes}, {"fp32_bytes", base->fp32_bytes}};
}

/// What each group runs. Of many ranks those that stand for the others tell it.
Json group_hashes(const Planned& planned) {
  constexpr int kAllOf = 256;
  std::vector<int> ranks;
  const int world = planned.plan().mesh.world();
  for (int r = 0; r < world && world <= kAllOf; ++r) ranks.push_back(r);
  for (const plan::RankGroup& alike : planned.prediction.groups)
    if (world > kAllOf) ranks.push_back(alike.rank);
  Json hashes = Json::object();
  for (const int r : ranks) {
    std::map<std::string, std::string> sequence;
    for (const auto& in : plan::compile_train(planned.spec, planned.plan(), r).list)
      for (const auto& comm : in.comm) sequence[in.group] += comm.kind + ":" + std::to_string(comm.bytes) + ";";
    for (const auto& [group, text] : sequence) {
      char hex[20];
      std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(hash_text(text)));
      hashes[group] = hex;
    }
  }
  return hashes;
}

Json candidates(const Planned& planned) {
  Json list = Json::array();
  for (const auto& c : planned.choice.candidates)
    list.push_back({{"plan", c.plan.summary()},
                    {"fits", c.fits},
                    {"seconds", candidate_seconds(planned, c)},
                    {"peak_bytes", c.peak},
                    {"why", c.why}});
  return list;
}

class Table {
 public:
  explicit Table(size_t label) : label_(label) {}
  void row(const std::string& label, const std::string& value, const std::string& note = {}) {
    text_ += "  " + label + std::string(label.size() < label_ ? label_ - label.size() : 1, ' ') + value;
    if (!note.empty()) text_ += std::string(value.size() < 14 ? 14 - value.size() : 1, ' ') + note;
    text_ += "\n";
  }
  void title(const std::string& text) { text_ += text + "\n"; }
  std::string take() { return std::move(text_); }

 private:
  const size_t label_;
  std::string text_;
};

std::string percent(double part, double whole) {
  char text[24];
  std::snprintf(text, sizeof text, "%5.1f %%", whole > 0 ? 100 * part / whole : 0.0);
  return text;
}

}  // namespace

std::vector<const plan::Candidate*> notable(const plan::Choice& choice, size_t fitting, size_t others) {
  std::vector<const plan::Candidate*> order;
  for (const auto& c : choice.candidates) order.push_back(&c);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::make_pair(!a->fits, a->fits ? a->seconds : static_cast<double>(a->peak)) <
           std::make_pair(!b->fits, b->fits ? b->seconds : static_cast<double>(b->peak));
  });
  std::vector<const plan::Candidate*> chosen;
  size_t fit = 0, over = 0;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const auto* c : order)
    if ((c->fits ? fit < fitting : over < others) && seen.emplace(c->plan.summary(), c->peak).second)
      ++(c->fits ? fit : over), chosen.push_back(c);
  return chosen;
}

std::vector<MemoryRow> memory_rows(const Planned& planned, const plan::MemoryCurve& memory) {
  const std::vector<plan::LibraryBytes> workspaces = planned.workspaces();
  const int64_t libraries = plan::bytes_of(workspaces);  // counted as bytes that are there through the run
  const int64_t swap = plan::swap_piece(planned.spec, planned.plan());
  const plan::MemoryParts& parts = memory.by_part;
  std::vector<MemoryRow> rows = {
      {"parameters", parts.parameters, "this rank's shards"},
      {"gradients", parts.gradients, "reduced, this rank's shards"},
      {"states", parts.states, "the optimiser's moments"},
      {"slots", parts.slots - swap, "gathered parameters, gradients and receive buffers in flight"},
      {"activations", parts.activations - libraries, "saved for the backward, inputs, tables"},
      {"temporaries", parts.temporaries, "inside the instruction that runs"}};
  if (swap > 0)
    rows.push_back({"expert swap", swap,
                    planned.plan().shared_base ? "device buffer through which adapters change places"
                                               : "device buffer through which experts are swapped with the " +
                                                     std::string(name(planned.plan().idle))});
  if (libraries > 0) rows.push_back({"libraries", libraries, workspaces.front().name + ": " + workspaces.front().note});
  return rows;
}

std::vector<Fact> beside_rows(const Planned& planned, const plan::MemoryCurve& memory) {
  std::vector<Fact> rows;
  for (const plan::LibraryBytes& line : planned.beside())
    rows.push_back({line.name, format_bytes(line.bytes), line.note});
  if (rows.empty()) return rows;
  const int64_t budget = planned_bytes(planned, memory);
  const plan::Profile& profile = planned.machine.profile;
  const int64_t used = planned.driver_bytes(budget), there = profile.device.memory;
  const std::string beyond =
      used <= there ? std::string()
                    : ", which is less: set plan.budget to " +
                          format_bytes(plan::without_gaps(there - plan::bytes_of(planned.beside()))) + " at most";
  rows.push_back({"in nvidia-smi", format_bytes(used),
                  "with the block of " + format_bytes(plan::with_gaps(budget)) + " that a run reserves for its " +
                      (planned.budget > 0 ? "budget" : "plan") + "; the GPU has " + format_bytes(there) + beyond});
  return rows;
}

std::vector<Fact> elsewhere(const Planned& planned, const plan::MemoryCurve& memory) {
  const std::string budget = planned.host_budget > 0 ? ", budget " + format_bytes(planned.host_budget) : std::string();
  std::vector<Fact> facts = {{"host, a rank", format_bytes(memory.host.total()), tier_text(memory.host) + budget}};
  if (memory.spared > 0)
    facts.push_back({"spared, a rank", format_bytes(memory.spared),
                     "frozen weights of the host tier are shared by the " + std::to_string(planned.plan().local_world) +
                         " ranks of a machine: so much more with copies of its own"});
  facts.push_back({"samples, a rank", format_bytes(planned.loader_bytes()),
                   "further host memory: of this step, and of the next while they are loaded"});
  if (memory.host.total() > 0 && !planned.machine.profile.target.empty())
    facts.push_back({"staging, a rank", format_bytes(device::kStagingBytes),
                     "further host memory: the driver's, used if the system refuses to page-lock the host tier"});
  if (planned.host_encoders > 0)
    facts.push_back({"encoders, a rank", format_bytes(planned.host_encoders),
                     "further host memory: their weights and work buffers"});
  if (planned.kept_weights > 0)
    facts.push_back({"sample.lora, a rank", format_bytes(planned.kept_weights),
                     "further host memory, at most: the weights as they were, while it is in them"});
  if (memory.nvme.total() > 0)
    facts.push_back({"nvme, a rank", format_bytes(memory.nvme.total()), tier_text(memory.nvme)});
  const RunDisk disk = run_disk(planned);
  facts.push_back({"disk, the run", format_bytes(disk.bytes()), disk.text()});
  if (planned.cache_entry > 0)
    facts.push_back(
        {"disk, data.cache", format_bytes(planned.cache_entry), "a sample, at most: latents and text in fp32"});
  return facts;
}

namespace {

/// Of the seconds that encoders take for a step, those behind which the step goes on.
double hidden_encoding(const Planned& planned) {
  return std::max(0.0, planned.encoding.total() - planned.prediction.step.encoders);
}

/// Memory that `prepare` needs on a rank, the part that training keeps, and the time beside a step.
Json encoders_json(const Planned& planned) {
  const EncoderBytes& e = planned.encoders;
  const EncoderSeconds& s = planned.encoding;
  return {{"prepare_peak_bytes", e.prepare()},
          {"vae_weight_bytes", e.codec_weights},
          {"vae_encode_bytes", e.encode},
          {"vae_decode_bytes", e.decode},
          {"vae_workspace_bytes", e.workspace},
          {"vae_tile", e.tile},
          {"vae_tile_frames", e.tile_frames},
          {"text_held_bytes", e.text.held},
          {"text_work_bytes", e.text.work},
          {"text_host_bytes", e.text.host},
          {"pooled_held_bytes", e.pooled.held},
          {"pooled_work_bytes", e.pooled.work},
          {"image_held_bytes", e.image.held},
          {"image_work_bytes", e.image.work},
          {"clip_bytes", e.clip},
          {"captions", s.captions},
          {"caption_seconds", s.caption},
          {"captions_seconds", s.of_captions()},
          {"clips", s.clips},
          {"clip_seconds", s.clip},
          {"clips_seconds", s.of_clips()},
          {"hidden_seconds", hidden_encoding(planned)}};
}

void encoder_rows(Table& table, const EncoderBytes& e) {
  if (e.prepare() == 0 && e.online(0) == 0) return;
  table.title(e.place == recipe::Encoders::cached ? "frozen encoders of a rank, in memory only while they run"
                                                  : "frozen encoders of a rank, in memory during every step");
  if (e.prepare() > 0)
    table.row("prepare", format_bytes(e.prepare()), "at its peak; beside it a clip's pixels, " + format_bytes(e.clip));
  const auto stack = [&](const char* label, const StackBytes& bytes, const char* input) {
    if (bytes.held > 0)
      table.row(label, format_bytes(bytes.held),
                "shards and slots, and " + format_bytes(bytes.work) + " while it encodes a " + input +
                    (bytes.host > 0 ? "; further " + format_bytes(bytes.host) + " on the host" : ""));
  };
  stack("text encoder", e.text, "caption");
  stack("second text encoder", e.pooled, "caption");
  stack("image encoder", e.image, "picture");
  table.row("autoencoder", format_bytes(e.codec_weights),
            "weights, and " + format_bytes(e.encode) + " while a clip is encoded, " + format_bytes(e.decode) +
                " while a sample is decoded" +
                (e.tile > 0 ? ", in tiles of " + std::to_string(e.tile) + " pixels" : std::string()) +
                (e.tile_frames > 0 ? ", " + std::to_string(e.tile_frames) + " frames at a time" : std::string()));
  if (e.workspace > 0)
    table.row("  cuDNN", format_bytes(e.workspace),
              "of both, at most: workspace of a convolution, CUDNN_CONV_WSCAP_DBG=" + cudnn_setting());
}

/// "8 captions of 3.1 ms, 8 clips of 40 ms, 0.2 s hidden behind the step".
std::string encoding_text(const Planned& planned) {
  const EncoderSeconds& s = planned.encoding;
  const auto several = [](int64_t count, const char* what, double each) {
    return std::to_string(count) + what + (count == 1 ? " of " : "s of ") + format_seconds(each);
  };
  std::string text;
  if (s.captions > 0) text = several(s.captions, " caption", s.caption);
  if (s.clips > 0) text += (text.empty() ? "" : ", ") + several(s.clips, " clip", s.clip);
  text += ", " + format_seconds(hidden_encoding(planned)) + " hidden behind the step";
  if (!s.profile.empty()) text += "; on the host, with the rates of profile " + s.profile + " for its processors";
  if (s.place == recipe::Encoders::sharded)
    text += "; captions are not hidden: their gathers run between two steps, in order with the step's collectives";
  return text;
}

std::string per_second(double rate) {
  char text[24];
  std::snprintf(text, sizeof text, rate < 1 ? "%.2g" : rate < 100 ? "%.1f" : "%.0f", rate);
  return text;
}

double samples_per_second(const Planned& planned, const RunSeconds& run) {
  return run.step > 0 ? static_cast<double>(planned.plan().global_batch) / run.step : 0;
}

std::string within_text(const RunSeconds& run) {
  const std::string percent = std::to_string(std::lround(100 * run.within)) + " %";
  return run.probed ? "nine of ten predictions are within " + percent
                    : "not probed: half of published runs are within " + percent;
}

void run_rows(Table& table, const Planned& planned) {
  const RunSeconds run = run_seconds(planned);
  table.row("samples/s", per_second(samples_per_second(planned, run)), "of all ranks; " + within_text(run));
  if (run.sample > 0)
    table.row("a prompt", format_seconds(run.sample),
              "denoised in " + std::to_string(planned.run.sample_steps) + " passes every " +
                  std::to_string(planned.run.sample_every) + " steps; its decoding comes beside");
  table.row("the run", format_seconds(run.total()),
            "of " + std::to_string(run.steps) + (run.steps == 1 ? " step" : " steps") +
                (run.samples > 0 ? " with " + format_seconds(run.samples) + " of samples" : "") +
                "; preparing, checkpoints and held-out loss come beside");
}

void time_rows(Table& table, const Planned& planned) {
  const plan::StepSeconds& step = planned.prediction.step;
  table.title("a step, predicted with profile " + planned.machine.profile.name + ", computing in " +
              (planned.plan().fp8 ? std::string(planned.plan().compute_name()) : planned.machine.dtype));
  table.row("total", format_seconds(step.total));
  const auto part = [&](const std::string& name, double seconds, const std::string& note) {
    table.row(name, format_seconds(seconds), percent(seconds, step.total) + "  " + note);
  };
  const plan::RankGroup& slowest = planned.prediction.groups[planned.prediction.slowest];
  part("compute", step.compute, "forward, recompute, backward, loss");
  part("exposed comm", step.exposed_comm, "of " + format_seconds(slowest.busy_link) + " of collectives");
  if (planned.plan().mesh[Axis::pp] > 1) part("bubble", step.bubble, "waiting for other stages of the pipeline");
  part("exposed copies", step.exposed_copy, "of " + format_seconds(slowest.busy_copy) + " to and from host and disk");
  part("optimiser", step.optimizer, "norm and updates");
  if (step.base > 0)
    part(planned.run.matches()                         ? "networks"
         : planned.run.distils()                       ? "teacher, tangent"
         : planned.run.unguided == plan::AskBase::none ? "without adapters"
         : planned.run.base == plan::AskBase::none     ? "without captions"
                                                       : "for targets",
         step.base, "passes without a gradient, of whose results targets are made");
  if (planned.encoding.total() > 0) part("encoders", step.encoders, encoding_text(planned));
  for (const SecondsRow& row : expert_rows(planned)) table.row(row.label, row.value, row.note);
  run_rows(table, planned);
}

/// The plan's words in those of PyTorch's FSDP, of the ones that this plan has; empty: none.
std::string fsdp_words(const plan::Plan& plan) {
  const auto any = [&](auto wanted) { return std::ranges::any_of(plan.units, wanted); };
  std::string text;
  const auto word = [&](bool used, const char* ours, const char* theirs) {
    if (used) text += (text.empty() ? "" : ", ") + std::string(ours) + " = " + theirs;
  };
  word(any([](const plan::UnitPlan& u) { return u.recomputes(); }), "recompute", "activation checkpointing");
  word(any([](const plan::UnitPlan& u) { return u.offloads(); }), "offload", "activations saved on the CPU");
  word(
      any([](const plan::UnitPlan& u) { return u.parameters != plan::Tier::device || u.states != plan::Tier::device; }),
      "on host", "CPUOffloadPolicy");
  if (plan.mesh.shard_size() <= 1) return text;
  const auto strategy = [&](plan::Strategy of) {
    return any([of](const plan::UnitPlan& u) { return u.strategy == of; });
  };
  word(strategy(plan::Strategy::full_shard), "full_shard (unless a line says otherwise)", "reshard_after_forward=True");
  word(strategy(plan::Strategy::shard_grad_op), "shard_grad_op", "reshard_after_forward=False");
  word(strategy(plan::Strategy::two_level), "two_level", "HYBRID_SHARD");
  word(strategy(plan::Strategy::no_shard), "no_shard", "NO_SHARD");
  return text;
}

}  // namespace

RunSeconds run_seconds(const Planned& planned) {
  const plan::RunShape& shape = planned.run;
  RunSeconds run;
  const int64_t last = shape.last_step > 0 ? std::min(shape.last_step, shape.steps) : shape.steps;
  run.steps = std::max<int64_t>(0, last - shape.first_step + 1);
  run.step = mean_step_seconds(planned);
  constexpr double kOfProbes = 0.10, kOfPublished = 0.14;  // docs/simulator.md
  run.probed = !planned.machine.profile.machine.empty();
  run.within = run.probed ? kOfProbes : kOfPublished;
  if (shape.sample_every <= 0 || shape.sample_prompts <= 0) return run;
  const plan::CostModel cost(planned.spec, planned.plan(), planned.machine);
  const plan::Schedule pass =
      plan::compile_forward(planned.spec, planned.plan(), /*rank=*/0, "sample", planned.guidance_branches);
  const double seconds =
      plan::simulate({plan::tasks_of(pass, cost, /*rank=*/0)}, {.steal = planned.machine.profile.steal}).seconds;
  run.sample = seconds * shape.sample_steps;
  int64_t times = last / shape.sample_every - (shape.first_step - 1) / shape.sample_every;
  if (last == shape.steps && last % shape.sample_every != 0) ++times;  // at the end as well
  run.samples = run.sample * static_cast<double>(shape.sample_prompts * times);
  return run;
}

nlohmann::ordered_json seconds_json(const plan::StepSeconds& step) {
  return {{"total", step.total},
          {"compute", step.compute},
          {"exposed_comm", step.exposed_comm},
          {"exposed_copy", step.exposed_copy},
          {"bubble", step.bubble},
          {"optimizer", step.optimizer},
          {"encoders", step.encoders},
          {"base", step.base}};
}

double candidate_seconds(const Planned& planned, const plan::Candidate& candidate) {
  if (candidate.seconds > 0) return candidate.seconds;
  // For another micro-batch than the measured one, scaled in proportion; what encoders take for a step stays what it is.
  const double samples = static_cast<double>(candidate.plan.micro_batch) / static_cast<double>(planned.spec.samples);
  plan::ModelSpec measured = planned.spec;
  measured.smaller.clear();
  plan::Machine machine = planned.machine;
  for (double* seconds : {&machine.beside.between, &machine.beside.device, &machine.beside.host}) *seconds /= samples;
  return samples * plan::predict(measured, candidate.plan, machine).step.total;
}

std::string plan_json(const Planned& planned) {
  const int rank = planned.highest_rank();
  const plan::MemoryCurve memory = planned.memory(rank);
  Json mesh = Json::object();
  for (Axis axis : kAllAxes) mesh[std::string(axis_name(axis))] = planned.plan().mesh[axis];
  const plan::StepSeconds& step = planned.prediction.step;
  const plan::RankGroup& slowest = planned.prediction.groups[planned.prediction.slowest];
  const auto& units = planned.plan().units;
  const RunDisk disk = run_disk(planned);
  const RunSeconds run = run_seconds(planned);
  Json json = {
      {"fits", planned.choice.fits},
      {"mesh", mesh},
      {"rank", rank},
      {"model",
       {{"name", planned.spec.name}, {"parameters", planned.spec.numel()}, {"tokens", planned.spec.all_tokens()}}},
      {"frozen_base", base_json(planned.spec)},
      {"summary", planned.plan().summary()},
      {"plan_hash", plan::plan_hash(planned.plan())},
      {"update",
       {{"when", std::string(name(planned.plan().update))},
        {"units_on_host", std::count_if(units.begin(), units.end(),
                                        [](const plan::UnitPlan& u) { return u.update_on == plan::Tier::host; })},
        {"threads", planned.plan().update_threads}}},
      {"attention", planned.spec.attention().text()},
      {"profile", planned.machine.profile.name},
      {"device", device_json(planned, memory)},
      {"host",
       {{"peak_bytes", memory.host.total()},
        {"budget_bytes", planned.host_budget},
        {"by_part", tier_json(memory.host)},
        {"spared_bytes", memory.spared},
        {"samples_bytes", planned.loader_bytes()},
        {"encoders_bytes", planned.host_encoders},
        {"sample_lora_bytes", planned.kept_weights}}},
      {"encoders", encoders_json(planned)},
      {"disk",
       {{"checkpoint_bytes", disk.checkpoint_bytes + disk.beside_bytes},
        {"checkpoints", disk.checkpoints},
        {"exports", disk.exports},
        {"models", disk.models},
        {"export_bytes", disk.export_bytes},
        {"cache_sample_bytes", planned.cache_entry},
        {"nvme_bytes", memory.nvme.total()},
        {"nvme_by_part", tier_json(memory.nvme)},
        {"peak_bytes", disk.bytes() + memory.nvme.total() * planned.plan().mesh.world()}}},
      {"step_seconds", seconds_json(step)},
      {"run",
       {{"steps", run.steps},
        {"seconds", run.total()},
        {"samples_per_second", samples_per_second(planned, run)},
        {"prompt_seconds", run.sample},
        {"prompts_seconds", run.samples},
        {"probed", run.probed},
        {"within", run.within}}},
      {"busy_seconds", {{"collectives", slowest.busy_link}, {"copies", slowest.busy_copy}}},
      {"experts", expert_json(planned)},
      {"flops_per_second", planned.prediction.flops_per_second},
      {"group_hashes", group_hashes(planned)},
      {"candidates", candidates(planned)},
      {"why", planned.choice.why},
      {"warning", planned.choice.warning},
      {"advice", planned.choice.advice}};
  for (const MemoryPrice& price : planned.prices)
    json["prices"].push_back({{"memory", std::string(name(price.memory))},
                              {"more_bytes", price.bytes},
                              {"seconds", price.seconds},
                              {"change", price.seconds / planned.choice.seconds - 1},
                              {"binds", price.binds}});
  return json.dump(2) + "\n";
}

std::string plan_words(const Planned& planned) {
  const plan::MemoryCurve memory = planned.memory(planned.highest_rank());
  const RunSeconds run = run_seconds(planned);
  const auto of = [](int64_t budget) { return budget > 0 ? " of " + format_bytes(budget) : std::string(); };
  std::string text = planned.spec.name + " on mesh " + planned.plan().mesh.to_string() + ": a step takes about " +
                     format_seconds(run.step) + ", " + per_second(samples_per_second(planned, run)) +
                     " samples/s, and the run " + format_seconds(run.total()) + " (" + within_text(run) +
                     "). A rank takes " + format_bytes(memory.peak) + of(planned.budget) + " of its device";
  if (memory.host.total() > 0)
    text += " and " + format_bytes(memory.host.total()) + of(planned.host_budget) + " of its host";
  text += ". The plan: " + planned.plan().summary();
  if (const std::string words = fsdp_words(planned.plan()); !words.empty()) text += " (in FSDP's words: " + words + ")";
  text += ".";
  if (!planned.choice.warning.empty()) text += " Warning: " + planned.choice.warning + ".";
  return text + "\n";
}

namespace {

Fact teacher_of_other_sizes(const Planned& planned, int rank) {
  const plan::ModelSpec& model = planned.teacher->model;
  const plan::Plan plan = planned.teacher_plan();
  const plan::MemoryCurve kept = plan::memory_curve(model, plan, {}, rank);
  return {"teacher", format_bytes(kept.persistent + kept.host.total()) + " of parameters",
          "frozen; of other sizes, " + std::to_string(model.numel()) +
              " parameters, with a plan of its own: full shards on the " + std::string(name(planned.plan().teacher)) +
              "; in the student's steps alone"};
}

/// Of a run of several networks, what each takes of a rank; of one or of experts nothing.
std::vector<Fact> networks(const Planned& planned) {
  const plan::Plan& plan = planned.plan();
  if (plan.teachers == 0 && !plan.shared_base && !planned.teacher) return {};
  const int rank = planned.highest_rank();
  const plan::UnitSizes sizes(planned.spec, plan, rank);
  int64_t parameters = 0, states = 0, own = 0;
  for (size_t u = 0; u < planned.spec.units.size(); ++u) {
    if (!plan.owns(rank, static_cast<int>(u))) continue;
    own += plan.inactive_bytes(sizes.layout(static_cast<int>(u)));
    parameters += plan::shard_bytes(sizes.layout(static_cast<int>(u)), plan.states.masters);
    states += sizes.state_bytes(static_cast<int>(u));
  }
  const std::string shards = format_bytes(parameters) + " of parameters";
  if (planned.run.matches() && planned.plan().teachers == planned.plan().experts - 1)
    return {{"student", shards + ", " + format_bytes(states) + " of states", "trained"},
            {"teacher", shards,
             "frozen; " + std::to_string(planned.run.passes_of(1).all()) +
                 " passes before each step, between them on the " + std::string(name(plan.idle))}};
  if (planned.run.matches()) {
    const std::string trained = (plan.shared_base ? format_bytes(own) + " of adapters" : shards) + ", " +
                                format_bytes(states) + " of states",
                      between = "on the " + std::string(name(plan.idle)) + " while another runs",
                      in_chunks = planned.run.chunks > 1 ? " in " + std::to_string(planned.run.chunks) + " chunks" : "";
    return {
        {"student", trained,
         "trained in the first step of a cycle; makes the clips of every step" + in_chunks + "; " + between},
        {"critic", trained, "trained in the other steps; " + between},
        planned.teacher ? teacher_of_other_sizes(planned, rank)
        : plan.shared_base
            ? Fact{"teacher", format_bytes(parameters - own) + " of parameters",
                   "frozen; the base of student and critic, kept once; in the student's steps alone, without adapters"}
            : Fact{"teacher", shards, "frozen; in the student's steps alone; " + between}};
  }
  const std::string steps = planned.run.judges ? "every second step" : "each step";
  std::vector<Fact> all = {
      {"student", shards + ", " + format_bytes(states) + " of states", "trained; in forward mode before " + steps},
      {"teacher", shards,
       "frozen; " + std::to_string(planned.run.teacher_passes) + " passes before " + steps + ", between them on the " +
           std::string(name(plan.idle))}};
  const diffusion::HeadsBytes& heads = planned.heads;
  if (heads.heads > 0)
    all.push_back({"discriminator",
                   format_bytes(heads.parameters) + " of parameters, " + format_bytes(heads.gradients) +
                       " of gradients, " + format_bytes(heads.states) + " of states, on the host",
                   std::to_string(heads.heads) +
                       " heads on the teacher's blocks, whole on each rank, trained in every second step; " +
                       format_bytes(std::ranges::max(heads.activations)) + " of activations between steps"});
  return all;
}

}  // namespace

std::string plan_text(const Planned& planned) {
  const plan::MemoryCurve memory = planned.memory(planned.highest_rank());
  Table table(18);
  table.title(planned.spec.name + ": " + std::to_string(planned.spec.numel()) + " parameters" +
              (planned.plan().shared_base ? " in a base and the adapters of one of two networks, "
               : planned.plan().teachers > 0 || planned.teacher
                   ? " in each of " + std::to_string(planned.plan().experts) + " networks, "
               : planned.plan().experts > 1 ? " in each of " + std::to_string(planned.plan().experts) + " experts, "
                                            : ", ") +
              std::to_string(planned.spec.all_tokens()) + " tokens a micro-batch, mesh " +
              planned.plan().mesh.to_string());
  table.row("plan", planned.plan().summary());
  if (const std::string words = fsdp_words(planned.plan()); !words.empty()) table.row("in FSDP's words", words);
  if (const auto base = job::base_facts(planned.spec)) table.row("base", job::describe(*base));
  for (const Fact& network : networks(planned)) table.row(network.name, network.value, network.note);
  table.row("why", planned.choice.why);
  if (const std::string kernels = planned.spec.attention().text(); !kernels.empty()) table.row("attention by", kernels);
  if (planned.graphs.asked || !planned.machine.profile.target.empty())
    table.row("CUDA graphs", planned.graphs.on ? "on" : "off", planned.graphs.why);
  if (!planned.choice.warning.empty()) table.row("warning", planned.choice.warning);
  if (!planned.choice.advice.empty()) table.row("advice", planned.choice.advice);
  table.title("device memory of a rank, at its peak");
  table.row("total", format_bytes(memory.peak),
            "while " + memory.at_name + " runs" +
                (planned.budget > 0 ? ", budget " + format_bytes(planned.budget) : std::string()) +
                (planned.choice.fits ? "" : "  DOES NOT FIT"));
  for (const MemoryRow& part : memory_rows(planned, memory))
    table.row(part.name, format_bytes(part.bytes),
              percent(static_cast<double>(part.bytes), static_cast<double>(memory.peak)) + "  " + part.what);
  if (const std::vector<Fact> beside = beside_rows(planned, memory); !beside.empty()) {
    table.title("beside it on the GPU, for " + planned.machine.profile.target);
    for (const Fact& fact : beside) table.row(fact.name, fact.value, fact.note);
  }
  table.title("elsewhere");
  for (const Fact& fact : elsewhere(planned, memory)) table.row(fact.name, fact.value, fact.note);
  encoder_rows(table, planned.encoders);
  time_rows(table, planned);
  constexpr size_t kFitting = 4, kOthers = 2;
  const auto shown = notable(planned.choice, kFitting, kOthers);
  if (shown.empty()) return table.take();
  table.title("considered: " + std::to_string(planned.choice.candidates.size()) +
              (planned.choice.candidates.size() == 1 ? " plan" : " plans") +
              (planned.choice.candidates.size() > shown.size() ? ", the nearest of them" : ""));
  for (const auto* c : shown)
    table.row(format_seconds(candidate_seconds(planned, *c)) + ", " + format_bytes(c->peak),
              c->plan.summary() + ": " + c->why + (c->plan == planned.plan() ? "  <- chosen" : ""));
  return table.take();
}

}  // namespace tessera::planning
