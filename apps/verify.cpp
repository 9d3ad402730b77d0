#include "tessera/tools/verify/verify.h"
#include "commands.h"
#include "tessera/base/check.h"
#include "tessera/comm/launcher.h"
#include "tessera/comm/rendezvous.h"

namespace tessera::apps {

namespace {

int run_verify(const Arguments& arguments) {
  tools::VerifyOptions options;
  for (const auto& word : arguments.words) options.cases.emplace_back(word);
  options.mesh = Mesh::parse(arguments.value("--mesh"));
  if (arguments.has("--device")) options.device = arguments.value("--device");
  options.json = arguments.value("--json");
  options.write = arguments.value("--write");
  // Outside a launcher the ranks of the mesh are started here.
  if (options.mesh.world() > 1 && comm::rendezvous_from_env().single()) {
    comm::LaunchOptions launch;
    launch.nproc = options.mesh.world();
    std::vector<std::string> words = {"verify"};
    words.insert(words.end(), arguments.all.begin(), arguments.all.end());
    return comm::launch(launch, words, run_rank);
  }
  return tools::verify(options);
}

}  // namespace

Command verify_command() {
  Command c;
  c.name = "verify";
  c.summary = "Compares this build with recorded results of the reference code.";
  c.usage = "verify [--mesh M] [--device cuda] [--json FILE] [--write DIR] CASE...";
  c.example = "tessera verify --mesh dp_shard=2 goldens/wan21_t2v";
  c.flags = {{"--mesh", "AXIS=N[,...]", "mesh to compute on; starts its ranks itself"},
             {"--device", "cpu|cuda|auto", "where to compute; cpu without it"},
             {"--json", "FILE", "write the results as JSON"},
             {"--write", "DIR", "store everything computed, DIR/CASE/FILE.safetensors"}};
  c.run = run_verify;
  return c;
}

}  // namespace tessera::apps
