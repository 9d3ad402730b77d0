#pragma once
// Says what a file or folder of tensors is, without reading its data: checkpoints of any form, LoRA files, cache
// entries.
//
//   Inspection what = inspect("Wan2.1-T2V-1.3B");
//   std::puts(to_text(what).c_str());                          // or what.json.dump()
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::models {

struct Inspection {
  /// model, parameters, tensors, dtype, naming, layout (contract); kind, dtypes, bytes, files, metadata and, by kind,
  /// config, rank, alpha, step, mesh, ...; of a folder "parts": the same of each part, with its name as "part", and of
  /// one of several "missing": what a run that trains from it does not find.
  nlohmann::ordered_json json;
  /// Names, shapes and dtypes of a model alone; names that differ in numbers only share a line
  /// ("blocks.#.ffn.0.weight").
  struct Row {
    std::string name, shape, dtype;
    int64_t count = 1;
  };
  std::vector<Row> rows;
};

/// `all`: a row for every tensor. Throws UserError (input) for what cannot be read.
Inspection inspect(const std::filesystem::path& path, bool all = false);
std::string to_text(const Inspection& inspection);

}  // namespace tessera::models
