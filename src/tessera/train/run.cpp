#include "tessera/train/run.h"

#include <ATen/Parallel.h>

#include <chrono>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/commit.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/training.h"
#include "tessera/device/driver_watch.h"
#include "tessera/device/failure.h"
#include "tessera/job/lora_run.h"
#include "tessera/job/null_caption.h"
#include "tessera/job/optimiser.h"
#include "tessera/plan/plan_hash.h"
#include "tessera/sample/expert_passes.h"
#include "tessera/train/export.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kHopelessSkips = 100;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<plan::Visit> Run::next() {
  while (true) {
    const std::optional<plan::Visit> visit = walk_->next();
    if (!visit || visit->kind != plan::Visit::Kind::sample)
      sampled_.reset();  // before a step or a save uses the weights
    if (visit) return visit;
    if (stopping_ || part_ + 1 >= plans_.size()) return std::nullopt;
    begin_part(part_ + 1);
  }
}

/// Begins a part of the run, with its own settings, shapes, data, plan and programs. Parameters and states stay.
void Run::begin_part(size_t part) {
  part_ = part;
  const planning::PartPlan& now = plans_[part];
  const bool samples = now.planned.run.sample_every > 0;
  static_cast<job::Shapes&>(job_) = now.shapes;
  programs_ = plan::Programs(now.planned.plan(), now.planned.schedules(rank_), samples);
  take_plan();
  planning::require_priced(programs_.train->schedule, priced_.at(part), rank_);
  predicted_ = now.planned.memory(rank_);
  peak_flops_ = peak_flops(now.planned.machine, !device::here().is_cpu(), at::get_num_threads());
  if (span_began_ == 0) span_began_ = seconds_now();
  experts_->begin_part(part, now, *job_.model, programs_);
  engine_->use(programs_, experts_->arena(), experts_->host_arena());
  tell_links();
  compile_attention(now);
  engine_->optimise(job::optimiser_of(recipe(), now.planned.plan().states));
  step_size_.use(recipe());
  validation_ = std::make_unique<sample::Validation>(recipe(), job_, *data_[part].samples, out_);
  first_step_ = std::max(now.part.first, done_ + 1);
  plan::RunShape shape = now.planned.run;
  shape.first_step = first_step_;
  walk_.emplace(shape, programs_.just_in_time());
  engine::Meter::reset_peak();
  if (now.part.number == 0 || now.part.first <= done_ || rank_ != 0) return;
  log::info(now.part.name() + ": " + now.part.changes);
  run_log_->stage(now.part.first, now.part.number, now.part.changes, now.planned.plan().summary());
}

diffusion::TrainingSamples Run::samples(const plan::Visit& visit) {
  began_ = seconds_now();
  skipped_.clear();
  overflowed_ = spiked_ = false;
  flops_ = 0;
  if (visit.step == first_step_ + 1) engine::Meter::reset_peak();  // peaks count from the end of the first step
  engine_->executor().keep_lines(visit.step <= first_step_ + 1);
  memory_requests_ = device::memory_requests();
  watch_.phase(visit.step, "waiting for samples");
  experts_->encode_captions(visit.step);
  diffusion::TrainingSamples samples = loader_->take(experts_->wanted(visit.step));
  if (visit.step < plans_[part_].part.last) {
    experts_->encode_captions(visit.step + 1);
    loader_->ahead(experts_->wanted(visit.step + 1));
  }
  sample_bytes_ = 0;
  for (const auto& [place, sample] : samples) sample_bytes_ += diffusion::host_bytes(*sample);
  if (experts_->router()) watch_.phase(visit.step, "agreeing on experts");
  return samples;
}

const ExpertPass& Run::armed(ExpertPass& pass) {
  const int bucket = experts_->data().bucket(experts_->own_step());
  flops_ += static_cast<double>(pass.data.places.size()) * sample_flops(plans_[part_], static_cast<size_t>(bucket));
  pass.data.gradient_scale = loss_scale_.scale().value_or(1);
  if (pass.data.plan->update == plan::Update::in_backward)
    pass.pass.ahead = step_size_.armed(pass.pass.expert,
                                       {experts_->count_update(pass.pass.expert), experts_->learning_rate(pass), 1});
  return pass;
}

