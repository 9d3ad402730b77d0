// A build without Gloo: supports one rank and refuses more.
#include "tessera/base/check.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/device_links.h"

namespace tessera::comm {

namespace {
[[noreturn]] void refuse() {
  throw UserError(Exit::usage, "comm", "this program was built without Gloo and runs one rank only",
                  "configure with -DTESSERA_GLOO=ON");
}
}  // namespace

struct Comm::Backend {};

bool has_gloo() { return false; }

Comm::Comm(const Rendezvous& place, const Mesh& mesh, double) : place_(place), mesh_(mesh) {
  if (!place.single()) refuse();
}
Comm::Comm(const Comm& other, const Mesh& mesh) : place_(other.place_), mesh_(mesh) {}
Comm::~Comm() = default;

Group& Comm::group(std::string_view purpose, const std::vector<Axis>&) { return group_of(purpose, {}, {0}); }

Group& Comm::group_of(std::string_view purpose, const std::string&, const std::vector<int>&) {
  auto& slot = groups_[std::string(purpose) + ":"];
  if (!slot) slot = std::make_unique<Group>(std::string(purpose) + ":", "", std::vector<int>{0}, 0, nullptr);
  return *slot;
}

void Comm::make_device_links(const device::Communicators&) {}
bool Comm::by_device() const { return false; }
void Comm::watch_device(DeviceWatch) {}

std::vector<Link> Comm::links() const { return {}; }

}  // namespace tessera::comm
