#pragma once
// The parts of a diffusers folder, from which the pipeline's own files are written.
//
//   PipelineParts parts{.variant = "t2v", .roles = {"transformer", "vae"}, .tokenizer = true};
#include <set>
#include <string>

namespace tessera::models {

struct PipelineParts {
  std::string variant;          ///< of its transformer; empty: there is none
  std::set<std::string> roles;  ///< names of the parts' folders
  bool tokenizer = false;
  bool has(const std::string& role) const { return roles.count(role) > 0; }
};

}  // namespace tessera::models
