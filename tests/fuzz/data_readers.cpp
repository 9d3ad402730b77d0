// Readers of data sets, tokenizers and what lies beside weights.
#include <unistd.h>

#include <algorithm>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "checkpoint/torch_bytes.h"
#include "data/archive_files.h"
#include "fuzz/readers.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/lora_settings.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/data/cache_search.h"
#include "tessera/data/captions.h"
#include "tessera/data/files/archive.h"
#include "tessera/data/files/tensor_file.h"
#include "tessera/data/listing.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/report/history.h"

namespace tessera::fuzz {

namespace {

namespace fs = std::filesystem;

/// An empty folder beside the input.
fs::path folder_beside(const std::string& file) {
  const fs::path folder = fs::path(file).parent_path() / "folder";
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

void write(const fs::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

/// An input of two files: the second follows this line.
constexpr std::string_view kNextFile = "\n----\n";
std::pair<std::string, std::string> two_files(const std::string& bytes) {
  const size_t at = bytes.find(kNextFile);
  if (at == bytes.npos) return {bytes, ""};
  return {bytes.substr(0, at), bytes.substr(at + kNextFile.size())};
}

void encode_texts(const data::Tokenizer& tokenizer, const std::string& text) {
  for (const std::string& caption :
       {std::string("a caf\xc3\xa9, 2 cats' naps </s> <|endoftext|>\n"), text.substr(0, 4096)}) {
    tokenizer.encode(caption, 77);
    tokenizer.encode_written(caption, 300);
  }
}

void read_clip_tokenizer(const std::string& bytes, const std::string& file) {
  const auto [vocabulary, merges] = two_files(bytes);
  const fs::path folder = folder_beside(file);
  write(folder / "vocab.json", vocabulary);
  write(folder / "merges.txt", merges);
  encode_texts(data::Tokenizer(folder), bytes);
}
void read_tokenizer(const std::string& bytes, const std::string& file) {
  encode_texts(data::Tokenizer(fs::path(file)), bytes);
}

/// vocab.json and merges.txt: the 256 bytes inside and at the end of a word, two pieces more, two merges.
std::string clip_seed() {
  std::string vocabulary = "{", merges = "#version: 0.2\n";
  int id = 0;
  const auto add = [&](const std::string& piece) {
    vocabulary += (id ? ", \"" : "\"") + piece + "\": " + std::to_string(id);
    ++id;
  };
  const auto utf8 = [](int point) {
    if (point == '"' || point == '\\') return std::string{'\\', static_cast<char>(point)};
    if (point < 0x80) return std::string(1, static_cast<char>(point));
    return std::string{static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
  };
  for (const char* end : {"", "</w>"})
    for (int byte = 0, next = 0x100; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      add(utf8(printable ? byte : next++) + end);
    }
  for (const char* piece : {"ca", "cat</w>", "<|startoftext|>", "<|endoftext|>"}) add(piece);
  return vocabulary + "}" + std::string(kNextFile) + merges + "c a\nca t</w>\n";
}

constexpr const char* kGemmaSeed =
    R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "pre_tokenizer": null,)"
    R"("added_tokens": [{"id": 0, "content": "<pad>"}, {"id": 1, "content": "<eos>"}, {"id": 2, "content": "<bos>"}],)"
    R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>"}}, {"Sequence": {}}]},)"
    R"("model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",)"
    R"("vocab": {"<unk>": 3, "a": 4, "t": 5, "at": 6, "c": 7, "cat": 10, "\u2581": 8, "<0xC3>": 9}, "merges": ["a t", ["c", "at"]]}})";

constexpr const char* kUnigramSeed =
    R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": ""},)"
    R"({"type": "Strip", "strip_right": true}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]},)"
    R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},)"
    R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}]},)"
    R"("added_tokens": [{"id": 0, "content": "<pad>", "special": true}, {"id": 1, "content": "</s>", "special": true}],)"
    R"("post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"SpecialToken": {"id": "</s>"}}]},)"
    R"("model": {"type": "Unigram", "unk_id": 2, "byte_fallback": false, "vocab": [["<pad>", 0.0], ["</s>", 0.0],)"
    R"(["<unk>", 0.0], ["\u2581", -2.5], ["a", -3.0], ["\u2581cat", -1.5], ["<extra_id_1>", 0.0], ["<extra_id_0>", 0.0]]}})";

