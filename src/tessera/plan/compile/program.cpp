#include "tessera/plan/compile/program.h"

namespace tessera::plan {

Program::Program(Plan plan, Schedule schedule) : plan(std::move(plan)), schedule(std::move(schedule)) {
  const auto& list = this->schedule.list;
  const auto exchange = [](const Instruction& in) { return in.op == Op::norm && in.unit < 0; };
  if (const auto found = std::find_if(list.begin(), list.end(), exchange); found != list.end())
    norm = static_cast<int>(found - list.begin());
}

Programs::Programs(const Plan& plan, RunSchedules schedules, bool samples) : arena(schedules.arena(samples)) {
  const auto program = [&](Schedule& schedule) -> ProgramPtr {
    return schedule.list.empty() ? nullptr : std::make_shared<const Program>(plan, std::move(schedule));
  };
  train = program(schedules.train);
  sample = program(schedules.sample);
  checkpoint = program(schedules.checkpoint);
  first = program(schedules.first);
  updates = program(schedules.updates);
}

}  // namespace tessera::plan
