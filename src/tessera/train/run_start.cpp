// What a run does before its first step, and after its last.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/log.h"
#include "tessera/base/quotes.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/crc32c.h"
#include "tessera/checkpoint/damaged.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/in_place.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/device/backend.h"
#include "tessera/device/driver_watch.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/store/average.h"
#include "tessera/job/base_report.h"
#include "tessera/job/codec.h"
#include "tessera/job/device.h"
#include "tessera/job/given_checks.h"
#include "tessera/job/lora_run.h"
#include "tessera/job/null_caption.h"
#include "tessera/job/optimiser.h"
#include "tessera/job/random_parts.h"
#include "tessera/ops/scalar_type.h"
#include "tessera/ops/target.h"
#include "tessera/planning/disk_need.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/plan_view.h"
#include "tessera/prepare/pace.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/report/run_report.h"
#include "tessera/train/elastic.h"
#include "tessera/train/export.h"
#include "tessera/train/foreign_checkpoint.h"
#include "tessera/train/gate_schedule.h"
#include "tessera/train/run.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

/// What becomes of an export or a report that failed.
constexpr const char* kNextStart = "start the run again to repeat it";

/// This build, by the bytes of its file.
std::string program() {
  const std::string bytes = checkpoint::read_text(this_program());
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x", checkpoint::crc32c(bytes.data(), bytes.size()));
  return "tessera of " + std::to_string(bytes.size()) + " bytes with checksum " + sum;
}

/// When the launcher began whose child this process is, ours or torchrun's agent, in seconds since 1970, to a hundredth; 0
/// where /proc does not show it.
double launcher_start() {
  std::ifstream in("/proc/" + std::to_string(getppid()) + "/stat");
  const std::string process(std::istreambuf_iterator<char>(in), {});
  const size_t name_end = process.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(process.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // the 22nd of all: clock ticks from the machine's start
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  return seconds(CLOCK_REALTIME) - seconds(CLOCK_BOOTTIME) +
         std::atof(field.c_str()) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// The first free one of recipe-1.toml, recipe-2.toml, ...
fs::path next_recipe(const fs::path& run) {
  for (int n = 1;; ++n)
    if (const fs::path name = run / ("recipe-" + std::to_string(n) + ".toml"); !fs::exists(name)) return name;
}

/// Keeps the texts that `recipe` replaces, each as the next recipe-N.toml: the one by which the run last went, which who
/// edits RUN/recipe.toml has overwritten, and one that stands there and never ran. Then writes it.
void write_recipe(const fs::path& run, const std::string& recipe) {
  const fs::path file = run / "recipe.toml", copy = run / ".recipe.toml";
  std::string before;
  if (fs::exists(copy)) before = checkpoint::read_text(copy);
  if (!before.empty() && before != recipe) checkpoint::write_text(next_recipe(run), before);
  if (fs::exists(file))
    if (const std::string there = checkpoint::read_text(file); there != recipe && there != before)
      checkpoint::publish(file, next_recipe(run));
  checkpoint::write_text(file, recipe);
  checkpoint::write_text(copy, recipe);
}

/// What rank 0 has in `text`, on every rank.
std::string text_of_rank_zero(comm::Comm& comm, std::string text) {
  comm::Group& all = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  text.resize(static_cast<size_t>(all.all_gather_doubles({static_cast<double>(text.size())})[0][0]));
  all.broadcast(at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kChar), 0);
  return text;
}

/// The tokenizer that was made of the captions, in the run's folder: captions and cache may go.
fs::path keep_tokenizer(const fs::path& made, const fs::path& run) {
  const fs::path kept = run / "tokenizer.model";
  if (!fs::exists(kept) || checkpoint::read_text(kept) != checkpoint::read_text(made))
    checkpoint::write_text(kept, checkpoint::read_text(made));
  return kept;
}

}  // namespace

