#pragma once
// Every reader of foreign bytes as a function of bytes, with what it usually gets.
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fuzz {

struct Reader {
  const char* name;  ///< also the folder of its inputs in corpus/
  /// Throws UserError, or returns; all else is a fault. A file's content stands at `file` too.
  void (*read)(const std::string& bytes, const std::string& file);
  const char* ending;              ///< of the file
  std::vector<std::string> seeds;  ///< what it accepts
  std::vector<std::string> words;  ///< that mutations put in
};

const std::vector<Reader>& readers();

// Parts of it.
std::vector<Reader> data_readers();
std::vector<Reader> media_readers();
std::vector<Reader> model_readers();
std::vector<Reader> store_readers();

}  // namespace tessera::fuzz
