#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "commands.h"
#include "foreign.h"
#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file.h"
#include "tessera/data/aspect_ratios.h"
#include "tessera/job/assumed.h"
#include "tessera/plan/compile/rules.h"
#include "tessera/plan/plan_file.h"
#include "tessera/plan/search/composes.h"
#include "tessera/planning/frontier.h"
#include "tessera/planning/plan_advice.h"
#include "tessera/planning/plan_page.h"
#include "tessera/planning/plan_request.h"
#include "tessera/planning/plan_view.h"
#include "tessera/planning/run_plan.h"
#include "tessera/prepare/prepare.h"
#include "tessera/recipe/run_recipe.h"
#include "tessera/report/progress.h"
#include "tessera/report/terminal_text.h"

namespace tessera::apps {

namespace {

int check_file(const std::string& path) {
  const auto violations = plan::check_file(path);
  for (const auto& violation : violations)
    std::printf("%s: %s\n", path.c_str(), printable(plan::to_string(violation)).c_str());
  if (violations.empty()) std::printf("%s: all rules hold\n", path.c_str());
  return static_cast<int>(violations.empty() ? Exit::done : Exit::comparison);
}

int count(const Arguments& arguments, const std::string& flag) {
  const std::string text = arguments.value(flag, "1");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw UserError(Exit::usage, "plan", flag + " " + text + ": expected a whole number, at least 1");
  return value;
}

bool has_mesh(const recipe::Overrides& overrides) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [](const auto& o) { return o.first == "mesh" || o.first.starts_with("mesh."); });
}

/// "8x4090" says how many, "4090" does not.
bool is_counted(const std::string& name) {
  const size_t x = name.find_first_not_of("0123456789");
  return x > 0 && x != name.npos && (name[x] == 'x' || name[x] == 'X');
}

/// --gpu as a profile. A card by its name alone is as many as the mesh has ranks, where that is a machine's: "4090" with
/// --mesh dp_shard=2 is two of them beside each other.
plan::Profile profile_of(const Arguments& arguments, const Mesh& mesh = {}) {
  const std::string gpu = arguments.value("--gpu");
  const plan::Profile named = plan::find_profile(gpu);
  const int ranks = mesh.world();
  if (named.devices != 1 || ranks == 1 || ranks > 8 || arguments.has("--nodes") || is_counted(gpu)) return named;
  return plan::shipped_profile(std::to_string(ranks) + "x" + named.name).value_or(named);
}

/// Devices of --gpu on --nodes.
int devices_of(const Arguments& arguments) {
  return std::max(1, profile_of(arguments).devices) * count(arguments, "--nodes");
}

/// Which machine a name meant, and how it is known.
std::string machine_text(const plan::Profile& profile, int nodes) {
  const bool one = profile.devices == 1;
  const std::string machine = one ? "one GPU" : "a machine of " + std::to_string(profile.devices) + " GPUs";
  std::string text = profile.name + " is " + machine + " of " + format_bytes(profile.device.memory);
  if (nodes > 1) text += ", " + std::to_string(nodes) + " times";
  const bool sheets = profile.source.find("until probed") != profile.source.npos;
  if (sheets && !is_counted(profile.name) &&
      profile.name.find("gib") == std::string::npos)  // h200-128gib is one of a node
    text += one ? " (8x" + profile.name + ": eight in a machine)" : " (1x" + profile.name + ": one of them)";
  const char* known = !profile.machine.empty() ? "measured"
                      : sheets                 ? "read from data sheets until probed"
                                               : "as described";
  return text + "; its rates are " + known;
}

/// --gpu as recipe keys.
recipe::Overrides with_machine(const Arguments& arguments) {
  recipe::Overrides overrides = arguments.overrides;
  if (!arguments.has("--gpu")) {
    if (arguments.has("--nodes")) throw UserError(Exit::usage, "plan", "--nodes without --gpu", "add --gpu h200");
    return overrides;
  }
  const std::string gpu = arguments.value("--gpu");
  for (const auto& [key, value] : overrides)
    if (key == "plan.profile" && plan::find_profile(value) != plan::find_profile(gpu))
      throw UserError(Exit::usage, "plan", "--gpu " + gpu + " and --plan.profile " + value + " name two machines",
                      "give one of them");
  const plan::Profile machine = profile_of(arguments);
  const bool file = plan::shipped_profile(gpu) == std::nullopt;
  overrides.emplace_back("plan.profile", file ? gpu : machine.name);
  // Options of other programs count samples per rank, so the ranks have to be known before the recipe is.
  if (!arguments.foreign.empty() && !has_mesh(overrides))
    overrides.emplace_back("mesh", "dp_shard=" + std::to_string(devices_of(arguments)));
  return overrides;
}

