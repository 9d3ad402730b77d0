#include "tessera/comm/comm.h"

#include <sys/statvfs.h>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/device_messages.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/device_links.h"
#include "tessera/comm/environment.h"
#include "tessera/comm/rings.h"
#include "tessera/comm/sum_in_order.h"
#include "tessera/comm/transport.h"
#include "tessera/device/backend.h"
#include "tessera/device/nccl_ways.h"

namespace tessera::comm {

namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& t : tensors) sum += t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  return sum;
}

/// sum_in_order where the parts and `out` lie. It may overwrite the first part.
void sum_parts(const at::Tensor& out, std::vector<float*> parts, bool accumulate) {
  auto* to = out.mutable_data_ptr<float>();
  if (out.is_cpu()) return sum_in_order(to, {parts.begin(), parts.end()}, out.numel(), accumulate);
  const device::Backend& used = *device::used();
  for (; parts.size() > device::kMaxSummands; parts.erase(parts.begin() + 1, parts.begin() + device::kMaxSummands))
    used.sum_in_order(parts[0], parts.data(), device::kMaxSummands, out.numel(), false);
  used.sum_in_order(to, parts.data(), static_cast<int>(parts.size()), out.numel(), accumulate);
}

/// `from` may lie in its place in `out` already.
void copy_to(char* to, const at::Tensor& from) {
  if (to == from.const_data_ptr()) return;
  if (from.is_cpu())
    std::memmove(to, from.const_data_ptr(), from.nbytes());
  else
    device::used()->copy(to, from.const_data_ptr(), static_cast<int64_t>(from.nbytes()));
}

thread_local double in_collectives = 0, entered_at = 0;

double group_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// LibTorch's messages have a stack trace after the first line.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Group::Group(std::string name, std::string axis, std::vector<int> members, int index,
             std::unique_ptr<Transport> transport)
    : name_(std::move(name)),
      axis_(std::move(axis)),
      members_(std::move(members)),
      index_(index),
      transport_(std::move(transport)) {}

double seconds_in_collectives() { return in_collectives; }

void Group::waits(bool inside) const {
  if (inside)
    entered_at = group_clock();
  else
    in_collectives += group_clock() - entered_at;
  if (watch_) watch_(inside);
}

template <class Act>
void Group::guarded(const char* what, int64_t bytes, Act act) {
  waits(true);
  try {
    if (links_) links_->check();
    act();
    if (links_) links_->check();
    waits(false);
  } catch (const std::exception& error) {
    const auto* peer = dynamic_cast<const PeerError*>(&error);
    const std::string who =
        peer ? "rank " + std::to_string(members_[static_cast<size_t>(peer->member())]) : std::string("a rank");
    throw UserError(Exit::rank_lost, "comm",
                    std::string(what) + " of " + std::to_string(bytes) + " bytes on " + name_ + " did not finish: " +
                        who + " died or did not come within fault.timeout (" + first_line(error) + ")",
                    "the launcher names the rank that began it; restart to resume from the last checkpoint");
  }
}

void Group::run(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) {
  sent_ += bytes_of(out);
  const auto far = [](const at::Tensor& t) { return t.defined() && !t.is_cpu(); };
  const bool on_device = device_transport_ && (std::ranges::any_of(out, far) || std::ranges::any_of(in, far));
  guarded(what, std::max(bytes_of(out), bytes_of(in)),
          [&] { (on_device ? device_transport_ : transport_)->exchange(what, out, in); });
}

void Group::connect() {
  if (device_transport_ || !connect_) return;
  guarded("connecting", 0, [&] { device_transport_ = connect_(); });
  for (const auto& [data, bytes] : lent_) device_transport_->lend(data, bytes);  // of one that is connected anew
}

void Group::lend(void* data, int64_t bytes) {
  const std::pair<void*, int64_t> range = {data, bytes};
  if (!device_transport_ || bytes == 0 || std::ranges::find(lent_, range) != lent_.end()) return;
  lent_.push_back(range);
  device_transport_->lend(data, bytes);
}

