#pragma once
// A tiny Open-Sora 2.0 with both of its text encoders, and a training of it.
//
//   class EncodedFiles : public OpenSoraRun { ... };
//   ASSERT_EQ(train(2, "a", {"--mesh", "sp=2"}).code, 0);
//   EXPECT_EQ(run_.losses("a"), run_.losses("b"));
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "program.h"

namespace tessera::testing {

class OpenSoraRun : public ::testing::Test {
 protected:
  using Flags = std::vector<std::string>;

  Result train(int ranks, const std::string& name, const Flags& more = {}) const {
    Flags flags = {"--data.size", "32,48", "--diffusion.timesteps", "by_size", "--train.eps", "1e-6"};
    flags.insert(flags.end(), more.begin(), more.end());
    return run_.train(ranks, name, flags, 300);
  }

  const TinyRun run_{"opensora", TESSERA_BINARY, R"(preset = "opensora2-tiny"
config = { in_channels = 48, context_in_dim = 64, context_length = 40, vec_in_dim = 32 })"};
};

}  // namespace tessera::testing
