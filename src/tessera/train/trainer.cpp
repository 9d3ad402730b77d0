#include "tessera/train/trainer.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/training.h"
#include "tessera/comm/world.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/group_check.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/job/base_report.h"
#include "tessera/job/job.h"
#include "tessera/job/lora_run.h"
#include "tessera/optim/adamw.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/planning/disk_need.h"
#include "tessera/planning/plan_view.h"
#include "tessera/planning/run_plan.h"
#include "tessera/prepare/stage_data.h"
#include "tessera/report/progress.h"
#include "tessera/report/run_log.h"
#include "tessera/report/run_report.h"
#include "tessera/sample/expert_passes.h"
#include "tessera/sample/sampling.h"
#include "tessera/sample/validation.h"
#include "tessera/train/elastic.h"
#include "tessera/train/expert_steps.h"
#include "tessera/train/export.h"
#include "tessera/train/gated_step.h"
#include "tessera/train/loss_scale.h"
#include "tessera/train/objective.h"
#include "tessera/train/rank_files.h"
#include "tessera/train/rank_watch.h"
#include "tessera/train/slow_ranks.h"
#include "tessera/train/step_report.h"
#include "tessera/train/utilisation.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t stop_signal = 0;
void on_signal(int number) { stop_signal = number; }

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Leaves the loop early, after a whole checkpoint.
struct Stopped {};

class Trainer {
 public:
  Trainer(recipe::Recipe recipe, const TrainFlags& flags, const comm::Rendezvous& place)
      : recipe_(std::move(recipe)),
        place_(place),
        rank_(place.rank),
        mesh_(elastic_mesh(recipe_.mesh, place)),
        watch_(place),
        comm_(place, mesh_, recipe_.fault.timeout),
        slow_(mesh_, {recipe_.fault.slow_factor, recipe_.fault.slow_steps}) {
    watch_.follow(comm_);
    comm_.check_agreement("recipe", recipe_.to_toml());
    job_ = job::make_job(recipe_);
    job::check_weights(recipe_, job_);
    recipe_.set("data.vae_tile", std::to_string(job_.vae_tile));
    out_ = recipe_.run.out;
    checkpoints_ = out_ / "checkpoints";
    if (rank_ == 0) open_run_folder();
    watch_.phase(0, "preparing the data");
    data_ = prepare::prepare_parts(recipe_, job_, mesh_, comm_, rank_);
    watch_.phase(0, "planning");
    plan_run();
    watch_.phase(0, "loading the weights");
    start_engine(flags);
  }

  int run() {
    int code = 0;
    try {
      run_part();
      while (stage_ + 1 < plans_.size()) {
        begin_part(stage_ + 1);
        run_part();
      }
    } catch (const Stopped&) {
      code = static_cast<int>(Exit::again);
    } catch (const UserError& error) {
      watch_.tell(error);
      throw;
    }
    progress_->finish();
    if (code == 0)
      finish();
    else if (rank_ == 0)
      log::warn("stopped by signal " + std::to_string(stop_signal) + " after a whole checkpoint; start again to go on");
    return code;
  }

 private:
  void open_run_folder() {
    planning::check_own_folder(out_);
    for (const fs::path& folder : {checkpoints_, out_ / "samples"}) checkpoint::make_folder(folder, "check run.out");
    for (const auto& name : checkpoint::clean_partials(checkpoints_))
      log::info("removed the incomplete checkpoint " + name);
    if (recipe_.run.resume == "no" && !restarted() && checkpoint::latest(checkpoints_))
      throw UserError(Exit::usage, "run.resume", out_.string() + " already holds checkpoints",
                      "set run.resume = \"auto\" to go on, or another run.out to start afresh");
  }

