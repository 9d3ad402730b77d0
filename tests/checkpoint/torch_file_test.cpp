// Files of torch.save: what LibTorch-free code writes and reads, and what it refuses.
#include "tessera/checkpoint/torch_file.h"

#include <numeric>

#include "checkpoint/files.h"
#include "checkpoint/torch_bytes.h"
#include "tessera/checkpoint/torch_zip.h"
#include "tessera/checkpoint/weight_file.h"
#include "tessera/checkpoint/weights.h"

namespace tessera::checkpoint {

class TorchFiles : public FileTest {
 protected:
  std::vector<float> values(const TorchFile& file, const std::string& name) {
    const TorchFile::Entry& entry = *file.find(name);
    std::vector<float> out(static_cast<size_t>(entry.count()));
    file.read(entry, 0, entry.count(), out.data());
    return out;
  }
  /// An archive with this pickle and one storage "0" of the floats 0, 1, 2, ...
  Path archive(const std::string& name, const std::string& pickle, size_t floats = 6) {
    std::vector<float> data(floats);
    std::iota(data.begin(), data.end(), 0.0f);
    ZipWriter zip(path(name), 0);
    zip.add("archive/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
    zip.add("archive/data/0", data.data(), static_cast<int64_t>(floats * sizeof(float)));
    zip.commit();
    return path(name);
  }
};

TEST_F(TorchFiles, EveryDtypeComesBackAsItWasWritten) {
  std::vector<TensorInfo> infos;
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
    infos.push_back({"t" + std::to_string(i), static_cast<DType>(i), {2, 3}});
  infos.push_back({"empty", DType::f32, {0, 3}});
  infos.push_back({"scalar", DType::i64, {}});
  std::string bytes(64, '\0');
  std::iota(bytes.begin(), bytes.end(), '\1');
  TorchWriter writer(path("all.pth"), infos);
  for (size_t i = 0; i < infos.size(); ++i) writer.write(bytes.data());
  writer.commit();

  const TorchFile file = TorchFile::open(path("all.pth"));
  ASSERT_EQ(file.entries().size(), infos.size());
  for (const TensorInfo& info : infos) {
    const TorchFile::Entry* entry = file.find(info.name);
    ASSERT_TRUE(entry) << info.name;
    EXPECT_EQ(entry->dtype, info.dtype) << info.name;
    EXPECT_EQ(entry->shape, info.shape) << info.name;
    std::string read(static_cast<size_t>(info.bytes()), '\0');
    file.read(*entry, 0, info.count(), read.data());
    EXPECT_EQ(read, bytes.substr(0, read.size())) << info.name;
  }
}

/// made by torch 2.11 on two ranks of gloo: FSDP(Linear(3, 2), use_orig_params=True) after two steps of AdamW, {"model":
/// model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer), "step": 2}, of both kinds of state_dict. Its
/// tensors have attributes of Python.
TEST_F(TorchFiles, WhatFsdpSavedIsRead) {
  const Path folder = Path(TESSERA_SOURCE_DIR) / "tests/checkpoint";
  const TorchFile model = TorchFile::open(folder / "fsdp_full.pth");
  EXPECT_EQ(values(model, "weight"), (std::vector<float>{-0.5, 0.5, 1.5, 2.5, 3.5, 4.5}));
  EXPECT_EQ(values(model, "bias"), (std::vector<float>{0, -1.5}));
  const TorchTree whole(folder / "fsdp_full.pth");
  EXPECT_EQ(whole.metadata().at("step"), "2");
  for (const auto& [name, value] :
       {std::pair{"bias.exp_avg", 6.75F}, {"bias.exp_avg_sq", 6.75F}, {"weight.exp_avg", 0.75F}}) {
    const TorchFile::Entry* entry = whole.find(std::string("optimizer.state.") + name);
    ASSERT_TRUE(entry) << name;
    std::vector<float> read(static_cast<size_t>(entry->count()));
    whole.read_f32(*entry, 0, entry->count(), read.data());
    for (const float x : read) EXPECT_EQ(x, value) << name;
  }
  expect_error(Exit::input, {"ShardedTensor", "nothing was run"},
               [&] { TorchFile::open(folder / "fsdp_sharded.pth"); });
}

TEST_F(TorchFiles, ATensorOfAnotherClassIsRefusedByItsName) {
  const std::string plain = PickleMaker::tensor("0", 6, 0, {6}, {1});
  const auto of_class = [&](const std::string& type) {  // function, class, arguments, attributes
    const size_t arguments = plain.find('(');
    const std::string call = "ctorch._tensor\n_rebuild_from_type_v2\n(" + plain.substr(0, arguments) + type +
                             plain.substr(arguments, plain.size() - arguments - 1) + "}tR";
    PickleMaker made;
    made.dict({{"x", call}});
    return archive("typed.pth", made.bytes());
  };
  EXPECT_EQ(values(TorchFile::open(of_class("ctorch\nTensor\n")), "x"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  expect_error(Exit::input, {"'x'", "torch.Size", "plain tensor"},
               [&] { TorchFile::open(of_class("ctorch\nSize\n")); });
  expect_error(Exit::input, {"MaskedTensor"}, [&] { TorchFile::open(of_class("ctorch.masked\nMaskedTensor\n")); });
}

TEST_F(TorchFiles, AFileThatTorchSavedIsRead) {
  // made by torch 2.11: {"model_state": Linear(3, 2).state_dict() with views, every kind of dtype, a Parameter, ...;
  // "step"}
  const TorchFile file = TorchFile::open(Path(TESSERA_SOURCE_DIR) / "tests/checkpoint/torch_save.pth");
  EXPECT_EQ(file.metadata().at("step"), "41");
  EXPECT_EQ(file.metadata().at("note"), "made by torch");
  EXPECT_EQ(values(file, "weight"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values(file, "bias"), (std::vector<float>{0.5, -1}));
  EXPECT_EQ(values(file, "transposed"), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(file.find("transposed")->shape, (Shape{3, 2}));
  EXPECT_EQ(values(file, "tail"), (std::vector<float>{8, 9, 10, 11}));
  EXPECT_EQ(values(file, "p"), (std::vector<float>{9}));
  const WeightFile any = WeightFile::open(file.path());
  for (const auto& [name, dtype, expected] : {std::tuple{"h", DType::f16, std::vector<float>{1.5, -2}},
                                              {"b", DType::bf16, {3, 0.25}},
                                              {"q", DType::f8_e4m3, {1, -0.5}}}) {
    std::vector<float> read(2);
    any.read_f32(name, 0, 2, read.data());
    EXPECT_EQ(any.find(name)->dtype, dtype) << name;
    EXPECT_EQ(read, expected) << name;
  }
  EXPECT_EQ(file.find("i")->dtype, DType::i64);
  EXPECT_EQ(file.find("i")->shape, Shape{});
  EXPECT_EQ(file.find("none")->shape, (Shape{0, 4}));
  EXPECT_EQ(file.find("flag")->dtype, DType::boolean);
  EXPECT_EQ(file.entries().size(), 11u);
}

TEST_F(TorchFiles, OffsetsStridesAndSharedStoragesGiveTheRightElements) {
  PickleMaker pickle;
  pickle.dict({{"a", pickle.tensor("0", 6, 0, {2, 3}, {3, 1})},
               {"transposed", pickle.tensor("0", 6, 0, {3, 2}, {1, 3})},
               {"tail", pickle.tensor("0", 6, 4, {2}, {1})}});
  const TorchFile file = TorchFile::open(archive("views.pth", pickle.bytes()));
  EXPECT_EQ(values(file, "a"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values(file, "transposed"), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values(file, "tail"), (std::vector<float>{4, 5}));
  EXPECT_TRUE(file.find("a")->contiguous);
  EXPECT_FALSE(file.find("transposed")->contiguous);
  float two[2];
  file.read(*file.find("transposed"), 3, 2, two);
  EXPECT_EQ(two[0], 4);
  EXPECT_EQ(two[1], 2);
}

TEST_F(TorchFiles, ADictThatOnlyWrapsTheWeightsGivesNoPrefixAndOthersDo) {
  PickleMaker wrapped;
  wrapped.dict(
      {{"epoch", wrapped.integer(3)}, {"state_dict", wrapped.inner({{"w", wrapped.tensor("0", 6, 0, {6}, {1})}})}});
  const TorchFile file = TorchFile::open(archive("wrapped.pth", wrapped.bytes()));
  ASSERT_TRUE(file.find("w"));
  EXPECT_EQ(file.metadata().at("epoch"), "3");

  PickleMaker two;
  two.dict({{"vae", two.inner({{"w", two.tensor("0", 6, 0, {6}, {1})}})}, {"v", two.tensor("0", 6, 0, {6}, {1})}});
  const TorchFile other = TorchFile::open(archive("two.pth", two.bytes()));
  EXPECT_TRUE(other.find("vae.w") && other.find("v"));
}

TEST_F(TorchFiles, OfATrainersCheckpointTheWeightsAreRead) {
  // the state of numpy's generator: an array, made by a call and then given its content
  const std::string array =
      "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01"
      "b\x87R(K\x01K\x02\x85"
      "cnumpy\ndtype\nU\x02u4K\x00K\x01\x87R(K\x03U\x01<NNNtb\x89U\x04\x01\x02\x03\x04tb"s;
  PickleMaker pickle;
  const auto tensor = [&](int64_t first) { return pickle.tensor("0", 6, first, {2}, {1}); };
  pickle.dict({{"state_dict", pickle.inner({{"w", tensor(0)}})},
               {"state_dict_ema", pickle.inner({{"w", tensor(2)}})},
               {"optimizer", pickle.inner({{"exp_avg", tensor(4)}})},
               {"epoch", pickle.integer(2)},
               {"rng_state", pickle.inner({{"np", array}})}});
  const TorchFile file = TorchFile::open(archive("trained.pth", pickle.bytes()));
  ASSERT_EQ(file.entries().size(), 1u);
  EXPECT_EQ(values(file, "w"), (std::vector<float>{0, 1}));
  EXPECT_EQ(file.metadata().at("epoch"), "2");
}

TEST_F(TorchFiles, TheAverageOfTheWeightsIsReadWhereItIsAskedFor) {
  PickleMaker pickle;
  const auto tensor = [&](int64_t first) { return pickle.tensor("0", 6, first, {2}, {1}); };
  pickle.dict({{"state_dict", pickle.inner({{"w", tensor(0)}})},
               {"state_dict_ema", pickle.inner({{"w", tensor(2)}})},
               {"optimizer", pickle.inner({{"exp_avg", tensor(4)}})}});
  const TorchFile file = TorchFile::open(archive("epoch_1_step_2.pth", pickle.bytes()), /*averaged=*/true);
  ASSERT_EQ(file.entries().size(), 1u);
  EXPECT_EQ(values(file, "w"), (std::vector<float>{2, 3}));
  PickleMaker plain;
  plain.dict({{"state_dict", plain.inner({{"w", tensor(0)}})}, {"optimizer", plain.inner({{"exp_avg", tensor(4)}})}});
  const auto path = archive("plain.pth", plain.bytes());
  expect_error(Exit::input, {"plain.pth: holds no average", "'state_dict', 'optimizer'", "--ema"},
               [&] { TorchFile::open(path, /*averaged=*/true); });
  const float value[1] = {1};
  write_safetensors(folder_ / "w.safetensors", {{"w", DType::f32, {1}, value}});
  expect_error(Exit::input, {"w.safetensors", "no file of torch.save", "--ema"},
               [&] { open_weights(folder_ / "w.safetensors", /*averaged=*/true); });
}

TEST_F(TorchFiles, WhatWouldRunCodeIsRefusedByName) {
  // what pickle makes of an object whose __reduce__ returns (os.system, ("touch ran",))
  const std::string ran = path("ran").string();
  for (const std::string& call : {"cposix\nsystem\n(X\x05\0\0\0touchtR."s, "cnt\nsystem\n)R."s,
                                  "cbuiltins\neval\n(X\x01\0\0\0 1tR."s, "(X\x05\0\0\0touchios\nsystem\n."s}) {
    const std::string name = call.find("posix") != call.npos  ? "posix.system"
                             : call.find("cnt") != call.npos  ? "nt.system"
                             : call.find("eval") != call.npos ? "builtins.eval"
                                                              : "os.system";
    expect_error(Exit::input, {"evil.pth", name, "nothing was run", "get the safetensors file"},
                 [&] { TorchFile::open(archive("evil.pth", "\x80\x02" + call)); });
  }
  // the same by protocol 4, where module and name are texts on the stack
  expect_error(Exit::input, {"subprocess.Popen"},
               [&] { TorchFile::open(archive("evil.pth", "\x80\x04\x8c\x0asubprocess\x8c\x05Popen\x93)R."s)); });
  EXPECT_FALSE(std::filesystem::exists(ran));
}

TEST_F(TorchFiles, ADtypeThatWeDoNotHaveIsNamedWithItsTensor) {
  PickleMaker pickle;
  std::string tensor = pickle.tensor("0", 6, 0, {6}, {1});
  tensor.replace(tensor.find("FloatStorage"), 12, "ComplexFloatStorage");
  pickle.dict({{"w", tensor}});
  expect_error(Exit::input, {"tensor 'w'", "ComplexFloatStorage", "convert it to one of F64"},
               [&] { TorchFile::open(archive("complex.pth", pickle.bytes())); });
}

TEST_F(TorchFiles, ViewsThatLeaveTheirStorageAreRefused) {
  const auto refused = [&](int64_t elements, int64_t offset, const Shape& shape, const Shape& strides,
                           const std::string& text) {
    PickleMaker pickle;
    pickle.dict({{"w", pickle.tensor("0", elements, offset, shape, strides)}});
    const Path file = archive("bad.pth", pickle.bytes());
    expect_error(Exit::input, {"bad.pth: tensor 'w'", text}, [&] { TorchFile::open(file); });
  };
  refused(6, 1, {2, 3}, {3, 1}, "leaves its storage of 6");
  refused(6, 0, {2, 3}, {4, 1}, "leaves its storage");
  refused(6, 7, {0}, {1}, "leaves its storage");
  refused(6, 0, {2, 3}, {3}, "leaves its storage");
  refused(6, 0, {int64_t{1} << 40, int64_t{1} << 40}, {1, 1}, "leaves its storage");
  refused(6, 0, {3, 3}, {int64_t{1} << 62, int64_t{1} << 62}, "leaves its storage");
  refused(7, 0, {6}, {1}, "has 24 bytes, expected 7 elements of F32");
  refused(6, 0, {1000000}, {0}, "expanded");
}

TEST_F(TorchFiles, TruncatedAndForeignArchivesSayWhatIsWrong) {
  PickleMaker pickle;
  pickle.dict({{"w", pickle.tensor("0", 6, 0, {6}, {1})}});
  const std::string whole = read_text(archive("whole.pth", pickle.bytes()));
  expect_error(Exit::input, {"no zip directory at its end (truncated?)"},
               [&] { TorchFile::open(write("cut.pth", whole.substr(0, whole.size() - 40))); });
  expect_error(Exit::input, {"before version 1.6", "torch.save(torch.load("},
               [&] { TorchFile::open(write("old.pth", "\x80\x02\x8a\x0al\xfc\x9c")); });
  std::string damaged = whole;
  damaged[whole.find("FloatStorage")] = 'f';
  expect_error(Exit::input, {"does not have its checksum"}, [&] { TorchFile::open(write("damaged.pth", damaged)); });

  ZipWriter zip(path("other.zip"), 0);
  zip.add("readme.txt", "hello", 5);
  zip.commit();
  expect_error(Exit::input, {"without data.pkl"}, [&] { TorchFile::open(path("other.zip")); });
}

TEST_F(TorchFiles, OpenWeightsTakesThemByTheirFirstBytes) {
  const float value = 2.5f;
  TorchWriter writer(path("named-wrongly.safetensors"), {{"w", DType::f32, {1}}});
  writer.write(&value);
  writer.commit();
  const WeightSet set = open_weights(path("named-wrongly.safetensors"));
  float read = 0;
  set.read_f32("w", 0, 1, &read);
  EXPECT_EQ(read, value);
  EXPECT_EQ(set.files()[0].format(), "pth");
  expect_error(Exit::input, {"elements [0, +2) wanted, it has 1"}, [&] {
    float two[2];
    set.read_f32("w", 0, 2, two);
  });
}

TEST_F(TorchFiles, Zip64ArchivesReadLikeOthers) {
  for (const uint32_t from : {uint32_t{0}, uint32_t{100}, UINT32_MAX}) {  // from: everything, what is larger, nothing
    const std::string small = "abc", large(300, 'x');
    ZipWriter zip(path("z.zip"), 0, from);
    zip.add("a/small", small.data(), 3);
    zip.add("a/large", large.data(), 300);
    zip.add("a/none", nullptr, 0);
    zip.commit();
    const ReadFile file(path("z.zip"));
    const auto entries = read_zip(file);
    ASSERT_EQ(entries.size(), 3u) << from;
    std::string read(300, '\0');
    file.read(entries[1].begin, entries[1].bytes, read.data());
    EXPECT_EQ(read, large) << from;
    EXPECT_EQ(entries[1].begin % 64, 0) << from;
    EXPECT_EQ(entries[2].bytes, 0) << from;
  }
}

}  // namespace tessera::checkpoint