/// Puts the recipe's mesh on the machine of --gpu: all devices for a recipe without [mesh]; a mesh that was given stays,
/// and with --nodes its dp_shard grows over the GPUs of all nodes.
void put_on_machine(recipe::Recipe& recipe, const Arguments& arguments) {
  if (!arguments.has("--gpu")) return;
  const plan::Profile machine = profile_of(arguments, recipe.mesh);
  if (machine.devices != profile_of(arguments).devices) recipe.set("plan.profile", machine.name);
  if (machine.devices > 0) log::info("plan: " + machine_text(machine, count(arguments, "--nodes")));
  const int devices = devices_of(arguments), ranks = recipe.mesh.world();
  const std::string them = std::to_string(devices) + " GPUs of " + arguments.value("--gpu");
  if (ranks == 1 && !has_mesh(arguments.overrides)) {
    recipe.set("mesh.dp_shard", std::to_string(devices));
    if (devices > 1) log::info("plan: " + recipe.mesh.to_string() + " on the " + them + "; --mesh chooses another");
  } else if (arguments.has("--nodes") && ranks != devices) {
    if (devices % ranks != 0)
      throw UserError(Exit::usage, "plan",
                      "--nodes: the mesh " + recipe.mesh.to_string() + " has " + std::to_string(ranks) +
                          " ranks, which do not divide the " + them,
                      "change the mesh, or leave out --nodes");
    recipe.set("mesh.dp_shard", std::to_string(recipe.mesh[Axis::dp_shard] * (devices / ranks)));
    log::info("plan: the mesh grows to " + recipe.mesh.to_string() + " over the " + them);
  }
}

/// Frames and pixels of one latent step, found by asking the autoencoder.
planning::VideoScale scale_of(const recipe::Recipe& recipe, const job::Job& job, const job::Shapes& shapes) {
  planning::VideoScale scale;
  const auto latent_frames = [&](int64_t frames) -> int64_t {
    try {
      return job.codec->latent_shape(frames, recipe.data.height, recipe.data.width)[1];
    } catch (const UserError&) {
      return 0;  // not a number of frames that it takes
    }
  };
  // numbers of frames for 2 and 3 latent frames: a single picture may be a case of its own
  const auto frames_for = [&](int64_t latents) {
    int64_t frames = 1;
    while (frames < 256 && latent_frames(frames) != latents) ++frames;
    return frames;
  };
  scale.frames_per_latent = frames_for(3) - frames_for(2);
  scale.first_frame = frames_for(2) - scale.frames_per_latent;
  scale.pixels_per_latent = recipe.data.height / shapes.latent[2];
  return scale;
}

/// An object, or with stages an array of one for each part of the run.
void print_json(const std::vector<recipe::RunPart>& parts, const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",\n") + text;
  std::printf(parts.size() > 1 ? "[\n%s\n]\n" : "%s\n", all.c_str());
}

/// A size that was planned while the largest is looked for: each takes seconds. Beside the answer, which a program may
/// read.
void tell_tried(const std::string& size) { std::fprintf(stderr, "plan: %s\n", size.c_str()); }