Run::Run(recipe::Recipe recipe, std::string trace, const comm::Rendezvous& place, StartTimes started)
    : recipe_(std::move(recipe)),
      place_(place),
      rank_(place.rank),
      mesh_(elastic_mesh(recipe_.mesh, place)),
      started_(started),
      watch_(place),
      comm_(place, mesh_, recipe_.fault.timeout),
      slow_(mesh_, {recipe_.fault.slow_factor, recipe_.fault.slow_steps}),
      trace_(std::move(trace)) {
  watch_.follow(comm_);
  job::check_devices(comm_);
  watch_.follow_device(comm_);
  if (recipe_.run.library_sums()) comm_.sum_by_library();
  warn_without_gpu();
  comm_.check_agreement("program", program());
  comm_.check_agreement("recipe", recipe_.to_toml());
  phase(StartPhase::model);
  job_ = job::make_job(recipe_);
  job_.local_world = place_.local_world;
  planning::check_mesh(mesh_, *job_.model, job_.latent);  // before hours of encoding
  recipe_.plan.budget = job::reserve_device(place_, recipe_.plan.budget, planning::beside_plan(recipe_, job_, mesh_));
  job::check_trainable(job_);
  job::check_weights(recipe_, job_);
  if (recipe_.sample.every > 0) sample::check_loras(recipe_.sample.loras, job_);
  recipe_.set("data.vae_tile", std::to_string(job_.vae_tile));
  if (job::tiles_in_time(*job_.codec)) recipe_.set("data.vae_tile_frames", std::to_string(job_.vae_tile_frames));
  out_ = recipe_.run.out;
  checkpoints_ = out_ / "checkpoints";
  check_start();
  phase(StartPhase::data);
  data_ = prepare::prepare_parts(recipe_, job_, mesh_, comm_, rank_);
  require_other_course();
  plan_run();
  start();
  started_.end();
  tell_start();
}

void Run::phase(StartPhase phase) {
  started_.begin(phase);
  watch_.phase(0, name(phase));
}

/// Keys that this rank cannot obey, of a recipe that leaves the device to the machine.
void Run::warn_without_gpu() const {
  if (rank_ != 0 || recipe_.run.device == "cpu") return;  // a recipe for a CPU is told where it is read
  if (recipe_.run.library_sums() && !comm_.by_device())
    log::warn(
        "run.sums = library has no effect: NCCL sends nothing here, and other sums are in the order of the ranks");
  if (recipe_.run.deterministic && !device::used())
    log::warn("run.deterministic = true has no effect: CPU ranks give the same bits each time");
}

/// All that may refuse the run for what its folder holds, before anything there is written.
void Run::check_start() {
  if (rank_ == 0) planning::check_own_folder(out_);
  if (rank_ == 0 && !comm::RunLock::held_by_launcher(out_)) lock_.emplace(out_);
  facts_ = run_facts(recipe_, job_);
  asked_ = recipe_.run.resume;
  if (is_foreign_checkpoint(asked_)) asked_ = adopt(recipe_, job_, facts_, comm_, place_).string();
  diverged_ = read_divergence(out_);
  // Steps that were skipped up to the end may have been of one bad sample: the same recipe on the same data goes on.
  choose_checkpoint(diverged_ && (!diverged_->skipping ||
                                  !other_course(*diverged_, recipe_values(recipe_), diverged_->data).empty()));
  if (rank_ != 0) return;
  for (const fs::path& folder : checkpoint::without_manifest(checkpoints_))
    log::warn(folder.string() + " has no manifest.json, so it is not complete and is not used; " +
              (resume_.from ? "the run goes on from " + resume_.from->string() : "the run begins at step 0"));
  for (const fs::path& folder : {checkpoints_, out_ / "samples"}) checkpoint::make_folder(folder, "check run.out");
}

/// The one that the run goes on from; `back`: because of what diverged. All ranks together.
void Run::choose_checkpoint(bool back) {
  resume_ = checkpoint::choose_resume(asked_, out_, place_.attempt > 0 ? std::optional(launcher_start()) : std::nullopt,
                                      back);
  resumed_.reset();
  comm_.check_agreement("checkpoint to go on from", checkpoint::describe(resume_));
  if (resume_.from) resumed_ = std::make_unique<checkpoint::TrainingCheckpoint>(*resume_.from);
  if (!resumed_) job::check_random_parts(recipe_, job_.experts, job_.image != nullptr);
  if (resumed_) job::check_experts(job_.experts, resumed_->manifest());
  if (resumed_ && recipe_.values.at("run.resume_changes") != "allow") require_same(facts_, resumed_->manifest());
}

