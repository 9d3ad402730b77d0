#pragma once
// The optimisers as data: what each stores for a parameter, and which sums over ranks its update needs. The plan, the
// store, checkpoints and the executor ask the row and know no optimiser by name.
//
//   states_of({.optimizer = Optimizer::came})(param);       // exp_avg, exp_avg_sq_row, exp_avg_sq_col, ...
//   for (int round = 0; round < row(Optimizer::came).rounds; ++round) sums(Optimizer::came, param, round);
#include <span>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Which tensors keep their second moment as sums over rows and columns (Shazeer and Stern, 2018) and not as a value for
/// each element.
///   matrices   tensors of two dimensions, and 1x1 convolutions as [out, in], as in Sana
///   last_two   all tensors of two dimensions or more, over the last two, as in transformers and came-pytorch
enum class Factoring { none, matrices, last_two };

/// A tensor as `matrices` matrices, row-major and one after the other; none if it is not factored.
struct Factors {
  int64_t matrices = 0, rows = 0, columns = 0;

  bool any() const { return matrices > 0; }
  int64_t all_rows() const { return matrices * rows; }
  int64_t all_columns() const { return matrices * columns; }
  int64_t sums() const { return all_rows() + all_columns(); }
};
Factors factors_of(Factoring factoring, const ParamSpec& param);

struct OptimizerRow {
  Optimizer optimizer;
  std::string_view name;
  bool first = false;           ///< a first moment, in the format of plan.moments
  bool first_if_asked = false;  ///< one where StateFormat::first_moment says so
  bool second = false;          ///< a second moment: in that format too, or factored
  bool residual = false;  ///< sums over rows and columns of the squared distance of update and first moment (CAME)
  Factoring factoring = Factoring::none;
  bool size = false;  ///< a sum more in the first round: the squares of the parameter
  /// What the parameter began as and a weighted sum of its gradients, for a step size that follows from sums over all
  /// parameters ([Note: totals] of net/unit_update.h) (Prodigy).
  bool distance = false;
  /// Rounds of sums over whole tensors that an update needs; 0: every element is updated on its own.
  int rounds = 0;
  /// Parameters that are ParamSpec::whole are updated as whole matrices and have no second moment (Muon); the others are
  /// updated element by element.
  bool whole = false;
  std::string_view what;  ///< one line for help
};
std::span<const OptimizerRow> optimizers();
const OptimizerRow& row(Optimizer optimizer);
/// Whether these states have a first moment.
bool has_first_moment(const StateFormat& format);
std::string_view name(Optimizer optimizer);
/// The optimiser by name. Throws UserError (usage) naming `where` and the nearest name.
Optimizer optimizer_of(std::string_view text, std::string_view where);

/// The states of one optimiser, and the number of values that ranks sum in a round of its update (0 to rounds - 1), for
/// the whole tensor. `factoring`: the row's, or another one for comparisons.
StatesOf states_of(StateFormat format, Factoring factoring);
int64_t sums(Optimizer optimizer, Factoring factoring, const ParamSpec& param, int round);

/// Bytes that an update moves for each element of a large matrix: the gradient, masters and states read, all but the gradient
/// written; what rounds of sums read before; and the direction of a whole matrix. `grad`: of stored gradients.
double update_bytes(const StateFormat& format, DType grad);

/// Communicators of these sums, of updates on the compute lane and on the host lane; and of whole matrices.
inline constexpr const char *kSums = "sums", *kHostSums = "host_sums";
inline constexpr const char *kMatrices = "matrices", *kHostMatrices = "host_matrices";
/// The axes over which the sums of a buffer's tensors are taken: those whose ranks update different elements of them.
std::vector<Axis> sum_axes(const Plan& plan, const Buffer& buffer);
/// Values that a round sums for all tensors of a buffer.
int64_t sums(const Plan& plan, const UnitSpec& unit, const Buffer& buffer, int round);

}  // namespace tessera::plan
