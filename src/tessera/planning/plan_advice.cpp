#include "tessera/planning/plan_advice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/base/in_threads.h"
#include "tessera/base/units.h"
#include "tessera/device/backend.h"
#include "tessera/plan/compile/compile.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/search/layouts.h"
#include "tessera/plan/token_shares.h"
#include "tessera/planning/measure.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/rank_share.h"

namespace tessera::planning {

namespace {

constexpr int kMostRanksMore = 64;  // limit, as a multiple of the request's ranks
constexpr size_t kMostChanges = 6;  // of formats, budgets and meshes that advice names
constexpr double kAlike = 0.01;     // steps within this share of each other count as equally fast

/// A plan file does not apply to a changed job, so the planner chooses freely.
PlanRequest without_file(PlanRequest request) {
  request.by_hand.reset();
  return request;
}

/// A format or tier that takes less memory. `apply` changes the request; false where that changes nothing.
struct Format {
  std::string_view text;
  int loses;  ///< 0: the same bits; 1: rounded weights in products; 2: rounded gradients or moments
  bool (*apply)(PlanRequest&);
};
using FormatSet = std::vector<const Format*>;

/// A change after which the run fits.
struct Change {
  std::string text;
  PlanRequest request;
  double seconds = 0;       ///< of a step: by the first plan that fits, then by the plan made for it
  FormatSet formats = {};   ///< that it consists of, if it does
  bool names_host = false;  ///< its text is the host memory that its plan takes

  int loses() const {
    int sum = 0;
    for (const Format* format : formats) sum += format->loses;
    return sum;
  }
};

/// Plans changed jobs, in several threads where they are asked for in several. Models that differ in no size are measured
/// once.
class Jobs {
 public:
  Planned plan(PlanRequest request) {
    check_mesh(request.mesh, *request.model, request.latent);
    request.on_phase = {};  // its phases are those of the search that found nothing
    const Key key = {request.latent, request.mesh.size, request.planner.compute, request.planner.fp8,
                     request.base_in_int8};
    MeasuredModels known;
    {
      const std::lock_guard lock(mutex_);
      known = known_[key];
    }
    for (auto& [samples, measured] : known) {
      plan::Machine machine = request.machine;
      machine.work = std::move(measured.machine.work), machine.sizes = std::move(measured.machine.sizes);
      measured.machine = std::move(machine);
    }
    Planned planned = search_plan(request, known);
    const std::lock_guard lock(mutex_);
    known_[key].merge(known);
    evaluated_ += planned.choice.evaluated;
    return planned;
  }
  /// The change with the first plan that fits; empty if none does.
  std::optional<Change> fit(std::string text, const PlanRequest& request, FormatSet formats = {}) {
    PlanRequest soon = request;
    soon.planner.first_that_fits = true;
    if (request.any_micro_batch && request.most_rounds == 0)  // no larger one fits where this does not
      soon.planner.micro_batch = 1, soon.any_micro_batch = false;
    if (keeps_more_than_memory(soon)) return std::nullopt;
    const Planned planned = plan(soon);
    if (!planned.choice.fits) return std::nullopt;
    return Change{std::move(text), request, planned.choice.seconds, std::move(formats)};
  }
  /// Gives the change the plan that is made for it: its time, and its text what it takes.
  void price(Change& change) {
    PlanRequest request = change.request;
    request.planner.trades = false;  // so some percent too slow: trading takes a third of a search
    const Planned planned = plan(std::move(request));
    if (change.names_host) {
      const plan::Profile& profile = change.request.machine.profile;
      const int world = change.request.mesh.world();
      const int here = profile.devices > 0 ? std::min(profile.devices, world) : world;
      change.text = "plan.host_budget = " + format_bytes(planned.choice.memory.host.total() * here) +
                    " of host memory on each node";
    }
    change.seconds = planned.prediction.step.total;
    change.text +=
        ": " + format_bytes(planned.choice.memory.peak) + " a rank, a step of " + format_seconds(change.seconds);
  }
  int evaluated() const { return evaluated_; }  ///< plans, see Choice