  void plan_run() {
    std::vector<int> prompts;
    for (const prepare::StageData& data : data_) prompts.push_back(data.samples->prompts());
    steps_.emplace(job_.experts, recipe_, data_);
    plans_ = planning::plan_parts(recipe::run_parts(recipe_), job_, mesh_, prompts);
    if (rank_ == 0) {
      log::info(planning::plans_text(plans_));
      for (const std::string& line : steps_->told()) log::info(line);
    }
    planning::require_fit(plans_);
    for (const planning::PartPlan& p : plans_) planning::check_disk(p.planned, out_);
    std::string all;
    for (const planning::PartPlan& p : plans_) all += p.planned.plan().to_toml(p.planned.unit_names());
    comm_.check_agreement("plan", all);
    if (rank_ != 0) return;
    checkpoint::write_text(out_ / "plan.json", planning::plans_json(plans_));
    checkpoint::write_text(out_ / "recipe.toml", planning::resolved(recipe_, plans_, place_).to_toml());
    checkpoint::write_text(out_ / "plan.txt", planning::plans_text(plans_));
    for (const planning::PartPlan& p : plans_) {
      const std::string file =
          p.part.number == 0 ? "plan.toml" : "plan-stage-" + std::to_string(p.part.number) + ".toml";
      checkpoint::write_text(out_ / file, p.planned.plan().to_toml(p.planned.unit_names()));
    }
  }

  /// Everything that belongs to one part of the run: its values, shapes, data, plan and schedules. What rests between
  /// steps stays where it is.
  void begin_part(size_t stage) {
    stage_ = stage;
    const planning::PartPlan& now = plans_[stage];
    running_ = now.planned.plan();  // the executor reads it
    static_cast<job::Shapes&>(job_) = now.shapes;
    schedules_ = now.planned.schedules(rank_);
    predicted_ = now.planned.memory(rank_);
    engine::check_groups(comm_, {&schedules_.train, &schedules_.sample, &schedules_.checkpoint});
    if (gated_) gated_->begin_part(now.part.recipe, now.planned.spec, now.planned.plan());
    const int64_t arena = schedules_.arena(now.planned.run.sample_every > 0);
    store_->change_arena(std::max(arena, gated_ ? gated_->arena() : 0));
    store_->rest_gradients(running_);
    adamw_ = std::make_unique<optim::AdamW>(adamw_options(recipe()));
    steps_->begin_part(stage, recipe(), *job_.model);
    validation_ = std::make_unique<sample::Validation>(recipe(), job_, *data_[stage].samples, out_);
    first_step_ = std::max(now.part.first, done_ + 1);
    engine::Meter::reset_peak();
    if (now.part.number == 0 || now.part.first <= done_ || rank_ != 0) return;
    log::info(now.part.name() + ": " + now.part.changes);
    run_log_->stage(now.part.first, now.part.number, now.part.changes, now.planned.plan().summary());
  }

  void run_part() {
    plan::RunShape run = planned().run;
    run.first_step = first_step_;
    plan::each_schedule(run, schedules_, [this](int64_t step, const plan::Schedule& schedule) {
      const bool trains = &schedule == &schedules_.train || &schedule == &schedules_.first;
      if (trains)
        train_step(step, schedule);
      else if (&schedule == &schedules_.updates)
        update(step);
      else if (&schedule == &schedules_.sample)
        sample_pass(step);
      else
        save(step);
      if (trains && stopping_) {
        if (schedules_.just_in_time()) update(step);
        save(step);
        throw Stopped{};
      }
    });
  }

  /// Of the part that runs.
  const recipe::Recipe& recipe() const { return plans_[stage_].part.recipe; }
  const planning::Planned& planned() const { return plans_[stage_].planned; }

  optim::AdamWOptions adamw_options(const recipe::Recipe& recipe) const {
    return {{recipe.train.betas[0], recipe.train.betas[1]},
            recipe.train.eps,
            recipe.train.weight_decay,
            planned().plan().states,
            static_cast<uint64_t>(recipe.run.seed)};
  }

