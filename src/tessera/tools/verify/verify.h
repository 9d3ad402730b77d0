#pragma once
// `tessera verify`: golden cases recorded from reference implementations, computed again by the engine on any mesh and
// compared tensor by tensor.
//
//   int code = verify({.cases = {"goldens/wan21_t2v"}, .mesh = Mesh::parse("dp_shard=2")});
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"

namespace tessera::tools {

struct VerifyOptions {
  std::vector<std::filesystem::path> cases;
  Mesh mesh;
  std::string device = "cpu";  ///< --device: as run.device
  std::string json;            ///< --json FILE: results; empty: none
  std::string write;           ///< --write DIR: everything computed; empty: nothing
};

/// Joins the ranks of the environment. 0: all within tolerance; 1: something differs. Throws UserError (input) for
/// unreadable files, missing inputs or weights, an unknown kind, or nothing to compare. Of several cases one of an unknown
/// kind is reported and the others are compared: then 3 (Exit::input), or 1 if one of them differs.
int verify(const VerifyOptions& options);

}  // namespace tessera::tools
