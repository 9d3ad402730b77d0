#pragma once
// Losses of a student that a frozen teacher trains, as functions of what the networks say: continuous-time consistency on
// TrigFlow's angles (SANA-Sprint: Chen et al. 2025; sCM: Lu and Song 2024), heads on the teacher's blocks that tell the
// student's pictures from real ones (LADD: Sauer et al. 2024), and matching of distributions (DMD2: Yin et al. 2024).
// Tensors are of one sample, of any shape, unless stated otherwise.
//
//   const TrigFlow flow{.sigma_data = 0.5, .timestep_norm = 1000};
//   const FlowCall call = flow.call(x_t, t);                               // what the flow network gets
//   Tensor f = call.output(network(call.z, call.time));                    // F
//   const FlowMove move = flow.move(call, scaled, angle);                  // the same along a direction
//   Tensor tangent = move.output(network_in_forward_mode(move.z, move.time), u);
//   const ConsistencyLoss loss = consistency_loss(flow, samples, r, true);   // values, and the gradient at each F
//   const AdversarialLoss judged = discriminator_loss(heads, fake, real, rule);
//   const MatchingLoss matched = matching_loss(x, fake, real, mask);
#include <map>
#include <string>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::diffusion {

// Consistency. x_t = cos t x0 + sin t sigma_d noise, t in [0, pi/2], where x0 has latents times sigma_d.

/// An angle from a standard normal number.
double drawn_angle(double normal, double mean, double std);

/// A call of the flow network N: u = N(z, time), and F = (1 - 2 s) X + q u with X = x_t / sigma_d, z = q X,
/// s = sin t / (cos t + sin t), q^2 = s^2 + (1 - s)^2.
struct FlowCall {
  at::Tensor scaled;  ///< X
  at::Tensor z;
  double angle = 0, time = 0;  ///< t, and what the network's sinusoid is made of
  double s = 0, q = 0;
  at::Tensor output(const at::Tensor& u) const { return (1 - 2 * s) * scaled + q * u; }
  /// The gradient at u from that at F.
  at::Tensor at_u(const at::Tensor& at_f) const { return q * at_f; }
};

/// How a call moves.
struct FlowMove {
  at::Tensor z;
  double time = 0;
  at::Tensor beside;  ///< what F moves by beside u
  double q_rate = 0, q = 0;
  at::Tensor output(const at::Tensor& u_tangent, const at::Tensor& u) const {
    return beside + q_rate * u + q * u_tangent;
  }
};

struct TrigFlow {
  double sigma_data = 0.5;
  /// The network's time is 1000 s over this; with 1 it is that number's whole part, which does not move.
  double timestep_norm = 1000;

  at::Tensor noisy(const at::Tensor& x0, const at::Tensor& noise, double t) const;
  FlowCall call(const at::Tensor& x_t, double t) const;
  /// Along `scaled` for x_t / sigma_d and `angle` for t.
  FlowMove move(const FlowCall& call, const at::Tensor& scaled, double angle) const;
  at::Tensor clean(const at::Tensor& x_t, const at::Tensor& f, double t) const;  ///< x0 as F predicts it
  double clean_by_output(double t) const;  ///< what that changes by for a change of F
  double weight(double t) const;           ///< of the loss: 1 / (sigma_d tan t)
};

/// What the loss reads of a sample.
struct ConsistencySample {
  double t = 0;
  at::Tensor x_t;
  at::Tensor velocity = {};  ///< dx_t / dt, the teacher's
  at::Tensor f = {};         ///< the student's F
  at::Tensor tangent = {};   ///< of F, along cos t sin t (velocity / sigma_d, 1)
  double logvar = 0;         ///< 0 without a learned weight
};

/// mean[weight e^-logvar (F - F_stopped - g)^2 + logvar] over all values of all samples.
struct ConsistencyLoss {
  double loss = 0, without_logvar = 0, without_weight = 0;
  double g_norm = 0;             ///< mean over samples, before g is normalised
  std::vector<at::Tensor> g;     ///< of each sample
  std::vector<double> weights;   ///< likewise
  std::vector<at::Tensor> at_f;  ///< gradients
  std::vector<double> at_logvar;
};
/// `r`: how far the warm-up of the tangent is, 0 to 1.
ConsistencyLoss consistency_loss(const TrigFlow& flow, const std::vector<ConsistencySample>& samples, double r);

// Adversarial. A head reads the tokens of one of the teacher's blocks and says a number of each.

/// Convolution, norm and LeakyReLU; a second such convolution with its neighbours, added; and one to a number. Convolutions
/// are normalised by their largest singular value, which a call in training follows by a step of power iteration.
class Discriminator {
 public:
  /// By NVlabs' names, "heads.0.main.0.0.weight_orig", whose memory it shares. Throws UserError (input) for a missing one.
  explicit Discriminator(std::map<std::string, at::Tensor> values);

