#pragma once
// Starts a worker of random cases (seed_worker.h): jobs with as many ranks run one after the other in the same processes,
// since to start a rank takes as long as many cases.
//
//   expect_jobs_pass(PLAN_WORKER, {{"sp=2", 0, 4}, {"cp=2", 0, 4, "sana"}});
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "program.h"
#include "tessera/base/mesh.h"

namespace tessera::testing {

struct Job {
  std::string mesh;
  int first = 0, last = 0;  ///< cases first..last-1
  std::string family = "wan";
};

/// `verb`: "launch", or another of the worker's. At most so many jobs a program, that none is near its deadline.
inline void expect_jobs_pass(const std::string& worker, const std::vector<Job>& jobs,
                             std::map<std::string, std::string> environment = {}, const std::string& verb = "launch") {
  constexpr size_t kJobs = 12;
  environment.emplace("OMP_NUM_THREADS", "1");
  std::map<int, std::vector<std::string>> of_ranks;
  for (const Job& job : jobs)
    of_ranks[verb == "launch" ? Mesh::parse(job.mesh).world() : 1].push_back(
        job.mesh + "/" + std::to_string(job.first) + "/" + std::to_string(job.last) + "/" + job.family);
  for (const auto& [ranks, texts] : of_ranks)
    for (size_t at = 0; at < texts.size(); at += kJobs) {
      std::vector<std::string> command = {worker, verb};
      for (size_t i = at; i < std::min(texts.size(), at + kJobs); ++i) command.push_back(texts[i]);
      const Result r = run_program(command, environment, 600);
      EXPECT_EQ(r.code, 0) << ranks << " ranks\n" << r.output;
    }
}

}  // namespace tessera::testing
