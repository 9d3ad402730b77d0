#include "tessera/plan/simulate/cost.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/mesh.h"
#include "tessera/plan/compile/memory.h"
#include "tessera/plan/unit_sizes.h"

namespace tessera::plan {

std::vector<double> exposed(const std::vector<Exchange>& exchanges) {
  std::vector<double> open(exchanges.size()), ends(exchanges.size());
  std::vector<size_t> under_way;  // begun and not awaited, in order
  double waited = 0, lane = 0;    // seconds of waits so far; when the lane has sent what it was given
  const auto wait = [&](size_t i) {
    open[i] = std::max(0.0, ends[i] - (exchanges[i].awaited + waited));
    waited += open[i];
  };
  const auto wait_until = [&](double place) {
    size_t done = 0;
    for (; done < under_way.size() && exchanges[under_way[done]].awaited <= place; ++done) wait(under_way[done]);
    under_way.erase(under_way.begin(), under_way.begin() + static_cast<std::ptrdiff_t>(done));
  };
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const Exchange& e = exchanges[i];
    wait_until(e.begun);
    const double now = e.begun + waited;
    if (e.awaited <= e.begun && under_way.empty()) {
      open[i] = e.seconds, waited += e.seconds;
      lane = std::max(lane, now + e.seconds);
      continue;
    }
    ends[i] = std::max(lane, now) + e.seconds;
    lane = ends[i];
    under_way.push_back(i);
  }
  for (const size_t i : under_way) wait(i);
  return open;
}

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
  for (std::string_view left = joined; !left.empty();) {
    const std::string_view part = left.substr(0, left.find('+'));
    for (Axis axis : kAllAxes)
      if (axis_name(axis) == part) axes.push_back(axis);
    left.remove_prefix(std::min(left.size(), part.size() + 1));
  }
  return axes;
}

/// Bytes/s that one core streams through an update, for each thread of plan.update_threads. A server core with AVX2
/// reads and writes 8 to 15 GB/s of DDR4 or DDR5.
constexpr double kThreadBandwidth = 10e9;

/// FLOP/s of one core in fp32 products, and threads of an update on the host where the plan does not say.
constexpr double kThreadFlops = 50e9;
constexpr int kUsualThreads = 8;

/// Ranks that share a node's host memory or disk at the same time.
double ranks_of_node(const Profile& profile, const Mesh& mesh) {
  return profile.devices > 0 ? std::min(profile.devices, mesh.world()) : mesh.world();
}

/// Of parameters, gradients and both moments that a rank goes through in a step, about.
double state_bytes(const ModelSpec& model, const Plan& plan) {
  double bytes = 0;
  for (int u = 0; u < static_cast<int>(model.units.size()); ++u)
    for (const Buffer& buffer : plan.layout(model.units[u], u).buffers)
      bytes += (buffer.trainable ? 16.0 : 4.0) * static_cast<double>(buffer.shard);
  return std::max(1.0, bytes / plan.mesh[Axis::pp]);
}

}  // namespace

struct CostModel::Priced {
  const UnitWork& work;
  const UnitSignatures* sizes;    ///< null: not known
  const AttentionUse* attention;  ///< likewise
};

/// Micro-batches of fewer samples: the machine with their work, and the costs.
struct CostModel::Smaller {
  Smaller(const ModelSpec& model, const Plan& plan, const Machine& whole)
      : machine(own(model, whole)), cost(model, plan, machine) {}

  const Machine machine;
  const CostModel cost;

 private:
  static Machine own(const ModelSpec& model, Machine machine) {
    if (const auto counted = machine.smaller.find(model.samples); counted != machine.smaller.end())
      machine.work = counted->second.work, machine.sizes = counted->second.sizes;
    machine.smaller.clear();
    return machine;
  }
};

CostModel::~CostModel() = default;

