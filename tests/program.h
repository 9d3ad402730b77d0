#pragma once
// Runs the built program as a user would, in a folder of its own, with a tiny model on a tiny clip.
//
//   TinyRun run("layouts");
//   Result r = run.tessera({"launch", "-n", "2", "train", run.recipe(), "--run.steps", "5"});
//   EXPECT_EQ(r.code, 0) << r.output;
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::testing {

struct Result {
  int code = -1;       ///< exit code; 128 + signal when it died of one
  std::string output;  ///< stdout and stderr together
  double seconds = 0;
};

/// Runs `argv` to the end (killed after `timeout` seconds: code 124).
Result run_program(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment = {},
                   double timeout = 120);

/// Starts it, as a child of this process, and returns its process id; output goes to `log`. With the variable
/// TESSERA_TEST_EXEC it is executed, else it may be a fork of the loaded program (warm_program.cpp).
pid_t start_program(const std::vector<std::string>& argv, const std::string& log,
                    const std::map<std::string, std::string>& environment = {});
/// Waits for it; -1 when `timeout` seconds pass first.
int wait_program(pid_t pid, double timeout);

/// All bytes of a file; none where it cannot be read.
std::string text_of(const std::filesystem::path& file);
std::vector<std::string> lines_of(const std::filesystem::path& file);
/// A file of JSON; throws nlohmann::json::parse_error where it is none.
nlohmann::json json_of(const std::filesystem::path& file);

class TinyRun {
 public:
  /// A fresh folder with a data set of generated clips and a recipe, of the tiny Wan; or of another [model] table that
  /// another program trains.
  explicit TinyRun(const std::string& name, std::string program = TESSERA_BINARY, const std::string& model = "");
  ~TinyRun();  ///< removes it

  const std::filesystem::path& folder() const { return folder_; }
  std::string recipe() const { return (folder_ / "recipe.toml").string(); }
  std::string out(const std::string& run = "run") const { return (folder_ / run).string(); }

  /// The program with these arguments.
  Result tessera(std::vector<std::string> arguments, double timeout = 120) const;
  /// `launch -n ranks train RECIPE --run.out OUT ...`
  Result train(int ranks, const std::string& run, std::vector<std::string> more = {}, double timeout = 120) const;

  /// Lines of OUT/metrics.jsonl of a type.
  std::vector<nlohmann::json> metrics(const std::string& run, const std::string& type = "step") const;
  std::vector<double> losses(const std::string& run) const;  ///< of its steps
  /// Every tensor of the exported model, as raw fp32.
  std::map<std::string, std::vector<float>> model(const std::string& run) const;

 private:
  const std::string program_;
  std::filesystem::path folder_;
};

}  // namespace tessera::testing
