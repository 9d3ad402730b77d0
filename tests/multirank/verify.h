#pragma once
// Tests of `tessera verify`: the program on golden cases, and on copies of them that are altered.
//
//   TEST_F(Verify, Whatever) { EXPECT_EQ(verify({(goldens_ / "flow").string()}).code, 0); }
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "need_goldens.h"
#include "program.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {

namespace fs = std::filesystem;

class Verify : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEED_GOLDENS(); }
  Result verify(std::vector<std::string> arguments) const {
    const char* on_device =
        std::getenv("TESSERA_VERIFY_ON_DEVICE");  // a program that has one (multirank/CMakeLists.txt)
    arguments.insert(arguments.begin(), {on_device ? on_device : TESSERA_BINARY, "verify"});
    if (on_device) arguments.insert(arguments.end(), {"--device", "cuda"});
    return run_program(arguments, {{"OMP_NUM_THREADS", "1"}});
  }
  /// A copy of a case that may be changed.
  fs::path copy(const std::string& name) {
    const fs::path to = run_.folder() / name;
    fs::copy(goldens_ / name, to, fs::copy_options::recursive);
    return to;
  }
  static void rewrite(const fs::path& file,
                      const std::function<void(const std::string&, std::vector<std::byte>&)>& change,
                      const std::string& drop = {}) {
    const auto in = checkpoint::SafetensorsFile::open(file);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<checkpoint::TensorData> tensors;
    for (const auto& entry : in.entries()) {
      if (entry.name == drop) continue;
      bytes.push_back(in.bytes(entry.name));
      change(entry.name, bytes.back());
      tensors.push_back({entry.name, entry.dtype, entry.shape, nullptr});
    }
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = bytes[i].data();
    checkpoint::write_safetensors(file, tensors);
  }
  /// Adds to each of these values.
  template <class Value>
  static void add(std::vector<std::byte>& bytes, Value more) {
    for (size_t i = 0; i + sizeof(Value) <= bytes.size(); i += sizeof(Value)) {
      Value value;
      std::memcpy(&value, bytes.data() + i, sizeof(Value));
      value += more;
      std::memcpy(bytes.data() + i, &value, sizeof(Value));
    }
  }
  const fs::path goldens_ = TESSERA_GOLDENS;
  TinyRun run_{"verify"};
};

}  // namespace tessera::testing