  void start_engine(const TrainFlags& flags) {
    std::vector<std::string> prefixes;
    for (const auto& unit : job_.model->units()) prefixes.push_back(unit->prefix());
    store_ = std::make_unique<engine::Store>(planned().spec, prefixes, planned().plan(), rank_, at::kCPU,
                                             /*trainable=*/true, recipe_.plan.disk());
    adamw_ = std::make_unique<optim::AdamW>(adamw_options(recipe_));
    store_->make_states(*adamw_);
    engine::ExecutorOptions options;
    options.poison = std::getenv("TESSERA_POISON") != nullptr;
    trace_ = flags.trace;
    options.local_ranks = place_.local_world, options.nvme = recipe_.plan.disk();
    if (!trace_.empty()) options.trace = trace_ + ".rank-" + std::to_string(rank_);
    running_ = planned().plan();  // the executor reads it from here on
    executor_ = std::make_unique<engine::Executor>(job_.model->units(), *store_, comm_, running_, rank_, options);
    watch_.follow(*executor_);
    if (job_.experts.gated) {
      router_ = std::make_unique<job::GateRouter>(recipe_, job_.experts.size(), job_.model->context_dim());
      gated_ = std::make_unique<GatedStep>(*router_, comm_, mesh_, rank_);
    }

    loss_scale_ = LossScale(planned().plan(), recipe_);
    const std::optional<fs::path> resume = find_resume();
    engine::Roundings rounded;
    if (resume) {
      checkpoint::TrainingCheckpoint saved(*resume);
      if (recipe_.lora.on)  // the checkpoint has the adapters alone
        rounded = job::load_initial_weights(recipe_, job_, *store_);
      steps_->resume(*store_, saved);
      if (router_) router_->resume(saved);
      done_ = saved.manifest().step;
      loss_scale_.restore(saved.manifest());
      if (saved.manifest().seed != static_cast<uint64_t>(recipe_.run.seed))
        throw UserError(Exit::usage, "run.seed",
                        resume->string() + " was trained with seed " + std::to_string(saved.manifest().seed),
                        "use the same seed, or another run.out");
      log::info("resumed from " + resume->string());
      if (done_ >= recipe_.run.steps)
        log::info("all run.steps = " + std::to_string(recipe_.run.steps) +
                  " are done already; more steps go on from here");
    } else {
      rounded = job::load_initial_weights(recipe_, job_, *store_);
      if (router_ && job::GateRouter::is_in(recipe_.model.path)) router_->load_model(recipe_.model.path);
      job::each_expert(*store_, job_.experts, [&](size_t e, const std::string&) {
        job::start_adapters(job::for_expert(recipe_, job_.experts, e), *store_, comm_);
      });
    }
    if (rank_ == 0) run_log_ = std::make_unique<report::RunLog>(out_, done_);
    if (rank_ == 0 && restarted()) run_log_->fault(done_, "restart", place_.restarted_after);
    tell_base(rounded);
    progress_ = std::make_unique<report::Progress>(rank_ == 0, recipe_.run.steps, done_);
    if (recipe_.plan.budget > 0) engine::Meter::set_budget(recipe_.plan.budget);
    size_t stage = 0;
    while (stage + 1 < plans_.size() && plans_[stage].part.last <= done_) ++stage;
    begin_part(stage);
  }

  /// How far a base that rests in fewer bits is from the weights it was made of.
  void tell_base(const engine::Roundings& rounded) {
    const std::optional<job::BaseFacts> facts = job::base_facts(planned().spec);
    if (!facts) return;
    const job::BaseError error = job::base_error(planned().spec, rounded, comm_);
    if (rank_ != 0) return;
    log::info(job::told(*facts) + "; " + job::told(error));
    if (done_ == 0) run_log_->base(std::string(name(facts->form)), error.all, error.worst, error.worst_linear);
  }

  /// The launcher started this rank again after another was lost: it goes on with what the run itself saved.
  bool restarted() const { return !place_.restarted_after.empty(); }

