#pragma once
// The sizes of a unit's work, beside its FLOPs and bytes (work.h): with them the cost model looks up times that were measured
// by signature. Pure data: the engine counts it (engine/signatures.h).
//
//   SignatureTable table = {{"block", {.products = {{T, d, d}}, .segments = {{"self_attn", {T, T}}}}}};
#include <array>
#include <map>
#include <string>
#include <vector>

namespace tessera::plan {

/// A product of x [rows, in] with a weight [out, in]; its gradients have the same sizes.
struct Product {
  double rows = 0, in = 0, out = 0;
};

/// Operators of one kind, all of them together.
struct Streams {
  double bytes = 0;  ///< read and written in a forward
  int operators = 0;
};

/// Each entry stands for one of UnitWork's, in the same order.
struct UnitSignatures {
  std::vector<Product> products = {};
  std::vector<Product> weight_grads = {};                      ///< those of products whose weights are trained
  std::map<std::string, Product> results = {};                 ///< by site
  std::map<std::string, std::array<double, 2>> segments = {};  ///< of attention by site: queries and keys of a sample
  std::map<std::string, Streams> kinds = {};                   ///< operators between products, by kind
};

using SignatureTable = std::map<std::string, UnitSignatures>;  ///< by UnitSpec::kind

}  // namespace tessera::plan