/// Takes over the run's folder: removes the remains of killed runs, and moves away checkpoints, exports and metrics lines
/// after the checkpoint from which this run resumes.
void Run::claim_folder() {
  const fs::path exports = out_ / checkpoint::kExports;
  for (const auto& name : checkpoint::clean_partials(checkpoints_))
    log::info("removed the incomplete checkpoint " + name);
  checkpoint::clean_partials(exports);
  std::vector<fs::path> written = {out_,           out_ / "samples",   out_ / "references",
                                   out_ / "model", out_ / "model_ema", exports};
  if (job_.experts.several())
    for (const job::Expert& expert : job_.experts.list)
      for (const char* model : {"model", "model_ema"}) written.push_back(out_ / model / expert.folder);
  for (const fs::path& folder : written) checkpoint::remove_dead_partials(folder);
  remove_rank_files(out_ / "schedule.jsonl");
  if (resume_.gone_on)
    log::info("run.resume = " + recipe_.run.resume +
              ": this run has resumed from there before, so it now resumes from its " +
              "newest checkpoint; to go back again, name another checkpoint");
  if (resume_.back)
    log::info("step " + std::to_string(diverged_->step) + " was not finite, and " + other_course_ +
              " has changed since: the run goes back to " + (resume_.from ? resume_.from->string() : "its beginning"));
  leave_behind(out_, resumed_ ? resumed_->manifest().step : 0, resume_.beyond);
  if (!skips_noted_) forget_divergence(out_);
  prune();  // a kill may have come before the last one
  write_plan();
}

/// The plans of all parts of the run as text, the same on every rank. Rank 0 searches and tells what it found, or why
/// the run ends; the others wait for as long as that takes.
std::vector<std::string> Run::searched_plans(const std::vector<int>& prompts) {
  phase(rank_ == 0 ? StartPhase::plan : StartPhase::wait);
  prepare::Pace pace(comm_, mesh_);
  const auto search = [&] {
    if (rank_ != 0) return;
    plans_ = planning::plan_parts(recipe::run_parts(recipe_), job_, mesh_, prompts, [this](planning::PlanPhase next) {
      phase(next == planning::PlanPhase::measuring ? StartPhase::measure : StartPhase::plan);
    });
    log::info(planning::plans_text(plans_));
    for (const std::string& line : experts_->describe()) log::info(line);
    planning::require_fit(plans_);
    std::vector<fs::path> stays = resume_.beyond;
    const int64_t from = resumed_ ? resumed_->manifest().step : 0;
    for (const fs::path& behind : checkpoint::exports_behind(out_, from)) stays.push_back(behind);
    for (const planning::PartPlan& p : plans_) planning::check_disk(p.planned, out_, stays);
  };
  pace.run(search);
  try {
    pace.barrier();
  } catch (const UserError& error) {
    if (error.code() == Exit::rank_lost) throw;
    throw ToldByRankZero{error.code()};
  }
  std::vector<std::string> texts(recipe::run_parts(recipe_).size());
  for (size_t p = 0; p < texts.size(); ++p) {
    if (rank_ == 0) texts[p] = plans_[p].planned.plan().to_toml(plans_[p].planned.unit_names());
    texts[p] = text_of_rank_zero(comm_, texts[p]);
    std::vector<planning::PricedStep> priced(static_cast<size_t>(place_.world));
    if (rank_ == 0) priced = planning::priced_steps(plans_[p].planned);
    const auto bytes = static_cast<int64_t>(priced.size() * sizeof(planning::PricedStep));
    comm_.group("control", {kAllAxes.begin(), kAllAxes.end()})
        .broadcast(at::from_blob(priced.data(), {bytes}, at::kChar), 0);
    priced_.push_back(priced[static_cast<size_t>(rank_)]);
  }
  return texts;
}