  std::optional<fs::path> find_resume() const {
    if (restarted())
      if (const auto own = checkpoint::latest(checkpoints_)) return own;
    if (recipe_.run.resume == "no") return std::nullopt;
    if (recipe_.run.resume == "auto") return checkpoint::latest(checkpoints_);
    return fs::path(recipe_.run.resume);
  }

  /// Runs the updates that the step has left pending.
  void update(int64_t step) {
    executor_->update(schedules_.updates, step, *adamw_);
    if (step <= first_step_ + 1)
      step_lines_.insert(step_lines_.end(), executor_->last_lines().begin(), executor_->last_lines().end());
    bring_next_expert(step);
  }

  void train_step(int64_t step, const plan::Schedule& schedule) {
    const double start = seconds_now();
    steps_->begin(step);
    report::StepMetrics metrics;
    if (step == first_step_ + 1) engine::Meter::reset_peak();  // peaks count from the end of the first step
    const bool lines = step <= first_step_ + 1;
    executor_->keep_lines(lines);
    if (gated_)
      gated_step(step, metrics);
    else
      pass(step, schedule, nullptr, metrics);
    watch_.phase(step, "what follows a step");
    busy_ = executor_->take_busy();
    work_ = seconds_a_sample();
    if (lines) step_lines_ = executor_->last_lines();
    const engine::Store::Moved moved = store_->take_moved();
    metrics.moved = {moved.bytes, moved.seconds, moved.waited};
    metrics.seconds = seconds_now() - start;
    metrics.mfu =
        model_flops_utilisation(planned().spec, planned().machine, metrics.tokens, metrics.seconds, place_.world);
    if (rank_ == 0) {
      if (skipped_) {
        run_log_->skip(step, skip_reason_, metrics.loss_scale);
      } else {
        run_log_->step(metrics);
      }
      progress_->step(metrics, predicted_.peak);
    }
    look_for_slow_ranks(step);
    if (!schedules_.just_in_time()) bring_next_expert(step);  // else once its updates are done
  }

  /// One expert's part of a step, or the whole of it.
  void pass(int64_t step, const plan::Schedule& schedule, const Routed* routed, report::StepMetrics& metrics) {
    store_->switch_to(static_cast<int>(steps_->expert()));
    Objective& objective = steps_->objective();
    objective.begin(steps_->own_step(), running_, rank_, routed);
    metrics.loss_scale = loss_scale_.scale();
    objective.scale_gradients(metrics.loss_scale.value_or(1));
    engine::StepCalls calls;
    calls.load = [&](int micro) { return objective.load(micro); };
    calls.loss = [&](const at::Tensor& out, const net::Batch& batch, int micro) {
      return objective.loss(out, batch, micro);
    };
    calls.control = [this] { return report().pack(); };
    calls.agree = [&](double norm, const std::vector<std::vector<double>>& ranks) {
      return agree(step, norm, ranks, metrics);
    };
    if (running_.update == plan::Update::in_backward)
      calls.ahead = [&] { return net::StepControl{steps_->update(), steps_->learning_rate(), 1}; };
    executor_->train(schedule, step, calls, adamw_.get());
  }

  void gated_step(int64_t step, report::StepMetrics& metrics) {
    watch_.phase(step, "agreeing on experts");
    GatedStep::Calls calls;
    calls.bring = [this](size_t expert) { store_->switch_to(static_cast<int>(expert)); };
    calls.pass = [&](size_t expert, bool last) {
      steps_->choose(expert);
      sent_goes_on_ = !last;
      pass(step, gated_->schedule(expert), &gated_->routed(expert), metrics);
      return !skipped_;
    };
    skipped_ = !gated_->run(step, steps_->objective(), running_, *executor_, metrics, calls);
    for (size_t e = 0; e < metrics.gate->experts.size(); ++e) metrics.gate->experts[e].updates = steps_->updates(e);
  }

