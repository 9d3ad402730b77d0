// Who this process is, from its environment.
#include "tessera/comm/world.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "tessera/base/check.h"

namespace tessera::comm {
namespace {

constexpr const char* kNames[] = {"RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "TESSERA_STORE",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "TORCHELASTIC_RESTART_COUNT"};

/// The rendezvous under exactly these variables.
Rendezvous under(const std::map<std::string, std::string>& variables) {
  for (const char* name : kNames) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return Rendezvous::from_env();
}

std::string complaint(const std::map<std::string, std::string>& variables) {
  try {
    under(variables);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "none";
}

TEST(Rendezvous, WithoutVariablesIsOneRank) {
  const Rendezvous place = under({});
  EXPECT_TRUE(place.single());
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.local_world, 1);
  EXPECT_FALSE(place.store_is_hosted);
}

TEST(Rendezvous, ReadsTorchrunsVariables) {
  const Rendezvous place = under({{"RANK", "5"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"MASTER_ADDR", "node0"},
                                  {"MASTER_PORT", "29500"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world, 4);
  EXPECT_EQ(place.host, "node0");
  EXPECT_EQ(place.port, 29500);
  EXPECT_TRUE(place.store_is_hosted) << "the agent holds the port";
  EXPECT_EQ(place.attempt, 2);
}

TEST(Rendezvous, LeavesTheStoreToRankZeroUnlessALauncherHostsIt) {
  const std::map<std::string, std::string> two = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}};
  EXPECT_FALSE(under(two).store_is_hosted);
  auto hosted = two;
  hosted["TESSERA_STORE"] = "launcher";
  EXPECT_TRUE(under(hosted).store_is_hosted);
}

TEST(Rendezvous, SaysWhichVariableIsMissingOrWrong) {
  EXPECT_NE(complaint({{"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}).find("RANK is not set"), std::string::npos);
  EXPECT_NE(complaint({{"WORLD_SIZE", "2"}, {"RANK", "2"}}).find("RANK is 2"), std::string::npos);
  EXPECT_NE(complaint({{"WORLD_SIZE", "2"}, {"RANK", "0"}}).find("MASTER_PORT is not set"), std::string::npos);
  EXPECT_NE(complaint({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "99999"}}).find("99999 is no port"),
            std::string::npos);
  EXPECT_NE(complaint({{"WORLD_SIZE", "two"}}).find("WORLD_SIZE=two is not a number"), std::string::npos);
}

}  // namespace
}  // namespace tessera::comm