/// The largest batch of each bucket. Those of as many tokens take as much, and share a row.
struct BucketBatch {
  std::vector<std::string> buckets;
  planning::Largest found;
};
std::vector<BucketBatch> bucket_batches(const recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh,
                                        int prompts, int64_t near) {
  const std::vector<data::Bucket>& buckets = recipe.data.clips.buckets;
  const job::Shapes shapes = job::shapes_of(recipe, *job.model, *job.codec);
  std::map<int64_t, std::vector<data::Bucket>, std::greater<>> by_tokens;
  for (size_t b = 0; b < buckets.size(); ++b) by_tokens[shapes.bucket_tokens[b]].push_back(buckets[b]);
  std::vector<BucketBatch> rows;
  for (const auto& [tokens, alike] : by_tokens) {
    recipe::Recipe one = recipe;
    one.data.clips.buckets = {alike.front()};
    one.data.frames = alike.front().frames, one.data.height = alike.front().height,
    one.data.width = alike.front().width;
    const job::Shapes own = job::shapes_of(one, *job.model, *job.codec);
    const planning::PlanRequest request = planning::plan_request(one, job, own, mesh, prompts);
    const std::string name = alike.front().text() + ": ";
    BucketBatch row{{},
                    planning::largest(
                        request, planning::GrowthAxis::batch, scale_of(one, job, own),
                        [&](const std::string& tried) { tell_tried(name + tried); }, near)};
    near = row.found.count;
    for (const data::Bucket& bucket : alike) row.buckets.push_back(bucket.text());
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The recipe with the batches that fit: of each item of data.buckets the smallest of its shapes, else one for all.
std::string filled_recipe(recipe::Recipe recipe, const Mesh& mesh, const planning::Largest& found,
                          const std::vector<BucketBatch>& rows) {
  const auto batch = [&](const planning::Largest& largest) { return largest.count * mesh.dp_size(); };
  recipe.set("train.micro_batch", "auto");
  if (rows.empty()) {
    recipe.set("train.global_batch", std::to_string(batch(found)));
    return recipe.to_toml();
  }
  std::string items;
  for (const std::string& text : split_list(recipe.values.at("data.buckets"))) {
    data::BucketItem item = data::parse_bucket_item(text);
    item.batch = 0;
    for (const data::Bucket& bucket : data::buckets_of(item.shape))
      for (const BucketBatch& row : rows) {
        if (std::ranges::find(row.buckets, bucket.text()) == row.buckets.end()) continue;
        if (!row.found.found)
          throw UserError(Exit::no_fit, "plan.largest", bucket.text() + ": not even one sample a rank fits",
                          "leave " + item.shape + " out of data.buckets");
        item.batch = item.batch == 0 ? batch(row.found) : std::min(item.batch, batch(row.found));
      }
    items += (items.empty() ? "" : std::string(1, kListSeparator)) + item.text();
  }
  recipe.set("data.buckets", items);
  return recipe.to_toml();
}

/// A line for each part of the run, and for a batch one for each of its buckets; `write`: the file of filled_recipe().
void print_largest(const std::vector<recipe::RunPart>& parts, const job::Job& job, const Mesh& mesh,
                   const std::vector<int>& prompts, const std::string& what, bool json, const std::string& write) {
  if (!write.empty() && parts.size() > 1)
    throw UserError(Exit::usage, "plan", "--write with --largest batch: each stage has a batch of its own",
                    "plan a recipe without stages, and set theirs by hand");
  std::vector<std::string> texts;
  for (size_t p = 0; p < parts.size(); ++p)
    recipe::in_part(parts[p], [&] {
      recipe::Recipe recipe = parts[p].recipe;
      if (planning::growth_axis_of(what) == planning::GrowthAxis::batch)
        for (data::Bucket& bucket : recipe.data.clips.buckets) bucket.batch = 0;  // they are what is looked for
      const job::Shapes shapes = job::shapes_of(recipe, *job.model, *job.codec);
      const planning::PlanRequest request = planning::plan_request(recipe, job, shapes, mesh, prompts[p]);
      const planning::Largest found =
          planning::largest(request, planning::growth_axis_of(what), scale_of(recipe, job, shapes), tell_tried);
      if (!found.found) throw UserError(Exit::no_fit, "plan.largest", "not even the smallest fits: " + found.limit);
      const bool each =
          planning::growth_axis_of(what) == planning::GrowthAxis::batch && recipe.data.clips.buckets.size() > 1;
      const auto rows = each ? bucket_batches(recipe, job, mesh, prompts[p], found.count) : std::vector<BucketBatch>();
      if (!write.empty()) checkpoint::write_text(write, filled_recipe(recipe, mesh, found, rows));
      if (json) {
        auto object = nlohmann::ordered_json::parse(planning::largest_json(found));
        for (const BucketBatch& row : rows) {
          auto of = nlohmann::ordered_json::parse(planning::largest_json(row.found));
          of["buckets"] = row.buckets;
          object["buckets"].push_back(of);
        }
        texts.push_back(object.dump(2));
        return;
      }
      const std::string part = parts.size() > 1 ? parts[p].name() + ", " : "";
      std::printf("%slargest %s: %s, %s a rank, a step of %s; %s\n", part.c_str(), what.c_str(), found.text.c_str(),
                  format_bytes(found.peak).c_str(), format_seconds(found.seconds).c_str(), found.limit.c_str());
      for (const BucketBatch& row : rows) {
        std::string names;
        for (const std::string& name : row.buckets) names += (names.empty() ? "" : ", ") + name;
        std::printf("  %s: %s\n", names.c_str(),
                    row.found.found ? row.found.text.c_str() : "not even the smallest fits");
      }
    });
  if (json) print_json(parts, texts);
}

/// A table for each part of the run.
void print_layouts(const std::vector<recipe::RunPart>& parts, const job::Job& job, const Mesh& mesh,
                   const std::vector<int>& prompts, bool json) {
  std::vector<std::string> texts;
  for (size_t p = 0; p < parts.size(); ++p)
    recipe::in_part(parts[p], [&] {
      const recipe::Recipe& recipe = parts[p].recipe;
      const job::Shapes shapes = job::shapes_of(recipe, *job.model, *job.codec);
      const planning::Layouts found =
          planning::find_layouts(planning::plan_request(recipe, job, shapes, mesh, prompts[p]));
      if (json) {
        texts.push_back(planning::layouts_json(found));
        return;
      }
      if (parts.size() > 1) std::printf("%s\n", parts[p].name().c_str());
      std::fputs(planning::layouts_text(found).c_str(), stdout);
    });
  if (json) print_json(parts, texts);
}

/// "plan.html" for the start of the run, "plan-stage-1.html" for its first stage: as the run folder names its plans.
std::string file_of(const std::string& file, const recipe::RunPart& part) {
  if (part.number == 0) return file;
  const std::filesystem::path path = file;
  return (path.parent_path() /
          (path.stem().string() + "-stage-" + std::to_string(part.number) + path.extension().string()))
      .string();
}

/// The plans of many budgets for each part of the run: a table or JSON, and the picture that `file` names.
void print_frontier(const std::vector<recipe::RunPart>& parts, const job::Job& job, const Mesh& mesh,
                    const std::vector<int>& prompts, const std::string& file, bool json) {
  std::vector<std::string> texts;
  for (size_t p = 0; p < parts.size(); ++p)
    recipe::in_part(parts[p], [&] {
      const recipe::Recipe& recipe = parts[p].recipe;
      const job::Shapes shapes = job::shapes_of(recipe, *job.model, *job.codec);
      std::optional<report::CountProgress> progress;
      const planning::Frontier found = planning::find_frontier(
          planning::plan_request(recipe, job, shapes, mesh, prompts[p]), [&](int64_t done, int64_t total) {
            if (!progress) progress.emplace(true, "plan", "plans", total);
            progress->at(done);
          });
      progress.reset();
      if (!file.empty())
        checkpoint::write_text(file_of(file, parts[p]),
                               file.ends_with(".svg") ? planning::frontier_svg(found) : planning::frontier_page(found));
      if (json) {
        texts.push_back(planning::frontier_json(found));
        return;
      }
      if (parts.size() > 1) std::printf("%s\n", parts[p].name().c_str());
      std::fputs(planning::frontier_text(found).c_str(), stdout);
    });
  if (json) print_json(parts, texts);
}

void find_prices(std::vector<planning::PartPlan>& plans, const job::Job& job, const Mesh& mesh,
                 const std::vector<int>& prompts) {
  for (size_t p = 0; p < plans.size(); ++p)
    recipe::in_part(plans[p].part, [&] {
      plans[p].planned.prices = planning::memory_prices(
          planning::plan_request(plans[p].part.recipe, job, plans[p].shapes, mesh, prompts[p]), plans[p].planned);
    });
}

/// A line for each part of the run that more memory would make faster.
void print_more_memory(const std::vector<planning::PartPlan>& plans, int columns) {
  for (const planning::PartPlan& p : plans) {
    const std::string text = planning::more_memory(p.planned),
                      part = plans.size() > 1 ? " (" + p.part.name() + ")" : "";
    if (!text.empty()) std::fputs(report::wrapped("more memory" + part + ": " + text + "\n", columns).c_str(), stdout);
  }
}

/// A file for each part of the run, told when there are several.
void write_parts(const std::vector<planning::PartPlan>& plans, const std::string& file,
                 const std::function<std::string(const planning::Planned&)>& text) {
  for (const planning::PartPlan& p : plans) {
    checkpoint::write_text(file_of(file, p.part), text(p.planned));
    if (plans.size() > 1) log::info("plan: " + file_of(file, p.part) + ": " + p.part.name());
  }
}

std::vector<std::string> lines_of(const std::string& path) {
  ForeignLines in(path, "plan.trace", "give a file of train --trace-schedule");
  std::vector<std::string> lines;
  for (std::string line; in.next(line);) lines.push_back(line);
  return lines;
}

/// How many prompts are sampled. Planning may come before the data: then the most that are ever taken from captions.
int prompts_of(const recipe::Recipe& recipe) {
  const bool listed = !recipe.sample.prompts.empty();
  std::vector<std::string> data;
  for (const recipe::Recipe::DataSet& set : recipe.data_sets())
    for (const std::string& path : set.data.metadata.empty() ? set.data.paths : std::vector{set.data.metadata})
      data.push_back(path);
  const auto missing =
      std::ranges::find_if(data, [](const std::string& path) { return !std::filesystem::exists(path); });
  if (!listed && (data.empty() || missing != data.end())) {
    constexpr int kMost = 4;
    log::warn("plan: '" + (data.empty() ? "" : *missing) + "' is not there yet; counting " + std::to_string(kMost) +
              " prompts to sample");
    return kMost;
  }
  return static_cast<int>(
      prepare::sample_prompts(recipe.data, recipe.sample, listed ? data::Items{} : prepare::read_items(recipe)).size());
}

/// What is asked for instead of a plan takes none of the flags that write one.
void check_flags(const Arguments& arguments) {
  constexpr const char* kInstead[] = {"--composes", "--check", "--largest", "--layouts", "--frontier"};
  constexpr const char* kOfPlan[] = {"--html", "--trace", "--executed", "--schedule", "--write"};
  std::string instead;
  for (const char* flag : kInstead) {
    if (!arguments.has(flag)) continue;
    if (!instead.empty()) throw UserError(Exit::usage, "plan", instead + " and " + flag + " exclude each other");
    instead = flag;
  }
  for (const char* flag : kOfPlan)
    if (!instead.empty() && arguments.has(flag) &&
        !(flag == std::string_view("--write") && arguments.value("--largest") == "batch"))
      throw UserError(Exit::usage, "plan", std::string(flag) + " cannot be combined with " + instead,
                      "run " + instead + " without " + flag);
  if (arguments.has("--json") && (instead == "--check" || instead == "--composes"))
    throw UserError(Exit::usage, "plan", instead + " has no JSON", "leave --json away");
  const std::string picture = arguments.value("--frontier");
  if (!picture.empty() && !picture.ends_with(".svg") && !picture.ends_with(".html"))
    throw UserError(Exit::usage, "plan", "--frontier " + picture + ": a picture is an .svg or an .html file",
                    "give the file one of these endings, or none for a table alone");
  if (arguments.has("--skipped") && !arguments.has("--schedule"))
    throw UserError(Exit::usage, "plan", "--skipped without --schedule", "add --schedule FILE, which they shift");
  if (arguments.has("--executed") && !arguments.has("--trace"))
    throw UserError(Exit::usage, "plan", "--executed without --trace", "add --trace FILE: both are drawn there");
}

/// Of a run whose networks take turns that a skipped step shifts.
std::set<int64_t> skipped_steps(const std::string& text, const recipe::Recipe& recipe) {
  if (!recipe.distill.judges())
    throw UserError(Exit::usage, "plan", "--skipped: a step that a run skips changes no other step of this recipe",
                    "leave it out: it belongs to distill.method = \"scm_ladd\"");
  std::set<int64_t> steps;
  for (const std::string& item : split_list(text)) steps.insert(to_integer(item));
  return steps;
}

int run_plan(const Arguments& arguments) {
  check_flags(arguments);
  if (arguments.has("--composes")) return std::fputs(plan::composition_page().c_str(), stdout) < 0;
  if (arguments.has("--check")) return check_file(arguments.value("--check"));
  Translated given = recipe_from(arguments, with_machine(arguments), /*world=*/0);
  tell(given.translation);
  put_on_machine(given.recipe, arguments);
  for (const std::string& line : {job::assume_released(given.recipe), job::settle_compute(given.recipe)})
    if (!line.empty()) log::info("plan: " + line);
  const recipe::Recipe recipe = look_over(given.recipe, /*world=*/0, job::Missing::planned);
  engine::Meter::install();
  const job::Job job = job::make_job(recipe);
  job::check_trainable(job);
  const std::vector<recipe::RunPart> parts = recipe::run_parts(recipe);
  std::vector<int> prompts;
  const bool samples = recipe::any_samples(parts);
  for (const recipe::RunPart& part : parts) prompts.push_back(samples ? prompts_of(part.recipe) : 0);
  if (arguments.has("--largest")) {
    print_largest(parts, job, recipe.mesh, prompts, arguments.value("--largest"), arguments.has("--json"),
                  arguments.value("--write"));
    return 0;
  }
  if (arguments.has("--layouts")) {
    print_layouts(parts, job, recipe.mesh, prompts, arguments.has("--json"));
    return 0;
  }
  if (arguments.has("--frontier")) {
    print_frontier(parts, job, recipe.mesh, prompts, arguments.value("--frontier"), arguments.has("--json"));
    return 0;
  }
  std::vector<planning::PartPlan> plans = planning::plan_parts(parts, job, recipe.mesh, prompts);
  find_prices(plans, job, recipe.mesh, prompts);
  const std::string text = arguments.has("--json") ? planning::plans_json(plans) : planning::plans_text(plans);
  const int columns = arguments.has("--json") ? 0 : report::terminal_columns(STDOUT_FILENO);
  std::fputs(report::wrapped(text, columns).c_str(), stdout);
  if (!arguments.has("--json")) print_more_memory(plans, columns);
  if (arguments.has("--write"))
    write_parts(plans, arguments.value("--write"),
                [](const planning::Planned& planned) { return to_toml(planned.plan(), planned.unit_names()); });
  if (arguments.has("--html")) write_parts(plans, arguments.value("--html"), planning::plan_page);
  if (arguments.has("--trace")) {
    const auto executed =
        arguments.has("--executed") ? lines_of(arguments.value("--executed")) : std::vector<std::string>{};
    write_parts(plans, arguments.value("--trace"),
                [&](const planning::Planned& planned) { return planning::plan_trace(planned, executed); });
  }
  planning::require_fit(plans);
  if (arguments.has("--skipped"))
    for (planning::PartPlan& p : plans) p.planned.run.skipped = skipped_steps(arguments.value("--skipped"), recipe);
  if (arguments.has("--schedule")) planning::write_schedule(plans, arguments.value("--schedule"));
  return 0;
}

}  // namespace

Command plan_command() {
  Command c;
  c.name = "plan";
  c.summary = "Predicts memory and step time of a run, without its weights.";
  c.usage =
      "plan RECIPE [--json] [--gpu NAME --nodes N] [--html FILE] [--trace FILE] [--largest WHAT] [--layouts] "
      "[--frontier [FILE]] [--schedule FILE] [--write FILE] | plan --check FILE | plan --composes";
  c.example = "tessera plan recipes/wan-tiny_demo_cpu.toml --mesh dp_shard=2 --html p.html";
  c.recipe_keys = true;
  c.foreign = training_flags();
  c.flags = {{"--json", "", "print JSON; also of --largest, --layouts, --frontier"},
             {"--gpu", "NAME", "plan for h200, 1xh200, 4090 ...: tessera list profiles"},
             {"--nodes", "N", "with --gpu: dp_shard over all GPUs of N nodes"},
             {"--html", "FILE", "page with timeline, memory curve and candidates"},
             {"--trace", "FILE", "predicted timeline, as a trace for Perfetto"},
             {"--executed", "FILE", "with --trace: add one from train --trace-schedule"},
             {"--largest", "frames|batch|resolution", "print the largest that fits instead of the plan"},
             {"--layouts", "", "print all meshes of this many ranks, fastest first"},
             {"--frontier", kOptionalPicture, "step time over memory; also as FILE.svg or FILE.html"},
             {"--composes", "", "print docs/what-composes.md; needs no recipe"},
             {"--schedule", "FILE", "write the instructions of all ranks and steps"},
             {"--skipped", "STEPS", "with --schedule: steps that a run skipped, 3,7"},
             {"--write", "FILE", "write the plan, or with --largest batch the recipe"},
             {"--check", "FILE", "check a schedule file; name the line that is wrong"}};
  c.run = run_plan;
  return c;
}

}  // namespace tessera::apps