/// Names the plan of the programs, which metrics and checkpoints repeat.
void Run::take_plan() { plan_hash_ = plan::plan_hash(programs_.train->plan); }

/// Model FLOPs of this rank in a sample of the bucket.
double Run::sample_flops(const planning::PartPlan& part, size_t bucket) {
  const data::Bucket& size = part.part.recipe.data.clips.buckets[bucket];
  const auto latent = job_.codec->latent_shape(size.frames, size.height, size.width);
  return model_flops_->of_sample(latent, part.planned.plan(), rank_);
}

engine::Report Run::report(const ExpertPass& pass) {
  return [this, last = pass.last] { return numbers(last).pack(); };
}

/// `last`: this is the last pass of the step, and reports the bytes that the step sent.
StepReport Run::numbers(bool last) {
  engine::Executor& executor = engine_->executor();
  StepReport r;
  r.loss = objective_->loss();
  r.bad_sample = static_cast<double>(objective_->bad_sample() + 1);
  r.stop = asking_signal();
  r.read_meter();
  r.predicted = static_cast<double>(predicted_.peak);
  r.host = static_cast<double>(engine_->host_bytes() + experts_->data().samples->host_encoder_bytes());
  r.samples = static_cast<double>(sample_bytes_);
  r.work = work_;
  const engine::CompressionError error = executor.take_compression_error();
  if (error.count > 0) r.compression_error = error.sum / static_cast<double>(error.count);
  r.most_compression_error = error.most;
  const engine::Exposed waited = executor.take_exposed();
  r.exposed_comm = waited.comm, r.exposed_copy = waited.copy, r.exposed_stages = waited.stages,
  r.exposed_dispatch = waited.dispatch;
  r.exposed_data = loader_->take_waited();
  for (const auto& [axis, bytes] : comm_.take_sent_bytes()) sent_[axis] += bytes;
  r.totals = engine_->store().take_totals();
  if (last) r.take(std::exchange(sent_, {}), executor.take_busy());
  r.span = span_, r.flops = flops_;
  if (const auto gpu = device::driver() ? device::driver()->take() : std::nullopt)
    r.gpu_utilisation = gpu->utilisation, r.gpu_watts = gpu->watts, r.gpu_bytes = gpu->memory_bytes;
  return r;
}

Decision Run::decide(const ExpertPass& pass, const engine::StepRun& step) {
  DecisionRules rules;
  rules.step = pass.pass.step;
  rules.rate = experts_->learning_rate(pass);
  rules.clip_norm = recipe().train.clip_norm;
  rules.skip_not_finite = recipe().run.on_nan == "skip";
  rules.updated = pass.pass.ahead.has_value();
  rules.count_update = [&] { return experts_->count_update(pass.pass.expert); };
  rules.source = [&](int64_t index) { return experts_->data().samples->source(index); };
  rules.kept = [&] { return way_back(rules.step, rules.rate); };
  Decision decision;
  try {
    decision = train::decide(step.norm(), step.ranks(), rules, loss_scale_);
  } catch (const UserError& error) {
    if (error.code() == Exit::not_finite) note_divergence(rules.step, error, rules.rate);
    throw;
  }
  rate_ = decision.rate;
  ranks_ = decision.ranks;
  decision.d = step_size_.of(pass.pass.expert);
  step_size_.take(ranks_);
  if (decision.control) decision.control = step_size_.armed(pass.pass.expert, *decision.control);
  if (decision.control) decision.d = step_size_.of(pass.pass.expert);
  if (decision.stop != 0) stopping_ = decision.stop;
  if (decision.save) save_asked_ = true;
  weigh(pass, decision);
  if (decision.skipped.empty()) return decision;
  skipped_ = decision.skipped;
  overflowed_ = decision.overflow;
  if (rank_ == 0) log::warn("step " + std::to_string(rules.step) + " skipped: " + skipped_);
  return decision;
}