CostModel::CostModel(const ModelSpec& model, const Plan& plan, const Machine& machine)
    : model_(model), plan_(plan), machine_(machine) {
  const DeviceProfile& device = machine_.profile.device;
  product_ = fp8_ = rate_of(device.gemm, machine_.dtype, machine_.profile);
  if (const auto it = device.gemm.find("fp8"); it != device.gemm.end()) fp8_ = it->second;  // a CPU has none: the twin
  // fp8 and tf32 apply to products; attention runs in another dtype of the profile
  const auto attention = [&](const RateByDtype& rates, const std::string& by) {
    for (const std::string& name : {machine_.dtype + by, machine_.dtype, "bf16" + by, std::string("bf16")})
      if (const auto it = rates.find(name); it != rates.end()) return it->second;
    return product_;
  };
  const auto attending = [&](const std::string& by) {
    Attending found = {attention(device.attention, by), attention(device.attention_backward, by)};
    for (const std::string& name : {machine_.dtype + by, machine_.dtype})
      if (const auto it = device.attentions.find(name); it != device.attentions.end() && !found.grid)
        found.grid = &it->second;
    return found;
  };
  flash_ = attending(""), cudnn_ = attending(std::string(kByCudnn));
  usually_cudnn_ = cudnn_.forward.top > flash_.forward.top;
  in_codes_ = plan.gather_fp8 && std::ranges::none_of(plan.units, [](const UnitPlan& unit) {
                return unit.strategy == Strategy::no_shard;
              });
  for (const UnitSpec& unit : model.units) attention_of_.emplace(unit.kind, &unit.cost.attention);
  if (machine_.profile.devices == 0) dispatch_ = device.dispatch;
  const auto grid = [&](const std::map<std::string, TimeGrid>& grids) {
    const auto it = grids.find(machine_.dtype);
    return it == grids.end() ? nullptr : &it->second;
  };
  products_ = grid(machine_.profile.device.products);
  uncached_ = grid(machine_.profile.device.uncached_products);
  if (uncached_ && device.cached > 0 && device.uncached > device.cached)
    uncached_part_ = std::clamp(
        std::log(state_bytes(model, plan) / device.cached) / std::log(device.uncached / device.cached), 0.0, 1.0);
  for (const auto& [kind, work] : machine_.work) of_kind_.emplace(kind, of_kind(priced(kind)));
  for (const ModelSpec& smaller : model.smaller) smaller_.push_back(std::make_unique<Smaller>(smaller, plan, machine_));
}

const CostModel& CostModel::of_micro(const Instruction& in, int rank) const {
  if (smaller_.empty() || in.micro < 0) return *this;
  const ModelSpec& model = model_.on(plan_.slice(plan_.mesh.dp_rank(rank), in.micro).count);
  for (const auto& smaller : smaller_)
    if (&smaller->cost.model_ == &model) return smaller->cost;
  return *this;
}

namespace {

/// Bytes of a weight's element as products read it.
double element_bytes(const std::string& dtype) { return dtype == "fp8" ? 1 : dtype == "bf16" ? 2 : 4; }

}  // namespace

CostModel::Priced CostModel::priced(const std::string& kind) const {
  const auto sizes = machine_.sizes.find(kind);
  const auto attention = attention_of_.find(kind);
  return {machine_.work.at(kind), sizes == machine_.sizes.end() ? nullptr : &sizes->second,
          attention == attention_of_.end() ? nullptr : attention->second};
}

double CostModel::product_seconds(double flops, const Product* sizes, const char* call) const {
  const DeviceProfile& device = machine_.profile.device;
  const double calls = std::string_view(call) == "forward" ? 1 : 2;
  if (!sizes) return product_.seconds(flops);
  if (plan_.fp8 && sizes->streams) return fp8_seconds(flops, *sizes, call);
  if (products_) {
    const std::vector<double> at = {sizes->rows, sizes->in, sizes->out};
    double seconds = products_->at(call, at);
    if (uncached_part_ > 0) seconds *= std::pow(uncached_->at(call, at) / seconds, uncached_part_);
    return calls * dispatch_ + seconds;
  }
  return std::max(product_.seconds(flops), sizes->in * sizes->out * element_bytes(machine_.dtype) / device.stream.top);
}