void Run::plan_run() {
  std::vector<int> prompts;
  for (const prepare::StageData& data : data_) prompts.push_back(data.samples->prompts());
  experts_ = make_expert_schedule(job_, recipe_, data_, comm_, mesh_, rank_);
  plan::check_machine(plan::find_profile(recipe_.plan.profile), job::computing_machine());
  const std::vector<std::string> found = searched_plans(prompts);
  if (rank_ != 0)
    plans_ = planning::take_parts(
        recipe::run_parts(recipe_), job_, mesh_, prompts, found, rank_, [this](planning::PlanPhase next) {
          phase(next == planning::PlanPhase::measuring ? StartPhase::measure : StartPhase::compile);
        });
  phase(StartPhase::compile);
  std::string all;
  for (const planning::PartPlan& p : plans_) all += p.planned.plan().to_toml(p.planned.unit_names());
  comm_.check_agreement("plan", all);
  model_flops_.emplace(*job_.model);
  for (const planning::PartPlan& p : plans_)  // counted now: memory is planned from step 1 on
    for (size_t bucket = 0; bucket < p.shapes.bucket_tokens.size(); ++bucket) sample_flops(p, bucket);
}

/// The plans, and the resolved recipe: an earlier one with another text stays beside it, as recipe-1.toml and so on.
void Run::write_plan() {
  recipe::Recipe resolved = planning::resolved(recipe_, plans_, place_);
  resolved.set(recipe::kStartedIn, fs::current_path().string());
  const fs::path tokenizer = data_.front().samples->tokenizer();
  if (tokenizer.parent_path() == fs::path(recipe_.data.cache) &&
      tokenizer.filename().string().starts_with("tokenizer-"))
    resolved.set("data.tokenizer", keep_tokenizer(tokenizer, out_).string());
  checkpoint::write_text(out_ / "plan.json", planning::plans_json(plans_));
  write_recipe(out_, resolved.to_toml());
  checkpoint::write_text(out_ / "plan.txt", planning::plans_text(plans_));
  for (const planning::PartPlan& p : plans_) {
    const std::string plan = p.part.number == 0 ? "plan.toml" : "plan-stage-" + std::to_string(p.part.number) + ".toml";
    checkpoint::write_text(out_ / plan, p.planned.plan().to_toml(p.planned.unit_names()));
  }
}

void Run::start() {
  phase(StartPhase::buffers);
  engine::EngineOptions options;
  options.poison = std::getenv("TESSERA_POISON") != nullptr;
  options.local_ranks = place_.local_world, options.nvme = recipe_.plan.disk();
  if (!trace_.empty()) options.trace = trace_ + ".rank-" + std::to_string(rank_);
  int64_t host = 0;
  for (const planning::PartPlan& p : plans_) host = std::max(host, p.planned.memory(rank_).host.total());
  job::place_host_memory(comm_, host);
  engine_ =
      std::make_unique<engine::Engine>(job_.model->units(), planned().spec, planned().plan(), comm_, rank_, options);
  auto optimiser = job::optimiser_of(recipe_, planned().plan().states);
  if (rank_ == 0 && !device::here().is_cpu() && !optimiser->on_device())
    log::info("train.optimizer = \"" + recipe_.values.at("train.optimizer") +
              "\" has no kernels for this device: its updates run on the host, on copies");
  engine_->optimise(std::move(optimiser));
  engine_->executor().read_times();
  watch_.follow(*engine_);
  watch_gpu();
  objective_.emplace(*job_.model, rank_);
  loss_scale_ = LossScale(planned().plan(), recipe_.train);
  step_size_ = StepSize(recipe_, job_.experts.size());
  spikes_ = Spikes(recipe_.run.spike, job_.experts.size());
  phase(StartPhase::weights);
  load();
  phase(StartPhase::compile);
  progress_ = std::make_unique<report::Progress>(rank_ == 0, recipe_.run.steps, done_);
  if (recipe_.plan.budget > 0) engine::Meter::set_budget(recipe_.plan.budget);
  loader_ = std::make_unique<Loader>(/*threads=*/1);
  begin_part(part_);
  if (owes_samples()) walk_->make_up_samples();
}

