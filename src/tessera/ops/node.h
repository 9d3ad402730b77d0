#pragma once
// Helpers of the operators' autograd nodes. A node refers to its weights by address only ([Note: weights outside
// autograd] in weight.h).
#include <algorithm>
#include <initializer_list>

#include "tessera/base/check.h"
#include "tessera/ops/deferred_gradients.h"
#include "tessera/ops/weight.h"

namespace tessera::ops {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using Handle = int64_t;  ///< a WeightSite's address in the form autograd can save; 0: none
inline Handle handle(const WeightSite* site) { return reinterpret_cast<Handle>(site); }
inline WeightSite* site_of(Handle handle) { return reinterpret_cast<WeightSite*>(handle); }
inline WeightSite* site_of(AutogradContext* ctx, const char* name) { return site_of(ctx->saved_data[name].toInt()); }

/// False if no input needs a gradient: then no node is made and nothing is saved.
inline bool wants_graph(std::initializer_list<const at::Tensor*> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* t : inputs)
    if (t->requires_grad()) return true;
  return false;
}

/// Whether only this node holds a saved input, so that its gradient may overwrite it: the node and `x`, unpacked from
/// it, are the only owners. The node holds the tensor itself (one tensor with two owners), or, through a hook, another
/// tensor over the same storage (two tensors with one owner each).
inline bool is_sole_owner(const at::Tensor& x) { return !x.is_leaf() && x.use_count() + x.storage().use_count() <= 3; }

inline const float* data(const at::Tensor& t) { return t.const_data_ptr<float>(); }
inline float* out_data(const at::Tensor& t) { return t.mutable_data_ptr<float>(); }

/// Call before adding to a site's gradient at once: deferred gradients then get memory of their own.
inline void open_gradient(WeightSite& site) {
  if (DeferredGradients* deferred = DeferredGradients::current()) deferred->open(site);
}

/// A site's gradient to add to, zeroed at the first write; null if frozen or without memory (meta).
inline float* accumulating(WeightSite& site) {
  open_gradient(site);
  if (!site.grad.defined()) return nullptr;
  const bool fresh = std::exchange(site.fresh, false);
  if (site.grad.is_meta()) return nullptr;
  if (fresh) std::fill_n(out_data(site.grad), site.grad.numel(), 0.0f);
  return out_data(site.grad);
}

/// Checks a table [R, D] indexed by `rows` [T] int32 for the tokens of x [T, D].
inline void check_rows(const at::Tensor& rows, const at::Tensor& x, const at::Tensor& table, const char* where) {
  check_internal(rows.scalar_type() == at::kInt && rows.dim() == 1 && rows.size(0) == x.size(0), where,
                 "rows must be an int32 for each token");
  check_internal(
      table.dim() == 2 && table.size(1) == x.size(1) && table.stride(1) == 1 && table.scalar_type() == at::kFloat,
      where, "shift, scale and gate must be fp32 [rows, channels] with unit stride in the last dim");
}

}  // namespace tessera::ops
