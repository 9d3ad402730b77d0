// The pipeline: a rank visits its own stages in the order of its acts. Messages between stages have one lane for each
// direction, and one communicator for each pair of neighbours and direction.
#include "tessera/plan/compile/compiler.h"
#include "tessera/plan/compile/memory.h"

namespace tessera::plan {

std::vector<UnitVisit> StageActs::visits_of(const PipelineAct& act) const {
  const int stage = act.chunk * plan_.mesh[Axis::pp] + draft_.pp_rank;
  const int first = plan_.first_unit(stage), end = plan_.first_unit(stage + 1);
  std::vector<UnitVisit> visits;
  if (act.kind == PipelineAct::Kind::forward)
    for (int u = first; u < end; ++u) visits.push_back({true, u, act.micro});
  else
    for (int u = end; u-- > std::max(first, draft_.backward_from);)
      visits.push_back({false, u, act.micro, act.kind == PipelineAct::Kind::weight_grad});
  return visits;
}

/// The communicator of messages into `stage` (forward), or of the gradients that it sends back.
GroupName StageActs::pair_name(bool forward, int stage) const {
  const std::vector<int> ranks = plan_.mesh.group(draft_.rank, {Axis::pp});
  const int count = static_cast<int>(ranks.size());
  int from = (stage - 1) % count, to = stage % count;
  const bool wraps = to == 0;  // from the last rank to the next chunk of the first rank
  if (wraps) std::swap(from, to);
  return {"pp", std::string(forward ? "activations" : "gradients") + (wraps ? "_wrap" : "") + ":pp[" +
                    std::to_string(ranks[from]) + "," + std::to_string(ranks[to]) + "]"};
}

/// Whether visit `v` begins an act, so direction, stage or micro-batch change.
bool StageActs::begins_act(const std::vector<UnitVisit>& visits, size_t v) const {
  if (v == 0) return true;
  const UnitVisit &now = visits[v], &before = visits[v - 1];
  return now.forward != before.forward || now.weights != before.weights || now.micro != before.micro ||
         plan_.stage_of(now.unit) != plan_.stage_of(before.unit);
}

/// One end of the message in front of `stage`; empty at the first and after the last stage. Named after the receiving
/// unit.
std::optional<Instruction> StageActs::message(Op op, bool forward, int stage, int micro) const {
  if (stage <= 0 || stage >= plan_.stages() || draft_.is_dummy(micro)) return std::nullopt;
  const bool sends = op == Op::send;
  const Lane lane = forward ? (sends ? Lane::send_next : Lane::recv_prev) : (sends ? Lane::send_prev : Lane::recv_next);
  const int cut = plan_.first_unit(stage);
  Instruction in = draft_.make(op, lane, forward ? cut : cut - 1, micro);
  in.part = Part::message;
  in.bytes = draft_.on(micro).units[cut - 1].cost.out;
  // Each rank receives conditioning once, with its first stage of the micro-batch, and sends its gradient back from
  // there.
  if (stage < plan_.mesh[Axis::pp])
    for (int64_t bytes : draft_.on(micro).conditioning) in.bytes += bytes;
  if (draft_.for_memory) return in;
  const GroupName group = pair_name(forward, stage);
  in.group = group.name;
  in.comm = {{group.axis, sends ? "send" : "recv", sends ? in.bytes : 0, group.name}};
  return in;
}

/// Issues the receives of the act that begins with visit `v` and of the act after it, so that these messages overlap
/// its compute.
void StageActs::receive_for(const std::vector<UnitVisit>& visits, size_t v) {
  const int most = visits[v].weights ? 0 : plan_.prefetch > 0 ? 2 : 1;
  for (int acts = 0; v < visits.size() && acts < most;) {
    const UnitVisit& visit = visits[v];
    acts += !visit.weights;  // weight gradients need no message
    const auto key = std::pair(visit.forward, std::pair(visit.unit, visit.micro));
    const int stage = plan_.stage_of(visit.unit) + (visit.forward ? 0 : 1);
    if (!visit.weights && !received_.contains(key))
      if (std::optional<Instruction> in = message(Op::recv, visit.forward, stage, visit.micro))
        received_[key] = draft_.add(std::move(*in));
    do ++v;
    while (v < visits.size() && !begins_act(visits, v));
  }
}

/// Makes the first unit of an act wait for its stage's message.
void StageActs::await_message(Instruction& in, const UnitVisit& visit) const {
  if (const auto found = received_.find({visit.forward, {visit.unit, visit.micro}}); found != received_.end())
    in.wait.push_back(found->second);
}

/// After the last unit of an act: sends its output to the next stage, or its gradient to the previous one.
void StageActs::send_result(const UnitVisit& visit, int done) {
  const int stage = plan_.stage_of(visit.unit);
  const int last = visit.forward ? plan_.first_unit(stage + 1) - 1 : plan_.first_unit(stage);
  if (visit.unit != last || (!visit.forward && last <= draft_.backward_from)) return;
  std::optional<Instruction> in = message(Op::send, visit.forward, visit.forward ? stage + 1 : stage, visit.micro);
  if (!in) return;
  const Lane lane = in->lane;
  drop_sent(lane);  // the previous message overlapped this act
  in->wait = {done};
  sent_[lane] = draft_.add(std::move(*in));
}

/// Frees the lane's last sent message after its arrival.
void StageActs::drop_sent(Lane lane) {
  const auto found = sent_.find(lane);
  if (found == sent_.end()) return;
  const Instruction& sent = draft_.schedule.list[found->second];
  Instruction in = draft_.make(Op::drop, Lane::compute, sent.unit, sent.micro);
  in.part = Part::message;
  // The rank keeps conditioning that it sent forward, because its own units read it.
  in.bytes = lane == Lane::send_next ? draft_.on(sent.micro).units[sent.unit - 1].cost.out : sent.bytes;
  in.wait = {found->second};
  draft_.add(std::move(in));
  sent_.erase(found);
}

/// Broadcasts the results of a forward-only pass from the last stage to all ranks.
void StageActs::broadcast_results() {
  const GroupName group = draft_.group_name("results", {Axis::pp});
  const bool has_it = plan_.owns(draft_.rank, static_cast<int>(model_.units.size()) - 1);
  for (int m = 0; m < draft_.schedule.micros; ++m) {
    Instruction in = draft_.make(Op::finish, Lane::compute, -1, m);
    in.bytes =
        model_.sequence > 0
            ? result_traffic(model_.prediction_row).bytes(draft_.tokens(m), plan_.mesh, draft_.rank, draft_.samples(m))
            : model_.units.back().cost.out;
    in.group = group.name;
    in.comm = {{group.axis, "broadcast", has_it ? in.bytes * (plan_.mesh[Axis::pp] - 1) : 0, group.name}};
    if (model_.sequence > 0) draft_.declare(in, {prediction_traffic(model_.prediction_row, plan_.mesh)});
    draft_.add(std::move(in));
  }
}

}  // namespace tessera::plan