  /// Whose turn comes next is on its way before the step begins; unless a sample needs both first.
  void bring_next_expert(int64_t step) {
    const int64_t every = planned().run.sample_every;
    if (gated_) return;  // who comes next is chosen when it begins
    if (step >= plans_[stage_].part.last || (every > 0 && step % every == 0)) return;
    store_->switch_to(static_cast<int>(steps_->expert_of(step + 1)));
  }

  /// Names ranks that have become slow and, where the recipe says so, gives them fewer samples. Every rank has the same
  /// numbers and comes to the same answer.
  void look_for_slow_ranks(int64_t step) {
    slow_.step(sample_seconds_);
    for (const SlowRanks::Slow& slow : slow_.found()) {
      if (rank_ != 0) continue;
      log::warn(slow.text());
      run_log_->fault(step, "slow_rank", slow.text(), slow.rank);
    }
    if (!recipe_.fault.rebalance || gated_) return;
    if (const auto shares = slow_.better_shares(running_)) give_shares(step, *shares);
  }

  /// From the next step on; stays with the shares there are where the others would not fit the budget.
  void give_shares(int64_t step, const std::vector<int64_t>& shares) {
    planning::Planned changed = planned();
    changed.choice.plan.shares = shares;
    const plan::MemoryCurve memory = changed.memory(rank_);
    const bool fits = recipe_.plan.budget <= 0 || memory.peak <= recipe_.plan.budget;
    for (const auto& row :
         comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({fits ? 1. : 0.}))
      if (row[0] == 0) return;
    running_.shares = shares;
    plan::RunSchedules schedules = changed.schedules(rank_);
    schedules_.train = std::move(schedules.train), schedules_.first = std::move(schedules.first);
    predicted_ = memory;
    engine::check_groups(comm_, {&schedules_.train});
    store_->change_arena(schedules_.arena(planned().run.sample_every > 0));
    store_->rest_gradients(running_);
    if (rank_ != 0) return;
    std::string text = "samples of a step by dp rank from now on:";
    for (int64_t count : shares) text += " " + std::to_string(count);
    log::info(text);
    run_log_->fault(step, "rebalance", text, -1, shares);
  }

  /// Of this rank's own work in the step that is done.
  double seconds_a_sample() {
    int64_t samples = gated_ ? gated_->own_samples() : 0;
    for (int64_t m = 0; !gated_ && m < running_.accumulation(); ++m)
      samples += running_.slice(mesh_.dp_rank(rank_), m).count;
    const double work = watch_.take_work();
    return samples > 0 ? work / static_cast<double>(samples) : 0;
  }

  StepReport report() {
    StepReport r;
    r.loss = steps_->objective().loss_sum();
    r.bad_sample = static_cast<double>(steps_->objective().bad_sample() + 1);
    r.stop = stop_signal;
    r.read_meter();
    r.predicted = static_cast<double>(predicted_.peak);
    r.host = static_cast<double>(store_->host_bytes() + executor_->host_bytes());
    r.work = work_;
    const engine::CompressionError error = executor_->take_compression_error();
    r.compressed = static_cast<double>(error.count);
    r.compression_error = error.sum;
    r.most_compression_error = error.most;
    const engine::Exposed waited = executor_->take_exposed();
    r.exposed_comm = waited.comm, r.exposed_copy = waited.copy, r.exposed_stages = waited.stages;
    for (const auto& [axis, bytes] : comm_.take_sent_bytes()) sent_[axis] += bytes;
    if (!sent_goes_on_) r.take(std::exchange(sent_, {}), busy_);
    return r;
  }

