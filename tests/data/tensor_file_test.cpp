// Files of one tensor that another program encoded, and the columns of a table that name them.
#include "tessera/data/files/tensor_file.h"

#include <limits>

#include "checkpoint/torch_bytes.h"
#include "data/scene.h"
#include "tessera/data/dataset.h"

namespace tessera::data {
namespace {

using checkpoint::PickleMaker;
using checkpoint::ZipWriter;
using checkpoint::operator""s;

class TensorFiles : public FolderTest {
 protected:
  /// An archive of torch.save with this pickle and one storage.
  Path archive(const std::string& name, const std::string& pickle, const std::string& storage) const {
    ZipWriter zip(folder_ / name, 0);
    zip.add("latent/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
    zip.add("latent/byteorder", "little", 6);
    zip.add("latent/data/0", storage.data(), static_cast<int64_t>(storage.size()));
    zip.add("latent/version", "3\n", 2);
    zip.commit();
    return folder_ / name;
  }
  void refused(const std::vector<std::string>& words, const Path& path) const {
    expect_error(Exit::input, words, [&] { read_tensor_file(path); });
  }
};

/// The instructions of torch 2's torch.save((...).to(torch.bfloat16).transpose(0, 1), PATH), with their memo: a view of
/// [3, 2] in storage order [2, 3].
TEST_F(TensorFiles, OneTensorOfTorchSaveIsRead) {
  const std::string pickle =
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\nq\x00"
      "((X\x07\x00\x00\x00storageq\x01"
      "ctorch\nBFloat16Storage\nq\x02"
      "X\x01\x00\x00\x00"
      "0q\x03X\x03\x00\x00\x00"
      "cpuq\x04K\x06tq\x05QK\x00K\x03K\x02\x86q\x06K\x01K\x03\x86q\x07\x89"
      "ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b."s;
  const std::string storage = "\x80\x3f\x00\x40\x40\x40\x80\x40\xa0\x40\xc0\x40"s;  // 1 .. 6
  const Path file = archive("a.pt", pickle, storage);
  EXPECT_EQ(tensor_shape(file), (NpyShape{3, 2}));
  const NpyArray array = read_tensor_file(file);
  EXPECT_EQ(array.shape, (NpyShape{3, 2}));
  EXPECT_EQ(array.values, (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST_F(TensorFiles, WhatIsNotOneTensorOfNumbersIsRefused) {
  const std::string eight(8, '\0');
  const auto of = [&](const std::string& name, const std::string& code) {
    PickleMaker pickle;
    pickle.value(code);
    return archive(name, pickle.bytes(), eight);
  };
  const std::string tensor = PickleMaker::tensor("0", 2, 0, {2}, {1});
  EXPECT_EQ(read_tensor_file(of("good.pt", tensor)).values, (std::vector<float>{0, 0}));
  refused({"dict.pt", "a dict or list of 1 tensor, expected one tensor", "torch.save(tensor"},
          of("dict.pt", PickleMaker::inner({{"latents", tensor}})));
  refused({"none.pt", "without numbers"}, of("none.pt", PickleMaker::tensor("0", 2, 0, {0, 2}, {2, 1})));
  refused({"out.pt", "leaves its storage"}, of("out.pt", PickleMaker::tensor("0", 2, 0, {3}, {1})));
  refused({"run.pt", "os.system"}, of("run.pt", "cos\nsystem\n(" + PickleMaker::text("true") + "tR"));
  std::string whole = tensor;
  whole.replace(whole.find("Float"), 5, "Int");
  refused({"whole.pt", "I32", "expected fp32, fp16 or bf16"}, of("whole.pt", whole));
  checkpoint::write_one_tensor(folder_ / "nan.pt", {2}, {1, std::numeric_limits<float>::quiet_NaN()});
  refused({"nan.pt", "not finite"}, folder_ / "nan.pt");
  refused({"cut.pt"}, write("cut.pt", read(folder_ / "good.pt").substr(0, 100)));
}

class TensorColumns : public TensorFiles {
 protected:
  void SetUp() override {
    TensorFiles::SetUp();
    for (const char* name : {"a.pt", "a-t5.pt", "a-clip.pt"}) checkpoint::write_one_tensor(folder_ / name, {1}, {1});
  }
  Items items(const std::string& rows, bool latents = true, bool texts = true) const {
    write("set.csv", "path,text,latents_path,text_t5_path,text_clip_path\n" + rows);
    return read_dataset({.path = folder_ / "set.csv", .metadata = {}, .latent_column = latents, .text_columns = texts});
  }
};

TEST_F(TensorColumns, NameTheFilesOfARow) {
  const std::string row = "no.mp4,a cat,a.pt,a-t5.pt,a-clip.pt\n";
  const Items both = items(row);
  ASSERT_EQ(both.size(), 1u);
  EXPECT_EQ(both[0].path, folder_ / "a.pt") << "the clip itself is not needed";
  EXPECT_EQ(both[0].context, folder_ / "a-t5.pt");
  EXPECT_EQ(both[0].pooled, folder_ / "a-clip.pt");
  EXPECT_EQ(both[0].caption(), "a cat");
  EXPECT_TRUE(items(row, true, false)[0].context.empty());
  expect_error(Exit::input, {"set.csv: row 2", "no.mp4", "no such file"}, [&] { items(row, false, false); });
}

TEST_F(TensorColumns, FaultsNameTheRow) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& row) {
    expect_error(Exit::input, words, [&] { items(row); });
  };
  refused({"set.csv: row 2", "b.pt: no such file"}, "a.mp4,a cat,b.pt,a-t5.pt,a-clip.pt\n");
  refused({"set.csv: row 2", "no file in column text_t5_path"}, "a.mp4,a cat,a.pt,,a-clip.pt\n");
  refused({"set.csv: row 2", "set.csv: expected a file of one tensor, .npy, .pt, .pth"},
          "a.mp4,a cat,a.pt,set.csv,a-clip.pt\n");
  write("set.csv", "path,text\na.mp4,a cat\n");
  expect_error(Exit::input, {"expected a column latents_path, found path, text"},
               [&] { read_dataset({.path = folder_ / "set.csv", .metadata = {}, .latent_column = true}); });
  expect_error(Exit::input, {"no table", "data.texts", "data.metadata"},
               [&] { read_dataset({.path = folder_, .metadata = {}, .text_columns = true}); });
}

}  // namespace
}  // namespace tessera::data