std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
/// A SentencePiece model by byte-pair encoding: pieces with scores, a trainer's type, and ids of the special tokens.
std::string spiece_seed() {
  std::string bytes;
  int n = 0;
  for (const char* piece : {"<pad>", "<eos>", "<bos>", "<unk>", "\xe2\x96\x81", "a", "t", "c", "at", "<0xC3>"}) {
    const float score = static_cast<float>(-n++);
    std::string entry = field(1, piece) + "\x15" + std::string(reinterpret_cast<const char*>(&score), sizeof score);
    entry += std::string("\x18") + (n <= 3 ? '\x03' : n == 4 ? '\x02' : n == 10 ? '\x06' : '\x01');
    bytes += field(1, entry);
  }
  // model_type BPE, byte_fallback; no prefix, spaces stay
  return bytes + field(2, std::string("\x18\x02\x98\x02\x01", 5)) + field(3, std::string("\x18\x00\x20\x00", 4));
}

/// What train_tokenizer makes, which SentencePiece itself reads; nothing in a build without it.
std::vector<std::string> unigram_seed() {
  if (!data::has_tokenizer()) return {};
  const fs::path file = fs::temp_directory_path() / ("fuzz-readers-spiece-" + std::to_string(::getpid()));
  data::train_tokenizer({"a cat and a dog", "two cats in the rain"}, 320, file);
  const std::string bytes = checkpoint::read_text(file);
  fs::remove(file);
  return {bytes};
}

void read_tar(const std::string&, const std::string& file) { data::read_tar(checkpoint::ReadFile(file)); }
void read_zip(const std::string&, const std::string& file) { checkpoint::read_zip(checkpoint::ReadFile(file)); }
/// The same with deflated entries, and what they inflate to; corpus/zip-deflated has one of Python's zipfile.
void read_deflated(const std::string&, const std::string& name) {
  const checkpoint::ReadFile file(name);
  for (const checkpoint::ZipEntry& entry : checkpoint::read_zip(file, checkpoint::Deflated::take))
    data::read_member(file, {entry.name, entry.begin, entry.bytes, entry.packed, entry.crc32});
}
void read_npy(const std::string&, const std::string& file) {
  data::latent_shape(data::npy_shape(file));
  data::read_npy(file);
}
void read_shard_list(const std::string& bytes, const std::string& file) {
  const fs::path folder = folder_beside(file);
  write(folder / "wids-meta.json", bytes);
  write(folder / "00000.tar", "");
  data::archives_of(folder);
}
data::CaptionFiles caption_files(const std::string& bytes, const std::string& file, const data::CaptionRules& rules,
                                 std::initializer_list<const char*> names) {
  const fs::path folder = folder_beside(file);
  for (const char* name : names) write(folder / name, bytes);
  return {folder / "a", rules};
}
void read_captions(const std::string& bytes, const std::string& file) {
  const data::CaptionRules rules{.shares = {{"prompt", 5}, {"_long", 95}}, .files = {"_long"}};
  const auto files = caption_files(bytes, file, rules, {"a_long.json"});
  for (const bool renames : {false, true}) {
    data::NamedCaptions named = {{"prompt", "a cat"}};
    files.add_captions("a", renames, named);
    data::choose_captions(named, {}, rules, "a", renames);
  }
}
void read_scores(const std::string& bytes, const std::string& file) {
  const data::CaptionRules rules{.score_files = {"_score"}, .drop_below = 0.5, .motion_files = {"_motion"}};
  const auto files = caption_files(bytes, file, rules, {"a_score.json", "a_motion.json", "a_prompt_clip_score.json"});
  files.motion("a");
  files.drops("a");
  data::choose_captions({{"prompt", "a cat"}, {"_long", "a long cat"}}, files.scores("a"), rules, "a");
}
void read_lora_settings(const std::string& bytes, const std::string& file) {
  const fs::path folder = folder_beside(file);
  write(folder / "adapter_config.json", bytes);
  for (const auto& settings :
       {checkpoint::read_lora_settings({}, folder, file),
        checkpoint::read_lora_settings({{"lora_adapter_metadata", bytes}, {"ss_network_alpha", bytes}}, {}, file)})
    settings.alpha_of("blocks.0.attn1.to_q");
}
void read_weight_index(const std::string& bytes, const std::string& file) {
  const fs::path folder = folder_beside(file);
  write(folder / "model.safetensors.index.json", bytes);
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  write(folder / "model-00001-of-00001.safetensors",
        std::string{static_cast<char>(header.size())} + std::string(7, '\0') + header + "four");
  const auto weights = checkpoint::open_weights(folder);
  for (const std::string& name : weights.names()) weights.at(name);
}