std::string against_window(const std::vector<WindowPlace>& places, const std::vector<int>& ranks, bool one_machine) {
  if (!one_machine) return "its ranks are on several machines";
  for (size_t i = 0; i < places.size(); ++i) {
    const WindowPlace &own = places[i], &first = places[0];
    const auto text = [](int64_t number) { return std::to_string(number); };
    const std::string rank = "rank " + text(ranks[i]) + " has ", other = ", rank " + text(ranks[0]) + " ";
    if (own.bytes == 0) return rank + "no slots";
    if (own.block == 0) return rank + "no memory that NCCL has taken";
    if (own.block != first.block)
      return rank + "a block of " + text(own.block) + " bytes" + other + "of " + text(first.block);
    if (own.bytes != first.bytes)
      return rank + "slots of " + text(own.bytes) + " bytes" + other + "of " + text(first.bytes);
    if (own.offset != first.offset)
      return rank + "its slots at byte " + text(own.offset) + other + "at " + text(first.offset);
    if (own.offset % device::kWindowAlign != 0)
      return "its slots begin at byte " + text(own.offset) + ", which is no multiple of " + text(device::kWindowAlign);
  }
  return "";
}

void Group::open_window(const at::Tensor& memory) {
  if (!device_transport_ || !device_transport_->has_collectives()) return;
  close_window(at::Tensor());
  const device::Block block = device::block();
  auto* data = static_cast<char*>(memory.mutable_data_ptr());
  WindowPlace own{0, 0, static_cast<int64_t>(memory.nbytes())};
  if (device_transport_->lends()) own.block = block.bytes, own.offset = data - static_cast<char*>(block.data);
  std::vector<WindowPlace> places;
  for (const auto& row : all_gather_doubles(
           {static_cast<double>(own.block), static_cast<double>(own.offset), static_cast<double>(own.bytes)}))
    places.push_back({static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), static_cast<int64_t>(row[2])});
  std::string against = against_window(places, members_, one_machine_);
  if (against.empty()) {
    guarded("opening a window", own.bytes, [&] { against = device_transport_->open_window(data, own.bytes); });
    const auto refused = all_gather_doubles({against.empty() ? 0.0 : 1.0});
    const auto first = std::ranges::find_if(refused, [](const auto& row) { return row[0] != 0; });
    if (first != refused.end()) {
      if (against.empty())
        against = "rank " + std::to_string(members_[static_cast<size_t>(first - refused.begin())]) + " was refused it";
      device_transport_->close_window();
      device_transport_.reset();  // one member's communicator can do no more
      connect();
    }
  }
  window_ = against.empty() ? data : nullptr;
  window_text_ = against.empty() ? "collectives of " + format_bytes(own.bytes) + " in a symmetric window"
                                 : "no symmetric window: " + against;
}

void Group::close_window(const at::Tensor& memory) {
  if (!window_ || (memory.defined() && memory.const_data_ptr() != window_)) return;
  window_ = nullptr;
  device::used()->wait();  // of what was sent all is done
  device_transport_->close_window();
}

void Group::all_gather(at::Tensor out, const at::Tensor& in) {
  const int64_t n = in.numel();
  std::vector<at::Tensor> send(size()), receive(size());
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    send[i] = in;
    receive[i] = out.narrow(0, i * n, n);
  }
  copy_to(static_cast<char*>(out.mutable_data_ptr()) + index_ * in.nbytes(), in);
  if (size() == 1) return;
  if (device_transport_ && !in.is_cpu()) {
    bool done = false;
    guarded("all_gather", static_cast<int64_t>(in.nbytes()), [&] { done = device_transport_->all_gather(out, in); });
    if (done) {
      sent_ += bytes_of(send);
      return;
    }
  }
  run("all_gather", send, receive);
}

bool Group::library_sums(const at::Tensor& tensor) const {
  return library_sums_ && device_transport_ && !tensor.is_cpu() && size() > 1;
}

