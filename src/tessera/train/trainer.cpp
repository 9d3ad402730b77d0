#include "tessera/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/in_place.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/token.h"
#include "tessera/device/backend.h"
#include "tessera/engine/store/meter.h"
#include "tessera/job/assumed.h"
#include "tessera/job/device.h"
#include "tessera/job/given_checks.h"
#include "tessera/planning/plan_view.h"
#include "tessera/report/run_report.h"
#include "tessera/train/set_up.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace fs = std::filesystem;

namespace {

/// What comes next; begins the parts of the run as they come. Nothing when the run is over, or stopped.
std::optional<plan::Visit> next_visit(Run& run) {
  while (true) {
    const std::optional<plan::Visit> visit = run.parts->walk().next();
    if (!visit || visit->kind != plan::Visit::Kind::sample) run.sampler->put_back();
    if (visit) return visit;
    if (run.updates->stop() || !run.parts->more()) return std::nullopt;
    begin_part(run, run.parts->index() + 1);
  }
}

/// This rank's samples of the step; those of the next step are begun.
diffusion::TrainingSamples take_samples(Run& run, int64_t step) {
  ExpertSchedule& experts = *run.experts;
  experts.encode_captions(step);
  diffusion::TrainingSamples samples = run.loader->take(experts.wanted(step));
  if (step < run.parts->now().part.last) {
    experts.encode_captions(step + 1);
    run.loader->ahead(experts.wanted(step + 1));
  }
  run.meter->took(samples);
  if (experts.router()) run.ranks.watch.phase(step, "agreeing on experts");
  return samples;
}

/// What is no training step.
void serve(Run& run, const plan::Visit& visit, Instructions& instructions) {
  const plan::Programs& programs = run.parts->programs();
  switch (visit.kind) {
    case plan::Visit::Kind::updates:
      run.engine->update(programs.updates_of(static_cast<int>(run.experts->expert_of(visit.step))), visit.step);
      return instructions.updated(visit.step);
    case plan::Visit::Kind::swap:
      return run.engine->swap(run.experts->expert_of(visit.step + 1));
    case plan::Visit::Kind::evaluate:
      return run.held_out->measure(programs.sample, visit.step);
    case plan::Visit::Kind::sample:
      return run.sampler->pass(programs.sample, visit.step);
    default:
      run.checkpoints->save(visit.step);
  }
}

/// The plan of which slow ranks may leave samples to others; null: they keep them.
const plan::Plan* shared_plan(const Run& run) {
  const bool fixed = !recipe::batches(run.parts->recipe()).empty();
  if (!run.recipe.fault.rebalance || !run.experts->rebalances() || fixed) return nullptr;
  return &run.parts->programs().train->plan;
}

/// What signals asked of the ranks in a step.
void obey_signals(Run& run, int64_t step) {
  if (run.updates->stop()) run.parts->walk().stop();
  const std::string why = run.updates->take_save_asked();
  if (why.empty()) return;
  run.parts->walk().save();
  log::info("step " + std::to_string(step) + ": a checkpoint is saved, as " + why);
}

/// Where what came of the run is, and the command that samples it.
void tell_results(const recipe::Recipe::Data& data, bool lora, const fs::path& out) {
  const fs::path model = out / "model";
  if (lora) {
    std::string files;
    for (const auto& entry : fs::recursive_directory_iterator(model))
      if (entry.path().extension() == ".safetensors") files += "\n  " + entry.path().string();
    log::info("LoRA, under the names of several programs:" + files);
  } else {
    log::info("model: " + model.string());
  }
  log::info("report: " + (out / "report.html").string());
  std::string recipe = (out / "recipe.toml").string();
  if (recipe.find(' ') != std::string::npos) recipe = in_quotes(recipe);
  log::info("sample it: tessera sample " + recipe + " --prompt \"...\" --out sample." +
            (data.frames == 1 ? "png" : "mp4"));
}

/// By rank 0, when all have written their lines. `trained`: there was a step.
void write_report(const Run& run, const std::string& trace_file, bool trained) {
  const fs::path& out = run.folder->out;
  const int world = run.ranks.place.world;
  if (!trace_file.empty()) join_rank_files(trace_file, world);
  const std::string schedule = (out / "schedule.jsonl").string(), trace = (out / "trace.json").string();
  if (trained) join_rank_files(schedule, world);
  if (!fs::exists(schedule))
    checkpoint::write_text(schedule, "");  // killed after its last step, a run has no list of it
  if (trained || !fs::exists(trace))
    checkpoint::write_text(trace, planning::plan_trace(run.parts->planned(), lines_of(schedule)));
  report::write_run_report({out}, out / "report.html");
}

/// A signal has ended the run behind step `step`.
int tell_stop(const Run& run, int64_t step) {
  if (!run.ranks.first()) return static_cast<int>(Exit::again);
  const std::string by = "stopped by " + signal_name(run.updates->stop()), &unsaved = run.checkpoints->unsaved();
  run.folder->log()->stop(step, by);
  stop_done(run.folder->out);
  log::warn(by + (unsaved.empty()
                      ? " after a complete checkpoint; start again to resume"
                      : ", and no checkpoint was saved: " + unsaved + "; " + newest_proved(run.folder->checkpoints) +
                            "; start again to go on: with another rate or other data from what is proved"));
  return static_cast<int>(Exit::again);
}

/// Exports the model and writes the report behind the last of `steps` steps; gives the exit code.
int finish(Run& run, int64_t steps, const std::vector<std::string>& instructions, const std::string& trace) {
  const int64_t done = run.parts->done(), last = run.recipe.run.steps;
  if (run.updates->stop()) return tell_stop(run, done + steps);
  run.ranks.watch.phase(done, "exporting the model");
  if (steps == 0 && done > 0) run.checkpoints->look(done);  // nothing was saved, so nobody has looked
  Exit code = run.health->end(done + steps, run.checkpoints->unsaved());
  if (code == Exit::done) code = run.exports->model();
  if (steps > 0) {  // a start that finds nothing to train keeps those of the run
    try {
      checkpoint::GrowingFile lines(
          (run.folder->out / "schedule.jsonl").string() + ".rank-" + std::to_string(run.ranks.rank()),
          checkpoint::GrowingFile::Begin::empty);
      for (const auto& line : instructions) lines.write(line + "\n");
      lines.flush();
    } catch (const UserError& error) {
      log::warn(std::string("the run leaves no list of its instructions: ") + error.what());
    }
  }
  run.ranks.wait_for_slowest([&](prepare::Pace& pace) {
    run.ranks.meet(pace);  // all have written their lines
    run.ranks.watch.phase(done + steps, run.ranks.first() ? "writing the report" : "waiting for the report",
                          RankWatch::kSlowWork);
    if (!run.ranks.first()) return;
    if (const std::string lost = run.folder->log()->lost_events(); !lost.empty())
      run.folder->log()->fault(last, "on_event", lost);
    run.folder->attempt(last, "report", kNextStart, [&] { write_report(run, trace, steps > 0); });
  });
  double worst = 0;  // the same on every rank
  for (const auto& row : run.ranks.gather({static_cast<double>(code)})) worst = std::max(worst, row[0]);
  if (run.ranks.first()) stop_done(run.folder->out);  // a signal behind the last step
  if (run.ranks.first() && worst == 0) tell_results(run.recipe.data, run.recipe.lora.on, run.folder->out);
  return static_cast<int>(worst);
}

/// The way of every step (docs/a-training-step.md).
int train_steps(Run& run, const std::string& trace) {
  engine::Engine& engine = *run.engine;
  ExpertSchedule& experts = *run.experts;
  StepMeter& meter = *run.meter;
  Updates& updates = *run.updates;
  report::Progress progress(run.ranks.first(), run.recipe.run.steps, run.parts->done());
  Instructions instructions(run.ranks, *run.parts, engine.times());
  Health& health = *run.health;
  const Observer observers[] = {
      memory_requests(*run.parts, device::memory_requests),
      heartbeats(run.ranks.watch),
      {[&](const plan::Visit& visit) { instructions.before(visit); }, [&](StepEnd& end) { instructions.after(end); }},
      {[&](const plan::Visit& visit) { meter.before(visit); }, [&](StepEnd& end) { meter.after(end); }},
      {.after =
           [&](StepEnd&) {
             if (!engine.graphs()) return;
             for (const auto& [text, warns] : engine.graphs()->take_news())
               if (run.ranks.first())
                 warns ? log::warn("plan.graphs has no effect: " + text) : log::info("CUDA graphs: " + text);
           }},
      history(*run.folder, *run.parts, progress),
      {[&](const plan::Visit&) { health.before(); }, [&](StepEnd& end) { health.after(end.visit.step); }},
      {.after = [&](StepEnd& end) { run.checkpoints->after(end.visit.step); }},
      slow_ranks(
          *run.folder, run.ranks.mesh, run.recipe.fault, [&] { return shared_plan(run); },
          [&](int64_t step, const std::vector<int64_t>& shares) { give_shares(run, step, shares); })};
  int64_t steps = 0;
  while (const std::optional<plan::Visit> visit = next_visit(run)) {
    if (visit->kind != plan::Visit::Kind::train) {
      serve(run, *visit, instructions);  // pending updates, the next expert, a sample, a checkpoint
      continue;
    }
    const auto began = std::chrono::steady_clock::now();
    for (const Observer& each : observers) each.before(*visit);
    const diffusion::TrainingSamples samples = take_samples(run, visit->step);  // made ahead, in host memory
    std::vector<ExpertPass> passes =
        experts.passes(*visit, samples, engine);  // one; of a gate one for each chosen expert
    for (size_t at = 0; at < passes.size();) {
      const size_t sides = passes[at].beside ? 2 : 1;
      std::vector<engine::Engine::Side> together;
      for (size_t s = 0; s < sides; ++s) {
        diffusion::FlowMatching& objective = run.objectives[s];
        objective.begin(updates.armed(passes[at + s]).data);
        together.push_back({passes[at + s].pass, objective, meter.report(passes[at + s], objective, s)});
      }
      std::vector<engine::StepRun> steps = engine.run(together);  // to the exchange at `norm`
      for (size_t s = 0; s < sides; ++s, ++at) {
        const Decision decision = updates.decide(passes[at], steps[s]);  // the same on every rank
        engine.finish(std::move(steps[s]), decision.control);            // the updates
        experts.book(passes[at], decision, run.objectives[s]);
      }
    }
    StepEnd end{*visit, experts.end(*visit), updates.reports(), health.skipped()};
    for (const Observer& each : observers) each.after(end);
    step_took(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    obey_signals(run, visit->step);
    ++steps;
  }
  progress.finish();
  return finish(run, steps, instructions.lines(), trace);
}

/// Of the lanes' and LibTorch's threads, each with its stack and the allocator's arena of 64 MiB.
constexpr int64_t kAddresses = int64_t{1} << 30;

/// Two ranks take 36; more take one more for each other rank in each group, and are told of the limit where they meet it.
constexpr int64_t kOpenFiles = 64;

[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  log::flush();
  std::_Exit(code);
}

}  // namespace

int train(recipe::Recipe recipe, const TrainFlags& flags) {
  StartTimes started;
  engine::Meter::install();
  const comm::Rendezvous place = comm::rendezvous_from_env();
  comm::set_token_folder(recipe.run.out);
  log::set_rank(place.rank, place.world);
  watch_stop_signals(place);
  std::signal(SIGXFSZ, SIG_IGN);  // a full quota is an error to report, not a reason to die
  std::signal(SIGPIPE, SIG_IGN);  // and a reader of the log that goes away is no fault at all
  try {
    require_addresses(kAddresses);
    require_files(kOpenFiles);
    job::choose_device(recipe.run.device, place);
    if (const std::string line = job::settle_compute(recipe); !line.empty()) log::info(line);
    started.begin(StartPhase::connect);
    Run* run = set_up(std::move(recipe), place, started, flags.trace).release();  // never destroyed: see train()
    stop_behind_steps(place.rank == 0 ? run->folder->out : std::filesystem::path());
    try {
      leave(train_steps(*run, flags.trace));
    } catch (const std::exception& error) {
      if (const auto failure = run->ranks.watch.device_failure()) throw *failure;
      const std::optional<UserError> short_of = engine::out_of_memory(error);
      const auto* told = short_of ? &*short_of : dynamic_cast<const UserError*>(&error);
      if (told) run->ranks.watch.tell(*told);
      throw;
    }
  } catch (const ToldByRankZero& told) {
    leave(static_cast<int>(told.code));
  } catch (const std::exception& error) {
    leave(static_cast<int>(job::tell_error(error)));
  }
}

}  // namespace tessera::train
