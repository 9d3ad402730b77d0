// A loop over mutated inputs for every reader of foreign bytes. Build it with the sanitizers (make fuzz): they say what a
// reader does wrong and end the process; the input that it had is then in last-input.
//
//   fuzz_readers --inputs 2000                  the corpus, then 2000 mutations for each reader
//   fuzz_readers --seconds 60                   as many as 60 seconds take, all readers in turn
//   fuzz_readers --reader torch --seconds 600 --seed 7
//   fuzz_readers --reader torch FILE...         these inputs alone
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz/readers.h"
#include "tessera/base/check.h"

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;

std::string whole_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What the seeds and the words become: bytes changed, cut out, put in, repeated, and parts of two inputs joined.
class Mutator {
 public:
  Mutator(const Reader& reader, const std::vector<std::string>& inputs, uint64_t seed)
      : reader_(reader), inputs_(inputs), random_(seed) {}

  std::string next() {
    std::string bytes = any(inputs_);
    for (uint64_t n = 1 + below(8); n > 0; --n) mutate(bytes);
    constexpr size_t kMost = 1 << 16;
    if (bytes.size() > kMost) bytes.resize(kMost);
    return bytes;
  }

 private:
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  const std::string& any(const std::vector<std::string>& all) { return all[below(all.size())]; }

  void mutate(std::string& bytes) {
    const size_t at = below(bytes.size() + 1), run = below(40);
    switch (below(10)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.erase(at, run);
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), run));
        break;
      case 4:
        if (const std::string part = bytes.substr(at, 1 + run % 8); !part.empty())
          for (uint64_t n = below(200); n > 0; --n) bytes.insert(at, part);
        break;
      case 5: {
        const std::string& other = any(inputs_);
        bytes = bytes.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
      case 6:  // lies about sizes
        for (size_t i = at; i < std::min(bytes.size(), at + 1 + run % 8); ++i) bytes[i] = static_cast<char>(-(run & 1));
        break;
      case 7:
      case 8: {  // a value becomes another: of another type, as a rule
        const size_t begin = bytes.find_first_of(":=,[", at);
        if (begin == bytes.npos) break;
        bytes.replace(begin + 1, bytes.find_first_of(",}]\n", begin + 1) - begin - 1, any(reader_.words));
        break;
      }
      default:
        bytes.insert(at, any(reader_.words));
    }
  }

  const Reader& reader_;
  const std::vector<std::string>& inputs_;
  std::mt19937_64 random_;
};

class Loop {
 public:
  explicit Loop(fs::path folder) : folder_(std::move(folder)) {}

  int64_t count = 0, faults = 0;

  void run(const Reader& reader, const std::string& bytes) {
    const fs::path file = folder_ / (std::string("last-input") + reader.ending);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    constexpr unsigned kHangs = 120;  // seconds: a reader that needs them for 64 KiB never ends
    ::alarm(kHangs);
    ++count;
    try {
      reader.read(bytes, file.string());
    } catch (const UserError&) {
    } catch (const fs::filesystem_error&) {  // main says what it says: a name that is too long
    } catch (const std::exception& error) {
      const fs::path kept = folder_ / (std::string("fault-") + reader.name + "-" + std::to_string(faults++));
      fs::copy_file(file, kept, fs::copy_options::overwrite_existing);
      std::fprintf(stderr, "fuzz: %s: no UserError: %s\n  the input is %s\n", reader.name, error.what(), kept.c_str());
    }
    ::alarm(0);
  }

 private:
  const fs::path folder_;
};

struct Options {
  double seconds = 0;
  int64_t inputs = 0;
  uint64_t seed = 1;
  std::string reader;
  std::vector<std::string> files;
};

int fuzz(const Options& options) {
  std::string name = (fs::temp_directory_path() / "fuzz-readers-XXXXXX").string();
  if (!::mkdtemp(name.data())) return std::perror("fuzz: no folder"), 2;
  Loop loop(name);
  std::vector<const Reader*> chosen;
  for (const Reader& reader : readers())
    if (options.reader.empty() || options.reader == reader.name) chosen.push_back(&reader);
  if (chosen.empty()) return std::fprintf(stderr, "fuzz: no reader %s\n", options.reader.c_str()), 2;
  for (const Reader* reader : chosen) {
    const int64_t before = loop.count;
    for (const std::string& file : options.files) loop.run(*reader, whole_file(file));
    if (!options.files.empty()) continue;
    std::vector<std::string> inputs = reader->seeds;
    std::error_code none;
    for (const auto& entry :
         fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "tests/fuzz/corpus" / reader->name, none))
      inputs.push_back(whole_file(entry.path()));
    std::sort(inputs.begin(), inputs.end());
    const std::string file = name + "/seed" + reader->ending;
    for (const std::string& seed : reader->seeds) {
      std::ofstream(file, std::ios::binary | std::ios::trunc) << seed;
      reader->read(seed, file);
    }
    for (const std::string& input : inputs) loop.run(*reader, input);
    Mutator mutator(*reader, inputs, options.seed);
    for (int64_t i = 0; i < options.inputs; ++i) loop.run(*reader, mutator.next());
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(options.seconds / static_cast<double>(chosen.size()));
    while (std::chrono::steady_clock::now() < end) loop.run(*reader, mutator.next());
    if (options.seconds > 0) std::printf("%s %lld\n", reader->name, static_cast<long long>(loop.count - before));
  }
  std::printf("fuzz: %lld inputs to %zu readers, %lld faults\n", static_cast<long long>(loop.count), chosen.size(),
              static_cast<long long>(loop.faults));
  if (loop.faults == 0) fs::remove_all(name);
  return loop.faults == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera::fuzz

int main(int argc, char** argv) {
  tessera::fuzz::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--seconds" && ++i)
      options.seconds = std::atof(value);
    else if (word == "--inputs" && ++i)
      options.inputs = std::atoll(value);
    else if (word == "--seed" && ++i)
      options.seed = std::strtoull(value, nullptr, 10);
    else if (word == "--reader" && ++i)
      options.reader = value;
    else
      options.files.push_back(word);
  }
  try {
    return tessera::fuzz::fuzz(options);
  } catch (const std::exception& error) {  // a seed was refused: nothing would be tried behind the first check
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    return 2;
  }
}
