#pragma once
// How program.cpp asks tessera_warm (warm_program.cpp) for a command: one message with its folder, words and variables, and the
// descriptor of its output; answered by its process id, once the process is a child of the one that asked.
#include <cstring>
#include <string>
#include <tuple>

namespace tessera::testing {

inline constexpr int kWarmSocket = 3;
inline constexpr const char* kWarmWord = "--forked-for-each-command";
inline constexpr size_t kMostCommand = size_t{1} << 17;

/// `words` and `variables` each end in a zero byte.
inline std::string pack(const std::string& folder, const std::string& words, const std::string& variables) {
  return std::to_string(folder.size()) + " " + std::to_string(words.size()) + " " + folder + words + variables;
}

/// Folder, words, variables.
inline std::tuple<std::string, std::string, std::string> unpack(const std::string& packed) {
  size_t end = 0;
  const size_t folder = std::stoul(packed, &end), begin_of_words = end + 1;
  const size_t words = std::stoul(packed.substr(begin_of_words), &end);
  const size_t begin = begin_of_words + end + 1;
  return {packed.substr(begin, folder), packed.substr(begin + folder, words), packed.substr(begin + folder + words)};
}

}  // namespace tessera::testing