/// The first step takes its memory as it comes to it, up to the updates behind its norm; then only a larger batch needs more.
void Run::tell_memory_requests(int64_t step) const {
  const int64_t requests = device::memory_requests() - memory_requests_;
  if (step > first_step_ + 1 && requests > 0)
    log::info("step " + std::to_string(step) + " allocated memory from the GPU's driver " + std::to_string(requests) +
              " times, which may wait for the GPU: its batch was larger than any before");
}

void Run::after(const plan::Visit& visit, report::StepMetrics metrics) {
  tell_memory_requests(visit.step);
  watch_.phase(visit.step, "what follows a step");
  const double now = seconds_now();
  span_ = now - std::exchange(span_began_, now);
  const double work = engine_->executor().take_work();
  const int64_t own = experts_->own_samples();
  work_ = own > 0 ? work / static_cast<double>(own) : 0;
  if (visit.step <= first_step_ + 1) step_lines_ = engine_->executor().last_lines();
  if (visit.step == first_step_ + 1 && rank_ == 0)
    log::info("plan " + plan_hash_ + " as rank 0 executed it in step " + std::to_string(visit.step) + ": " +
              engine_->executor().last_effect().text());
  metrics.plan_hash = plan_hash_;
  const engine::Store::Moved moved = engine_->store().take_moved();
  metrics.moved = {moved.bytes, moved.seconds, moved.waited};
  metrics.samples = experts_->data().batch(experts_->own_step());
  metrics.tokens = metrics.samples * job_.bucket_tokens[experts_->data().bucket(experts_->own_step())];
  for (size_t r = 0; r < ranks_.size(); ++r)
    metrics.ranks.push_back(rank_metrics(static_cast<int>(r), ranks_[r], mesh_, predicted_.by_part.temporaries));
  metrics.seconds = seconds_now() - began_;
  if (peak_flops_) metrics.count_mfu(*peak_flops_);
  ++steps_;
  if (rank_ == 0) {
    if (skipped_.empty())
      run_log_->step(metrics);
    else
      run_log_->skip(visit.step, skipped_, metrics.loss_scale);
    progress_->step(metrics, predicted_.peak);
  }
  count_skip(visit.step);
  prove(visit.step);
  look_for_slow_ranks(visit.step);
  if (stopping_) walk_->stop();
  if (!std::exchange(save_asked_, false)) return;
  walk_->save();
  log::info("step " + std::to_string(visit.step) + ": a checkpoint is saved, as a signal asked for it");
}

/// Ends a run that only skips: its weights stay what they are, so nothing but another sample could mend it. Every rank
/// counts the same.
void Run::count_skip(int64_t step) {
  if (skipped_.empty()) skips_in_a_row_ = 0;
  skips_ += !skipped_.empty();
  if (skipped_.empty() || overflowed_ || ++skips_in_a_row_ < kHopelessSkips) return;
  const UserError error(
      Exit::not_finite, "train",
      std::to_string(kHopelessSkips) + " steps in a row were skipped, the last at step " + std::to_string(step) + ": " +
          skipped_,
      "go back, lower train.lr, or find the first bad step with run.on_nan = \"stop\"; " + way_back(step, rate_));
  note_divergence(step - kHopelessSkips + 1, error, rate_);
  throw error;
}

/// Names ranks that have become slow and, where the recipe says so, gives them fewer samples. Every rank has the same
/// numbers and comes to the same answer.
void Run::look_for_slow_ranks(int64_t step) {
  std::vector<double> seconds;
  for (const StepReport& r : ranks_) seconds.push_back(r.work);
  slow_.step(seconds);
  for (const SlowRanks::Slow& slow : slow_.found()) {
    if (rank_ != 0) continue;
    log::warn(slow.text());
    run_log_->fault(step, "slow_rank", slow.text(), slow.rank);
  }
  if (!recipe_.fault.rebalance || !experts_->rebalances() || !recipe::batches(recipe()).empty()) return;
  if (const auto shares = slow_.better_shares(programs_.train->plan)) give_shares(step, *shares);
}

