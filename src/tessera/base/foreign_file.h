#pragma once
// Text files of strangers: regular ones alone, and no more of them than a reader can want. A pipe, a device or a file
// without an end is an error, never a wait.
//
//   const std::string text = read_foreign("recipe.toml", 8 << 20, "recipe", "give the path of a recipe.toml");
//   ForeignLines lines("metrics.jsonl", "run");
//   for (std::string line; lines.next(line);) ...
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

/// The whole text. Throws UserError (input) at `where`, with the file, for what cannot be opened, is no regular file, or
/// has more than `most` bytes.
std::string read_foreign(const std::filesystem::path& file, int64_t most, std::string_view where,
                         std::string_view hint = "check the path");

/// Its lines, one after another, each without its end and of at most 64 MiB.
class ForeignLines {
 public:
  /// Throws UserError (input) as read_foreign does.
  ForeignLines(const std::filesystem::path& file, std::string_view where, std::string_view hint = "check the path");
  /// False behind the last one. Throws UserError (input) naming the line where one is too long, or a read fails.
  bool next(std::string& line);
  bool ended() const { return ended_; }       ///< the last line had its end
  int64_t number() const { return number_; }  ///< of the line that next() gave, from 1

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string name_, where_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string ahead_;  ///< read and not given yet, from begin_ on
  size_t begin_ = 0;
  int64_t number_ = 0;
  bool ended_ = true;
};

}  // namespace tessera