/// Where the time before the first step went, on every rank.
void Run::tell_start() {
  const StartSeconds& own = started_.seconds();
  const auto ranks =
      comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({own.begin(), own.end()});
  if (rank_ != 0) return;
  std::vector<report::Phases> phases(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (size_t p = 0; p < own.size(); ++p)
      if (ranks[rank][p] > 0) phases[rank].emplace_back(name(static_cast<StartPhase>(p)), ranks[rank][p]);
  log::info(describe(own));
  run_log_->start(done_, describe(own), phases);
}

/// cuDNN compiles a plan for each shape of attention when that is first called, in tenths of a second: those of the part's
/// shapes here, before its first step.
void Run::compile_attention(const planning::PartPlan& part) const {
  const plan::Plan& plan = part.planned.plan();
  if (plan.attention != plan::Attention::cudnn || device::here().is_cpu()) return;
  const auto begun = std::chrono::steady_clock::now();
  std::set<int64_t> counts;  // samples of a micro-batch
  for (int64_t micro = 0; micro < plan.accumulation(); ++micro)
    counts.insert(std::max<int64_t>(1, plan.slice(mesh_.dp_rank(rank_), micro).count));
  plan::AttentionUse use = part.planned.spec.attention();
  const ops::TargetScope scope(planning::measured_target(part.planned.machine.profile));
  for (const data::Bucket& size : part.part.recipe.data.clips.buckets) {
    net::Sample blank =
        job::blank_sample(recipe_, *job_.model, job_.codec->latent_shape(size.frames, size.height, size.width));
    blank.context = blank.context.to(at::kMeta);
    for (const int64_t count : counts)
      use.add(engine::measure(
                  job_.model->units(), job_.model->pack(std::vector<net::Sample>(static_cast<size_t>(count), blank)),
                  job_.name,
                  {.train = false, .mesh = mesh_, .compute = plan.compute, .attention = plan.attention, .rank = rank_})
                  .attention());
  }
  if (use.shapes.empty()) return;
  ops::compile_attention(use, scalar_type(plan.compute), device::here());
  if (rank_ == 0)
    log::info("cuDNN compiled attention of " + std::to_string(use.shapes.size()) +
              (use.shapes.size() == 1 ? " shape in " : " shapes in ") +
              format_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count()));
}

void Run::watch_gpu() {
  if (!device::driver()) return;
  device::driver()->take();  // the numbers of a step begin here
  if (rank_ == 0 && !device::driver()->absence().empty()) log::info(device::driver()->absence());
}

/// How the communicators that the programs use send, once each; and what is slower than it need be.
void Run::tell_links() {
  std::map<std::string, std::string> by;  // names, by how they send
  std::set<std::string> warnings;
  for (const comm::Link& link : comm_.links()) {
    if (!told_links_.insert(link.group).second) continue;
    std::string& names = by[link.by];
    names += (names.empty() ? "" : ", ") + link.group + " (" + std::to_string(link.ranks) + ")";
    if (!link.warning.empty()) warnings.insert(link.warning);
  }
  if (rank_ != 0) return;
  for (const auto& [way, names] : by) log::info("communicators by " + way + ": " + names);
  for (const std::string& warning : warnings) {
    log::warn(warning);
    run_log_->warning(done_, "transport", warning);
  }
}

/// Weights, states and what else a checkpoint holds; or the first ones.
void Run::load() {
  engine::Store& store = engine_->store();
  engine::Roundings rounded;
  if (resumed_) {
    if (recipe_.lora.on)  // the checkpoint has the adapters alone
      rounded = job::load_initial_weights(recipe_, job_, store);
    experts_->resume(store, *resumed_);
    done_ = resumed_->manifest().step;
    while (part_ + 1 < plans_.size() && plans_[part_].part.last <= done_) ++part_;
    loss_scale_.restore(resumed_->manifest());
    step_size_.restore(resumed_->manifest());
    spikes_.restore(resumed_->manifest());
    if (own_checkpoint()) restore_unproved(resumed_->manifest());
    log::info("resumed from " + resumed_->path().string());
    if (done_ >= recipe_.run.steps)
      log::info("nothing to train: step " + std::to_string(done_) +
                " is saved and run.steps = " + std::to_string(recipe_.run.steps) + "; raise run.steps to train on");
  } else {
    rounded = job::load_initial_weights(recipe_, job_, store);
    experts_->load_model(recipe_.model.path);
    job::each_expert(store, job_.experts, [&](size_t e, const std::string&) {
      job::start_adapters(job::for_expert(recipe_, job_.experts, e), store, comm_);
      engine::begin_averages(store);
    });
  }
  wait_for_slowest([&](prepare::Pace&) {
    watch_.phase(done_,
                 rank_ == 0 ? "taking over the run's folder" : "waiting for rank 0 to take over the run's folder",
                 RankWatch::kSlowWork);
    if (rank_ != 0) return;
    claim_folder();
    open_log();
    if (own_checkpoint() && recipe().exports_saves() &&
        !fs::exists(checkpoint::step_folder(out_ / checkpoint::kExports, done_)))
      export_save(done_, *resume_.from);  // a kill or a full disk kept it from being written
  });
  if (own_checkpoint()) name_checkpoint(resume_.from->string());
  resumed_.reset();
  log_base(rounded);
}