double CostModel::fp8_seconds(double flops, const Product& sizes, std::string_view call) const {
  const DeviceProfile& device = machine_.profile.device;
  const double x = sizes.again ? 0 : sizes.rows * sizes.in, y = sizes.rows * sizes.out, w = sizes.in * sizes.out;
  constexpr double kRow = 2 + 1,
                   kColumn = 2 * 2 + 1;  // bytes of a bf16 value that is read, once or twice, and of its code
  double streamed = kRow * (x + (in_codes_ ? 0 : w));
  if (call == "input_gradient") streamed = kRow * y + (in_codes_ ? 2 : kColumn) * w;  // codes are turned
  if (call == "weight_gradient") streamed = kColumn * (x + y) + 4.0 * (1 + 2 + 2) * w;
  double product = fp8_.seconds(flops);
  if (products_ && flops > 0)  // measured in 16 bits: what its size costs there, at the other rate
    product *= products_->at(std::string(call), {sizes.rows, sizes.in, sizes.out}) / product_.seconds(flops);
  return std::max(product, w / device.stream.top) + (streamed + 2 * device.stream.half) / device.stream.top;
}

double CostModel::code_seconds(const Instruction& in, int rank) const {
  const double read = plan_.states.masters == Masters::fp32 ? 4 : 2;
  double bytes = 0, kernels = 0;
  for (const Comm& comm : in.comm) {  // of scales and of 16 bits too: both are little beside the codes
    bytes += static_cast<double>(comm.bytes) / std::max(1, RankGrid(plan_.mesh, rank, axes_of(comm.axis)).size() - 1);
    kernels += 2;
  }
  const Rate& stream = machine_.profile.device.stream;
  return ((2 * read + 1) * bytes + kernels * stream.half) / stream.top;
}

double CostModel::products_seconds(const std::vector<double>& flops, const std::vector<Product>* sizes,
                                   const char* call) const {
  const bool known = sizes && sizes->size() == flops.size();
  double seconds = 0;
  for (size_t i = 0; i < flops.size(); ++i) seconds += product_seconds(flops[i], known ? &(*sizes)[i] : nullptr, call);
  return seconds;
}

double CostModel::site_seconds(const Priced& priced, const std::string& site, bool backward) const {
  const double flops = priced.work.attention.at(site);
  const auto takes = [&](AttentionKernel kernel) { return priced.attention && priced.attention->takes(site, kernel); };
  const bool cudnn = takes(AttentionKernel::cudnn) || (usually_cudnn_ && !takes(AttentionKernel::flash));
  const Attending& by = cudnn ? cudnn_ : flash_;
  if (by.grid && priced.sizes && priced.sizes->segments.contains(site)) {
    constexpr double kWidth = 64;  // of the measured head
    const auto [queries, keys] = priced.sizes->segments.at(site);
    const double heads = flops / (4 * queries * keys * kWidth);
    return (backward ? 2 : 1) * dispatch_ + heads * by.grid->at(backward ? "backward" : "forward", {queries, keys});
  }
  return backward ? by.backward.seconds(2.5 * flops) : by.forward.seconds(flops);
}

double CostModel::others_seconds(const Priced& priced, bool backward) const {
  const DeviceProfile& device = machine_.profile.device;
  const auto streaming = [&](double back, double forward, int operators) {
    return ((backward ? back : forward) + (backward ? 2 : 1) * device.stream.half * operators) / device.stream.top;
  };
  if (!priced.sizes || priced.sizes->kinds.empty())
    return streaming(2 * priced.work.streamed, priced.work.streamed, priced.work.operators);
  double seconds = 0;
  const std::map<std::string, Streams>& kinds = priced.sizes->kinds;
  for (const auto& [kind, of_kind] : kinds) {
    if (kind.ends_with(of_backward(""))) continue;
    const auto measured = device.operators.find(kind);
    if (measured == device.operators.end()) {
      const auto back = kinds.find(of_backward(kind));
      seconds +=
          streaming(back == kinds.end() ? 2 * of_kind.bytes : back->second.bytes, of_kind.bytes, of_kind.operators);
      continue;
    }
    const Rate& rate = backward ? measured->second.backward : measured->second.forward;
    seconds += (of_kind.bytes + rate.half * of_kind.operators) / rate.top;
  }
  return seconds;
}

