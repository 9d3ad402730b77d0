#pragma once
// What the tests of this room share: a folder that goes with the test, raw files, and errors by code and text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

class FileTest : public FolderTest {
 protected:
  Path path(const std::string& name) const { return folder_ / name; }

  /// A safetensors file with this header, whatever it says, and `data_bytes` of data.
  Path write_header(const std::string& name, const std::string& header, size_t data_bytes) const {
    uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return write(name, bytes + header + std::string(data_bytes, '\1'));
  }

  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& item : std::filesystem::recursive_directory_iterator(folder_))
      names.push_back(std::filesystem::relative(item.path(), folder_).string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

/// `act` must throw E with this code and a message that holds every one of `texts`.
template <class E = UserError>
void expect_error(Exit code, const std::vector<std::string>& texts, const std::function<void()>& act) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with '" << texts.front() << "'";
  } catch (const E& error) {
    EXPECT_EQ(error.code(), code);
    for (const std::string& text : texts)
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << "message: " << error.what() << "\nlacks: " << text;
  }
}

}  // namespace tessera::checkpoint
