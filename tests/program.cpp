#include "program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "tessera/checkpoint/weights.h"
#include "tessera/data/video.h"
#include "warm_program.h"

extern char** environ;

namespace tessera::testing {

namespace fs = std::filesystem;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr const char* kTinyWan = R"(family = "wan"
config = { dim = 64, ffn_dim = 128, num_heads = 4, num_layers = 3, in_dim = 12, out_dim = 12, freq_dim = 32, text_dim = 64, text_len = 16 })";

using Variables = std::map<std::string, std::string>;

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// This process's variables with these in place of those of their names, each "NAME=VALUE".
std::vector<std::string> variables_with(const Variables& environment) {
  std::vector<std::string> variables;
  for (char** e = environ; *e; ++e) {
    const std::string text = *e;
    if (!environment.count(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  return variables;
}

/// What commands of TinyRun have beside this process's variables.
const Variables kOfCommands = {{"OMP_NUM_THREADS", "1"}, {"TESSERA_POISON", "1"}};

/// Those that libraries read when they are loaded, before main().
Variables read_by_libraries(const Variables& environment) {
  Variables read;
  for (const auto& [name, value] : environment)
    for (const char* begin : {"LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "GLIBC_", "ATEN_", "TORCH_", "DNNL_",
                              "ONEDNN_", "TESSERA_SIMULATED_"})
      if (name.starts_with(begin)) read[name] = value;
  return read;
}

/// PROGRAM_warm, which forks for each command, loaded under the variables that libraries read. It ends with this process.
class WarmProgram {
 public:
  static WarmProgram& of(const std::string& program, const Variables& environment) {
    static std::mutex lock;
    static std::map<std::pair<std::string, Variables>, WarmProgram> programs;
    const std::lock_guard guard(lock);
    const Variables read = read_by_libraries(environment);
    return programs.try_emplace({program, read}, program, read).first->second;
  }

  WarmProgram(const std::string& program, const Variables& read) {
    const std::string warm = program + "_warm";
    int ends[2];
    if (getenv("TESSERA_TEST_EXEC") || access(warm.c_str(), X_OK) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return;
    std::vector<std::string> variables = variables_with(read);
    std::vector<char*> env;
    for (auto& v : variables) env.push_back(v.data());
    env.push_back(nullptr);
    char* arguments[] = {const_cast<char*>(warm.c_str()), const_cast<char*>(kWarmWord), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kWarmSocket);
    pid_t pid = -1;
    if (posix_spawn(&pid, warm.c_str(), &actions, nullptr, arguments, env.data()) == 0) socket_ = ends[0];
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }

  /// A child of this process that runs the command; -1 where there can be none: PROGRAM_warm is not built, or not wanted
  /// (TESSERA_TEST_EXEC=1, also among `environment`).
  pid_t start(const std::vector<std::string>& argv, const Variables& environment, int output) {
    static std::mutex taking;  // orphans: [Note: forks are the test's children]
    const std::lock_guard guard(taking);
    pid_t child = -1;
    if (socket_ < 0 || environment.contains("TESSERA_TEST_EXEC")) return child;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!ask(argv, environment, output) || recv(socket_, &child, sizeof child, 0) != sizeof child) child = -1;
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    return child;
  }

 private:
  bool ask(const std::vector<std::string>& argv, const Variables& environment, int output) {
    std::string words, variables;
    for (const std::string& word : argv) words += word + '\0';
    for (const std::string& variable : variables_with(environment)) variables += variable + '\0';
    std::string packed = pack(fs::current_path().string(), words, variables);
    if (packed.size() > kMostCommand) return false;
    iovec part{packed.data(), packed.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof output)] = {};
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof output);
    std::memcpy(CMSG_DATA(header), &output, sizeof output);
    return sendmsg(socket_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(packed.size());
  }

  int socket_ = -1;
};

/// With TESSERA_TEST_PROGRAMS that folder's programs stand in for those of this build (scripts/mutants).
std::string stands_in(const std::string& program) {
  const char* folder = getenv("TESSERA_TEST_PROGRAMS");
  const bool built = fs::path(program).parent_path() == fs::path(TESSERA_BINARY).parent_path();
  return folder && built ? (fs::path(folder) / fs::path(program).filename()).string() : program;
}

}  // namespace

pid_t start_program(const std::vector<std::string>& asked, const std::string& log,
                    const std::map<std::string, std::string>& environment) {
  std::vector<std::string> argv = asked;
  argv[0] = stands_in(argv[0]);
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (output < 0) return -1;
  pid_t pid = WarmProgram::of(argv[0], environment).start(argv, environment, output);
  if (pid < 0) {
    std::vector<char*> arguments;
    for (const auto& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
    arguments.push_back(nullptr);
    std::vector<std::string> variables = variables_with(environment);
    std::vector<char*> env;
    for (auto& v : variables) env.push_back(v.data());
    env.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    if (posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), env.data()) != 0) pid = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  close(output);
  return pid;
}

int wait_program(pid_t pid, double timeout) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process >= 0) {
    pollfd ends{process, POLLIN, 0};
    poll(&ends, 1, static_cast<int>(timeout * 1000));
    close(process);
  }
  int status = 0;
  return waitpid(pid, &status, WNOHANG) == pid ? code_of(status) : -1;
}

