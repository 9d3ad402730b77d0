// torchrun's, deepspeed's and ColossalAI's launchers: the number of ranks, and their rendezvous.
#include "tessera/base/check.h"
#include "tessera/base/checked.h"
#include "tessera/tools/import/dialects.h"

namespace tessera::tools {

namespace {

void launchers_together(Translator& t) {
  const auto count = [&](const char* name) {
    if (t.integer(name, 1) < 1)
      throw UserError(Exit::usage, "import", t.find(name)->shown() + ": expected at least 1", "correct it");
    return t.integer(name, 1);
  };
  int64_t ranks = 0, machines = 1;
  std::string option;
  for (const char* name : {"--nproc_per_node", "--nproc-per-node", "--num_gpus"}) {
    if (!t.has(name)) continue;
    if (!option.empty()) t.imply(option, std::string(name) + " says it again");
    option = name, ranks = count(name);
  }
  for (const char* name : {"--nnodes", "--num_nodes"})
    if (t.has(name)) {
      machines = count(name);
      t.imply(name, "each is started by itself: tessera launch --nnodes " + t.value(name));
    }
  if (!option.empty())
    t.set_ranks(checked_int(checked_product({ranks, machines}, "import: ranks of all machines"), "import: the ranks"),
                option);
}

}  // namespace

const Dialect& torchrun_launcher() {
  static const Dialect dialect = [] {
    Dialect d{"torchrun, deepspeed and colossalai run", "a launcher's options", {}, launchers_together};
    for (const char* name : {"--nproc_per_node", "--nproc-per-node", "--num_gpus"})
      d.rules.push_back(joined(name, "`tessera launch -n`"));
    for (const char* name : {"--nnodes", "--num_nodes"}) d.rules.push_back(joined(name, "`tessera launch --nnodes`"));
    for (const char* name : {"--node_rank", "--node-rank"})
      d.rules.push_back(implied(name, "tessera launch --node-rank"));
    for (const char* name :
         {"--rdzv_endpoint", "--rdzv-endpoint", "--master_addr", "--master-addr", "--master_port", "--master-port"})
      d.rules.push_back(implied(name, "tessera launch --rdzv-endpoint HOST:PORT"));
    for (const char* name : {"--rdzv_backend", "--rdzv-backend", "--rdzv_id", "--rdzv-id", "--local_addr"})
      d.rules.push_back(implied(name, "not needed: --rdzv-endpoint is enough"));
    for (const char* name : {"--max_restarts", "--max-restarts"})
      d.rules.push_back(implied(name, "tessera launch --max-restarts"));
    for (const char* name : {"--hostfile", "--host", "--include", "--exclude"})
      d.rules.push_back(refused(name, "start each machine with tessera launch --nnodes, or all with srun or mpirun"));
    d.rules.push_back(implied("--standalone", "one machine needs no rendezvous", Takes::nothing));
    return d;
  }();
  return dialect;
}

}  // namespace tessera::tools