/// The stamp decides, and the clip itself is read only where that differs.
data::CacheKey clip_key(const fs::path& clip = "a.mp4") {
  return {.fields = {{"source", "a.mp4"},
                     {"encoder", "e"},
                     {"shape", "1x8x8"},
                     {"preprocessing", "p"},
                     {"version", std::to_string(data::kCacheVersion)}},
          .sources = {{"", clip, "1@2"}},
          .before = {}};
}
data::CacheKey caption_key() { return data::text_key("a cat", "e", "before"); }
void read_cache_entry(const std::string& bytes, const std::string& file) {
  const fs::path folder = folder_beside(file);
  data::CacheSearch search(folder, {}, [](const std::string&) { return 1; });
  for (const data::CacheKey& key : {clip_key(), caption_key()}) {
    checkpoint::make_folder(key.file(folder).parent_path());
    write(key.file(folder), bytes);
    const auto found = search.find(key).entry;
    if (!found) continue;
    data::damage(*found);
    if (key.is_text())
      data::read_caption(*found);
    else
      data::read_clip(*found);
  }
}
std::vector<std::string> cache_seeds() {
  std::string name = (fs::temp_directory_path() / "fuzz-readers-cache-XXXXXX").string();
  check_internal(::mkdtemp(name.data()) != nullptr, "fuzz", "no folder");
  write(fs::path(name) / "a.mp4", "pixels");
  data::write_clip(name, clip_key(fs::path(name) / "a.mp4"), {.latent = {{1, 1, 2, 2}, {1, 2, 3, 4}}, .extras = {}},
                   {});
  data::write_caption(name, caption_key(), {.context = {{1, 2}, {5, 6}}});
  std::vector<std::string> seeds;
  for (const data::CacheKey& key : {clip_key(), caption_key()}) seeds.push_back(checkpoint::read_text(key.file(name)));
  fs::remove_all(name);
  return seeds;
}

void read_history(const std::string&, const std::string& file) {
  report::told_strays(report::read_history(file, 1).strays);
}

/// One member of 20 bytes, by POSIX.
std::string tar_seed() {
  std::string header(512, '\0');
  header.replace(0, 5, "a.txt");
  header.replace(100, 8, std::string("0000644\0", 8));
  header.replace(124, 12, std::string("00000000024\0", 12));
  header.replace(148, 8, "        ");
  header.replace(156, 1, "0");
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  header.replace(148, 8, std::string(text, 7) + ' ');
  return header + "twenty bytes of text" + std::string(492 + 1024, '\0');
}
std::string zip_seed() { return checkpoint::zip_bytes({{"a.txt", "twenty bytes of text"}, {"b/c.mp4", "x"}}); }

}  // namespace