  /// Every rank computes the same answer from the same numbers.
  std::optional<net::StepControl> agree(int64_t step, double norm, const std::vector<std::vector<double>>& ranks,
                                        report::StepMetrics& metrics) {
    std::vector<StepReport> all;
    for (const auto& row : ranks) all.push_back(StepReport::unpack(row));
    sample_seconds_.clear();
    for (const StepReport& c : all) sample_seconds_.push_back(c.work);
    double loss = 0;
    int64_t bad = -1;
    for (const StepReport& c : all) {
      loss += c.loss;
      if (c.bad_sample > 0 && bad < 0) bad = static_cast<int64_t>(c.bad_sample) - 1;
      if (c.stop > 0) stopping_ = true;
    }
    const double loss_scale = metrics.loss_scale.value_or(1);
    norm /= loss_scale;
    skipped_ = !std::isfinite(loss) || !std::isfinite(norm);
    // Of a loss that is not finite no scale is the cause.
    const std::string overflow = std::isfinite(loss) ? loss_scale_.end_step(step, !skipped_) : "";
    metrics.step = step;
    metrics.loss = loss;
    metrics.grad_norm = norm;
    metrics.lr = steps_->learning_rate();
    metrics.expert = steps_->name();
    metrics.expert_step = steps_->own_step();
    metrics.samples = recipe().train.global_batch;
    metrics.tokens = recipe().train.global_batch * job_.bucket_tokens[steps_->data().bucket(steps_->own_step())];
    for (size_t r = 0; r < all.size(); ++r)
      metrics.ranks.push_back(rank_metrics(static_cast<int>(r), all[r], mesh_, predicted_.by_part.temporaries));
    if (!overflow.empty()) {
      skip_reason_ = overflow;
      if (rank_ == 0) log::warn("step " + std::to_string(step) + " skipped: " + overflow);
      return std::nullopt;
    }
    if (skipped_) {
      skip_reason_ =
          "loss " + std::to_string(loss) + ", gradient norm " + std::to_string(norm) +
          (bad >= 0 ? ", sample " + steps_->data().samples->source(bad) : ", every sample's own loss was finite");
      if (recipe().run.on_nan == "skip") {
        if (rank_ == 0) log::warn("step " + std::to_string(step) + " skipped: " + skip_reason_);
        return std::nullopt;
      }
      throw UserError(
          Exit::not_finite, "train", "step " + std::to_string(step) + ": " + skip_reason_,
          "look at that sample, lower train.lr, or set run.on_nan = \"skip\"; checkpoints up to now are whole");
    }
    if (running_.update == plan::Update::in_backward) return std::nullopt;  // they were made on the way
    return net::StepControl{steps_->update(), metrics.lr,
                            optim::clip_coefficient(norm, recipe().train.clip_norm) / loss_scale};
  }

  void sample_pass(int64_t step) {
    validation_->pass(step, sample::expert_passes(job_, router_.get(), *store_, *executor_, schedules_.sample, step));
    if (const auto finished = validation_->take_finished(); finished && rank_ == 0) {
      validation_->write(step, *finished, *run_log_);
    }
  }

  void save(int64_t step) {
    const fs::path partial = checkpoint::partial_folder(checkpoints_, step),
                   final = checkpoint::step_folder(checkpoints_, step);
    const double start = seconds_now();
    executor_->checkpoint(
        schedules_.checkpoint, step,
        [&] {
          std::vector<checkpoint::Piece> pieces = steps_->pieces(*store_);
          if (router_ && rank_ == 0) std::ranges::move(router_->pieces(), std::back_inserter(pieces));
          checkpoint::save_rank(partial, rank_, pieces);
        },
        [&] {
          checkpoint::Manifest manifest;
          manifest.step = step;
          manifest.mesh = mesh_;
          manifest.seed = recipe().run.seed;
          steps_->write(step, manifest);
          if (router_) router_->write(manifest);
          loss_scale_.save(manifest);
          manifest.extra["model"] = planned().spec.name;
          checkpoint::commit(partial, final, place_.world, manifest);
          checkpoint::prune(checkpoints_, recipe().checkpoint.keep);
        });
    if (rank_ == 0) run_log_->checkpoint(step, final.string(), seconds_now() - start);
  }

