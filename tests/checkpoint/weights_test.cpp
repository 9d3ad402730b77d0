#include "tessera/checkpoint/weights.h"

#include "checkpoint/files.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/torch_zip.h"

namespace tessera::checkpoint {

class Weights : public FileTest {
 protected:
  void save(const std::string& file, const std::vector<std::string>& names, float value) {
    std::vector<TensorData> tensors;
    for (const auto& name : names) tensors.push_back({name, DType::f32, {1}, &value});
    std::filesystem::create_directories(path(file).parent_path());
    write_safetensors(path(file), tensors);
  }
  float value(const WeightSet& set, const std::string& name) {
    float x = 0;
    set.read_f32(name, 0, 1, &x);
    return x;
  }
};

TEST_F(Weights, AFileAFolderAndAnIndexLookTheSame) {
  save("one/model.safetensors", {"a", "b"}, 1);
  save("two/diffusion_pytorch_model-00001-of-00002.safetensors", {"a"}, 1);
  save("two/diffusion_pytorch_model-00002-of-00002.safetensors", {"b"}, 1);
  std::filesystem::copy(path("two"), path("three"));
  write("three/diffusion_pytorch_model.safetensors.index.json",
        R"({"metadata":{"total_size":8},"weight_map":{"a":"diffusion_pytorch_model-00001-of-00002.safetensors",)"
        R"("b":"diffusion_pytorch_model-00002-of-00002.safetensors"}})");
  for (const char* place :
       {"one/model.safetensors", "one", "two", "three", "three/diffusion_pytorch_model.safetensors.index.json"}) {
    WeightSet set = open_weights(path(place));
    EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "b"})) << place;
    EXPECT_EQ(value(set, "b"), 1.0f) << place;
    EXPECT_EQ(set.at("a").shape, Shape{1}) << place;
    EXPECT_FALSE(set.contains("c"));
    expect_error(Exit::input, {"no tensor 'bb'", "nearest name in it is 'b'"}, [&] { set.at("bb"); });
  }
}

TEST_F(Weights, OneVariantIsTakenAsTheModelAndOfTwoOneMustBeNamed) {
  save("fp16/diffusion_pytorch_model.fp16.safetensors", {"a", "b"}, 1);
  save("model/model.fp16.safetensors", {"a", "b"}, 1);
  for (const std::string shard :
       {"new/model.fp16-0000#-of-00002.safetensors", "old/model-0000#-of-00002.fp16.safetensors"})
    for (const std::string number : {"1", "2"}) {
      std::string file = shard;
      save(file.replace(file.find('#'), 1, number), {number == "1" ? "a" : "b"}, 1);
    }
  for (const std::string& index : {"model.safetensors.index.fp16.json", "model.fp16.safetensors.index.json"}) {
    const std::string folder = index.substr(0, index.size() - 5);
    std::filesystem::copy(path("new"), path(folder));
    write(
        folder + "/" + index,
        R"({"weight_map":{"a":"model.fp16-00001-of-00002.safetensors","b":"model.fp16-00002-of-00002.safetensors"}})");
  }
  for (const char* place :
       {"fp16", "model", "new", "old", "model.safetensors.index.fp16", "model.fp16.safetensors.index"}) {
    const WeightSet set = open_weights(path(place));
    EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "b"})) << place;
    EXPECT_EQ(value(set, "b"), 1.0f) << place;
  }
  std::filesystem::remove(path("new/model.fp16-00002-of-00002.safetensors"));
  expect_error(Exit::input, {"1 of 2 shards of model"}, [&] { open_weights(path("new")); });
  save("fp16/diffusion_pytorch_model.bf16.safetensors", {"a", "b"}, 2);
  expect_error(Exit::input, {"2 variants, bf16 and fp16", "name the file"}, [&] { open_weights(path("fp16")); });
  save("fp16/diffusion_pytorch_model.safetensors", {"a", "b"}, 3);
  EXPECT_EQ(value(open_weights(path("fp16")), "b"), 3.0f) << "the one without a variant goes first";
}