std::vector<Reader> data_readers() {
  const std::vector<std::string> json = {
      "{", "}", "[", "]", ",", ":", "null", "true", "1e999", "-1", "\"\"", "{\"a\":[]}", "9223372036854775807"};
  std::vector<std::string> clip = json, gemma = json;
  clip.insert(clip.end(), {"</w>", " ", "\n", std::string(kNextFile), "\xc4\x80", "c a"});
  gemma.insert(gemma.end(), {"\"<0xC3>\"", "\"a t\"", "\"SpecialToken\"", "\"type\""});
  std::vector<Reader> all = {
      {"clip-tokenizer", read_clip_tokenizer, ".txt", {clip_seed()}, clip},
      {"gemma-tokenizer", read_tokenizer, ".json", {kGemmaSeed}, gemma},
      {"unigram-tokenizer", read_tokenizer, ".json", {kUnigramSeed}, gemma},
      {"tokenizer-model",
       read_tokenizer,
       ".model",
       {spiece_seed()},
       {"\n\x05", "\x15", "\x18\x06", "\x18\x02", "\xff\xff\xff\xff\xff\x01", "<0x41>"}},
      {"tar",
       read_tar,
       ".tar",
       {tar_seed()},
       {"ustar", "x", "L", "g", "30 size=99999999999\n", "\x80\xff\xff\xff", "../"}},
      {"zip",
       read_zip,
       ".zip",
       {zip_seed()},
       {"PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "PK\x06\x06", "\xff\xff\xff\xff"}},
      {"zip-deflated",
       read_deflated,
       ".zip",
       {zip_seed()},
       {"PK\x01\x02", "PK\x03\x04", std::string("\x08\x00", 2), "\xff\xff\xff\xff", "\x4b\x4c", "\xed\xc1"}},
      {"npy",
       read_npy,
       ".npy",
       {data::npy_bytes<float>("<f4", "(2, 1, 2)", {1, 2, 3, 4})},
       {"'fortran_order': True", "<f2", "<f8", "|O", "(", ")", "99999999999", "-1", ",", "'descr'"}},
      {"shard-list",
       read_shard_list,
       ".json",
       {R"({"name": "set", "shardlist": [{"url": "00000.tar", "nsamples": 2}]})"},
       json},
      {"captions",
       read_captions,
       ".json",
       {R"({"a": {"prompt": "a cat", "_long": "a long cat", "none": null}})"},
       json},
      {"scores", read_scores, ".json", {R"({"a": {"prompt": 0.9, "_long": 0.25, "list": 3}})"}, json},
      {"lora-settings",
       read_lora_settings,
       ".json",
       {R"({"r": 4, "lora_alpha": 8, "alpha_pattern": {"blocks.0.attn1.to_q": 2, "blocks\\..*\\.to_k": 3}, "use_rslora": true})",
        R"({"peft_type": "LORA", "init_lora_weights": "pissa_niter_4", "kasa_config": {"beta": 1}, "base_model_name_or_path": "a"})"},
       json},
      {"weight-index",
       read_weight_index,
       ".json",
       {R"({"metadata": {"total_size": 4}, "weight_map": {"a": "model-00001-of-00001.safetensors"}})"},
       json},
      {"cache-entry", read_cache_entry, ".safetensors", cache_seeds(), json},
      {"history",
       read_history,
       ".jsonl",
       {"{\"type\":\"step\",\"step\":1,\"loss\":0.5}\n{\"type\":\"checkpoint\",\"step\":1}\n{\"type\":\"fault\",\"step\":1,\"time\":5}\n"},
       json},
  };
  if (auto seeds = unigram_seed(); !seeds.empty())
    std::ranges::find(all, std::string("tokenizer-model"), [](const Reader& r) {
      return std::string(r.name);
    })->seeds.push_back(seeds[0]);
  return all;
}

}  // namespace tessera::fuzz