/// From the next step on; stays with the shares there are where the others would not fit the budget.
void Run::give_shares(int64_t step, const std::vector<int64_t>& shares) {
  planning::Planned changed = planned();
  changed.choice.plan.shares = shares;
  const plan::MemoryCurve memory = changed.memory(rank_);
  const bool fits = recipe_.plan.budget <= 0 || memory.peak <= recipe_.plan.budget;
  for (const auto& row :
       comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({fits ? 1. : 0.}))
    if (row[0] == 0) return;
  plan::Programs programs(changed.plan(), changed.schedules(rank_), planned().run.sample_every > 0);
  programs.sample = programs_.sample, programs.checkpoint = programs_.checkpoint;
  programs_ = programs;
  take_plan();
  predicted_ = memory;
  engine_->use(programs_, experts_->arena(), experts_->host_arena());
  experts_->change(programs_);
  if (rank_ != 0) return;
  std::string text = "from now on, samples of a step by dp rank:";
  for (int64_t count : shares) text += " " + std::to_string(count);
  log::info(text);
  run_log_->fault(step, "rebalance", text, -1, shares);
}

void Run::serve(const plan::Visit& visit) {
  switch (visit.kind) {
    case plan::Visit::Kind::updates:
      engine_->update(programs_.updates_of(static_cast<int>(experts_->expert_of(visit.step))), visit.step);
      if (visit.step <= first_step_ + 1) {
        const std::vector<std::string>& lines = engine_->executor().last_lines();
        step_lines_.insert(step_lines_.end(), lines.begin(), lines.end());
      }
      break;
    case plan::Visit::Kind::swap:
      engine_->swap(experts_->expert_of(visit.step + 1));
      break;
    case plan::Visit::Kind::sample:
      sample(visit);
      break;
    default:
      save(visit.step);
  }
}

/// All ranks together. Between steps a rank may write, decode or encode for longer than fault.timeout: the others wait for
/// it in barriers of the pace, the last of them here.
void Run::wait_for_slowest(const std::function<void(prepare::Pace&)>& act) {
  // Our launcher, where there is one, names such a rank before the pace does.
  const prepare::Pace::Seconds longest(RankWatch::kSlowWork * recipe_.fault.timeout + 10);
  prepare::Pace pace(comm_, mesh_, {}, prepare::Pace::kTold, longest);
  try {
    pace.run([&] {
      act(pace);
      meet(pace);
    });
  } catch (const UserError&) {
    if (!pace.failed_elsewhere()) throw;
    throw UserError(Exit::rank_lost, "ranks", "another rank failed while this one waited for it",
                    "see that rank's message");
  }
}

/// The launcher is told that this rank waits.
void Run::meet(prepare::Pace& pace) {
  const comm::Group& all = comm_.group("control", {kAllAxes.begin(), kAllAxes.end()});
  all.waits(true);
  try {
    pace.barrier();
  } catch (...) {
    all.waits(false);
    throw;
  }
  all.waits(false);
}

void Run::sample(const plan::Visit& visit) {
  const Loader::Pause pause(*loader_);  // the autoencoder is one
  if (!sampled_) sampled_ = std::make_unique<sample::SamplerWeights>(recipe().sample, job_, engine_->store(), comm_);
  validation_->pass(visit.step,
                    sample::expert_passes(job_, experts_->router(), *engine_, programs_.sample, visit.step));
  const auto finished = validation_->take_finished();
  if (!finished) return;
  wait_for_slowest([&](prepare::Pace&) {
    watch_.phase(visit.step, rank_ == 0 ? "decoding and writing a sample" : "waiting for a sample",
                 RankWatch::kSlowWork);
    if (rank_ != 0) return;
    std::optional<report::RunLog::Sample> written;
    attempt(visit.step, "sample", "the run continues without it, and resuming from this step generates it",
            [&] { written = validation_->write(visit.step, *finished); });
    if (written) run_log_->sample(*written);  // a history that cannot be written ends the run, as for a step's line
  });
}

