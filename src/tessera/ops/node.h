#pragma once
// Helpers of the operators' autograd nodes. A node refers to its weights by address only ([Note: weights outside
// autograd] in weight.h).
#include <algorithm>
#include <initializer_list>

#include "tessera/base/check.h"
#include "tessera/ops/row_index.h"
#include "tessera/ops/session.h"
#include "tessera/ops/tensor.h"
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

inline const float* data(const at::Tensor& t) { return host_pointer<const float>(t); }
inline float* out_data(const at::Tensor& t) { return host_pointer<float>(t); }

/// Call before adding to a site's gradient at once: deferred gradients then get memory of their own.
inline void open_gradient(WeightSite& site) {
  if (DeferredGradients* deferred = session().deferred) deferred->open(site);
  session().settle(site.grad);
}

/// A site's gradient to add to, zeroed at the first write; undefined if frozen.
inline at::Tensor accumulating(WeightSite& site) {
  open_gradient(site);
  if (site.grad.defined() && std::exchange(site.fresh, false)) site.grad.zero_();
  return site.grad;
}

/// The same where kernels begin a gradient that has no values yet.
struct Opened {
  at::Tensor grad;
  bool add = true;
};
inline Opened opened(WeightSite& site) {
  open_gradient(site);
  return {site.grad, !(site.grad.defined() && std::exchange(site.fresh, false))};
}

/// The trained bias of the linear whose result y is, as a node's forward gets it; 0: y is something else.
Handle bias_behind(const at::Tensor& y);

/// For the backward of a node that has kept bias_behind() of an input as "bias": the sums of columns that a kernel leaves
/// ([Note: sums of columns] in fused.h). The linear takes them if what it gets is that gradient, and nothing was added to it.
class ColumnSums {
 public:
  explicit ColumnSums(AutogradContext* ctx);
  at::Tensor* wanted() { return wanted_ ? &sums_ : nullptr; }  ///< null: nobody would take them
  void leave(const at::Tensor& gradient);
  /// What was left of a gradient, once; else the gradient itself: in both the sum of all rows is the bias's.
  static at::Tensor rows_to_add(const at::Tensor& gradient);

 private:
  bool wanted_;
  at::Tensor sums_;
};

/// Checks a table [R, D] indexed by `rows` for the tokens of x [T, D].
inline void check_rows(const RowIndex& rows, const at::Tensor& x, const at::Tensor& table, const char* where) {
  check_internal(rows.defined() && rows.of_token.scalar_type() == at::kInt && rows.of_token.dim() == 1 &&
                     rows.of_token.size(0) == x.size(0),
                 where, "rows must be an int32 for each token");
  check_internal(rows.runs.empty() ? x.size(0) == 0 : rows.runs.back().end == x.size(0), where,
                 "the runs of the rows do not cover the tokens");
  check_internal(
      table.dim() == 2 && table.size(1) == x.size(1) && table.stride(1) == 1 && table.scalar_type() == at::kFloat,
      where, "shift, scale and gate must be fp32 [rows, channels] with unit stride in the last dim");
}

/// table[ids]; index_select has no meta form in LibTorch, so meta results are allocated directly.
inline at::Tensor table_rows(const at::Tensor& table, const at::Tensor& ids) {
  return table.is_meta() ? at::empty({ids.numel(), table.size(1)}, table.options()) : table.index_select(0, ids);
}

/// Keeps the runs of a row index with a node, which saves its tensor by save_for_backward.
inline void save_runs(AutogradContext* ctx, const RowIndex& rows) {
  std::vector<int64_t> flat;
  for (const RowRun& run : rows.runs) flat.insert(flat.end(), {run.row, run.begin, run.end});
  ctx->saved_data["runs"] = std::move(flat);
}
inline RowIndex saved_rows(AutogradContext* ctx, const at::Tensor& of_token) {
  RowIndex rows{of_token, {}};
  const std::vector<int64_t> flat = ctx->saved_data["runs"].toIntVector();
  for (size_t i = 0; i < flat.size(); i += 3) rows.runs.push_back({flat[i], flat[i + 1], flat[i + 2]});
  return rows;
}

}  // namespace tessera::ops
