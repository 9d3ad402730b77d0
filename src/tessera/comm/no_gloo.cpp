// A build without Gloo: supports one rank and refuses more.
#include "tessera/base/check.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

bool has_gloo() { return false; }

std::unique_ptr<Network> open_network(const Rendezvous&, double) {
  throw UserError(Exit::usage, "comm", "this program was built without Gloo and runs one rank only",
                  "configure with -DTESSERA_GLOO=ON");
}

}  // namespace tessera::comm
