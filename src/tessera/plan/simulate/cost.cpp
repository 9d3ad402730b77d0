#include "tessera/plan/simulate/cost.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/rank_grid.h"
#include "tessera/plan/compile/saved_bytes.h"

namespace tessera::plan {

namespace {

const Rate& rate_of(const RateByDtype& rates, const std::string& dtype, const Profile& profile) {
  const auto it = rates.find(dtype);
  if (it != rates.end()) return it->second;
  std::string known;
  for (const auto& [name, rate] : rates) known += (known.empty() ? "" : ", ") + name;
  throw UserError(Exit::usage, "plan.profile", profile.name + ": no rates of " + dtype, "it has " + known);
}

std::vector<Axis> axes_of(const std::string& joined) {
  if (joined == "world") return {kAllAxes.begin(), kAllAxes.end()};
  std::vector<Axis> axes;
  std::istringstream names(joined);
  for (std::string part; std::getline(names, part, '+');)
    for (Axis axis : kAllAxes)
      if (axis_name(axis) == part) axes.push_back(axis);
  return axes;
}

/// Bytes/s that one core streams through an update, for each thread of plan.update_threads. A server core with AVX2
/// reads and writes 8 to 15 GB/s of DDR4 or DDR5.
constexpr double kThreadBandwidth = 10e9;

/// Ranks that share a node's host memory or disk at the same time.
double ranks_of_node(const Profile& profile, const Mesh& mesh) {
  return profile.devices > 0 ? std::min(profile.devices, mesh.world()) : mesh.world();
}

}  // namespace

CostModel::CostModel(const ModelSpec& model, const Plan& plan, Machine machine)
    : model_(model), plan_(plan), machine_(std::move(machine)) {
  const DeviceProfile& device = machine_.profile.device;
  product_ = rate_of(device.gemm, machine_.dtype, machine_.profile);
  // fp8 and tf32 apply to products; attention runs in another dtype of the profile
  const auto attention = [&](const RateByDtype& rates) {
    const auto it = rates.find(machine_.dtype);
    if (it != rates.end()) return it->second;
    return rates.contains("bf16") ? rates.at("bf16") : product_;
  };
  attention_ = attention(device.attention);
  attention_backward_ = attention(device.attention_backward);
}

double CostModel::forward_seconds(int unit, bool replay) const {
  const UnitSpec& spec = model_.units[unit];
  const auto it = machine_.work.find(spec.kind);
  if (it == machine_.work.end()) return product_.seconds(spec.cost.forward_flops);
  const UnitWork& work = it->second;
  const Rate& stream = machine_.profile.device.stream;
  double seconds = (work.streamed + stream.half * work.operators) / stream.top;
  for (double flops : work.products) seconds += product_.seconds(flops);
  // A recomputed unit may keep a site's result, which is then not recomputed.
  for (const auto& [site, flops] : work.results)
    if (replay && plan_.units[unit].policy(site) != Policy::recompute) seconds -= product_.seconds(flops);
  for (const auto& [site, flops] : work.attention) {
    if (replay && plan_.units[unit].policy(site) != Policy::recompute) continue;
    seconds += attention_.seconds(flops);
  }
  return seconds;
}

double CostModel::backward_seconds(int unit) const {
  const UnitSpec& spec = model_.units[unit];
  const auto it = machine_.work.find(spec.kind);
  if (it == machine_.work.end()) return product_.seconds(spec.cost.backward_flops);
  const UnitWork& work = it->second;
  if (!work.backward) return 0;
  const Rate& stream = machine_.profile.device.stream;
  double seconds = 2 * (work.streamed + stream.half * work.operators) / stream.top;
  for (const auto* products : {&work.input_grads, &work.weight_grads})
    for (double flops : *products) seconds += product_.seconds(flops);
  for (const auto& [site, flops] : work.attention) seconds += attention_backward_.seconds(2.5 * flops);
  return seconds;
}

double CostModel::rebuild_seconds(int unit) const {
  const GraphCost& graph = model_.units[unit].cost.graph(plan_.units[unit].selective());
  const Rate& stream = machine_.profile.device.stream;
  return graph.rebuilt > 0 ? (static_cast<double>(graph.rebuilt) + stream.half * graph.rebuilds) / stream.top : 0;
}

double CostModel::attention_seconds(const Instruction& in) const {
  const auto it = machine_.work.find(model_.units[in.unit].kind);
  if (it == machine_.work.end()) return 0;
  double most = 0;  // self-attention; text attention is far shorter
  for (const auto& [site, flops] : it->second.attention)
    most = std::max(most, in.op == Op::backward ? attention_backward_.seconds(2.5 * flops) : attention_.seconds(flops));
  return most;
}

double CostModel::collective_seconds(const Comm& comm, int rank) const {
  const RankGrid group(plan_.mesh, rank, axes_of(comm.axis));
  const int members = group.size();
  if (members <= 1) return 0;
  const Profile& profile = machine_.profile;
  const bool reduces = comm.kind != "all_gather";
  double bytes = static_cast<double>(comm.bytes) * machine_.wire;
  int hops = members - 1;
  if (comm.kind == "all_reduce") bytes *= 2.0 * (members - 1) / members, hops *= 2;
  const auto bandwidth = [&](const LinkProfile& link) { return reduces ? link.reduce : link.gather; };
  const int per_node = profile.devices > 0 ? profile.devices : plan_.mesh.world();
  const int node = rank / per_node * per_node, behind = std::min(node + per_node, plan_.mesh.world());
  const int here = group.below(behind) - group.below(node);  // members on this rank's node
  double fastest = here > 1 || members == here ? bandwidth(profile.link) : 0;
  double latency = hops * profile.link.latency;
  if (here < members) {
    const double share = bandwidth(profile.nic) * here / per_node;
    fastest = fastest > 0 ? std::min(fastest, share) : share;
    const int crossings = members / here;
    latency += crossings * profile.nic.latency;
  }
  if (fastest <= 0)
    throw UserError(Exit::usage, "plan.profile",
                    profile.name + ": no bandwidth for a collective of " + std::to_string(members) + " ranks",
                    "choose a profile with that many devices, or one with a NIC");
  return bytes / fastest + latency;
}

double CostModel::weight_grad_seconds(int unit) const {
  const UnitSpec& spec = model_.units[unit];
  const auto it = machine_.work.find(spec.kind);
  if (it == machine_.work.end()) return product_.seconds(spec.cost.backward_flops) / 2;
  double seconds = 0;
  for (double flops : it->second.weight_grads) seconds += product_.seconds(flops);
  return seconds;
}

double CostModel::message_seconds(int64_t bytes, Lane lane, int rank) const {
  const Profile& profile = machine_.profile;
  const std::vector<int> stages = plan_.mesh.group(rank, {Axis::pp});
  const int count = static_cast<int>(stages.size()), here = plan_.mesh.coordinate(rank, Axis::pp);
  const int step = lane == Lane::send_next || lane == Lane::recv_next ? 1 : count - 1;
  const int peer = stages[(here + step) % count], per_node = profile.devices > 0 ? profile.devices : plan_.mesh.world();
  const bool same_node = peer / per_node == rank / per_node;
  // All ranks of the node send at the same time.
  const double rate = same_node ? profile.link.gather : profile.nic.gather / per_node;
  if (rate <= 0)
    throw UserError(Exit::usage, "plan.profile", profile.name + ": no bandwidth for messages between pipeline stages",
                    "choose a profile with that many devices, or one with a NIC");
  return static_cast<double>(bytes) * machine_.wire / rate + (same_node ? profile.link.latency : profile.nic.latency);
}

double CostModel::copy_seconds(double bytes) const {
  const Profile& profile = machine_.profile;
  double rate = profile.host_link;
  if (profile.host_bandwidth > 0) rate = std::min(rate, profile.host_bandwidth / ranks_of_node(profile, plan_.mesh));
  return rate > 0 ? bytes / rate : 0;
}

double CostModel::update_seconds(double bytes, bool on_host) const {
  const Profile& profile = machine_.profile;
  const double device = profile.device.bandwidth.seconds(bytes);
  if (!on_host || profile.devices == 0) return device;  // CPU ranks: device and host are the same
  double rate = profile.host_bandwidth / ranks_of_node(profile, plan_.mesh);
  if (plan_.update_threads > 0) rate = std::min(rate, plan_.update_threads * kThreadBandwidth);
  return rate > 0 ? bytes / rate : device;
}

std::vector<Phase> CostModel::phases(const Instruction& in, int rank) const {
  std::vector<Phase> result;
  const Rate& bandwidth = machine_.profile.device.bandwidth;
  const auto work = [&](Share share, double seconds) {
    if (seconds > 0) result.push_back({Resource::compute, share, seconds, false});
  };
  switch (in.op) {
    case Op::forward:
      work(Share::compute, forward_seconds(in.unit, false));
      break;
    case Op::recompute:
      work(Share::compute, forward_seconds(in.unit, true));
      break;
    case Op::backward: {
      const bool later = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;
      work(Share::compute,
           backward_seconds(in.unit) + rebuild_seconds(in.unit) - (later ? weight_grad_seconds(in.unit) : 0));
      break;
    }
    case Op::compress: {  // read, written, and read again for the error
      const Compressed c = compressed_bytes(model_, plan_, in.unit);
      work(Share::compute, bandwidth.seconds(static_cast<double>(c.whole + 2 * c.bytes())));
      break;
    }
    case Op::expand: {
      const Compressed c = compressed_bytes(model_, plan_, in.unit);
      work(Share::compute, bandwidth.seconds(static_cast<double>(c.whole + c.bytes())));
      break;
    }
    case Op::weight_grad:
      work(Share::compute, weight_grad_seconds(in.unit));
      break;
    case Op::loss:
      work(Share::compute, bandwidth.seconds(3.0 * static_cast<double>(model_.loss_grad)));
      break;
    case Op::idle:
      if (in.grad >= 0) work(Share::compute, bandwidth.seconds(static_cast<double>(in.bytes)));
      break;
    case Op::norm: {  // of one unit whose gradients leave the arena (and are rounded), or of all units in place
      double bytes = static_cast<double>(in.unit >= 0 ? in.bytes : 0) * (plan_.rounds_gradients() ? 3 : 1);
      for (int u = 0; in.unit < 0 && u < static_cast<int>(model_.units.size()); ++u)
        if (plan_.owns(rank, u) && plan_.units[u].gradients == Tier::device && !plan_.rounds_gradients())
          bytes += 4.0 * static_cast<double>(plan_.layout(model_.units[u], u).grad_partition);
      work(Share::optimizer, bandwidth.seconds(bytes));
      break;
    }
    case Op::update: {
      const bool on_host = in.lane == Lane::host, apart = on_host && machine_.profile.devices > 0;
      const double seconds = update_seconds(machine_.update_bytes / 4 * static_cast<double>(in.bytes), on_host);
      if (seconds > 0) result.push_back({apart ? Resource::host : Resource::compute, Share::optimizer, seconds, false});
      break;
    }
    default:
      break;
  }
  // Rounded on the way out, widened if more is to be added: fp32 on one side and 16 bits on the other.
  if (in.part == Part::gradients && plan_.rounds_gradients() && in.lane != Lane::disk &&
      (in.op == Op::stash || in.micro >= 0))
    work(Share::optimizer, bandwidth.seconds(3.0 * static_cast<double>(in.bytes)));
  if (in.lane == Lane::h2d || in.lane == Lane::d2h) {
    const Resource resource = in.lane == Lane::h2d ? Resource::h2d : Resource::d2h;
    const double seconds = copy_seconds(static_cast<double>(in.bytes));
    if (seconds > 0) result.push_back({resource, Share::copy, seconds, false});
  }
  if (in.lane == Lane::disk) {
    const Profile& profile = machine_.profile;
    const double rate =
        (in.op == Op::fetch ? profile.disk_read : profile.disk_write) / ranks_of_node(profile, plan_.mesh);
    if (rate > 0 && in.bytes > 0)
      result.push_back({Resource::disk, Share::copy, static_cast<double>(in.bytes) / rate, false});
  }
  const auto exchange = [&](const Comm& comm, bool is_collective) {
    double seconds = collective_seconds(comm, rank);
    if (comm.kind == "ring") seconds = std::max(0.0, seconds - attention_seconds(in));
    if (seconds > 0) result.push_back({Resource::link, Share::comm, seconds, is_collective});
  };
  if (in.op == Op::send || in.op == Op::recv)
    result.push_back({Resource::link, Share::comm, message_seconds(in.bytes, in.lane, rank), true});
  else
    // Ranks that share tokens are identical: one of them is simulated and waits for no others.
    for (const Comm& comm : in.comm) exchange(comm, !carries_tokens(in.op) || comm.kind == "broadcast");
  if (in.op == Op::forward || in.op == Op::recompute || in.op == Op::backward) {
    const auto it = machine_.work.find(model_.units[in.unit].kind);
    // members of such a group compute parts of the same samples, so they are identical
    if (it != machine_.work.end()) {
      const bool attention_kept = in.op == Op::recompute && plan_.units[in.unit].replays();
      for (const Comm& comm : in.op == Op::backward ? it->second.backward_comm : it->second.comm)
        if (comm.kind != "ring" || !attention_kept) exchange(comm, false);
    }
  }
  return result;
}

}  // namespace tessera::plan