void Group::reduce_scatter(at::Tensor shard, const at::Tensor& flat, at::Tensor scratch, bool accumulate) {
  const int64_t n = shard.numel();
  if (library_sums(shard) && n > 0) {
    const at::Tensor sum = accumulate ? scratch.narrow(0, 0, n) : shard;
    bool done = false;
    guarded("reduce_scatter", static_cast<int64_t>(flat.nbytes()),
            [&] { done = device_transport_->reduce_scatter(sum, flat); });
    if (done) {
      sent_ += static_cast<int64_t>(shard.nbytes()) * (size() - 1);
      if (accumulate) sum_parts(shard, {sum.mutable_data_ptr<float>()}, true);
      return;
    }
  }
  std::vector<at::Tensor> send(size()), receive(size());
  std::vector<float*> parts(size());
  for (int i = 0; i < size(); ++i) {
    const at::Tensor& source = i == index_ ? flat : scratch;
    parts[i] = source.mutable_data_ptr<float>() + i * n;
    if (i == index_) continue;
    send[i] = flat.narrow(0, i * n, n);
    receive[i] = scratch.narrow(0, i * n, n);
  }
  if (size() > 1) run("reduce_scatter", send, receive);
  sum_parts(shard, parts, accumulate);
}

/// Memory of all_reduce, beside what the engine plans.
at::Tensor Group::buffer(at::Device device, int64_t values) {
  if (device.is_cpu()) {
    buffer_.resize(static_cast<size_t>(values));
    return at::from_blob(buffer_.data(), {values}, at::kFloat);
  }
  void* data = device::scratch(0, values * static_cast<int64_t>(sizeof(float)));
  if (!data)
    throw UserError(Exit::memory, "comm", "the device has no 4 MiB left for all_reduce on " + name_,
                    "leave more of the device free: lower plan.budget");
  return at::from_blob(data, {values}, at::TensorOptions(at::kFloat).device(device));
}

void Group::all_reduce(at::Tensor tensor) {
  if (size() == 1) return;
  if (library_sums(tensor) && tensor.numel() > 0) {
    bool done = false;
    guarded("all_reduce", static_cast<int64_t>(tensor.nbytes()), [&] { done = device_transport_->all_reduce(tensor); });
    if (done) {
      sent_ += 2 * static_cast<int64_t>(tensor.nbytes()) * (size() - 1) / size();
      return;
    }
  }
  // Reduces in chunks to bound the memory: each member sums its part of a chunk, then sends the sum to the others.
  const int64_t piece = kAllReducePiece / size() * size();
  const at::Tensor received = buffer(tensor.device(), piece);
  for (int64_t first = 0; first < tensor.numel(); first += piece) {
    const int64_t n = std::min(piece, tensor.numel() - first);
    const auto begin = [&](int i) { return first + n * i / size(); };
    const auto part = [&](int i) {  // undefined if the last chunk has too few values for every member
      const int64_t length = begin(i + 1) - begin(i);
      return length ? tensor.narrow(0, begin(i), length) : at::Tensor();
    };
    const at::Tensor own = part(index_);
    const int64_t stride = piece / size();
    std::vector<at::Tensor> send(size()), receive(size());
    std::vector<float*> parts(size());
    for (int i = 0; i < size(); ++i) {
      parts[i] =
          i == index_ ? tensor.mutable_data_ptr<float>() + begin(i) : received.mutable_data_ptr<float>() + i * stride;
      if (i == index_) continue;
      send[i] = part(i);
      if (own.defined()) receive[i] = received.narrow(0, i * stride, own.numel());
    }
    run("all_reduce", send, receive);
    if (own.defined()) sum_parts(own, parts, false);
    for (int i = 0; i < size(); ++i) {
      if (i == index_) continue;
      send[i] = own;
      receive[i] = part(i);
    }
    run("all_reduce", send, receive);
  }
}

void Group::all_to_all(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) {
  const at::Tensor &own = out[index_], &place = in[index_];
  const bool same_form = place.scalar_type() == own.scalar_type() && place.device() == own.device() &&
                         place.sizes() == own.sizes() && place.is_contiguous() && own.is_contiguous();
  if (same_form)
    copy_to(static_cast<char*>(place.mutable_data_ptr()), own);
  else
    at::Tensor(place).copy_(own);
  const auto others = [&](const std::vector<at::Tensor>& all) {
    std::vector<at::Tensor> result = all;
    for (int i = 0; i < size(); ++i)
      if (i == index_ || (all[i].defined() && all[i].numel() == 0)) result[i] = at::Tensor();
    return result;
  };
  if (size() > 1) run("all_to_all", others(out), others(in));
}

