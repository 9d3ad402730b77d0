// Who this process is, from its environment.
#include "tessera/comm/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>

#include "tessera/base/check.h"
#include "tessera/comm/launcher.h"

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
                                  "TORCHELASTIC_RESTART_COUNT",
                                  "ENVIRONMENT",
                                  "SLURM_PROCID",
                                  "SLURM_LOCALID",
                                  "SLURM_NODEID",
                                  "SLURM_NTASKS",
                                  "SLURM_NPROCS",
                                  "SLURM_STEP_ID",
                                  "SLURM_STEP_NUM_TASKS",
                                  "SLURM_STEP_NUM_NODES",
                                  "SLURM_STEP_NODELIST",
                                  "SLURM_STEP_TASKS_PER_NODE",
                                  "SLURM_NNODES",
                                  "SLURM_JOB_NUM_NODES",
                                  "SLURM_NODELIST",
                                  "SLURM_JOB_NODELIST",
                                  "SLURM_TASKS_PER_NODE",
                                  "SLURM_JOB_ID",
                                  "SLURM_JOBID",
                                  "OMPI_COMM_WORLD_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK",
                                  "OMPI_COMM_WORLD_LOCAL_SIZE",
                                  "OMPI_MCA_orte_hnp_uri",
                                  "OMPI_MCA_ess_base_jobid",
                                  "PMIX_NAMESPACE",
                                  "PMI_RANK",
                                  "PMI_SIZE",
                                  "MPI_LOCALRANKID",
                                  "MPI_LOCALNRANKS",
                                  "PBS_NODEFILE",
                                  "LSB_HOSTS",
                                  "PET_NNODES",
                                  "PET_NODE_RANK",
                                  "PET_NPROC_PER_NODE",
                                  "PET_MASTER_ADDR",
                                  "PET_MASTER_PORT",
                                  "PET_RDZV_ENDPOINT",
                                  "PET_MAX_RESTARTS",
                                  "SKYPILOT_NUM_NODES",
                                  "SKYPILOT_NODE_RANK",
                                  "SKYPILOT_NODE_IPS",
                                  "JOB_COMPLETION_INDEX"};

using Variables = std::map<std::string, std::string>;

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

/// The rendezvous under exactly these variables.
Rendezvous under(const std::map<std::string, std::string>& variables) {
  for (const char* name : kNames) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return rendezvous_from_env();
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

TEST(Rendezvous, SaysWhichOfTorchrunsVariablesContradictEachOther) {
  const Variables two = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}};
  EXPECT_NE(complaint(with(two, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}}))
                .find("LOCAL_RANK is 1, LOCAL_WORLD_SIZE is 1"),
            std::string::npos);
  EXPECT_NE(complaint(with(two, {{"LOCAL_WORLD_SIZE", "1"}})).find("MASTER_ADDR is not set"), std::string::npos);
}

/// Task 5 of 8 on two nodes, as srun shows it.
const Variables kSlurm = {{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},    {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},  {"SLURM_NNODES", "2"},    {"SLURM_TASKS_PER_NODE", "4(x2)"},
                          {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_NODELIST", "gpu[008-009]"}};

TEST(Slurm, TellsPlaceAndMeetingPoint) {
  const Rendezvous place = under(kSlurm);
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world, 4);
  EXPECT_EQ(place.host, "gpu008");
  EXPECT_GE(place.port, 10000);
  EXPECT_LT(place.port, 30000);
  EXPECT_FALSE(place.store_is_hosted);
  EXPECT_EQ(under(with(kSlurm, {{"SLURM_PROCID", "2"}, {"SLURM_LOCALID", "2"}, {"SLURM_NODEID", "0"}})).port,
            place.port)
      << "every task finds the same port";
  EXPECT_NE(under(with(kSlurm, {{"SLURM_JOB_ID", "4712"}})).port, place.port) << "another job takes another one";
  EXPECT_NE(under(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).port, place.port);
}

TEST(Slurm, GivesWayToAnAddressThatTheScriptSets) {
  const Rendezvous place =
      under(with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "29511"}, {"WORLD_SIZE", "8"}}));
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.host, "head");
  EXPECT_EQ(place.port, 29511);
}