 private:
  using Key = std::tuple<std::array<int64_t, 4>, std::array<int, kAxes>, DType, bool, bool>;
  std::mutex mutex_;
  std::map<Key, MeasuredModels> known_;
  int evaluated_ = 0;
};

std::optional<Change> smaller_micro_batch(const PlanRequest& request, Jobs& jobs) {
  if (request.any_micro_batch && !request.by_hand) return std::nullopt;  // already tried
  PlanRequest tried = without_file(request);
  tried.any_micro_batch = false;
  const int64_t share = div_up(request.planner.global_batch, request.mesh.dp_size());
  while (tried.planner.micro_batch > 1) {
    tried.planner.micro_batch /= 2;
    if (request.most_rounds > 0 && div_up(share, tried.planner.micro_batch) > request.most_rounds) break;
    if (auto change = jobs.fit("train.micro_batch = " + std::to_string(tried.planner.micro_batch), tried))
      return change;
  }
  return std::nullopt;
}

bool has_bf16_base(const net::Denoiser& model) {
  const auto of_base = [](const plan::ParamSpec& p) { return !p.trainable && p.stored == DType::bf16; };
  return std::ranges::any_of(model.units(),
                             [&](const auto& unit) { return std::ranges::any_of(unit->spec().params, of_base); });
}

/// A disk: no format, but what may stand beside them.
constexpr Format kDisk = {"plan.nvme = FOLDER (a disk)", 0, [](PlanRequest& r) {
                            return r.planner.host_budget > 0 && !std::exchange(r.planner.nvme, true);
                          }};

constexpr Format kFormats[] = {
    {"plan.masters = split (exact masters, gathered in bf16)", 1,
     [](PlanRequest& r) {
       plan::PlannerInput& p = r.planner;
       if (p.states.masters != plan::Masters::fp32 || p.compute == DType::f16) return false;
       p.states.masters = plan::Masters::split, p.param_dtype = DType::bf16;
       return true;
     }},
    {"plan.compute_dtype = bf16", 1,
     [](PlanRequest& r) {
       if (r.planner.compute != DType::f32) return false;
       r.planner.compute = r.planner.param_dtype = DType::bf16;
       if (r.machine.profile.device.gemm.contains("bf16")) r.machine.dtype = "bf16";
       return true;
     }},
    {"plan.grad_dtype = bf16 (reduced gradients are stored rounded)", 2,
     [](PlanRequest& r) { return std::exchange(r.planner.grad, DType::bf16) == DType::f32; }},
    {"plan.moments = int8", 2,
     [](PlanRequest& r) {
       if (!plan::has_first_moment(r.planner.states)) return false;
       return std::exchange(r.planner.states.moments, plan::Moments::int8) != plan::Moments::int8;
     }},
    {"lora.base_dtype = int8", 2,
     [](PlanRequest& r) { return has_bf16_base(*r.model) && !std::exchange(r.base_in_int8, true); }},
};

/// The request with these formats; empty if one of them changes nothing.
std::optional<PlanRequest> with_formats(PlanRequest request, const FormatSet& formats) {
  const double before = plan::update_bytes(request.planner.states, request.planner.grad);
  for (const Format* format : formats)
    if (!format->apply(request)) return std::nullopt;
  if (const double bytes = plan::update_bytes(request.planner.states, request.planner.grad); bytes != before)
    request.machine.update_bytes = bytes;
  return request;
}

std::optional<Change> in_formats(const PlanRequest& request, const FormatSet& formats, Jobs& jobs) {
  const std::optional<PlanRequest> tried = with_formats(request, formats);
  if (!tried) return std::nullopt;
  std::string text;
  for (const Format* format : formats) text += (text.empty() ? "" : " and ") + std::string(format->text);
  return jobs.fit(text, *tried, formats);
}

/// The formats that the run still needs in order to fit, if one after the other is left away: the least exact first.
FormatSet needed(const PlanRequest& request, FormatSet formats, Jobs& jobs) {
  FormatSet order = formats;
  std::ranges::stable_sort(order, std::ranges::greater(), &Format::loses);
  for (const Format* format : order) {
    FormatSet without = formats;
    std::erase(without, format);
    if (in_formats(request, without, jobs)) formats = std::move(without);
  }
  return formats;
}

/// Formats that make the run fit, beside `always`: each that is enough alone, and pairs of the fastest of these with
/// another; where none is enough alone, each pair that is; where none of these is, as few of all as can be.
std::vector<Change> fewest_formats(const PlanRequest& request, const FormatSet& always, Jobs& jobs) {
  FormatSet useful;
  for (const Format& format : kFormats)
    if (with_formats(request, {&format})) useful.push_back(&format);
  const auto beside = [&](FormatSet formats) {
    formats.insert(formats.begin(), always.begin(), always.end());
    return formats;
  };
  if (useful.empty() || !in_formats(request, beside(useful), jobs)) return {};  // no part of them is enough either
  std::vector<Change> changes;
  const auto add = [&](const FormatSet& formats) {
    std::optional<Change> change = in_formats(request, beside(formats), jobs);
    if (change) changes.push_back(std::move(*change));
    return change.has_value();
  };
  const Format* fastest = nullptr;
  double seconds = INFINITY;
  for (const Format* format : useful)
    if (add({format}) && changes.back().seconds < seconds) fastest = format, seconds = changes.back().seconds;
  for (size_t i = 0; i < useful.size(); ++i)
    for (size_t j = i + 1; j < useful.size(); ++j)
      if (!fastest || useful[i] == fastest || useful[j] == fastest) add({useful[i], useful[j]});
  if (changes.empty()) {
    const FormatSet least = needed(request, beside(useful), jobs);
    if (std::optional<Change> change = in_formats(request, least, jobs)) changes.push_back(std::move(*change));
  }
  return changes;
}

/// What takes less memory: formats, and a disk; both where neither is enough.
std::vector<Change> smaller_formats(const PlanRequest& request, Jobs& jobs) {
  if (request.by_hand) return {};
  std::vector<Change> changes = fewest_formats(request, {}, jobs);
  if (!with_formats(request, {&kDisk})) return changes;
  if (std::optional<Change> disk = in_formats(request, {&kDisk}, jobs))
    changes.push_back(std::move(*disk));
  else if (changes.empty())
    changes = fewest_formats(request, {&kDisk}, jobs);
  return changes;
}

/// Leaves out what consists of another change and further formats, with which the step is no faster.
void drop_needless(std::vector<Change>& changes) {
  const auto part_of = [](const Change& a, const Change& b) {
    return !a.formats.empty() && a.formats.size() < b.formats.size() &&
           std::ranges::all_of(a.formats,
                               [&](const Format* f) { return std::ranges::find(b.formats, f) != b.formats.end(); });
  };
  const std::vector<Change> all = changes;
  std::erase_if(changes, [&](const Change& change) {
    return std::ranges::any_of(
        all, [&](const Change& a) { return part_of(a, change) && change.seconds >= a.seconds * (1 - kAlike); });
  });
}

/// As many ranks that share samples otherwise, or shard over all of them. Batches of buckets are for the ranks there are.
std::optional<Change> another_mesh(const PlanRequest& request, Jobs& jobs) {
  if (request.by_hand || request.mesh.world() == 1 || request.most_rounds > 0) return std::nullopt;
  plan::LayoutBounds bounds = layout_bounds(*request.model, request.latent);
  bounds.world = request.mesh.world(), bounds.node = request.machine.profile.devices;
  constexpr size_t kMost = 6;         // meshes that are tried, those first whose ranks share a sample least
  constexpr int64_t kFewTokens = 16;  // of a rank: with fewer, ranks do little but exchange them
  std::vector<Mesh> meshes = plan::sample_sharings(bounds, request.planner.global_batch);
  std::erase_if(meshes, [&](const Mesh& mesh) {
    const int sharers = plan::sequence_size(mesh);
    return mesh == request.mesh || (sharers > 1 && bounds.tokens < kFewTokens * sharers);
  });
  if (meshes.size() > kMost) meshes.resize(kMost);
  for (const Mesh& mesh : meshes)
    if (const std::optional<PlanRequest> tried = on_mesh(request, mesh))
      if (auto change = jobs.fit("--mesh " + mesh.to_string(), *tried)) return change;
  return std::nullopt;
}

std::optional<Change> more_ranks(const PlanRequest& request, Jobs& jobs) {
  if (request.most_rounds > 0) return std::nullopt;  // as above
  Mesh mesh = request.mesh;
  constexpr int kMostRanks = 1 << 17;  // of a mesh
  for (int times = 2; times <= kMostRanksMore && times <= kMostRanks / request.mesh.world(); times *= 2) {
    mesh[Axis::dp_shard] = request.mesh[Axis::dp_shard] * times;
    if (const std::optional<PlanRequest> tried = on_mesh(without_file(request), mesh))
      if (auto change =
              jobs.fit("--mesh " + mesh.to_string() + " (" + std::to_string(mesh.world()) + " ranks)", *tried))
        return change;
  }
  return std::nullopt;
}

std::optional<Change> host_memory(const PlanRequest& request, Jobs& jobs) {
  PlanRequest tried = without_file(request);
  tried.planner.host_budget = int64_t{1} << 50;
  std::optional<Change> change = jobs.fit("", tried);
  if (change) change->names_host = true;
  return change;
}

/// The first latent frame of a speech-to-video model is its reference image.
int64_t fewest_latent_frames(const PlanRequest& request) { return request.model->conditions().audio_dim > 0 ? 2 : 1; }

std::optional<Change> fewer_frames(const PlanRequest& request, Jobs& jobs) {
  PlanRequest tried = without_file(request);
  const int64_t before = request.latent[1], none = fewest_latent_frames(request) - 1;
  // The most frames that fit, by bisection: memory grows with frames.
  int64_t fits = none, over = before;
  while (over - fits > 1) {
    tried.latent[1] = (fits + over) / 2;
    (jobs.fit("", tried) ? fits : over) = tried.latent[1];
  }
  if (fits == none) return std::nullopt;
  tried.latent[1] = fits;
  return Change{std::to_string(fits) + " latent frames instead of " + std::to_string(before) + " (data.frames)", tried};
}

/// The fastest first; of steps that are alike, the one that loses least exactness.
void sort_by_loss(std::vector<Change>& changes) {
  std::ranges::stable_sort(changes, {}, &Change::seconds);
  for (size_t i = 1; i < changes.size(); ++i)
    for (size_t j = i; j > 0 && changes[j].loses() < changes[j - 1].loses() &&
                       changes[j].seconds < (1 + kAlike) * changes[j - 1].seconds;
         --j)
      std::swap(changes[j], changes[j - 1]);
}

}  // namespace

Advice advice(const PlanRequest& request) {
  using Way = std::function<std::vector<Change>(const PlanRequest&, Jobs&)>;
  const auto one = [](std::optional<Change> (*way)(const PlanRequest&, Jobs&)) {
    return [way](const PlanRequest& r, Jobs& jobs) {
      std::optional<Change> change = way(r, jobs);
      return change ? std::vector{std::move(*change)} : std::vector<Change>();
    };
  };
  const Way ways[] = {smaller_formats,   one(smaller_micro_batch), one(host_memory),
                      one(another_mesh), one(more_ranks),          one(fewer_frames)};
  constexpr size_t kElsewhere = 4;  // from here on: on another machine, or with other data
  Jobs jobs;
  std::vector<Change> found[std::size(ways)];
  for_each_in_threads(std::size(ways), [&](size_t w) { found[w] = ways[w](request, jobs); });
  std::vector<Change> changes, elsewhere;
  for (size_t w = 0; w < std::size(ways); ++w)
    std::ranges::move(found[w], std::back_inserter(w < kElsewhere ? changes : elsewhere));
  drop_needless(changes);
  sort_by_loss(changes);
  if (changes.size() > kMostChanges) changes.erase(changes.begin() + kMostChanges, changes.end());
  for_each_in_threads(changes.size() + elsewhere.size(),
                      [&](size_t i) { jobs.price(i < changes.size() ? changes[i] : elsewhere[i - changes.size()]); });
  drop_needless(changes);
  sort_by_loss(changes);
  std::ranges::move(elsewhere, std::back_inserter(changes));
  Advice advice;
  for (const Change& change : changes) advice.text += (advice.text.empty() ? "with " : "; with ") + change.text;
  advice.evaluated = jobs.evaluated();
  return advice;
}

std::string useless_grad_dtype(const Planned& planned) {
  const plan::Plan& plan = planned.plan();
  if (!plan.rounds_gradients()) return {};
  for (int u = 0; u < static_cast<int>(plan.units.size()); ++u) {
    const plan::UnitLayout layout = plan.layout(planned.spec.units[static_cast<size_t>(u)], u);
    if (layout.grad_total > 0 && !plan.transient_gradient(layout, u)) return {};
  }
  return "grad_dtype = bf16 rounds gradients and saves nothing: updates in the backward apply each gradient at once, "
         "so none is stored (leave it out)";
}

std::string useless_offload_to(const PlanRequest& request, const Planned& planned) {
  if (request.by_hand || !request.planner.offload_to) return {};
  for (const plan::UnitPlan& unit : planned.plan().units)
    if (unit.offloads()) return {};
  return "offload_to = " + std::string(name(*request.planner.offload_to)) +
         " has no effect: this plan offloads no activations (plan.activations = offload does)";
}

std::string useless_prefetch(const PlanRequest& request, const Planned& planned) {
  if (request.by_hand || request.planner.prefetch.value_or(0) == 0) return {};
  for (const plan::Instruction& in : plan::compile_train(planned.spec, planned.plan(), planned.highest_rank()).list)
    if (in.op == plan::Op::fetch || (in.op == plan::Op::gather && in.slot >= 0)) return {};
  return "prefetch = " + std::to_string(*request.planner.prefetch) +
         " has no effect: everything that units need is already on their rank's device";
}

std::string useless_update_threads(const PlanRequest& request, const Planned& planned) {
  if (request.by_hand || request.planner.update_threads == 0) return {};
  for (const plan::UnitPlan& unit : planned.plan().units)
    if (unit.update_on == plan::Tier::host) return {};
  return "update_threads = " + std::to_string(request.planner.update_threads) +
         " has no effect: this plan updates no unit on the host (plan.update_on = host does)";
}

std::string useless_graphs(const PlanRequest& request, const Planned& planned) {
  if (!request.planner.graphs.value_or(false)) return {};
  if (planned.machine.profile.target.empty() && !device::used())
    return "plan.graphs = on has no effect: a CPU takes no launches";
  return planned.graphs.on ? std::string() : "plan.graphs = on has no effect: " + planned.graphs.why;
}

std::string advice_without_disk(const PlanRequest& request, const Planned& planned) {
  if (request.by_hand || !planned.choice.fits || planned.choice.memory.nvme.total() == 0) return {};
  const plan::MemoryCurve& memory = planned.choice.memory;
  // no stored gradients
  if (memory.by_part.gradients + memory.host.gradients + memory.nvme.gradients == 0) return {};
  PlanRequest tried = request;
  tried.planner.nvme = false;
  const auto grad = std::ranges::find(kFormats, std::string_view("plan.grad_dtype"),
                                      [](const Format& f) { return f.text.substr(0, f.text.find(' ')); });
  Jobs jobs;
  std::optional<Change> found = in_formats(tried, {&*grad}, jobs);
  if (found) jobs.price(*found);
  return found ? "this plan needs the disk, a step of " + format_seconds(planned.prediction.step.total) +
                     "; without it the run fits with " + found->text
               : std::string();
}

GrowthAxis growth_axis_of(const std::string& text) {
  static const std::vector<std::string> names = {"frames", "batch", "resolution"};
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<GrowthAxis>(i);
  throw UserError(Exit::usage, "plan.largest", "unknown '" + text + "'",
                  "did you mean " + nearest(text, names).front() + "? It is frames, batch or resolution");
}

namespace {

/// A family of requests that grow with n, from 1 on, and the name of each.
struct Row {
  std::function<PlanRequest(int64_t)> request;
  std::function<std::string(int64_t)> name;
  std::function<std::vector<std::pair<std::string, int64_t>>(int64_t)> sizes;
};

Row row_of(const PlanRequest& base, GrowthAxis grow, const VideoScale& scale) {
  using Sizes = std::vector<std::pair<std::string, int64_t>>;
  const PlanRequest request = without_file(base);
  const int64_t before_first = fewest_latent_frames(base) - 1;  // row number 1 has one more
  const auto frames = [=](int64_t n) { return scale.first_frame + (before_first + n - 1) * scale.frames_per_latent; };
  switch (grow) {
    case GrowthAxis::frames:
      return {[=](int64_t n) {
                PlanRequest r = request;
                r.latent[1] = before_first + n;
                return r;
              },
              [=](int64_t n) {
                const int64_t count = frames(n);
                return std::to_string(count) + (count == 1 ? " frame" : " frames");
              },
              [=](int64_t n) {
                return Sizes{{"frames", frames(n)}};
              }};
    case GrowthAxis::batch:
      return {[=](int64_t n) {
                PlanRequest r = request;
                r.any_micro_batch = false;
                r.planner.micro_batch = n;
                r.planner.global_batch = n * r.mesh.dp_size();
                return r;
              },
              [](int64_t n) { return "a micro-batch of " + std::to_string(n) + (n == 1 ? " sample" : " samples"); },
              [](int64_t n) {
                return Sizes{{"micro_batch", n}};
              }};
    case GrowthAxis::resolution:
      break;
  }
  // Keeps the aspect ratio: the shorter side grows by one token, the longer in proportion.
  const int64_t height = base.latent[2], width = base.latent[3], shorter = std::min(height, width);
  const auto side = [=](int64_t length, int64_t n) {
    const double tokens = static_cast<double>(length) * static_cast<double>(n) / static_cast<double>(shorter);
    return std::max<int64_t>(1, static_cast<int64_t>(tokens + 0.5)) * scale.patch;
  };
  return {[=](int64_t n) {
            PlanRequest r = request;
            r.latent[2] = side(height, n), r.latent[3] = side(width, n);
            return r;
          },
          [=](int64_t n) {
            return std::to_string(side(height, n) * scale.pixels_per_latent) + " x " +
                   std::to_string(side(width, n) * scale.pixels_per_latent) + " pixels";
          },
          [=](int64_t n) {
            return Sizes{{"height", side(height, n) * scale.pixels_per_latent},
                         {"width", side(width, n) * scale.pixels_per_latent}};
          }};
}

/// Upper bound of n, beyond which the answer is "no limit found". A frame's tokens grow with the square of its side.
int64_t most_of(GrowthAxis grow) { return grow == GrowthAxis::resolution ? 512 : 4096; }

}  // namespace

Largest largest(const PlanRequest& request, GrowthAxis grow, const VideoScale& scale,
                const std::function<void(const std::string&)>& told, int64_t near) {
  const Row row = row_of(request, grow, scale);
  Largest result;
  int64_t fits = 0, over = 0;
  std::string limit;
  const auto fits_at = [&](int64_t n) {
    const Planned planned = make_plan_as_is(row.request(n));
    if (told) told(row.name(n) + (planned.choice.fits ? " fits" : " does not fit"));
    if (planned.choice.fits) {
      result = {true, row.name(n), "", n, planned.choice.memory.peak, planned.prediction.step.total, row.sizes(n)};
    } else {
      const int64_t host = planned.choice.memory.host.total(), host_budget = request.planner.host_budget;
      const bool device = request.planner.budget > 0 && planned.choice.memory.peak > request.planner.budget;
      limit = row.name(n) + " would take " +
              (device ? format_bytes(planned.choice.memory.peak) + " of " + format_bytes(request.planner.budget)
                      : format_bytes(host) + " of host memory a rank, of " + format_bytes(host_budget));
    }
    return planned.choice.fits;
  };
  // From `near` on in steps that double, down to what fits and up to what exceeds the budget; then bisect.
  const int64_t most = most_of(grow), start = std::clamp<int64_t>(near, 1, most);
  for (int64_t n = start, step = 1;; step *= 2) {
    const bool fit = fits_at(n);
    (fit ? fits : over) = n;
    if (fit ? over > 0 || n == most : fits > 0 || n == 1) break;
    if (near == 0) step = n;
    n = std::clamp<int64_t>(fit ? n + step : n - step, 1, most);
  }
  while (over > 0 && over - fits > 1) {
    const int64_t middle = (fits + over) / 2;
    (fits_at(middle) ? fits : over) = middle;
  }
  result.limit = over > 0 ? limit : "no limit found up to there";
  return result;
}

std::string largest_json(const Largest& found) {
  nlohmann::ordered_json sizes = nlohmann::ordered_json::object();
  for (const auto& [name, value] : found.sizes) sizes[name] = value;
  return nlohmann::ordered_json{{"largest", sizes},
                                {"text", found.text},
                                {"peak_bytes", found.peak},
                                {"step_seconds", found.seconds},
                                {"limit", found.limit}}
      .dump(2);
}

namespace {

constexpr double kSurelySlower = 0.05;  // a smaller share of a step is within what predictions are off by

/// Seconds of the step on `mesh`: first of a plan without limits, which no other plan of it is faster than, then of the
/// first that fits; empty where either is no faster than `limit`.
std::optional<double> faster_on(const PlanRequest& request, const Mesh& mesh, double limit) {
  const std::optional<PlanRequest> tried = on_mesh(request, mesh);
  if (!tried) return std::nullopt;
  plan::PlannerInput input = tried->planner;
  if (request.any_micro_batch) input.micro_batch = 1;
  plan::Plan batch;
  batch.mesh = mesh, batch.global_batch = input.global_batch, batch.micro_batch = input.micro_batch;
  MeasuredModels known;
  const plan::Measured measured = measure_batch(*tried, batch, known);
  static_cast<plan::Choices&>(input) = {};
  input.first_that_fits = true, input.incumbent.reset();
  plan::PlannerInput unlimited = input;
  unlimited.budget = unlimited.host_budget = 0;
  if (plan::choose(measured.model, mesh, unlimited, measured.machine).seconds >= limit) return std::nullopt;
  const plan::Choice choice = plan::choose(measured.model, mesh, input, measured.machine);
  if (!choice.fits || choice.fastest >= limit) return std::nullopt;
  return choice.fastest;
}

}  // namespace

std::string slower_mesh(const PlanRequest& request, const Planned& planned) {
  const int ranks = request.mesh.world();
  if (request.by_hand || request.planner.first_that_fits || !planned.choice.fits || ranks == 1) return {};
  Mesh plain;
  plain[Axis::dp_shard] = ranks;
  std::vector<Mesh> others = {Mesh{}};
  if (plain != request.mesh && request.planner.global_batch >= ranks) others.push_back(plain);
  double fastest = planned.choice.fastest * (1 - kSurelySlower);
  std::optional<Mesh> found;
  for (const Mesh& mesh : others)
    if (const std::optional<double> seconds = faster_on(request, mesh, fastest)) fastest = *seconds, found = mesh;
  if (!found) return {};
  const auto [there, here] = format_distinct_seconds(fastest, planned.choice.seconds);
  return request.mesh.to_string() + " is predicted to be slower than " +
         (found->world() == 1 ? "one rank" : found->to_string()) + " with the same batch: " + here + " a step, not " +
         there;
}

}  // namespace tessera::planning
