#include "tessera/train/trainer.h"

#include <csignal>
#include <cstdlib>

#include "tessera/base/check.h"
#include "tessera/base/limits.h"
#include "tessera/base/log.h"
#include "tessera/comm/token.h"
#include "tessera/comm/world.h"
#include "tessera/engine/memory/meter.h"
#include "tessera/job/assumed.h"
#include "tessera/job/device.h"
#include "tessera/job/tell_error.h"
#include "tessera/train/run.h"
#include "tessera/train/stop_signal.h"

namespace tessera::train {

namespace {

/// The way of every step (docs/a-training-step.md).
int train_steps(Run& run) {
  engine::Engine& engine = run.engine();
  ExpertSchedule& experts = run.experts();
  diffusion::FlowMatching& objective = run.objective();
  while (const std::optional<plan::Visit> visit = run.next()) {
    if (visit->kind != plan::Visit::Kind::train) {
      run.serve(*visit);  // pending updates, the next expert, a sample, a checkpoint
      continue;
    }
    const diffusion::TrainingSamples samples = run.samples(*visit);     // made ahead, in host memory
    for (ExpertPass& pass : experts.passes(*visit, samples, engine)) {  // one; behind a gate one for each chosen expert
      objective.begin(run.armed(pass).data);
      engine::StepRun step = engine.run(pass.pass, objective, run.report(pass));  // to the exchange at `norm`
      const Decision decision = run.decide(pass, step);                           // the same on every rank
      engine.finish(std::move(step), decision.control);                           // the updates
      experts.book(pass, decision, objective);
    }
    run.after(*visit, experts.end(*visit));
  }
  return run.finish();
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
    auto* run = new Run(std::move(recipe), flags.trace, place, started);  // never destroyed: see train()'s contract
    stop_behind_steps();
    try {
      leave(train_steps(*run));
    } catch (const std::exception& error) {
      if (const auto failure = run->device_failure()) throw *failure;
      const std::optional<UserError> short_of = engine::out_of_memory(error);
      const auto* told = short_of ? &*short_of : dynamic_cast<const UserError*>(&error);
      if (told) run->tell(*told);
      throw;
    }
  } catch (const ToldByRankZero& told) {
    leave(static_cast<int>(told.code));
  } catch (const std::exception& error) {
    leave(static_cast<int>(job::tell_error(error)));
  }
}

}  // namespace tessera::train