TEST(Slurm, MeetsOnTheLoopbackWhenThereIsOneNode) {
  const Rendezvous place = under({{"SLURM_PROCID", "1"},
                                  {"SLURM_NTASKS", "2"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_NODELIST", "gpu7"},
                                  {"SLURM_JOB_ID", "9"}});
  EXPECT_EQ(place.host, "127.0.0.1");
  EXPECT_EQ(place.local_world, 2);
}

TEST(Slurm, CountsTheTasksOfAStepAndNotThoseOfItsAllocation) {
  const Rendezvous place = under(with(
      kSlurm,
      {{"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_STEP_TASKS_PER_NODE", "4,2"}, {"SLURM_STEP_NODELIST", "gpu[009,011]"}}));
  EXPECT_EQ(place.world, 6);
  EXPECT_EQ(place.local_world, 2);
  EXPECT_EQ(place.host, "gpu009");
}

TEST(Slurm, IsNoLauncherInAShellOrABatchScript) {
  EXPECT_TRUE(under({{"SLURM_JOB_ID", "9"}, {"SLURM_NTASKS", "8"}}).single());
  EXPECT_TRUE(
      under(with(without(kSlurm, "SLURM_STEP_ID"), {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}})).single());
}

TEST(Slurm, SaysWhichVariableIsMissingOrContradictsAnother) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {without(kSlurm, "SLURM_PROCID"), "SLURM_LOCALID is 1 and SLURM_PROCID is not set"},
      {without(kSlurm, "SLURM_LOCALID"), "SLURM_LOCALID is not"},
      {without(kSlurm, "SLURM_NTASKS"), "SLURM_PROCID is 5 and SLURM_STEP_NUM_TASKS is not set"},
      {without(kSlurm, "SLURM_JOB_ID"), "neither MASTER_PORT nor SLURM_JOB_ID"},
      {without(kSlurm, "SLURM_JOB_NODELIST"), "neither MASTER_ADDR nor SLURM_NODELIST"},
      {with(kSlurm, {{"SLURM_PROCID", "8"}}), "SLURM_PROCID is 8 and SLURM_NTASKS is 8"},
      {with(kSlurm, {{"SLURM_LOCALID", "4"}}), "SLURM_LOCALID is 4, but this node runs 4 tasks"},
      {with(kSlurm, {{"SLURM_NTASKS", "many"}}), "SLURM_NTASKS=many is not a number"},
      {with(kSlurm, {{"SLURM_JOB_NODELIST", "gpu[008-"}}), "SLURM_JOB_NODELIST is gpu[008-"},
      {with(kSlurm, {{"WORLD_SIZE", "4"}}), "WORLD_SIZE is 4, but the variables of mpirun or Slurm say 8 ranks"}};
  for (const auto& [variables, words] : cases) {
    const std::string said = complaint(variables);
    EXPECT_NE(said.find(words), std::string::npos) << "expected '" << words << "' in: " << said;
  }
}

TEST(Slurm, NodelistsOfEveryFormHaveAFirstHost) {
  EXPECT_EQ(first_host("gpu7"), "gpu7");
  EXPECT_EQ(first_host("gpu[008-010,017],login"), "gpu008");
  EXPECT_EQ(first_host("login,gpu[1-2]"), "login");
  EXPECT_EQ(first_host("rack[2,4]-node[11-12]"), "rack2-node11");
  EXPECT_EQ(first_host("gpu[8"), "");
  EXPECT_EQ(count_hosts("gpu[008-010,017],login"), 5);
  EXPECT_EQ(count_hosts("rack[2,4]-node[11-12]"), 4);
  EXPECT_EQ(tasks_of_node("4(x2),3", 1), 4);
  EXPECT_EQ(tasks_of_node("4(x2),3", 2), 3);
  EXPECT_EQ(tasks_of_node("4(x2),3", 3), 0);
}

/// Rank 1 of 4 of mpirun on one host.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "prterun-gpu8-100@1"}};
/// Rank 3 of 4, two on each of two hosts.
const Variables kTwoHosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});

