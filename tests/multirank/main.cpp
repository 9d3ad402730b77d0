// The program of a group of multi-rank tests: `test_multirank speech vae` runs those of speech_test.cpp and vae_test.cpp,
// `test_multirank nodes -TwoHosts.*` leaves some out. Without names it is any GoogleTest program. (Names are the files',
// so that a new test needs no line in CMake.)
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <set>
#include <string>

namespace {

std::string file_of(const ::testing::TestInfo& test) {
  const std::string stem = std::filesystem::path(test.file()).stem().string();
  return stem.substr(0, stem.rfind("_test"));
}

/// A GoogleTest filter of the tests in these files; removes those that were found from `files`.
std::string filter_of(std::set<std::string>& files) {
  const std::set<std::string> wanted = files;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!wanted.contains(file_of(test))) continue;
      filter += std::string(suite.name()) + "." + test.name() + ":";
      files.erase(file_of(test));
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::set<std::string> files;
  std::string left_out = "-";
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-') {
      left_out += std::string(argv[i] + 1) + ":";
    } else {
      files.insert(argv[i]);
    }
  }
  if (!files.empty()) GTEST_FLAG_SET(filter, filter_of(files) + left_out);
  for (const std::string& file : files) std::cerr << argv[0] << ": no test in " << file << "_test.cpp\n";
  return files.empty() ? RUN_ALL_TESTS() : 2;
}