TEST_F(Weights, FilesOfTorchAreTakenUnderTheNamesOfBothLibraries) {
  for (const std::string stem : {"pytorch_model", "diffusion_pytorch_model"}) {
    const float one = 1;
    std::filesystem::create_directories(path(stem));
    std::filesystem::create_directories(path(stem + "-shards"));
    const auto make = [&](const std::string& file, const std::vector<TensorInfo>& tensors) {
      TorchWriter writer(path(file), tensors);
      for (size_t i = 0; i < tensors.size(); ++i) writer.write(&one);
      writer.commit();
    };
    const TensorInfo a = {"a", DType::f32, {1}}, b = {"b", DType::f32, {1}};
    make(stem + "/" + stem + ".bin", {a, b});
    make(stem + "-shards/" + stem + "-00001-of-00002.bin", {a});
    make(stem + "-shards/" + stem + "-00002-of-00002.bin", {b});
    write(stem + "-shards/" + stem + ".bin.index.json",
          R"({"weight_map":{"a":")" + stem + R"(-00001-of-00002.bin","b":")" + stem + R"(-00002-of-00002.bin"}})");
    for (const std::string& place : {stem, stem + "-shards"})
      EXPECT_EQ(value(open_weights(path(place)), "b"), 1.0f) << place;
  }
}

TEST_F(Weights, WhatWrapsAModuleIsNotInItsName) {
  save("c/model.safetensors",
       {"_orig_mod.a", "_orig_mod.blocks.0._checkpoint_wrapped_module.b", "blocks.1._orig_mod.b"}, 1);
  const WeightSet set = open_weights(path("c"));
  EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "blocks.0.b", "blocks.1.b"}));
  EXPECT_EQ(value(set, "blocks.0.b"), 1.0f);
  EXPECT_EQ(set.at("a").name, "a");
  save("i/part-1.safetensors", {"_orig_mod.a"}, 2);
  write("i/model.safetensors.index.json", R"({"weight_map":{"_orig_mod.a":"part-1.safetensors"}})");
  EXPECT_EQ(value(open_weights(path("i")), "a"), 2.0f);
  save("both/model.safetensors", {"_orig_mod.a", "a"}, 1);
  EXPECT_EQ(open_weights(path("both")).names(), (std::vector<std::string>{"_orig_mod.a", "a"})) << "two tensors";
}

TEST_F(Weights, CheckpointsOfOtherProgramsAreToldWithTheLineThatMakesWeights) {
  write("dcp/.metadata", "x"), write("dcp/__0_0.distcp", "x");
  expect_error(Exit::input, {"dcp: is a checkpoint of torch.distributed", "dcp_to_torch_save"},
               [&] { open_weights(path("dcp")); });
  write("state/pytorch_model_fsdp_0/.metadata", "x"), write("state/random_states_0.pkl", "x");
  expect_error(Exit::input, {"pytorch_model_fsdp_0: is a checkpoint of torch.distributed", "dcp_to_torch_save"},
               [&] { open_weights(path("state")); });
  write("zero/zero_to_fp32.py", "x"), write("zero/latest", "x");
  expect_error(Exit::input, {"checkpoint of DeepSpeed", "python", "zero_to_fp32.py"},
               [&] { open_weights(path("zero")); });
}

TEST_F(Weights, AFingerprintTellsOtherValuesUnderTheSameNameAndSizeAndNotWhereTheyLie) {
  for (const char* folder : {"first", "same", "other"}) {
    const std::vector<float> values(300000, folder == std::string("other") ? 1.0f : 2.0f);  // more than are read
    std::filesystem::create_directories(path(folder));
    write_safetensors(path(std::string(folder) + "/model.safetensors"), {{"a", DType::f32, {300000}, values.data()}});
    save(std::string(folder) + "-small/model.safetensors", {"a"}, values[0]);
  }
  std::filesystem::rename(path("same/model.safetensors"), path("same/renamed.safetensors"));
  const auto of = [&](const std::string& folder) { return fingerprint(open_weights(path(folder))); };
  for (const std::string size : {"", "-small"}) {
    EXPECT_EQ(of("first" + size), of("same" + size));
    EXPECT_NE(of("first" + size), of("other" + size));
  }
  EXPECT_NE(of("first"), of("first-small"));
}