/// Whether the run goes on from a checkpoint of its own.
bool Run::own_checkpoint() const {
  std::error_code none;
  return resume_.from && fs::equivalent(resume_.from->parent_path(), checkpoints_, none);
}

/// Continues metrics.jsonl, and adds the events that a kill kept out of it.
void Run::open_log() {
  run_log_ = std::make_unique<report::RunLog>(out_, done_, recipe_.run.on_event);
  const report::History& found = run_log_->found();
  if (!found.strays.empty())
    log::warn((out_ / "metrics.jsonl").string() + ": " + report::told_strays(found.strays, found.begin));
  const bool own = own_checkpoint();
  const bool removed = found.bytes == 0, begun_elsewhere = found.last_step == 0 && !resume_.line.empty();
  if (own && (removed || !begun_elsewhere) && found.last_step < done_) {
    const std::string text = (removed ? "there is no metrics.jsonl, removed or left behind,"
                                      : "metrics.jsonl ends at step " + std::to_string(found.last_step)) +
                             std::string(" and the checkpoint is of step ") + std::to_string(done_) +
                             (removed ? ": the steps up to it are missing from the history"
                                      : ": the steps between are missing from the history");
    log::warn(text);
    if (!found.has("warning")) run_log_->warning(done_, "history", text);
  }
  if (own && !found.has("checkpoint")) run_log_->checkpoint(done_, resume_.from->string(), {});
  for (const comm::FaultNote& note : comm::fault_notes(out_))
    if (!found.fault_times.contains(note.time)) run_log_->restart(done_, note.text, note.time);
  tell_resume();
  run_log_->flush();
  comm::forget_faults(out_);
}

/// Where the run goes on from, and what is different since.
void Run::tell_resume() {
  if (!resumed_) return;
  run_log_->resume(done_, resumed_->path().string());
  const Values recipe = recipe_values(planning::resolved(recipe_, plans_, place_));
  for (const Change& change : changes(facts_, recipe, resumed_->manifest())) {
    log::info(change.text());
    run_log_->change(done_, change.key, change.before, change.now, change.text());
  }
}

/// Logs the size and the quantisation error of a quantised base.
void Run::log_base(const engine::Roundings& rounded) {
  const std::optional<job::BaseFacts> facts = job::base_facts(planned().spec);
  if (!facts) return;
  const job::BaseError error = job::base_error(planned().spec, rounded, comm_);
  if (rank_ != 0) return;
  log::info(job::describe(*facts) + "; " + job::describe(error));
  if (done_ == 0) run_log_->base(std::string(name(facts->form)), error.all, error.worst, error.worst_linear);
}

