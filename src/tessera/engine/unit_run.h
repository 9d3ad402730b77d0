#pragma once
// The engine's Context: the same sites as the plain one, over views of the weights in the unit's slot. Operators write
// weight gradients straight into the gradient buffer ([Note: weights outside autograd] in ops/weight.h).
#include "tessera/engine/saved.h"
#include "tessera/engine/store/store.h"
#include "tessera/engine/tensor_parallel.h"
#include "tessera/engine/ulysses.h"
#include "tessera/net/context.h"
#include "tessera/net/unit.h"
#include "tessera/ops/ops.h"
#include "tessera/ops/session.h"
#include "tessera/plan/token_shares.h"

namespace tessera::engine {

/// Results by site that a forward without a graph keeps for the recompute: attention's output and log-sum-exp, and of a
/// feed-forward's second linear (Act::gelu_tanh) the output alone.
using SiteResults = std::map<std::string, ops::AttentionResult, std::less<>>;

/// How one forward of a unit runs.
struct RunMode {
  std::string_view unneeded = {};      ///< a site whose value is not computed (net::Unit::output_site), or empty
  SiteResults* keep = nullptr;         ///< receives the results of the sites that are its keys
  const SiteResults* known = nullptr;  ///< results of sites that are not recomputed
  /// Measurement: called with each site whose result can be kept.
  std::function<void(std::string_view site, double flops)> on_result = {};
  const Parallel* parallel = nullptr;  ///< the ranks that share the tokens; lives as long as the graph; null: none
  bool without_adapters = false;       ///< linears are those of the base
  /// Brings a table that the host has made to where the unit computes; null: LibTorch copies it.
  std::function<Tensor(const Tensor& table)> bring = {};
};

/// The rows of a space and the columns that a linear's input has, for dropout: its mask is drawn for the whole input.
struct InputPart {
  int space = 0;
  std::optional<plan::TokenRange> rows = {};  ///< of the space; nullopt: this rank's rows
  int64_t width = 0, first_column = 0;        ///< of the whole input; width 0: x has all columns
};

class ShardContext final : public net::Context {
 public:
  ShardContext(Store& store, int unit, const net::Tokens& tokens, RunMode mode = {})
      : store_(store), unit_(unit), type_(store.compute(unit)), tokens_(tokens), mode_(std::move(mode)) {}

  const net::Tokens& tokens() const override { return tokens_; }
  Tensor linear(std::string_view site, const Tensor& x, const net::Linear& how = {}) override;
  Tensor norm(std::string_view site, const Tensor& x, const net::Norm& how, int space = 0) override;
  Tensor rope(std::string_view site, const Tensor& x, int64_t heads, net::RopeStyle style, int space = 0) override;
  Tensor residual(std::string_view site, const Tensor& x, const Tensor& y, const Tensor* gate = nullptr, int space = 0,
                  bool multiplied = false) override;
  Tensor ahead(std::string_view site, const Tensor& x) override;
  Tensor attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                   const net::Segments& segments = {}, const net::Softmax& softmax = {}) override;
  Tensor linear_attention(std::string_view site, const Tensor& q, const Tensor& k, const Tensor& v, int64_t heads,
                          double eps, const net::Rotated& rotated = {}) override;
  Tensor conv(std::string_view site, const Tensor& x, const net::Conv& how, int space = 0) override;
  Tensor unfold(std::string_view site, const Tensor& x, const net::Conv& how, int space = 0) override;
  Tensor param(std::string_view site) override;
  Tensor embedding(std::string_view site, const Tensor& ids) override;

 protected:
  Tensor param_plus(std::string_view site, const Tensor& x) override;
  plan::TokenRange tokens_of(int64_t rows) const override {
    return has_group_rows(rows) ? mode_.parallel->tp_group(tokens_.total()) : net::Context::tokens_of(rows);
  }