CostModel::OfKind CostModel::of_kind(const Priced& priced) const {
  const UnitWork& work = priced.work;
  const auto* products = priced.sizes ? &priced.sizes->products : nullptr;
  OfKind seconds = {others_seconds(priced, false) + products_seconds(work.products, products, "forward"), 0};
  for (const auto& [site, flops] : work.attention) seconds.forward += site_seconds(priced, site, false);
  const DeviceProfile& device = machine_.profile.device;
  const double calls = static_cast<double>(work.products.size() + work.attention.size()) + work.operators,
               dispatched = machine_.profile.devices > 0 ? calls * device.dispatch : 0;
  seconds.forward = std::max(seconds.forward, dispatched);
  if (!work.backward) return seconds;
  seconds.backward =
      others_seconds(priced, true) + products_seconds(work.input_grads, products, "input_gradient") +
      products_seconds(work.weight_grads, priced.sizes ? &priced.sizes->weight_grads : nullptr, "weight_gradient");
  for (const auto& [site, flops] : work.attention) seconds.backward += site_seconds(priced, site, true);
  seconds.backward = std::max(seconds.backward, 2 * dispatched);
  return seconds;
}

double CostModel::forward_seconds(int unit, bool replay) const {
  const UnitSpec& spec = model_.units[unit];
  const auto it = machine_.work.find(spec.kind);
  if (it == machine_.work.end()) return product_.seconds(spec.cost.forward_flops);
  double seconds = of_kind_.at(spec.kind).forward;
  if (!replay) return seconds;
  // A recomputed unit may keep a site's result, which is then not recomputed.
  const auto kept = [&](const std::string& site) { return plan_.units[unit].policy(site) != Policy::recompute; };
  const Priced all = priced(spec.kind);
  for (const auto& [site, flops] : all.work.results)
    if (kept(site)) seconds -= product_seconds(flops, all.sizes ? &all.sizes->results.at(site) : nullptr, "forward");
  for (const auto& [site, flops] : all.work.attention)
    if (kept(site)) seconds -= site_seconds(all, site, false);
  return seconds;
}

