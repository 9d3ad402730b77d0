#include "tessera/plan/compile/program.h"

#include <algorithm>

namespace tessera::plan {

Program::Program(Plan plan, Schedule schedule) : plan(std::move(plan)), schedule(std::move(schedule)) {
  const auto& list = this->schedule.list;
  const auto exchange = [](const Instruction& in) { return in.op == Op::norm && in.unit < 0; };
  if (const auto found = std::find_if(list.begin(), list.end(), exchange); found != list.end())
    norm = static_cast<int>(found - list.begin());
}

Programs::Programs(const Plan& plan, RunSchedules schedules, bool samples)
    : arena(schedules.arena(samples)),
      host_arena(std::max(schedules.host_arena(samples), schedules.checkpoint.host_arena)) {
  const auto program_of = [](const Plan& of, Schedule& schedule) -> ProgramPtr {
    return schedule.list.empty() ? nullptr : std::make_shared<const Program>(of, std::move(schedule));
  };
  const auto program = [&](Schedule& schedule) { return program_of(plan, schedule); };
  train = program(schedules.train);
  sample = program(schedules.sample);
  checkpoint = program(schedules.checkpoint);
  first = program(schedules.first);
  updates = program(schedules.updates);
  for (auto& [expert, own] : schedules.of_expert) {
    const Plan of = plan.as_of(expert);
    of_expert[expert] = {program_of(of, own.train), program_of(of, own.first), program_of(of, own.updates)};
  }
}

const ProgramPtr& Programs::step(bool pending, int expert) const {
  const bool whole = !just_in_time() || pending;
  if (const auto own = of_expert.find(expert); own != of_expert.end())
    return whole ? own->second.train : own->second.first;
  return whole ? train : first;
}

const ProgramPtr& Programs::updates_of(int expert) const {
  const auto own = of_expert.find(expert);
  return own != of_expert.end() ? own->second.updates : updates;
}

}  // namespace tessera::plan
