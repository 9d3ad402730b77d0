#include "tessera/comm/comm.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/base/device_messages.h"
#include "tessera/base/random.h"
#include "tessera/comm/addresses.h"
#include "tessera/comm/device_links.h"
#include "tessera/comm/environment.h"
#include "tessera/comm/network.h"
#include "tessera/device/backend.h"
#include "tessera/device/nccl_ways.h"

namespace tessera::comm {

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
