#pragma once
// The list of clips and captions a recipe's [data] names.
//
//   std::vector<Item> items = read_dataset({.path = "clips"});                    // a.mp4 + a.txt, b.png + b.txt, ...
//   std::vector<Item> items = read_dataset({.path = "set", .metadata = "set/metadata.csv", .repeats = 10});
//
// A folder without metadata.csv is read as clips with a .txt of the same stem beside each, by name. An empty .txt is
// a caption of no words; a missing one is an error. Nothing is ever left out silently: a problem names file and row.
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::data {

using Path = std::filesystem::path;

struct Item {
  Path path;
  std::string caption;  ///< UTF-8, as written
};

struct DatasetSpec {
  Path path;        ///< a folder, or one clip
  Path metadata;    ///< a .csv; empty: path/metadata.csv if it is there
  int repeats = 1;  ///< times each item comes in an epoch
};

/// Items in a fixed order: files by name, rows as in the table, the whole list `repeats` times.
std::vector<Item> read_dataset(const DatasetSpec& spec);

bool is_clip(const Path& path);  ///< a video or image by its extension

}  // namespace tessera::data
