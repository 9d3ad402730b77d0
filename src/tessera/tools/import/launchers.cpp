// torchrun's and deepspeed's launchers: the number of ranks, and their rendezvous.
#include "tessera/tools/import/dialects.h"

namespace tessera::tools {

namespace {

void launchers_together(Translator& t) {
  int64_t ranks = 0;
  std::string option;
  for (const char* name : {"--nproc_per_node", "--nproc-per-node", "--num_gpus"})
    if (t.has(name)) option = name, ranks = t.integer(name, 1);
  int64_t machines = 1;
  for (const char* name : {"--nnodes", "--num_nodes"})
    if (t.has(name)) {
      machines = t.integer(name, 1);
      t.imply(name, "each is started by itself: tessera launch --nnodes " + t.value(name));
    }
  if (ranks > 0) t.set_ranks(static_cast<int>(ranks * machines), option);
}

}  // namespace

const Dialect& torchrun_launcher() {
  static const Dialect dialect = [] {
    Dialect d{"torchrun and deepspeed", "a launcher's options", {}, launchers_together};
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
    for (const char* name : {"--hostfile", "--include", "--exclude"})
      d.rules.push_back(refused(name, "start each machine with tessera launch --nnodes, or all with srun or mpirun"));
    d.rules.push_back(implied("--standalone", "one machine needs no rendezvous", Takes::nothing));
    return d;
  }();
  return dialect;
}

}  // namespace tessera::tools
