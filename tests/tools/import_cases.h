#pragma once
// What the tests of importers share: a folder with files, and what a translation says of a key or an option.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tessera/base/check.h"
#include "tessera/tools/import/import.h"

namespace tessera::tools {

namespace fs = std::filesystem;

/// A folder that is gone after the test.
struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-import-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string file(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
  /// So many clips in a folder `name`, each with its caption; they are counted, never decoded.
  std::string clips(const std::string& name, int count) const {
    for (int i = 0; i < count; ++i) {
      file(name + "/" + std::to_string(i) + ".mp4", "");
      file(name + "/" + std::to_string(i) + ".txt", "a clip");
    }
    return (path / name).string();
  }
  fs::path path;
};

/// What a translation has under a name: a key's value, or "implied", "warned", "refused".
inline std::string found(const Translation& t, const std::string& name) {
  if (const auto* setting = t.find(name)) {
    std::string text;
    if (setting->value.find(kListSeparator) == std::string::npos) return setting->value;
    for (const std::string& item : split_list(setting->value)) text += (text.empty() ? "" : ",") + item;
    return text;
  }
  for (const auto& remark : t.refused)
    if (remark.option.starts_with(name)) return "refused";
  for (const auto& remark : t.warned)
    if (remark.option.starts_with(name)) return "warned";
  for (const auto& remark : t.implied)
    if (remark.option.starts_with(name)) return "implied";
  return "";
}

struct Case {
  std::string text;                                           ///< a command, or a file's text
  std::vector<std::pair<std::string, std::string>> expected;  ///< a key or an option, and what it comes to
  int ranks = 0;
};

inline void check(const Case& c, const Translation& t) {
  for (const auto& [name, value] : c.expected) EXPECT_EQ(found(t, name), value) << name << " of\n" << c.text;
}

/// What the error says, or nothing.
inline std::string message(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}
inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

}  // namespace tessera::tools
