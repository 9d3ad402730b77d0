// Models in the cache of the Hugging Face hub's clients, which this test lays out as they do.
#include "tessera/checkpoint/model_folder.h"

#include "folder_test.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

class Hub : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) ::unsetenv(name);
    home_ = ::getenv("HOME") ? ::getenv("HOME") : "";
    ::setenv("HOME", folder_.c_str(), 1);
    before_ = fs::current_path();
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path(before_);
    ::setenv("HOME", home_.c_str(), 1);
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) ::unsetenv(name);
    FolderTest::TearDown();
  }
  /// A repository with one file, which is a link as the clients make it.
  void keep(const fs::path& cache, const std::string& repository, const std::string& revision) {
    const fs::path folder = cache / ("models--" + repository);
    fs::create_directories(folder / "snapshots" / revision / "vae");
    fs::create_directories(folder / "blobs");
    fs::create_directories(folder / "refs");
    std::ofstream(folder / "blobs" / "1234") << "weights";
    fs::create_symlink("../../../blobs/1234", folder / "snapshots" / revision / "vae" / "model.safetensors");
    std::ofstream(folder / "refs" / "main") << revision;
  }
  std::string home_;
  fs::path before_;
};

TEST_F(Hub, ARepositoryStandsForTheSnapshotThatMainNames) {
  const fs::path cache = folder_ / ".cache/huggingface/hub";
  keep(cache, "Org--A-model.1", "aaaa");
  fs::create_directories(cache / "models--Org--A-model.1/snapshots/bbbb");  // of another revision
  const std::string snapshot = (cache / "models--Org--A-model.1/snapshots/aaaa").string();
  for (const char* name : {"Org/A-model.1", "hf:Org/A-model.1", "hf://Org/A-model.1"})
    EXPECT_EQ(found_at(name), snapshot) << name;
  EXPECT_EQ(found_at("Org/A-model.1/vae"), snapshot + "/vae");
  EXPECT_EQ(found_at("hf:Org/A-model.1/vae/model.safetensors"), snapshot + "/vae/model.safetensors");
  EXPECT_EQ(read(found_at("Org/A-model.1/vae/model.safetensors")), "weights");
  for (const char* name : {"Org/A-model.1/transformer", "Org/another", "A-model.1", "hf:A-model.1", "", "auto", "haar",
                           "/Org/A-model.1", "hf:Org/A-model.1/../../x", "./Org/A-model.1"})
    EXPECT_EQ(found_at(name), name);
}

TEST_F(Hub, APathThatIsThereComesFirst) {
  keep(folder_ / ".cache/huggingface/hub", "Org--Name", "aaaa");
  write("Org/Name/config.json", "{}");
  EXPECT_EQ(found_at("Org/Name"), "Org/Name");
  EXPECT_EQ(found_at("hf:Org/Name"), "Org/Name");
  EXPECT_NE(found_at("hf:Org/Name/vae"), "hf:Org/Name/vae") << "the folder has none, the cache does";
}

TEST_F(Hub, TheCacheIsWhereTheClientsVariablesSay) {
  EXPECT_EQ(hub_cache(), folder_ / ".cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", (folder_ / "xdg").c_str(), 1);
  EXPECT_EQ(hub_cache(), folder_ / "xdg/huggingface/hub");
  ::setenv("HF_HOME", (folder_ / "home").c_str(), 1);
  EXPECT_EQ(hub_cache(), folder_ / "home/hub");
  ::setenv("HF_HUB_CACHE", (folder_ / "own").c_str(), 1);
  EXPECT_EQ(hub_cache(), folder_ / "own");
  keep(folder_ / "own", "Org--Name", "cccc");
  EXPECT_EQ(found_at("Org/Name"), (folder_ / "own/models--Org--Name/snapshots/cccc").string());
}

TEST_F(Hub, AnIncompleteOrOddCacheIsNoModel) {
  const fs::path cache = folder_ / ".cache/huggingface/hub";
  keep(cache, "Org--Name", "aaaa");
  const fs::path main = cache / "models--Org--Name/refs/main";
  for (const std::string& text : {std::string(), std::string("dddd"), std::string("../snapshots/aaaa"),
                                  std::string("a b"), std::string(5000, 'a')}) {
    std::ofstream(main) << text;
    EXPECT_EQ(found_at("Org/Name"), "Org/Name") << text.substr(0, 40);
  }
  std::ofstream(main) << "aaaa\n";
  EXPECT_NE(found_at("Org/Name"), "Org/Name") << "a line's end is none of the name";
  fs::remove(main);
  EXPECT_EQ(found_at("Org/Name"), "Org/Name");
  fs::create_directories(main);
  EXPECT_EQ(found_at("Org/Name"), "Org/Name");
}

TEST(HubNames, WhatIsMissingIsAnsweredWithTheCommandThatFetchesIt) {
  for (const auto& [path, command] : std::vector<std::pair<std::string, std::string>>{
           {"Wan2.1-T2V-1.3B", "hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir Wan2.1-T2V-1.3B"},
           {"/d/Wan2.1-T2V-14B/Wan2.1_VAE.pth", "hf download Wan-AI/Wan2.1-T2V-14B --local-dir /d/Wan2.1-T2V-14B"},
           {"Wan-AI/Wan2.1-T2V-1.3B", "hf download Wan-AI/Wan2.1-T2V-1.3B"},
           {"Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "hf download Wan-AI/Wan2.1-T2V-1.3B-Diffusers"},
           {"m/Wan2.1-T2V-14B-Diffusers/vae",
            "hf download Wan-AI/Wan2.1-T2V-14B-Diffusers --local-dir m/Wan2.1-T2V-14B-Diffusers"},
           {"hf:someone/a-model/vae", "hf download someone/a-model"},
           {"wan2.1_t2v_1.3B_bf16.safetensors", "hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir Wan2.1-T2V-1.3B"}})
    EXPECT_EQ(fetched_by(path), "; " + command + " fetches it") << path;
  for (const char* path : {"", "mine", "some/folder", "/a/b.safetensors"}) EXPECT_EQ(fetched_by(path), "") << path;
}

}  // namespace
}  // namespace tessera::checkpoint