void Group::shift(const at::Tensor& out, const at::Tensor& in) {
  std::vector<at::Tensor> send(size()), receive(size());
  if (out.numel() > 0) send[(index_ + 1) % size()] = out;
  if (in.numel() > 0) receive[(index_ + size() - 1) % size()] = in;
  if (size() > 1) run("ring", send, receive);
}

std::vector<std::vector<double>> Group::all_gather_doubles(const std::vector<double>& mine) {
  std::vector<std::vector<double>> rows(size(), std::vector<double>(mine.size()));
  rows[index_] = mine;
  if (size() == 1 || mine.empty()) return rows;
  const auto tensor = [](const std::vector<double>& v) {
    return at::from_blob(const_cast<double*>(v.data()), {static_cast<int64_t>(v.size())}, at::kDouble);
  };
  std::vector<at::Tensor> send(size()), receive(size());
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    send[i] = tensor(mine);
    receive[i] = tensor(rows[i]);
  }
  const int64_t sent = sent_;
  run("all_gather", send, receive);
  sent_ = sent;  // control traffic does not count for an axis
  return rows;
}

void Group::send(const at::Tensor& tensor) {
  check_internal(size() == 2, "comm", name_ + " is not a pair");
  std::vector<at::Tensor> out(2);
  out[1 - index_] = tensor;
  run("send", out, std::vector<at::Tensor>(2));
}

void Group::recv(at::Tensor tensor) {
  check_internal(size() == 2, "comm", name_ + " is not a pair");
  std::vector<at::Tensor> in(2);
  in[1 - index_] = std::move(tensor);
  run("recv", std::vector<at::Tensor>(2), in);
}

void Group::broadcast(at::Tensor tensor, int root) {
  if (size() == 1) return;
  std::vector<at::Tensor> out(size()), in(size());
  if (index_ != root) in[root] = tensor;
  for (int i = 0; i < size() && index_ == root; ++i)
    if (i != root) out[i] = tensor;
  run("broadcast", out, in);
}

void Group::barrier() {
  if (size() > 1) all_gather_doubles({1.0});
}

int64_t Group::take_sent_bytes() { return std::exchange(sent_, 0); }

/// What the Comms of one process have together.
struct Comm::Shared {
  std::unique_ptr<Network> network;  // null: one rank
  double timeout;
  std::unique_ptr<DeviceLinks> links;  // null: what lies on a device is sent as copies
};

Comm::Comm(const Rendezvous& place, const Mesh& mesh, double timeout) : place_(place), mesh_(mesh) {
  check_internal(mesh.world() == place.world, "comm", "mesh and world differ");
  shared_ = std::make_shared<Shared>(Shared{place.single() ? nullptr : open_network(place, timeout), timeout, nullptr});
}

Comm::Comm(const Comm& other, const Mesh& mesh)
    : place_(other.place_), mesh_(mesh), shared_(other.shared_), within_(mesh.to_string() + "/") {
  check_internal(mesh.world() == place_.world && mesh != other.mesh_, "comm", "expected another mesh of these ranks");
}

Comm::~Comm() = default;

Group& Comm::group(std::string_view purpose, const std::vector<Axis>& axes) {
  std::string axis;
  for (Axis a : axes)
    if (mesh_[a] > 1) axis += (axis.empty() ? "" : "+") + std::string(axis_name(a));
  return group_of(purpose, axis, mesh_.group(place_.rank, axes));
}