int Run::finish() {
  progress_->finish();
  if (stopping_) {
    if (rank_ == 0) {
      run_log_->stop(done_ + steps_, "stopped by " + signal_name(stopping_));
      log::warn("stopped by " + signal_name(stopping_) +
                (unsaved_.empty() ? " after a complete checkpoint; start again to resume"
                                  : ", and no checkpoint was saved: " + unsaved_ + "; " + newest_proved() +
                                        "; start again to go on: with another rate or other data from what is proved"));
    }
    return static_cast<int>(Exit::again);
  }
  watch_.phase(done_, "exporting the model");
  Exit code = end_diverged();
  if (code == Exit::done) code = export_models();
  if (steps_ > 0) {  // a start that finds nothing to train keeps those of the run
    try {
      checkpoint::GrowingFile lines((out_ / "schedule.jsonl").string() + ".rank-" + std::to_string(rank_),
                                    checkpoint::GrowingFile::Begin::empty);
      for (const auto& line : step_lines_) lines.write(line + "\n");
      lines.flush();
    } catch (const UserError& error) {
      log::warn(std::string("the run leaves no list of its instructions: ") + error.what());
    }
  }
  wait_for_slowest([&](prepare::Pace& pace) {
    meet(pace);  // all have written their lines
    watch_.phase(done_ + steps_, rank_ == 0 ? "writing the report" : "waiting for the report", RankWatch::kSlowWork);
    if (rank_ != 0) return;
    if (const std::string lost = run_log_->lost_events(); !lost.empty())
      run_log_->fault(recipe_.run.steps, "on_event", lost);
    attempt(recipe_.run.steps, "report", kNextStart, [&] { write_report(); });
  });
  double worst = 0;  // the same on every rank
  for (const auto& row :
       comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({static_cast<double>(code)}))
    worst = std::max(worst, row[0]);
  if (rank_ == 0 && worst == 0) tell_results();
  return static_cast<int>(worst);
}

/// Where what came of the run is, and the command that samples it.
void Run::tell_results() const {
  const fs::path model = out_ / "model";
  if (recipe_.lora.on) {
    std::string files;
    for (const auto& entry : fs::recursive_directory_iterator(model))
      if (entry.path().extension() == ".safetensors") files += "\n  " + entry.path().string();
    log::info("LoRA, under the names of several programs:" + files);
  } else {
    log::info("model: " + model.string());
  }
  log::info("report: " + (out_ / "report.html").string());
  std::string recipe = (out_ / "recipe.toml").string();
  if (recipe.find(' ') != std::string::npos) recipe = in_quotes(recipe);
  log::info("sample it: tessera sample " + recipe + " --prompt \"...\" --out sample." +
            (recipe_.data.frames == 1 ? "png" : "mp4"));
}

/// Each by itself: where one fails, the others are written. Gives the code of what failed.
Exit Run::export_models() {
  Exit code = Exit::done;
  const auto attempted = [&](const std::function<void()>& act) {
    if (const Exit failed = attempt(recipe_.run.steps, "export", kNextStart, act); failed != Exit::done) code = failed;
  };
  const auto exported = [&](const fs::path& model) {
    job::each_expert(engine_->store(), job_.experts, [&](size_t e, const std::string&) {
      const engine::AveragedWeights averaged(engine_->store(), comm_, model != out_ / "model");
      const fs::path folder = job_.experts.several() ? model / job_.experts.list[e].folder : model;
      attempted([&] {
        if (recipe_.lora.on)
          job::export_lora(recipe_, lora_facts(recipe_.run.steps, job_.experts.list[e]), engine_->store(), comm_, rank_,
                           folder);
        else
          export_model(*job_.model, engine_->store(), comm_, rank_, folder,
                       rank_ == 0 ? export_naming(job_.experts.list[e].path) : "");
        if (rank_ == 0 && !recipe_.lora.on) job::save_null_caption(recipe_, *job_.model, folder);
      });
    });
    if (rank_ == 0) attempted([&] { save_beside_experts(model); });
  };
  exported(out_ / "model");
  const fs::path average = out_ / "model_ema";
  if (planned().plan().states.ema)
    exported(average);
  else if (rank_ == 0 && fs::exists(average))
    log::warn(average.string() + " is of an earlier part of this run: train.ema is 0 now, so no average was exported");
  return code;
}

/// By rank 0, when all have written their lines.
void Run::write_report() {
  if (!trace_.empty()) join_rank_files(trace_, place_.world);
  const std::string schedule = (out_ / "schedule.jsonl").string(), trace = (out_ / "trace.json").string();
  if (steps_ > 0) join_rank_files(schedule, place_.world);
  if (!fs::exists(schedule))
    checkpoint::write_text(schedule, "");  // killed after its last step, a run has no list of it
  if (steps_ > 0 || !fs::exists(trace))
    checkpoint::write_text(trace, planning::plan_trace(planned(), lines_of(schedule)));
  report::write_run_report({out_}, out_ / "report.html");
}

}  // namespace tessera::train