 private:
  Tensor taps(const Reach& reach, int space, const std::array<int64_t, 3>& kernel, const Tensor& x) const;
  Tensor rms_norm(std::string_view site, const Tensor& x, const net::Norm& how, const net::Space& space,
                  const ops::SharedWidth* shared);
  bool tensor_parallel() const { return mode_.parallel && mode_.parallel->tp() > 1; }
  /// The spec of a site's weight if tensor parallelism shards it, else null.
  const plan::ParamSpec* cut(std::string_view site) const;
  const ops::AttentionResult* known(std::string_view site) const;
  ops::AttentionResult* to_keep(std::string_view site) const;
  using RunLinear = std::function<Tensor(const Tensor& x, ops::WeightSite* bias, const Tensor* known)>;
  /// Runs a linear with the collectives that its sharding needs before and after. `known`: its kept result, or null.
  Tensor linear_as_cut(std::string_view site, const Tensor& x, int space, const RunLinear& run,
                       const Tensor* known = nullptr);
  /// The part of the whole input that x [rows, cols] is for a linear that tensor parallelism shards.
  InputPart input_part(std::string_view site, int space, int64_t cols) const;
  /// A linear with a frozen weight, and its LoRA pair where the unit has one (net/adapters.h). `known` as in
  /// ops::frozen_linear.
  Tensor frozen_linear(std::string_view site, const Tensor& x, ops::WeightSite* bias, bool gelu, const InputPart& part,
                       const Tensor* known);
  const ops::SharedWidth* shared_width(std::string_view site, const Tensor& x, int space) const;
  bool has_group_rows(const Tensor& x) const { return has_group_rows(x.size(0)); }
  bool has_group_rows(int64_t rows) const;
  Tensor passed(const Tensor& x);
  /// What linears in a row share is needed no more.
  void forget_inputs();
  /// The rows of a space that have queries on this rank.
  plan::TokenRange query_rows(int space, bool shares_heads) const;
  Tensor rope(std::string_view site, const Tensor& x, int64_t heads, net::RopeStyle style, const net::Space& space);
  Tensor behind_history(std::string_view site, const Tensor& x, const Tensor& y, const net::Conv& how);
  std::string place_of(std::string_view site) const;
  double pairs(const net::Segments& segments, int64_t queries, bool shares_heads) const;
  Tensor shared_attention(std::string_view site, const ops::AttentionInputs& in, int64_t heads,
                          const net::Segments& segments);
  ops::WeightSite& weight(std::string_view site, std::string_view suffix);
  ops::WeightSite* bias(std::string_view site);
  /// The unit's anchor. A frozen site has one that requires no gradient, so that no graph begins there.
  Tensor anchor(const ops::WeightSite& site) const;

  Store& store_;
  const int unit_;
  const at::ScalarType type_;  // of products and attention; the residual stream stays fp32
  ops::Session& session_ = ops::session();
  const net::Tokens& tokens_;
  const RunMode mode_;
  // Several linears in a row may share an input (q, k, v): it is gathered over tp once. The input, and its gathered
  // rows:
  c10::weak_intrusive_ptr<c10::TensorImpl> gathered_of_{c10::intrusive_ptr<c10::TensorImpl>()};
  Tensor gathered_;
  // Such an input, and as the last of them passes it on: their gradients are added by the products that make them.
  c10::weak_intrusive_ptr<c10::TensorImpl> read_of_{c10::intrusive_ptr<c10::TensorImpl>()};
  Tensor read_;
  ops::Fp8Inputs eight_bits_;  // and the codes of such an input
  ops::RoundedInput rounded_;  // or itself, rounded
  SentOperands sent_;
  // Residual streams that a norm or linears have read, and as they pass them on to the sum that follows: one gradient
  // instead of two that are added.
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, Tensor>> passed_;
  // The last sum that linears read as it is.
  c10::weak_intrusive_ptr<c10::TensorImpl> multiplied_{c10::intrusive_ptr<c10::TensorImpl>()};
  // The output of attention whose gradient other ranks will be sent: the linear that reads it is late (When::late).
  c10::weak_intrusive_ptr<c10::TensorImpl> exchanged_{c10::intrusive_ptr<c10::TensorImpl>()};
};

// Forward and backward of one unit, isolated: boundary inputs are detached leaves, the unit's graph is built (or
// rebuilt) and autograd::grad gives the gradients of boundary, conditioning and, into the buffer, of the weights.
// Block-isolated backward is bit-equal to the whole graph's. The executor and the measurement share this code, so
// tensors live as long in one as in the other.

/// A unit's state between the forward and the backward of a micro-batch.
struct UnitRun {
  std::vector<Tensor> in;  ///< boundary inputs: leaves
  /// The graph's roots, for each boundary and conditioning output; empty without a graph. They are edges, not tensors:
  /// the graph does not need the outputs' values, and the next unit holds them as long as it needs them.
  torch::autograd::edge_list stream_roots = {}, cond_roots = {};
  SiteResults results = {};                  ///< of a recomputed unit: results that are not recomputed
  std::vector<SavedStorage> offloaded = {};  ///< storages that are offloaded between forward and backward
  Packed kept = {}, away = {};               ///< quantised storages: kept on the device, offloaded
};

/// Runs the unit and returns its outputs, detached. With `graph`, `run` keeps the graph, else only the inputs. `cond`:
/// the shared leaves.
net::Flow run_forward(const net::Unit& unit, net::Context& ctx, const std::vector<Tensor>& cond, bool graph,
                      UnitRun& run);

/// Gradients of run.in, given those of the outputs; adds conditioning gradients to `cond_grad` (one entry for each
/// leaf, maybe undefined) and frees the graph. `out_cond_grad`: gradients of the conditioning that this unit made (the
/// stem).
std::vector<Tensor> run_backward(UnitRun& run, std::vector<Tensor> out_grad, std::vector<Tensor> out_cond_grad,
                                 const std::vector<Tensor>& cond, std::vector<Tensor>& cond_grad, const Tensor& anchor);

/// Tensors that a unit's graph may save and does not own: its inputs, conditioning, and the tables of the tokens.
std::vector<Tensor> foreign_tensors(const std::vector<Tensor>& in, const std::vector<Tensor>& cond,
                                    const net::Tokens& tokens);

/// Detached leaves that share memory with `tensors`.
std::vector<Tensor> leaves(const std::vector<Tensor>& tensors, bool requires_grad);

}  // namespace tessera::engine