Group& Comm::group_of(std::string_view purpose, const std::string& axis, const std::vector<int>& members) {
  const std::string key = std::string(purpose) + ":" + axis;
  std::string prefix = key;
  for (int m : members) prefix += "," + std::to_string(m);
  auto& slot = groups_[prefix];
  if (slot) return *slot;
  const int size = static_cast<int>(members.size());
  const int index = static_cast<int>(std::find(members.begin(), members.end(), place_.rank) - members.begin());
  const std::string name = within_ + prefix;
  std::unique_ptr<Transport> transport;
  if (size > 1) transport = shared_->network->connect(name, purpose, members, index);
  slot = std::make_unique<Group>(key, axis, members, index, std::move(transport));
  slot->watch(watch_);
  slot->library_sums_ = library_sums_;
  if (size == 1 || !shared_->links) return *slot;
  slot->links_ = shared_->links.get();
  slot->one_machine_ = on_one_machine(members, place_);
  slot->connect_ = [group = slot.get(), network = shared_->network.get(), name, purpose = std::string(purpose),
                    times = 0]() mutable {
    const std::string key = "device" + std::to_string(times++);  // a second time after a window was refused
    return group->links_->connect(group->name(), group->index_, group->size(),
                                  device_messages(purpose, group->library_sums_),
                                  [&](const std::string& mine) { return network->agree(name, key, mine); });
  };
  return *slot;
}

/// Groups that are there already send nothing that lies on the device, but learn of its failures.
void Comm::make_device_links(const device::Communicators& table) {
  shared_->links = std::make_unique<DeviceLinks>(table, shared_->timeout + 10);
  for (auto& [key, group] : groups_) group->links_ = shared_->links.get();
}

bool Comm::by_device() const { return shared_->links != nullptr; }

void Comm::watch_device(DeviceWatch watch) {
  if (shared_->links) shared_->links->watch(std::move(watch));
}

std::string Comm::against_capture() const {
  if (place_.single()) return "";
  if (!shared_->links) return "messages between ranks go by the host, and a graph cannot wait for it";
  return shared_->links->against_capture();
}

void Comm::begin_capture() {
  if (!shared_->links) return;
  sent_before_.clear();
  for (const auto& [key, group] : groups_) sent_before_[group.get()] = group->sent_;
  shared_->links->begin_capture();
}

/// What was captured was not sent.
std::shared_ptr<const GraphMessages> Comm::end_capture() {
  if (!shared_->links) return nullptr;
  const std::shared_ptr<GraphMessages> graph = shared_->links->end_capture();
  for (const auto& [group, before] : sent_before_)
    if (group->sent_ > before) graph->sent[group] = group->sent_ - before, group->sent_ = before;
  return graph;
}

void Comm::launches(const std::shared_ptr<const GraphMessages>& graph) {
  if (!graph) return;
  shared_->links->launches(graph);
  for (const auto& [group, bytes] : graph->sent) group->sent_ += bytes;
}

void Comm::sum_by_library() {
  library_sums_ = true;
  for (auto& [key, group] : groups_) group->library_sums_ = true;
}

void Comm::watch(Watch watch) {
  watch_ = std::move(watch);
  for (auto& [key, group] : groups_) group->watch(watch_);
}

std::string own_address(const Rendezvous& place) {
  const bool here = place.host == "127.0.0.1" || place.host == "localhost";
  return here ? "127.0.0.1" : address_towards(place.host, place.port);
}

bool on_one_machine(const std::vector<int>& members, const Rendezvous& place) {
  const auto machine = [&](int rank) { return rank / place.local_world; };
  return std::ranges::all_of(members, [&](int rank) { return machine(rank) == machine(members[0]); });
}

namespace {

/// Of a group whose tensors on the device are sent by its own communicator.
Link device_link(const Group& group, const std::string& version, bool one_machine) {
  const Transport& transport = *group.device_transport();
  const device::Ways& ways = *transport.ways();
  std::string by = version + ", enqueued on streams, " + (one_machine ? "within this machine" : "between machines");
  by += ways.known() ? ", by " + ways.text() : " (NCCL_DEBUG=INFO tells which links it found)";
  if (!transport.lends()) by += ", from copies of its own";
  if (!group.window_text().empty()) by += ", " + group.window_text();
  return {group.name(), group.size(), by, ways.warning(one_machine)};
}

}  // namespace