  void finish() {
    watch_.phase(done_, "exporting the model");
    job::each_expert(*store_, job_.experts, [&](size_t e, const std::string&) {
      const fs::path folder = job_.experts.several() ? out_ / "model" / job_.experts.list[e].folder() : out_ / "model";
      if (recipe_.lora.on)
        job::export_lora(recipe_, *store_, comm_, rank_, folder);
      else
        export_model(*job_.model, *store_, comm_, rank_, folder);
    });
    if (router_ && rank_ == 0) router_->save_model(out_ / "model");
    const std::string schedule = (out_ / "schedule.jsonl").string();
    std::ofstream lines(schedule + ".rank-" + std::to_string(rank_), std::ios::trunc);
    for (const auto& line : step_lines_) lines << line << '\n';
    lines.close();
    comm_.barrier();
    if (rank_ == 0) {
      if (!trace_.empty()) join_rank_files(trace_, place_.world);
      join_rank_files(schedule, place_.world);
      checkpoint::write_text((out_ / "trace.json").string(), planning::plan_trace(planned(), lines_of(schedule)));
      report::write_run_report({out_}, out_ / "report.html");
    }
    comm_.barrier();
  }

  recipe::Recipe recipe_;
  const comm::Rendezvous place_;
  const int rank_;
  Mesh mesh_;
  RankWatch watch_;
  comm::Comm comm_;
  SlowRanks slow_;
  job::Job job_;
  fs::path out_, checkpoints_;
  std::vector<prepare::StageData> data_;  // of each part of the run
  std::optional<ExpertSteps> steps_;
  std::vector<planning::PartPlan> plans_;
  size_t stage_ = 0;  // the part that runs, in both
  plan::Plan running_;
  plan::RunSchedules schedules_;
  plan::MemoryCurve predicted_;
  std::unique_ptr<engine::Store> store_;
  std::unique_ptr<optim::AdamW> adamw_;
  std::unique_ptr<engine::Executor> executor_;
  std::unique_ptr<job::GateRouter> router_;  // of experts that a gate chooses among; else none
  std::unique_ptr<GatedStep> gated_;         // likewise
  std::map<std::string, int64_t> sent_;
  bool sent_goes_on_ = false;  // a later pass of the step tells what was sent
  LossScale loss_scale_;
  std::unique_ptr<sample::Validation> validation_;
  std::unique_ptr<report::RunLog> run_log_;
  std::unique_ptr<report::Progress> progress_;
  std::string trace_, skip_reason_;
  std::map<std::string, double> busy_;
  double work_ = 0;                     // seconds a sample took this rank in the step before
  std::vector<double> sample_seconds_;  // the same of every rank
  std::vector<std::string> step_lines_;
  int64_t done_ = 0;        // steps before this process
  int64_t first_step_ = 1;  // of this process in this part
  bool stopping_ = false, skipped_ = false;
};

}  // namespace

int train(recipe::Recipe recipe, const TrainFlags& flags) {
  engine::Meter::install();
  const comm::Rendezvous place = comm::rendezvous_from_env();
  log::set_rank(place.rank, place.world);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGXFSZ, SIG_IGN);  // a full quota is an error to report, not a reason to die
  try {
    static Trainer* trainer = nullptr;
    trainer = new Trainer(std::move(recipe), flags, place);  // never destroyed: see train()'s contract
    const int code = trainer->run();
    std::fflush(nullptr);
    std::_Exit(code);
  } catch (const Error& error) {
    log::error(error.what());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(error.code()));
  } catch (const c10::Error& error) {
    log::error(std::string("[train] ") + error.what_without_backtrace());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(Exit::internal));
  } catch (const std::exception& error) {
    log::error(std::string("[train] ") + error.what());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(Exit::internal));
  }
}

}  // namespace tessera::train
