#pragma once
// The weights of a model wherever they lie: one .safetensors file, an index.json with its shards, or a model folder.
//
//   WeightSet weights = open_weights("Wan2.1-T2V-1.3B");
//   weights.at("blocks.0.self_attn.q.weight").shape;
//   weights.read_f32("blocks.0.self_attn.q.weight", first, count, values);
#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

class WeightSet {
 public:
  const Path& path() const { return path_; }  ///< what was opened, for messages
  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::vector<std::string> names() const;  ///< sorted
  const Metadata& metadata() const { return files_.front().metadata(); }
  bool contains(const std::string& name) const { return place_.count(name) > 0; }
  const SafetensorsFile::Entry& at(const std::string& name) const;  ///< throws naming the nearest known one
  void read(const std::string& name, int64_t first, int64_t count, void* to) const;
  void read_f32(const std::string& name, int64_t first, int64_t count, float* to) const;

 private:
  friend WeightSet open_weights(const Path&);
  void add(const Path& file);
  void add_index(const Path& index);
  const SafetensorsFile& file_of(const std::string& name) const;

  Path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> place_;  ///< name -> file
};

/// In a folder, the first of: model.safetensors, diffusion_pytorch_model.safetensors, one of these with .index.json,
/// their shards ("...-00001-of-00003.safetensors", all of them). Throws UserError (input) saying what was looked for.
WeightSet open_weights(const Path& path);

}  // namespace tessera::checkpoint
