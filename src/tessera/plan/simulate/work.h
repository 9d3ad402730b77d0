#pragma once
// The work of a unit's forward by kind of operator, from which the cost model computes seconds. Pure data: the engine
// counts it on meta tensors (engine/signatures.h), or a scenario computes it from sizes.
//
//   WorkTable work = {{"block", {.products = {2.0 * T * d * d}, .attention = {{"self_attn", 4.0 * T * T * d}}}}};
#include <array>
#include <map>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::plan {

struct UnitWork {
  std::vector<double> products = {};     ///< FLOPs of each matrix product
  std::vector<double> input_grads = {};  ///< FLOPs of each product that computes an input gradient
  /// FLOPs of each product that computes a weight gradient; none for frozen weights
  std::vector<double> weight_grads = {};
  std::map<std::string, double> attention = {};  ///< FLOPs by site
  std::map<std::string, double> results = {};    ///< FLOPs of products whose result a recompute may keep, by site
  double streamed = 0;                           ///< bytes that all other operators read and write in a forward
  int operators = 0;                             ///< number of other operators
  bool backward = true;  ///< it has a backward: it has trained parameters, or a unit before it has
  /// Collectives inside the unit, bytes this rank sends in one forward and in one backward. Those of kind "ring"
  /// overlap self-attention, others are exposed. Empty if the schedule declares them.
  std::vector<Comm> comm = {}, backward_comm = {};

  /// Adds a product with a trained or frozen weight, forward and backward.
  void add_product(double flops, bool trained);
  double forward_flops() const;
  /// FLOPs of forward and backward; an attention backward counts twice its forward, recompute is not counted.
  double backward_flops() const;
};

using WorkTable = std::map<std::string, UnitWork>;  ///< by UnitSpec::kind

// The sizes of a unit's work, beside its FLOPs and bytes: with them the cost model looks up times that were measured
// by signature. Pure data: the engine counts it (engine/signatures.h).
//
//   SignatureTable table = {{"block", {.products = {{T, d, d}}, .segments = {{"self_attn", {T, T}}}}}};

/// A product of x [rows, in] with a weight [out, in]; its gradients have the same sizes.
struct Product {
  double rows = 0, in = 0, out = 0;
  bool streams = false;  ///< of a block's 16-bit stream: in 8 bits where the plan says so (Formats::fp8)
  bool again = false;    ///< the product before it has the same x, and made its codes of 8 bits
};

/// Operators of one kind, all of them together.
struct Streams {
  double bytes = 0;  ///< read and written
  int operators = 0;
};
/// The kind of their backward.
inline std::string of_backward(const std::string& kind) { return kind + " backward"; }

/// Each entry stands for one of UnitWork's, in the same order.
struct UnitSignatures {
  std::vector<Product> products = {};
  std::vector<Product> weight_grads = {};                      ///< those of products whose weights are trained
  std::map<std::string, Product> results = {};                 ///< by site
  std::map<std::string, std::array<double, 2>> segments = {};  ///< of attention by site: queries and keys of a sample
  /// Operators between products, by kind, and those of their backward; a kind without: twice the bytes of a forward.
  std::map<std::string, Streams> kinds = {};
};

using SignatureTable = std::map<std::string, UnitSignatures>;  ///< by UnitSpec::kind

}  // namespace tessera::plan
