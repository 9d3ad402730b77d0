// Open-Sora 2.0 from latents and captions that another program encoded, in the files that its own trainer reads: the same
// training to the bit as from the clips, without an autoencoder or a text encoder.
#include <filesystem>
#include <fstream>

#include "checkpoint/torch_bytes.h"
#include "opensora_run.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

class EncodedFiles : public OpenSoraRun {
 protected:
  fs::path file(const std::string& name) const { return run_.folder() / "encoded" / name; }

  /// A tensor of an entry, as torch.save would have written it.
  void write(const fs::path& entry, const char* tensor, const std::string& name) const {
    const auto stored = checkpoint::SafetensorsFile::open(entry);
    std::vector<float> values(static_cast<size_t>(stored.at(tensor).count()));
    stored.read_f32(tensor, 0, stored.at(tensor).count(), values.data());
    fs::create_directories(file(""));
    checkpoint::write_one_tensor(file(name), stored.at(tensor).shape, values);
  }
  /// What is cached, as files and a table of them.
  void export_cache() const {
    for (const auto& item : fs::directory_iterator(run_.folder() / "cache"))
      if (item.path().extension() == ".safetensors") {
        const auto stored = checkpoint::SafetensorsFile::open(item.path());
        write(item.path(), "latent", fs::path(stored.metadata().at("source")).stem().string() + ".pt");
      }
    for (const auto& item : fs::directory_iterator(run_.folder() / "cache/texts")) {
      if (item.path().extension() != ".safetensors") continue;
      const auto stored = checkpoint::SafetensorsFile::open(item.path());
      const std::string caption = stored.metadata().at("caption");
      const std::string stem = "clip" + caption.substr(caption.size() - 1);
      write(item.path(), "context", stem + "-t5.pt");
      write(item.path(), "pooled", stem + "-clip.pt");
    }
    std::ofstream table(table_);
    table << "path,text,latents_path,text_t5_path,text_clip_path\n";
    for (const std::string stem : {"clip0", "clip1", "clip2"}) {
      for (const char* ending : {".pt", "-t5.pt", "-clip.pt"}) ASSERT_TRUE(fs::exists(file(stem + ending)));
      table << stem << ".mp4,\"words that nobody encodes\"," << stem << ".pt," << stem << "-t5.pt," << stem
            << "-clip.pt\n";
    }
  }
  Flags files(const Flags& more = {}) const {
    Flags flags = {"--data.path",  table_,   "--data.latents", "column",
                   "--data.texts", "column", "--data.cache",   (run_.folder() / "files").string()};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  const std::string table_ = (run_.folder() / "encoded/set.csv").string();
};

TEST_F(EncodedFiles, TrainAsTheClipsDoOnAnyRanksCachedOrNot) {
  for (const int ranks : {1, 2}) {
    const Result r = train(ranks, "clips" + std::to_string(ranks));
    ASSERT_EQ(r.code, 0) << r.output;
  }
  ASSERT_NO_FATAL_FAILURE(export_cache());
  for (const int ranks : {1, 2})
    for (const std::string cache : {(run_.folder() / "files").string(), std::string("online")}) {
      const std::string name = "files" + std::to_string(ranks) + (cache == "online" ? cache : "");
      const Result r = train(ranks, name, files({"--data.cache", cache}));
      ASSERT_EQ(r.code, 0) << r.output;
      EXPECT_EQ(run_.losses(name), run_.losses("clips" + std::to_string(ranks))) << cache;
      EXPECT_NE(r.output.find("text encoder umt5-demo has random weights, which samples alone use"), std::string::npos)
          << r.output;
    }
  EXPECT_FALSE(fs::exists(run_.folder() / "files/texts")) << "no caption was encoded";
}

TEST_F(EncodedFiles, DropCaptionsForTheFilesThatStandForTheEmptyOne) {
  ASSERT_EQ(train(1, "clips").code, 0);
  ASSERT_NO_FATAL_FAILURE(export_cache());
  const auto with = [&](Flags flags) {
    flags.insert(flags.end(), {"--diffusion.caption_dropout", "0.5", "--diffusion.pooled_dropout", "0.5"});
    return files(flags);
  };
  const std::string null = file("clip0-t5.pt").string() + "," + file("clip0-clip.pt").string();
  Result r = train(1, "dropped", with({"--data.null_text", null}));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(run_.losses("dropped"), run_.losses("clips")) << "some captions were dropped";
  // where every clip has the files of the empty caption, dropping for them changes no bit
  std::ofstream(table_) << "path,text,latents_path,text_t5_path,text_clip_path\n"
                           "clip0.mp4,words,clip0.pt,clip0-t5.pt,clip0-clip.pt\n"
                           "clip1.mp4,words,clip1.pt,clip0-t5.pt,clip0-clip.pt\n"
                           "clip2.mp4,words,clip2.pt,clip0-t5.pt,clip0-clip.pt\n";
  const Flags own_cache = {"--data.cache", (run_.folder() / "alike").string()};
  ASSERT_EQ(train(1, "alike", files(own_cache)).code, 0);
  Flags drops = {"--data.null_text", null};
  drops.insert(drops.end(), own_cache.begin(), own_cache.end());
  ASSERT_EQ(train(1, "alike-dropped", with(drops)).code, 0);
  EXPECT_EQ(run_.losses("alike-dropped"), run_.losses("alike"));
  EXPECT_NE(run_.losses("alike"), run_.losses("clips"));
  r = train(1, "single", with({"--data.null_text", file("clip0-t5.pt").string()}));
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("1 files, expected 2"), std::string::npos) << r.output;
}

TEST_F(EncodedFiles, AChangedFileIsNoticedAndAWrongOneNamed) {
  ASSERT_EQ(train(1, "clips").code, 0);
  ASSERT_NO_FATAL_FAILURE(export_cache());
  ASSERT_EQ(train(1, "files", files()).code, 0);
  checkpoint::write_one_tensor(file("clip1-clip.pt"), {1, 32}, std::vector<float>(32, 0.5f));
  Result r = train(1, "changed", files());
  EXPECT_EQ(r.code, 3) << r.output;
  for (const char* words : {"stale", "stamp.pooled", "--rebuild"})
    EXPECT_NE(r.output.find(words), std::string::npos) << words << r.output;
  checkpoint::write_one_tensor(file("clip1-t5.pt"), {24, 64}, std::vector<float>(24 * 64, 0.5f));
  r = train(1, "short", files({"--data.cache", (run_.folder() / "other").string()}));
  EXPECT_EQ(r.code, 3) << r.output;
  for (const char* words :
       {"set.csv: row 3", "clip1-t5.pt", "[24, 64]", "40 rows of 64", "model.config.context_length"})
    EXPECT_NE(r.output.find(words), std::string::npos) << words << r.output;
  r = train(1, "beside", files({"--data.encoders", "host"}));
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("no caption is encoded beside a step"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace tessera::testing