Result run_program(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
                   double timeout) {
  char name[] = "/tmp/tessera-out-XXXXXX";
  close(mkstemp(name));
  const double start = now();
  const pid_t pid = start_program(argv, name, environment);
  Result result;
  const char* patience = getenv("TESSERA_TEST_PATIENCE");
  result.code = pid < 0 ? 127 : wait_program(pid, timeout * (patience ? std::atof(patience) : 1));
  if (result.code < 0) {
    kill(pid, SIGKILL);
    wait_program(pid, 10);
    result.code = 124;
  }
  result.seconds = now() - start;
  result.output = text_of(name);
  fs::remove(name);
  return result;
}

TinyRun::TinyRun(const std::string& name, std::string program, const std::string& model)
    : program_(std::move(program)) {
  std::string pattern = (fs::temp_directory_path() / ("tessera-" + name + "-XXXXXX")).string();
  folder_ = mkdtemp(pattern.data());
  const fs::path data = folder_ / "data";
  fs::create_directories(data);
  for (int clip = 0; clip < 3; ++clip) {  // a bright square that moves, another way in every clip
    data::Frames frames;
    frames.count = 8, frames.height = 32, frames.width = 32, frames.fps = 8;
    frames.rgb.resize(8 * 32 * 32 * 3);
    for (int f = 0; f < 8; ++f)
      for (int y = 0; y < 32; ++y)
        for (int x = 0; x < 32; ++x) {
          const bool inside =
              std::abs(x - (clip == 1 ? 28 - 3 * f : 4 + 3 * f)) < 5 && std::abs(y - (clip == 2 ? 4 + 3 * f : 16)) < 5;
          for (int c = 0; c < 3; ++c)
            frames.rgb[((f * 32 + y) * 32 + x) * 3 + c] =
                static_cast<uint8_t>(inside ? 230 - 50 * ((c + clip) % 3) : 40 + 2 * y + c * 10);
        }
    const std::string stem = "clip" + std::to_string(clip);
    data::write_mp4((data / (stem + ".mp4")).string(), frames);
    std::ofstream(data / (stem + ".txt")) << "a square that moves, number " << clip;
  }
  std::ofstream(recipe()) << R"([run]
out = ")" << out() << R"("
seed = 7
steps = 6

[model]
)" << (model.empty() ? kTinyWan : model)
                          << R"(

[data]
path = ")" << data.string()
                          << R"("
cache = ")" << (folder_ / "cache").string()
                          << R"("
size = [32, 32]
frames = 8
fps = 8
vae = "haar"
text_encoder = "umt5-demo"

[train]
global_batch = 4
lr = 1e-3

[plan]
compute_dtype = "fp32"

[checkpoint]
every = 0
keep = 3

[sample]
every = 0
)";
}

TinyRun::~TinyRun() {
  std::error_code ignored;
  if (!getenv("TESSERA_KEEP_TESTS")) fs::remove_all(folder_, ignored);
}

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

nlohmann::json json_of(const fs::path& file) { return nlohmann::json::parse(text_of(file)); }

Result TinyRun::tessera(std::vector<std::string> arguments, double timeout) const {
  arguments.insert(arguments.begin(), program_);
  return run_program(arguments, kOfCommands, timeout);
}

Result TinyRun::train(int ranks, const std::string& run, std::vector<std::string> more, double timeout) const {
  std::vector<std::string> arguments = {"launch",    "-n",    std::to_string(ranks), "train", recipe(),
                                        "--run.out", out(run)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return tessera(arguments, timeout);
}

std::vector<nlohmann::json> TinyRun::metrics(const std::string& run, const std::string& type) const {
  std::vector<nlohmann::json> lines;
  std::ifstream in(out(run) + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::json::parse(line);
    if (json.at("type") == type) lines.push_back(std::move(json));
  }
  return lines;
}

std::vector<double> TinyRun::losses(const std::string& run) const {
  std::vector<double> losses;
  for (const auto& step : metrics(run)) losses.push_back(step.at("loss"));
  return losses;
}

std::map<std::string, std::vector<float>> TinyRun::model(const std::string& run) const {
  std::map<std::string, std::vector<float>> tensors;
  const auto weights = checkpoint::open_weights(out(run) + "/model");
  for (const auto& name : weights.names()) {
    auto& values = tensors[name];
    values.resize(weights.at(name).count());
    weights.read_f32(name, 0, static_cast<int64_t>(values.size()), values.data());
  }
  return tensors;
}

}  // namespace tessera::testing