TEST(Mpirun, TellsPlaceAndMeetingPointOnOneHost) {
  const Rendezvous place = under(kOpenMpi);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.world, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world, 4);
  EXPECT_EQ(place.host, "127.0.0.1");
  EXPECT_GE(place.port, 10000);
  EXPECT_NE(under(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-gpu8-101@1"}})).port, place.port);
  EXPECT_EQ(under(without(kOpenMpi, "PMIX_NAMESPACE")).port, 29500);
}

TEST(Mpirun, FindsRankZeroOnSeveralHosts) {
  EXPECT_EQ(under(with(kTwoHosts, {{"MASTER_ADDR", "head"}})).host, "head");
  EXPECT_EQ(under(with(kTwoHosts, {{"SLURM_JOB_NODELIST", "gpu[3-4]"}})).host, "gpu3");
  EXPECT_EQ(under(with(kTwoHosts, {{"LSB_HOSTS", "a a b b"}})).host, "a");
  EXPECT_EQ(under(with(kTwoHosts, {{"OMPI_MCA_orte_hnp_uri", "77.0;tcp://10.0.0.1,192.168.0.1:4100"}})).host,
            "10.0.0.1");
}

TEST(Mpirun, KnowsMpichsVariablesToo) {
  const Rendezvous place =
      under({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.world, 2);
  EXPECT_EQ(place.local_world, 2);
}

TEST(Mpirun, IsBelievedBeforeTheSlurmJobItRunsIn) {
  const Rendezvous place =
      under(with(kOpenMpi, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.world, 4);
}

TEST(Mpirun, SaysWhichVariableIsMissingOrContradictsAnother) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {without(kOpenMpi, "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_RANK is not set and OMPI_COMM_WORLD_SIZE is 4"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_RANK is 1 and OMPI_COMM_WORLD_SIZE is not set"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}), "OMPI_COMM_WORLD_RANK is 4"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}), "OMPI_COMM_WORLD_LOCAL_SIZE is 1"},
      {with(kOpenMpi, {{"WORLD_SIZE", "2"}}), "WORLD_SIZE is 2"},
      {kTwoHosts, "MASTER_ADDR is not set, the ranks are on several hosts"}};
  for (const auto& [variables, words] : cases) {
    const std::string said = complaint(variables);
    EXPECT_NE(said.find(words), std::string::npos) << "expected '" << words << "' in: " << said;
  }
}

TEST(Rendezvous, BelievesTorchrunInsideASlurmJob) {
  const Rendezvous place = under(with(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_TRUE(place.single());
}

/// A launcher's options under exactly these variables.
LaunchOptions launcher_under(const Variables& variables, LaunchOptions flags = {}) {
  for (const char* name : kNames) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return by_environment(std::move(flags));
}
LaunchOptions no_flags() { return {.nproc = 0, .nnodes = 0, .node_rank = -1, .max_restarts = -1}; }

void expect_place(const LaunchOptions& found, int rank, int nodes, const std::string& endpoint) {
  EXPECT_EQ(found.node_rank, rank);
  EXPECT_EQ(found.nnodes, nodes);
  EXPECT_EQ(found.endpoint, endpoint);
}

const Variables kPyTorchJob = {{"PET_NNODES", "4"},          {"PET_NODE_RANK", "3"},       {"PET_NPROC_PER_NODE", "8"},
                               {"PET_MASTER_ADDR", "wan-0"}, {"PET_MASTER_PORT", "23456"}, {"RANK", "3"},
                               {"WORLD_SIZE", "32"}};
const Variables kSkyPilot = {
    {"SKYPILOT_NUM_NODES", "2"}, {"SKYPILOT_NODE_RANK", "1"}, {"SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"}};
/// A task on each of three machines.
const Variables kTaskANode = {{"SLURM_PROCID", "2"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODEID", "2"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_STEP_NUM_TASKS", "3"},
                              {"SLURM_STEP_NUM_NODES", "3"},
                              {"SLURM_STEP_NODELIST", "a[07-09]"},
                              {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                              {"SLURM_JOB_ID", "77"},
                              {"MASTER_PORT", "12345"}};
const Variables kMpirunANode = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                {"MASTER_ADDR", "fd00::1"},          {"MASTER_PORT", "12345"}};

TEST(Launchers, WithoutVariablesAreOfOneMachine) {
  expect_place(launcher_under({}, no_flags()), 0, 1, "");
  EXPECT_EQ(launcher_under({}, no_flags()).nproc, 0) << "left to whoever counts the GPUs";
}

TEST(Launchers, ReadTheVariablesOfEachScheduler) {
  const LaunchOptions kubeflow = launcher_under(kPyTorchJob, no_flags());
  expect_place(kubeflow, 3, 4, "wan-0:23456");
  EXPECT_EQ(kubeflow.nproc, 8);
  for (const char* word : {"auto", "gpu", "cpu"})
    EXPECT_EQ(launcher_under(with(kPyTorchJob, {{"PET_NPROC_PER_NODE", word}}), no_flags()).nproc, 0);
  const LaunchOptions elastic = launcher_under(
      with(kPyTorchJob, {{"PET_NNODES", "2:4"}, {"PET_RDZV_ENDPOINT", "w:1"}, {"PET_MAX_RESTARTS", "5"}}), no_flags());
  expect_place(elastic, 3, 4, "w:1");
  EXPECT_EQ(elastic.min_nodes, 2);
  EXPECT_EQ(elastic.max_restarts, 5);
  expect_place(launcher_under(kSkyPilot, no_flags()), 1, 2, "10.0.0.4:29500");
  expect_place(launcher_under(kTaskANode, no_flags()), 2, 3, "a07:12345");
  expect_place(launcher_under(kMpirunANode, no_flags()), 1, 2, "[fd00::1]:12345");
}

TEST(Launchers, AnIndexedJobTellsThePodAndFlagsTheRest) {
  LaunchOptions flags = no_flags();
  flags.nnodes = 4;
  const Variables pod = {{"JOB_COMPLETION_INDEX", "2"}, {"MASTER_ADDR", "wan-0.wan"}};
  expect_place(launcher_under(pod, flags), 2, 4, "wan-0.wan:29500");
  flags.endpoint = "10.0.0.1:7000";
  expect_place(launcher_under(pod, flags), 2, 4, "10.0.0.1:7000");
  flags.node_rank = 1;
  expect_place(launcher_under(pod, flags), 1, 4, "10.0.0.1:7000");
}

TEST(Launchers, BelieveFlagsBeforeVariables) {
  LaunchOptions flags = no_flags();
  flags.nnodes = 1, flags.nproc = 2;
  for (const Variables& variables : {kPyTorchJob, kSkyPilot, kTaskANode, kMpirunANode}) {
    expect_place(launcher_under(variables, flags), 0, 1, "");
    EXPECT_EQ(launcher_under(variables, flags).nproc, 2);
  }
}

TEST(Launchers, OfABatchScriptAreOfItsMachineAlone) {
  Variables script = with(kTaskANode, {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}, {"SLURM_NNODES", "3"}});
  script.erase("SLURM_STEP_ID");
  expect_place(launcher_under(script, no_flags()), 0, 1, "");
}

TEST(Launchers, SayWhichVariableIsMissingOrContradictsAnother) {
  LaunchOptions two = no_flags();
  two.nnodes = 2;
  const std::vector<std::tuple<Variables, LaunchOptions, std::string>> cases = {
      {without(kPyTorchJob, "PET_NODE_RANK"), no_flags(), "PET_NODE_RANK is not set"},
      {without(kPyTorchJob, "PET_MASTER_ADDR"), no_flags(), "PET_MASTER_ADDR is not set"},
      {with(kPyTorchJob, {{"PET_NNODES", "4:"}}), no_flags(), "PET_NNODES=4:: expected N or MIN:MAX"},
      {with(kPyTorchJob, {{"PET_NNODES", "0"}}), no_flags(), "PET_NNODES=0: expected N or MIN:MAX"},
      {with(kPyTorchJob, {{"PET_NPROC_PER_NODE", "some"}}), no_flags(), "PET_NPROC_PER_NODE=some is not a number"},
      {without(kSkyPilot, "SKYPILOT_NODE_RANK"), no_flags(), "SKYPILOT_NODE_RANK is not set"},
      {without(kSkyPilot, "SKYPILOT_NODE_IPS"), no_flags(), "SKYPILOT_NODE_IPS is not set"},
      {with(kTaskANode, {{"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}}), no_flags(),
       "2 launchers were started on this machine"},
      {with(kMpirunANode, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), no_flags(),
       "2 launchers were started on this machine"},
      {{{"JOB_COMPLETION_INDEX", "0"}}, no_flags(), "JOB_COMPLETION_INDEX is 0, and nothing says how many machines"},
      {{{"JOB_COMPLETION_INDEX", "1"}}, two, "MASTER_ADDR is not set"}};
  for (const auto& [variables, flags, words] : cases) {
    std::string said = "none";
    try {
      launcher_under(variables, flags);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      said = error.what();
    }
    EXPECT_NE(said.find(words), std::string::npos) << "expected '" << words << "' in: " << said;
  }
}

}  // namespace
}  // namespace tessera::comm