/// Whether samples of the step that the run goes on from are missing, or their lines: making them failed, or was stopped.
bool Run::owes_samples() {
  const plan::RunShape& run = planned().run;
  if (!own_checkpoint() || run.sample_every == 0 || (done_ % run.sample_every != 0 && done_ != run.steps)) return false;
  bool missing = false;  // as rank 0 sees the folder
  for (int prompt = 0; rank_ == 0 && prompt < run.sample_prompts; ++prompt) {
    const fs::path file = sample::Validation::file(out_, done_, prompt);
    missing = missing || !fs::is_regular_file(file) || !run_log_->found().samples.contains(file.filename());
  }
  const bool owes =
      comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({missing ? 1. : 0.})[0][0] > 0;
  if (owes && rank_ == 0) log::info("samples of step " + std::to_string(done_) + " are missing: generating them now");
  return owes;
}

/// Runs `act`, for which no other rank waits and without which training loses nothing: a failure is logged with what
/// `then` becomes of it, and the run goes on. Returns the exit code of the failure.
Exit Run::attempt(int64_t step, const std::string& what, const std::string& then, const std::function<void()>& act) {
  Exit code = Exit::internal;
  std::string text;
  try {
    act();
    return Exit::done;
  } catch (const Error& error) {
    code = error.code(), text = error.what();
    if (code == Exit::rank_lost || code == Exit::memory) throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    if (device::has_failed()) throw;  // no step can follow
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  log::warn("step " + std::to_string(step) + ": the " + what + " failed; " + then + ": " + text);
  if (rank_ == 0) run_log_->warning(step, what, text);
  return code;
}

job::LoraFacts Run::lora_facts(int64_t step, const job::Expert& expert) const {
  return {job_.name, step, data_[part_].samples->size(), models::form_of(*job_.model), expert.path};
}

/// What other programs load, from the parts that were just saved: no rank is asked again.
Exit Run::export_saved_parts(int64_t step, const fs::path& checkpoint, const fs::path& folder) {
  const std::string then =
      "the checkpoint is complete without it, and the next start repeats it if it goes on from there";
  return attempt(step, "export", then, [&] {
    const auto saved = std::make_shared<checkpoint::TrainingCheckpoint>(checkpoint);
    for (const job::Expert& expert : job_.experts.list) {
      const bool several = job_.experts.several();
      const weights::Source source = weights::open_training(saved, several ? expert.folder + "." : "");
      const fs::path to = several ? folder / expert.folder : folder;
      if (recipe().lora.on)
        job::save_lora(recipe(), lora_facts(step, expert), weights::LoraFile::of(source, models::form_of(*job_.model)),
                       to);
      else
        export_saved(*job_.model, source, to, export_naming(expert.path));
      if (!recipe().lora.on) job::save_null_caption(recipe(), *job_.model, to);
    }
  });
}

/// Behind its checkpoint, so that no start finds an export of a step to which the run has not come.
void Run::export_save(int64_t step, const fs::path& checkpoint) {
  const fs::path final = checkpoint::step_folder(out_ / checkpoint::kExports, step);
  const std::string then = "the next start repeats it if it goes on from there";
  attempt(step, "export", then, [&] {
    const checkpoint::PartialFolder partial(final, "check run.out");
    if (export_saved_parts(step, checkpoint, partial.path()) != Exit::done) return;
    save_beside_experts(partial.path());
    checkpoint::publish(partial.path(), final);
  });
}

/// What a folder of several experts has beside theirs. Of rank 0.
void Run::save_beside_experts(const fs::path& model) const {
  if (job_.experts.several() && !job_.experts.gated)
    checkpoint::write_text(model / checkpoint::kExpertsFile,
                           checkpoint::experts_text({job_.experts.boundary, recipe_.diffusion.shift}));
  experts_->save_model(model);
}

/// Checkpoints and exports that are too many. Of rank 0.
void Run::prune() {
  checkpoint::prune(checkpoints_, recipe().checkpoint.keep, next_proved());
  checkpoint::prune_exports(out_ / checkpoint::kExports, recipe().checkpoint.keep_exports,
                            checkpoint::newest_proved(checkpoints_));
}

void Run::save(int64_t step) {
  const fs::path partial = checkpoint::partial_folder(checkpoints_, step),
                 final = checkpoint::step_folder(checkpoints_, step);
  const double start = seconds_now();
  unsaved_.clear();
  if (skips_in_a_row_ > 0)
    unsaved_ = "the last " + std::to_string(skips_in_a_row_) + " steps were skipped";
  else if (!skipping_.empty())
    unsaved_ = "the last step of the " + experts_->name(*skipping_.begin()) + " expert was skipped";
  if (step_size_.pending()) {  // the manifest has all of it
    std::vector<net::Totals> totals;
    const net::Totals own = engine_->store().take_totals();
    for (const auto& row :
         comm_.group("control", {kAllAxes.begin(), kAllAxes.end()}).all_gather_doubles({own.begin(), own.end()}))
      totals.push_back({row[0], row[1]});
    step_size_.take(totals);
  }
  const Unproved next = unproved(final, step);
  const auto commit = [&] {
    checkpoint::Manifest manifest;
    manifest.step = step;
    manifest.mesh = mesh_;
    manifest.seed = recipe().run.seed;
    experts_->write(step, manifest);
    loss_scale_.save(manifest);
    step_size_.save(manifest);
    spikes_.save(manifest);
    save_unproved(next, manifest);
    save_facts(facts_, recipe_values(planning::resolved(recipe_, plans_, place_)), manifest);
    if (const auto rule = job::adapter_rule(recipe())) manifest.extra["lora"] = job::lora_json(*rule, job_.adapted);
    manifest.extra["model"] = planned().spec.name;
    manifest.extra["plan_hash"] = plan_hash_;
    if (!resume_.line.empty()) manifest.extra[checkpoint::kResumedFrom] = resume_.line;
    run_log_->flush();  // a checkpoint never has a history that is older than itself
    checkpoint::commit_with(partial, final, place_.world, manifest, [&] {
      std::error_code ignored;  // what is there is no whole export
      if (recipe().lora.on && recipe().exports_saves() &&
          export_saved_parts(step, partial, partial / "lora") != Exit::done)
        fs::remove_all(partial / "lora", ignored);
      if (checkpoint::is_proved(final)) checkpoint::prove(partial);  // the same step a second time
    });
    if (recipe().exports_saves()) export_save(step, final);
    prune();
  };
  const auto save_all = [&](prepare::Pace& pace) {
    const auto write = [&] {
      checkpoint::save_rank(partial, rank_, experts_->pieces(engine_->store()),
                            [&](const std::string& broken) { return agree_finite(pace, step, broken); });
      meet(pace);
    };
    engine_->checkpoint(programs_.checkpoint, step, write, [&] {
      if (rank_ == 0 && unsaved_.empty()) commit();
      meet(pace);
    });
  };
  if (unsaved_.empty()) wait_for_slowest(save_all);
  if (unsaved_.empty()) {
    std::erase_if(unproved_, [&](const Unproved& each) { return each.checkpoint == final; });
    unproved_.push_back(next);
    changed_.clear();
    name_checkpoint(final.string());
  }
  if (rank_ != 0) return;
  if (unsaved_.empty()) return run_log_->checkpoint(step, final.string(), seconds_now() - start);
  const std::string text = "no checkpoint is saved: " + unsaved_;
  log::warn("step " + std::to_string(step) + ": " + text + "; " + newest_proved());
  run_log_->warning(step, "checkpoint", text);
}

}  // namespace tessera::train
