// Runs a small model of a family on ranks that share its sequences and holds its output and the gradients of all its
// weights against the plain context on one rank.
//
//   family_worker launch MESH/FIRST/LAST/FAMILY...       # shapes drawn by the seeds FIRST..LAST-1
//   family_worker --streamed CONFIG LATENT               # bytes that the cost model counts of a model's blocks, by kind
#include <ATen/Parallel.h>

#include <cstdio>
#include <sstream>

#include "families.h"
#include "seed_worker.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/signatures.h"
#include "tessera/engine/slice.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/engine/unit_run.h"
#include "tessera/net/plain_context.h"

namespace tessera::engine {
namespace {

Tensor values(std::vector<int64_t> shape, uint64_t seed, uint64_t index) {
  Tensor t = at::empty(shape, at::kFloat);
  RandomKey(seed, Purpose::test, index).normal(t.mutable_data_ptr<float>(), 0, static_cast<size_t>(t.numel()));
  return t;
}

double largest(const Tensor& t) { return t.numel() > 0 ? t.abs().max().item<double>() : 0; }

double off_by(const Tensor& found, const Tensor& expected) {
  if (found.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  return expected.numel() > 0 ? (found - expected).abs().max().item<double>() : 0;
}

/// `terms`: the size of what was added up, where a sum may cancel to its rounding. `share`: of the largest value that may
/// be off.
double bound_of(const Tensor& expected, double share, double terms) {
  return share * largest(expected) + 1e-6 * std::max(1.0, terms);
}

void expect_close(const Tensor& found, const Tensor& expected, const std::string& what, double share, double terms) {
  const double off = off_by(found, expected), bound = bound_of(expected, share, terms);
  if (!(off <= bound))
    throw UserError(Exit::comparison, "family_worker",
                    what + " is off by " + std::to_string(off) + ", allowed is " + std::to_string(bound));
}

/// Up to three samples, each of a shape of its own.
net::Batch batch_of(const net::Denoiser& model, testing::Random& random, uint64_t seed, const testing::Family& family) {
  std::vector<net::Sample> samples;
  const auto count = static_cast<uint64_t>(testing::draw(random, 1, 3));
  for (uint64_t s = 0; s < count; ++s) {
    const std::array<int64_t, 4> latent = {
        model.in_channels(), testing::draw(random, family.least_frames, family.most_frames),
        2 * testing::draw(random, family.least_side, 4), 2 * testing::draw(random, family.least_side, 4)};
    net::Sample sample = model.blank(latent);
    sample.x = values({latent.begin(), latent.end()}, seed, s);
    sample.context = values({testing::draw(random, 1, model.context_length()), model.context_dim()}, seed, 10 + s);
    sample.t = 100 + 300 * static_cast<double>(s);
    if (const auto found = sample.extra.find("vace_context"); found != sample.extra.end())
      found->second = values(found->second.sizes().vec(), seed, 20 + s);
    uint64_t next = 30;
    for (const char* rows : {"glyphs", "image", "image_latent", "pose_latents", "face"})
      if (const auto found = sample.extra.find(rows); found != sample.extra.end()) {
        std::vector<int64_t> sizes = found->second.sizes().vec();
        if (sizes.size() == 2) sizes[0] = testing::draw(random, 0, sizes[0]);  // also none
        found->second = values(sizes, seed, next++ * 10 + s);
      }
    samples.push_back(std::move(sample));
  }
  return model.pack(samples);
}

net::WeightMap weights_of(const net::Denoiser& model, uint64_t seed) {
  net::WeightMap weights;
  for (const auto& unit : model.units())
    for (const auto& param : unit->spec().params) {
      const Tensor t = at::empty(param.shape, at::kFloat);
      testing::draw_weights(model, seed, param, 0, t.numel(), t.mutable_data_ptr<float>());
      weights[param.name] = t.requires_grad_();
    }
  return weights;
}

/// The model on this rank's share of the tokens.
class Shared {
 public:
  Shared(const net::Denoiser& model, const net::Batch& batch, const Mesh& mesh, int rank, comm::Comm& comm)
      : model_(model),
        mesh_(mesh),
        rank_(rank),
        comm_(comm),
        parallel_(mesh, rank, &comm),
        mine_(slice(batch, parallel_)),
        spec_(measure(model.units(), batch, "family", {.mesh = mesh})) {
    plan::Plan whole;
    whole.mesh[Axis::tp] = mesh[Axis::tp];
    whole.units.assign(spec_.units.size(), {.strategy = plan::Strategy::no_shard});
    std::vector<std::string> prefixes;
    for (const auto& unit : model.units()) prefixes.push_back(unit->prefix());
    store_.emplace(spec_, prefixes, whole, mesh.coordinate(rank, Axis::tp), at::kCPU);
  }

  Tensor forward(const net::WeightMap& weights) {
    fill_shards(*store_, [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
      std::copy_n(weights.at(param.name).const_data_ptr<float>() + first, count, out);
    });
    std::vector<Tensor> stream = mine_.inputs;
    runs_.resize(model_.units().size());
    for (size_t u = 0; u < runs_.size(); ++u) {
      const int unit = static_cast<int>(u);
      store_->bind(unit, -1);
      runs_[u].in = leaves(stream, u > 0);
      ShardContext ctx(*store_, unit, mine_.tokens, {.parallel = &parallel_});
      net::Flow out = run_forward(*model_.units()[u], ctx, cond_, true, runs_[u]);
      stream = std::move(out.stream);
      if (!out.cond.empty()) cond_ = leaves(out.cond, true), cond_grad_.assign(cond_.size(), Tensor());
    }
    return whole_tokens(stream[0], mine_.tokens, parallel_);
  }

  /// `check` gets each parameter's gradient, of the box that this rank of tp has, summed over the ranks.
  template <class Check>
  void backward(const Tensor& up, const Check& check) {
    const int64_t begin = mine_.tokens.begin;
    std::vector<Tensor> stream_grad = {up.slice(0, begin, begin + mine_.tokens.count()).contiguous()};
    for (int u = static_cast<int>(runs_.size()) - 1; u >= 0; --u) {
      store_->bind_grad(u, -1, true);
      std::vector<Tensor> none;
      stream_grad =
          run_backward(runs_[u], std::move(stream_grad), u == 0 ? std::move(cond_grad_) : std::vector<Tensor>{},
                       u == 0 ? std::vector<Tensor>{} : cond_, u == 0 ? none : cond_grad_, store_->anchor(u));
      store_->finish_grad(u);
      const plan::UnitLayout& layout = store_->layout(u);
      for (size_t p = 0; p < layout.params.size(); ++p) {
        const plan::ParamSpec& param = spec_.units[u].params[p];
        const auto& place = layout.params[p];
        const Tensor sum =
            store_->grad(u).narrow(0, layout.buffers[place.buffer].grad_at + place.start, place.numel).clone();
        const bool cut = mesh_[Axis::tp] > 1 && param.split != plan::Split::none;
        comm_.group(cut ? "cut" : "used whole", cut ? std::vector{Axis::cp, Axis::sp} : plan::kSequenceAxes)
            .all_reduce(sum);
        check(param, sum.view(place.shape), mesh_.coordinate(rank_, Axis::tp));
      }
    }
  }

 private:
  const net::Denoiser& model_;
  const Mesh mesh_;
  const int rank_;
  comm::Comm& comm_;
  const Parallel parallel_;
  const net::Batch mine_;
  const plan::ModelSpec spec_;
  std::optional<Store> store_;
  std::vector<UnitRun> runs_;
  std::vector<Tensor> cond_, cond_grad_;
};

/// By how much one rank's own gradients change when each weight changes by up to 2e-6 of itself, as rounding may change
/// what it is multiplied with: a value near a ReLU's step comes to lie on its other side.
std::map<std::string, double> steps_of(const net::Denoiser& model, const net::WeightMap& weights,
                                       const net::Batch& batch, const Tensor& up, uint64_t seed) {
  std::map<std::string, double> steps;
  const at::AutoGradMode with_graph(true);
  for (uint64_t draw = 0; draw < 8; ++draw) {
    net::WeightMap changed;
    uint64_t index = 1000 * (draw + 1);
    for (const auto& [name, weight] : weights) {
      const Tensor noise = values(weight.sizes().vec(), seed, index++).clamp_(-2, 2).mul_(1e-6);
      changed[name] = weight.detach().mul(noise.add_(1)).requires_grad_();
    }
    net::run_plain(model.units(), changed, batch).backward(up);
    for (const auto& [name, weight] : changed)
      steps[name] = std::max(steps[name], off_by(weight.grad(), weights.at(name).grad()));
  }
  return steps;
}

void check(const testing::Family& family, const Mesh& mesh, int rank, comm::Comm& comm, uint64_t seed) {
  testing::Random random(seed);
  const auto model = family.model(random, mesh);
  const net::Batch batch = batch_of(*model, random, seed, family);
  const net::WeightMap weights = weights_of(*model, seed);
  const Tensor expected = net::run_plain(model->units(), weights, batch), up = values(expected.sizes().vec(), seed, 99);
  expected.backward(up);

  const at::NoGradGuard no_grad;
  Shared shared(*model, batch, mesh, rank, comm);
  expect_close(shared.forward(weights), expected.detach(), "the output", 2e-4, 0);
  double terms = 0;  // a bias of keys changes no softmax: its gradient is the rounding of others
  for (const auto& [name, weight] : weights) terms = std::max(terms, largest(weight.grad()));
  std::map<std::string, double> steps;
  shared.backward(up, [&](const plan::ParamSpec& param, const Tensor& found, int tp_rank) {
    Tensor wanted = weights.at(param.name).grad();
    const auto box = plan::tp_box(param, mesh[Axis::tp], tp_rank);
    for (size_t d = 0; d < box.size(); ++d) wanted = wanted.slice(static_cast<int64_t>(d), box[d].first, box[d].second);
    double rounding = terms;
    if (family.relu && off_by(found, wanted) > bound_of(wanted, family.bound, terms)) {
      if (steps.empty()) steps = steps_of(*model, weights, batch, up, seed);
      rounding += 1e6 * steps.at(param.name);
    }
    expect_close(found, wanted, "the gradient of " + param.name, family.bound, rounding);
  });
}

/// As JSON, of one sample in bf16.
int print_streamed(const std::string& config, const std::string& latent) {
  const auto model = models::make_denoiser({.config_text = config});
  std::array<int64_t, 4> sizes = {};
  std::istringstream numbers(latent);
  std::string number;
  for (int64_t& size : sizes) size = std::getline(numbers, number, ',') ? std::stoll(number) : 0;
  std::map<std::string, double> bytes;
  const Counted counted = count_signatures(model->units(), model->pack({model->blank(sizes)}), DType::bf16);
  for (const auto& unit : model->units())
    if (plan::is_block(unit->spec()))
      for (const auto& [kind, streams] : counted.signatures.at(unit->spec().kind).kinds) bytes[kind] += streams.bytes;
  const char* before = "{";
  for (const auto& [kind, count] : bytes)
    std::printf("%s\"%s\": %.17g", std::exchange(before, ", "), kind.c_str(), count);
  std::printf("%s\n", bytes.empty() ? "{}" : "}");
  return 0;
}

}  // namespace
}  // namespace tessera::engine

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--streamed") return tessera::engine::print_streamed(argv[2], argv[3]);
  tessera::testing::seed_worker(argc, argv, tessera::engine::check);
}