  size_t heads() const { return heads_; }
  /// [B, N] of features [B, D, N] of each head, side by side. Autograd's graph reaches features and parameters.
  at::Tensor logits(const std::vector<at::Tensor>& features, bool training);
  at::Tensor logits_of_head(size_t head, const at::Tensor& feature, bool training);
  std::map<std::string, at::Tensor>& values() { return values_; }
  /// Those that train, in the order of their names; what follows a singular value does not.
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;
  /// A step of power iteration of all convolutions, as a call in training makes for its own.
  void follow();

 private:
  void follow(size_t head);
  at::Tensor convolved(const std::string& name, const at::Tensor& x);
  at::Tensor normed(const std::string& name, const at::Tensor& x) const;
  at::Tensor& value(const std::string& name);

  std::map<std::string, at::Tensor> values_;
  size_t heads_ = 0;
};

struct AdversarialRule {
  bool hinge = true;     ///< else cross entropy
  double r1_weight = 0;  ///< of the squared gradients at real features; 0: without
};
/// Names and shapes of heads on features of so many numbers a token.
std::map<std::string, std::vector<int64_t>> head_shapes(size_t heads, int64_t width);
/// Weights as NVlabs' begin: convolutions as PyTorch's, norms that change nothing, and drawn directions.
std::map<std::string, at::Tensor> initial_heads(size_t heads, int64_t width, uint64_t seed);
/// How many samples a norm is over, of a batch of so many. Throws UserError (input) where these are no whole groups.
int64_t samples_of_group(int64_t samples);
/// What heads take of memory.
struct HeadsBytes {
  size_t heads = 0;
  int64_t parameters = 0, gradients = 0, states = 0;
  std::vector<int64_t> activations = {};  ///< at most, by the dp ranks, which have groups of samples
};
/// Without activations; states are as many as an optimiser has for each parameter: `states_per_value` bytes.
HeadsBytes heads_bytes(size_t heads, int64_t width, double states_per_value);

/// What the student is told: its loss, and the gradient at each head's feature. The heads stay as they are.
struct JudgedLoss {
  double loss = 0;
  at::Tensor logits;
  std::vector<at::Tensor> at_features;
};
JudgedLoss generator_loss(Discriminator& heads, const std::vector<at::Tensor>& features, const AdversarialRule& rule);
/// What the heads learn by.
struct AdversarialLoss {
  double loss = 0, real = 0, fake = 0;
  double r1 = 0;  ///< before its weight
  at::Tensor logits_real, logits_fake;
  std::map<std::string, at::Tensor> gradients;
};
/// The parts that one call has, of features that are `share` of all of their kind; the heads stay as they are, and follow()
/// comes before each kind.
void add_fakes(AdversarialLoss& loss, Discriminator& heads, const std::vector<at::Tensor>& features,
               const AdversarialRule& rule, double share);
void add_reals(AdversarialLoss& loss, Discriminator& heads, const std::vector<at::Tensor>& features,
               const AdversarialRule& rule, double share);
void add_penalty(AdversarialLoss& loss, Discriminator& heads, const std::vector<at::Tensor>& features,
                 const AdversarialRule& rule, double share);
AdversarialLoss discriminator_loss(Discriminator& heads, const std::vector<at::Tensor>& fake,
                                   const std::vector<at::Tensor>& real, const AdversarialRule& rule);

// Matching of distributions. x_t = (1 - sigma) x + sigma noise.

/// Sigmas s k / (1 + (s - 1) k), k = 1, 0.999, ..., 0.001: 1000 of them.
std::vector<double> shifted_sigmas(double shift);
/// The one whose timestep, 1000 sigma, is nearest to t.
double nearest_sigma(const std::vector<double>& sigmas, double t);

/// The step of a student's `steps` behind which the clip of a training step is taken, or a chunk of all clips, from 0: the same
/// for all of it, as all ranks run it together.
int64_t drawn_exit(uint64_t seed, int64_t step, int64_t steps, int64_t chunk = 0);

/// 0.5 mean (x - stopped(x - d))^2, d = (fake - real) / mean|x - real|, over the values whose mask is 1.
struct MatchingLoss {
  double loss = 0;
  at::Tensor d;
  at::Tensor at_x;  ///< gradient
};
/// `fake`, `real`: x0 as the two scores say. `mask`: of x's shape; undefined: all of it counts.
MatchingLoss matching_loss(const at::Tensor& x, const at::Tensor& fake, const at::Tensor& real, const at::Tensor& mask);

// Regression on paths from noise to clips.

/// mean (x_t - sigma u - x_0)^2 over the frames whose sigma is not 0, as an error of the prediction u: in it each frame's
/// (u - target)^2 counts by sigma^2.
struct PathRegression {
  at::Tensor x, target;        ///< [C, F, H, W]
  std::vector<double> sigmas;  ///< of each frame
  double share = 0;            ///< of the sample's mean over all frames
};
/// `path`: the states at `sigmas`, from noise to the clip x_0 itself, whose sigma is 0. `begins`: frames at which chunks begin,
/// 0 first; `picks`: the state that each has.
PathRegression path_regression(const std::vector<at::Tensor>& path, const std::vector<double>& sigmas,
                               const std::vector<int64_t>& begins, const std::vector<int64_t>& picks);

}  // namespace tessera::diffusion