double CostModel::backward_seconds(int unit) const {
  const UnitSpec& spec = model_.units[unit];
  const auto it = of_kind_.find(spec.kind);
  return it == of_kind_.end() ? product_.seconds(spec.cost.backward_flops) : it->second.backward;
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
    most = std::max(most, site_seconds(priced(it->first), site, in.op == Op::backward));
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
  const bool exchanges = comm.kind == "all_to_all";
  const auto bandwidth = [&](const LinkProfile& link) {
    return exchanges && link.exchange > 0 ? link.exchange : reduces ? link.reduce : link.gather;
  };
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

double CostModel::seconds_beside_attention(const Comm& comm, const Instruction& in, int rank) const {
  const double seconds = collective_seconds(comm, rank);
  if (comm.kind != "ring") return seconds;
  const Profile& profile = machine_.profile;
  const double open = std::max(0.0, seconds - attention_seconds(in));
  return profile.beside < 1 ? open + profile.steal / profile.beside * (seconds - open) : open;
}

void CostModel::add_exchanges(const Instruction& in, int rank, std::vector<Phase>& phases) const {
  const bool later = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;  // weight gradients hide nothing here
  const auto seconds_at = [&](const WorkDone& p) { return (p.products + (later ? 0 : p.weight_grads)) / product_.top; };
  std::vector<Traffic> sent;
  for (const Traffic& t : traffic_of(model_.units[in.unit], plan_.units[in.unit], in.op))
    if (t.several(plan_.mesh)) sent.push_back(t);
  std::vector<Exchange> exchanges;
  for (size_t i = 0; i < in.comm.size(); ++i) {
    const WorkDone begun = i < sent.size() ? sent[i].begun : WorkDone(),
                   awaited = i < sent.size() ? sent[i].awaited : begun;
    exchanges.push_back({seconds_at(begun), seconds_at(awaited), seconds_beside_attention(in.comm[i], in, rank)});
  }
  const Profile& profile = machine_.profile;
  const std::vector<double> open = exposed(exchanges);
  std::vector<const Wait*> waited;
  for (size_t i = 0; i < open.size(); ++i) {
    const double hidden = exchanges[i].seconds - open[i], seconds = open[i] + profile.steal / profile.beside * hidden;
    if (seconds > 0) phases.push_back({Resource::link, Share::comm, seconds, false});
    if (i >= sent.size()) continue;
    const auto wait = profile.waits.find(sent[i].purpose);
    if (wait != profile.waits.end()) waited.push_back(&wait->second);
  }
  double without = 0, waits = 0;
  for (const Phase& phase : phases) without += phase.seconds;
  const double of_each = without / static_cast<double>(std::max<size_t>(1, in.comm.size()));
  for (const Wait* wait : waited) waits += (in.op == Op::backward ? wait->backward : wait->forward).seconds(of_each);
  if (waits > 0) phases.push_back({Resource::none, Share::comm, waits, false});
}

double CostModel::weight_grad_seconds(int unit) const {
  const UnitSpec& spec = model_.units[unit];
  const auto it = machine_.work.find(spec.kind);
  if (it == machine_.work.end()) return product_.seconds(spec.cost.backward_flops) / 2;
  const Priced all = priced(spec.kind);
  return products_seconds(all.work.weight_grads, all.sizes ? &all.sizes->weight_grads : nullptr, "weight_gradient");
}

double CostModel::start_seconds(Op op) const {
  const auto& starts = machine_.profile.starts;
  const auto it = starts.find(name(op));
  return it == starts.end() ? 0 : it->second;
}

/// None of a recomputed unit: between its recompute and its backward a cache holds most of it.
double CostModel::kept_seconds(int unit, double rate) const {
  const UnitPlan& plan = plan_.units[unit];
  if (rate <= 0 || plan.recomputes()) return 0;
  return static_cast<double>(model_.units[unit].cost.graph(plan.selective()).saved) / rate;
}

double CostModel::message_seconds(int64_t bytes, Lane lane, int rank) const {
  const Profile& profile = machine_.profile;
  const std::vector<int> stages = plan_.mesh.group(rank, {Axis::pp});
  const int count = static_cast<int>(stages.size()), here = plan_.mesh.coordinate(rank, Axis::pp);
  const int step = lane == Lane::send_next || lane == Lane::recv_next ? 1 : count - 1;
  const int peer = stages[(here + step) % count], per_node = profile.devices > 0 ? profile.devices : plan_.mesh.world();
  const bool same_node = peer / per_node == rank / per_node;
  const LinkProfile& link = same_node ? profile.link : profile.nic;
  // All ranks of the node send at the same time.
  const double rate = (link.send > 0 ? link.send : link.gather) / (same_node ? 1 : per_node);
  if (rate <= 0)
    throw UserError(Exit::usage, "plan.profile", profile.name + ": no bandwidth for messages between pipeline stages",
                    "choose a profile with that many devices, or one with a NIC");
  return static_cast<double>(bytes) * machine_.wire / rate + link.latency;
}

double CostModel::copy_seconds(double bytes, bool back) const {
  const Profile& profile = machine_.profile;
  double rate = back && profile.host_link_back > 0 ? profile.host_link_back : profile.host_link;
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

double CostModel::matrix_seconds(double flops, bool apart) const {
  if (apart) return flops / (kThreadFlops * (plan_.update_threads > 0 ? plan_.update_threads : kUsualThreads));
  const RateByDtype& rates = machine_.profile.device.gemm;
  // a CPU's products are in fp32, whatever the matrices are rounded to
  const auto found = rates.find(std::string(machine_.profile.devices == 0 ? "fp32" : name(plan_.states.matrices)));
  return (found == rates.end() ? product_ : found->second).seconds(flops);
}

std::vector<Phase> CostModel::phases(const Instruction& in, int rank) const {
  if (const CostModel& own = of_micro(in, rank); &own != this) return own.phases(in, rank);
  std::vector<Phase> result;
  const DeviceProfile& device = machine_.profile.device;
  const Rate& bandwidth = device.bandwidth;
  const auto work = [&](Share share, double seconds) {
    if (seconds > 0) result.push_back({Resource::compute, share, seconds, false});
  };
  const bool optimises = in.op == Op::norm || in.op == Op::update;
  if (in.op == Op::gather && in.codes != Codes::none) work(Share::compute, code_seconds(in, rank));
  if (in.lane == Lane::compute) work(optimises ? Share::optimizer : Share::compute, start_seconds(in.op));
  switch (in.op) {
    case Op::forward:
      work(Share::compute, forward_seconds(in.unit, false) + kept_seconds(in.unit, device.kept_write));
      break;
    case Op::recompute:
      work(Share::compute, forward_seconds(in.unit, true));
      break;
    case Op::backward: {
      const bool later = plan_.pipeline.schedule == PipelineSchedule::zero_bubble;
      work(Share::compute, backward_seconds(in.unit) + rebuild_seconds(in.unit) -
                               (later ? weight_grad_seconds(in.unit) : 0) + kept_seconds(in.unit, device.kept_read));
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
      if (in.unit < 0 && !plan_.rounds_gradients()) {
        const UnitSizes sizes(model_, plan_, rank);
        for (int u = 0; u < static_cast<int>(model_.units.size()); ++u)
          if (plan_.owns(rank, u) && plan_.units[u].gradients == Tier::device)
            bytes += 4.0 * static_cast<double>(sizes.layout(u).grad_partition);
      }
      const Rate& squares = device.norm;
      work(Share::optimizer, (squares.top > 0 ? squares : bandwidth).seconds(bytes));
      break;
    }
    case Op::update: {
      const bool on_host = in.lane == Lane::host, apart = on_host && machine_.profile.devices > 0;
      const double seconds = update_seconds(machine_.update_bytes / 4 * static_cast<double>(in.bytes), on_host);
      const double whole = in.flops > 0 ? matrix_seconds(static_cast<double>(in.flops), apart) : 0;
      if (seconds + whole > 0)
        result.push_back({apart ? Resource::host : Resource::compute, Share::optimizer, seconds + whole, false});
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
    const double seconds = copy_seconds(static_cast<double>(in.bytes), resource == Resource::d2h);
    if (seconds > 0) result.push_back({resource, Share::copy, seconds, false});
  }
  if (in.lane == Lane::disk) {
    const Profile& profile = machine_.profile;
    const double rate =
        (in.op == Op::fetch ? profile.disk_read : profile.disk_write) / ranks_of_node(profile, plan_.mesh);
    if (rate > 0 && in.bytes > 0)
      result.push_back({Resource::disk, Share::copy, static_cast<double>(in.bytes) / rate, false});
  }
  const auto on_link = [&](double seconds, bool is_collective) {
    if (seconds > 0) result.push_back({Resource::link, Share::comm, seconds, is_collective});
  };
  const bool of_unit = in.op == Op::forward || in.op == Op::recompute || in.op == Op::backward;
  // Ranks that share tokens are identical: one of them is simulated and waits for no others.
  if (in.op == Op::send || in.op == Op::recv)
    on_link(message_seconds(in.bytes, in.lane, rank), true);
  else if (of_unit)
    add_exchanges(in, rank, result);
  else
    for (const Comm& comm : in.comm)
      on_link(collective_seconds(comm, rank), !carries_tokens(in.op) || comm.kind == "broadcast");
  if (of_unit) {
    const auto it = machine_.work.find(model_.units[in.unit].kind);
    // members of such a group compute parts of the same samples, so they are identical
    if (it != machine_.work.end()) {
      const bool attention_kept = in.op == Op::recompute && plan_.units[in.unit].replays();
      for (const Comm& comm : in.op == Op::backward ? it->second.backward_comm : it->second.comm)
        if (comm.kind != "ring" || !attention_kept) on_link(seconds_beside_attention(comm, in, rank), false);
    }
  }
  return result;
}

}  // namespace tessera::plan
