#pragma once
// What the tests of this room share: a folder that goes with the test, and the files of a made-up run in it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/report/metrics.h"

namespace tessera::report {

class RunTest : public FolderTest {
 protected:
  /// A step of `ranks` ranks with 8 MiB each, of which the peak is planned.
  static StepMetrics step(int64_t number, double loss, int ranks = 2) {
    StepMetrics m;
    m.step = number, m.loss = loss, m.grad_norm = 0.5, m.lr = 1e-3, m.seconds = 0.25;
    m.samples = 4, m.tokens = 1000;
    for (int r = 0; r < ranks; ++r) {
      RankMetrics rank;
      rank.rank = r;
      rank.bytes = {1 << 20, 1 << 20, 2 << 20, 2 << 20, 1 << 20, 1 << 20, 0};
      rank.peak_bytes = rank.predicted_peak_bytes = 8 << 20;
      rank.persistent_bytes = 4 << 20;
      rank.reserved_bytes = 10 << 20;
      rank.sent_bytes = {{"dp_shard", 1000}};
      rank.busy = {{"compute", 0.2}, {"gather", 0.05}};
      rank.exposed = {.comm = 0.03, .copy = 0.01 * r, .stages = 0, .data = 0.02, .dispatch = 0.005};
      m.ranks.push_back(rank);
    }
    return m;
  }

  /// The same on GPUs whose drivers say how they do; the last rank's says nothing.
  static StepMetrics gpu_step(int64_t number, int ranks = 2) {
    StepMetrics m = step(number, 1.0, ranks);
    for (RankMetrics& rank : m.ranks) {
      rank.utilisation = {{"compute", 0.5}};
      if (rank.rank + 1 < ranks)
        rank.driver = {0.9 + 0.01 * static_cast<double>(number), 400.0 + static_cast<double>(number),
                       (int64_t{70} << 30) + (number << 30)};
    }
    return m;
  }

  /// recipe.toml and plan.json of a run of `steps` steps in folder `name`.
  std::filesystem::path new_run(const std::string& name, int64_t steps) const {
    write(name + "/recipe.toml", "[run]\nsteps = " + std::to_string(steps) + "\n[train]\nglobal_batch = 4\n");
    write(name + "/plan.json",
          R"({"fits": true, "mesh": {"dp_shard": 2}, "summary": "keep all",)"
          R"( "model": {"name": "wan", "parameters": 7000000, "tokens": 250},)"
          R"( "device": {"peak_bytes": 8388608}, "step_seconds": {"total": 0.2, "exposed_comm": 0.02}})");
    return folder_ / name;
  }
};

}  // namespace tessera::report