std::vector<Link> Comm::links() const {
  if (place_.single()) return {};
  const std::string leaves = env::text("GLOO_SOCKET_IFNAME").value_or(own_address(place_));
  const Interface way = interface_of(leaves);
  const std::string by = "Gloo, " + describe(way, leaves);
  const std::string warning = slow_way(way, place_.local_world, place_.world, device::used() && !shared_->links);
  std::vector<Link> links;
  for (const auto& [key, group] : groups_) {
    if (group->size() == 1) continue;
    if (group->by_device())
      links.push_back(device_link(*group, shared_->links->version(), on_one_machine(group->members(), place_)));
    else
      links.push_back(
          {group->name(), group->size(), group->by_shared_memory() ? "memory that the ranks share" : by, warning});
  }
  return links;
}

namespace {

/// What member `root` has, on all of them.
std::string text_of(Group& group, int root, std::string_view mine) {
  const auto lengths = group.all_gather_doubles({static_cast<double>(mine.size())});
  std::string text(static_cast<size_t>(lengths[static_cast<size_t>(root)][0]), '\0');
  if (group.rank() == root) text = mine;
  if (!text.empty()) group.broadcast(at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kChar), root);
  return text;
}

}  // namespace

Comm::DeviceLinking Comm::use_device_links(std::string against) {
  Group& all = group("control", {kAllAxes.begin(), kAllAxes.end()});
  const device::Backend* gpu = device::used();
  const device::Communicators* table = gpu ? gpu->communicators : nullptr;
  if (against.empty() && !table) against = "the device has no communicators";
  if (against.empty()) against = table->absence();
  const std::string version = against.empty() ? table->version() : "";
  // as two halves of a hash, which doubles hold exactly
  const uint64_t id = hash_text(version);
  const auto rows = all.all_gather_doubles(
      {against.empty() ? 1.0 : 0.0, static_cast<double>(id >> 32), static_cast<double>(id & 0xFFFFFFFFu)});
  for (size_t rank = 0; rank < rows.size(); ++rank)
    if (rows[rank][0] == 0)
      return {false, "rank " + std::to_string(rank) + ": " + text_of(all, static_cast<int>(rank), against)};
  const auto other = std::ranges::find_if(rows, [&](const auto& row) { return row != rows[0]; });
  if (other != rows.end()) {
    const auto rank = static_cast<int>(other - rows.begin());
    const std::string first = text_of(all, 0, version), second = text_of(all, rank, version);
    return {false, "rank 0 has " + first + ", rank " + std::to_string(rank) + " has " + second};
  }
  if (!place_.single()) make_device_links(*table);
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) != 0) return {true, version};
  return {true, version,
          device::small_shared_memory(static_cast<int64_t>(shared.f_blocks * shared.f_frsize), place_.local_world)};
}

void Comm::barrier() { group("control", {kAllAxes.begin(), kAllAxes.end()}).barrier(); }

namespace {

/// The first line in which two texts differ, of each of them.
std::pair<std::string, std::string> first_difference(const std::string& one, const std::string& other) {
  std::istringstream ones(one), others(other);
  for (std::string a, b; ones || others;) {
    a.clear(), b.clear();
    std::getline(ones, a), std::getline(others, b);
    if (a != b) return {a, b};
  }
  return {one, other};  // line ends alone
}

}  // namespace

void Comm::check_agreement(std::string_view what, std::string_view text) {
  Group& all = group("control", {kAllAxes.begin(), kAllAxes.end()});
  const uint64_t hash = hash_text(text);
  const auto rows = all.all_gather_doubles({static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu)});
  const auto other = std::ranges::find_if(rows, [&](const auto& row) { return row != rows[0]; });
  if (other == rows.end()) return;
  const auto named = static_cast<int>(other - rows.begin());
  const std::string ours = text_of(all, 0, text), theirs = text_of(all, named, text);
  const auto [here, there] = first_difference(ours, theirs);
  throw UserError(Exit::usage, "comm",
                  "rank " + std::to_string(named) + " has another " + std::string(what) + " than rank 0: '" + there +
                      "', and rank 0 has '" + here + "'",
                  "start every rank with the same program, recipe, flags and files");
}

std::map<std::string, int64_t> Comm::take_sent_bytes() {
  std::map<std::string, int64_t> bytes;
  for (auto& [key, group] : groups_)
    if (!group->axis().empty() && !key.starts_with("control")) bytes[group->axis()] += group->take_sent_bytes();
  return bytes;
}

}  // namespace tessera::comm