TEST_F(Weights, IncompleteOrContradictingSetsAreRefused) {
  save("m/model-00001-of-00003.safetensors", {"a"}, 1);
  save("m/model-00003-of-00003.safetensors", {"b"}, 1);
  expect_error(Exit::input, {"2 of 3 shards of model", "fetch the missing"}, [&] { open_weights(path("m")); });
  save("m/model-00002-of-00003.safetensors", {"a"}, 2);
  expect_error(Exit::input, {"tensor 'a' is in more than one file"}, [&] { open_weights(path("m")); });

  auto index = [&](const std::string& text) { return write("m/x.index.json", text); };
  expect_error(Exit::input, {"'weight_map' is missing"}, [&] { open_weights(index("{}")); });
  expect_error(Exit::input, {"duplicate key 'a'"}, [&] { open_weights(index(R"({"weight_map":{"a":"f","a":"f"}})")); });
  expect_error(Exit::input, {"expected a plain file name"},
               [&] { open_weights(index(R"({"weight_map":{"a":"../secret"}})")); });
  expect_error(Exit::input, {"names 1 file, of which 1 is not there: absent.safetensors"},
               [&] { open_weights(index(R"({"weight_map":{"a":"absent.safetensors"}})")); });
  expect_error(Exit::input, {"'z' should be in", "does not have it"},
               [&] { open_weights(index(R"({"weight_map":{"z":"model-00001-of-00003.safetensors"}})")); });
}

TEST_F(Weights, AFolderWithoutWeightsSaysWhatWasLookedFor) {
  write("m/readme.md", "x");
  expect_error(Exit::input, {"no weights in it, but 1 file (readme.md); looked for model.safetensors", "name the file"},
               [&] { open_weights(path("m")); });
}

TEST_F(Weights, TheOnlyFileOfAFolderIsTakenAndOneOfTwoMustBeNamed) {
  save("m/epoch-3.safetensors", {"a"}, 1);
  EXPECT_EQ(open_weights(path("m")).names(), std::vector<std::string>{"a"});
  save("m/epoch-4.safetensors", {"a"}, 1);
  expect_error(Exit::input, {"holds 2 files of weights", "name the file itself"}, [&] { open_weights(path("m")); });
}

TEST_F(Weights, ADiffusersFolderGivesItsTransformer) {
  save("d/transformer/diffusion_pytorch_model.safetensors", {"a"}, 1);
  save("d/vae/diffusion_pytorch_model.safetensors", {"v"}, 1);
  EXPECT_EQ(open_weights(path("d")).names(), std::vector<std::string>{"a"});
}

TEST_F(Weights, TwoExpertsAreNotOneModel) {
  save("moe/high_noise_model/diffusion_pytorch_model.safetensors", {"a"}, 1);
  save("moe/low_noise_model/diffusion_pytorch_model.safetensors", {"a"}, 1);
  expect_error(Exit::input, {"two models", "name one of the two"}, [&] { open_weights(path("moe")); });
}

TEST_F(Weights, APartOfAnFp8WeightIsThatPartOfTheWholeByTheScalesOfItsRows) {
  constexpr int64_t kRows = 6, kColumns = 5;
  std::vector<uint8_t> codes;
  for (uint8_t i = 0; i < kRows * kColumns; ++i) codes.push_back(0x38 + i);  // from 1 up
  const std::vector<float> scales = {0.5f, 3, 0.25f, 7, 0.125f, 11};
  for (const char* name : {"a.scale_weight", "a.weight_scale"})
    for (const int64_t count : {kRows, int64_t{1}}) {
      write_safetensors(path("fp8.safetensors"), {{"a.weight", DType::f8_e4m3, {kRows, kColumns}, codes.data()},
                                                  {name, DType::f32, {count}, scales.data()}});
      const WeightSet set = open_weights(path("fp8.safetensors"));
      std::vector<float> whole(codes.size()), plain(codes.size());
      set.read_f32("a.weight", 0, kRows * kColumns, whole.data());
      to_f32(DType::f8_e4m3, codes.data(), kRows * kColumns, plain.data());
      for (int64_t i = 0; i < kRows * kColumns; ++i)
        EXPECT_EQ(whole[i], plain[i] * scales[count == 1 ? 0 : i / kColumns]) << name << " " << i;
      for (const auto& [first, n] : {std::pair<int64_t, int64_t>{7, 13}, {0, 5}, {4, 2}, {25, 5}, {29, 1}}) {
        std::vector<float> part(static_cast<size_t>(n));
        set.read_f32("a.weight", first, n, part.data());
        EXPECT_EQ(part, std::vector<float>(whole.begin() + first, whole.begin() + first + n))
            << name << " from " << first;
      }
    }
}

}  // namespace tessera::checkpoint
