// The plan as a file people read and write: scalars, a [mesh] table, and one [[units]] table for each run of units
// that are treated alike. A later table overrides an earlier one, so a hand-written plan may start with name = "*".
#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/unit_pattern.h"

namespace tessera::plan {

namespace {

class Reader {
 public:
  Reader(const std::string& file, const std::vector<std::string>& names) : file_(file), names_(names) {}

  Plan read(const std::string& text) const {
    toml::table root;
    try {
      root = toml::parse(text, file_);
    } catch (const toml::parse_error& error) {
      throw UserError(Exit::usage, "plan.read",
                      file_ + ":" + std::to_string(error.source().begin.line) + ": " + std::string(error.description()),
                      "correct the line, or write a plan with 'tessera plan' and start from it");
    }
    known_keys(root, "",
               {"mesh", "global_batch", "micro_batch", "prefetch", "update", "update_threads", "masters", "moments",
                "param_dtype", "compute_dtype", "reduce_dtype", "grad_dtype", "pipeline", "experts", "idle", "units"});
    Plan plan;
    plan.units.resize(names_.size());
    plan.global_batch = integer(root, "", "global_batch", 1, plan.global_batch);
    plan.micro_batch = integer(root, "", "micro_batch", 1, plan.micro_batch);
    plan.prefetch = static_cast<int>(integer(root, "", "prefetch", 0, plan.prefetch));
    read_updates(root, plan);
    read_experts(root, plan);
    read_formats(root, plan);
    if (root.contains("mesh")) read_mesh(root["mesh"], plan.mesh);
    plan.check_types("plan.read " + file_ + ": ");
    if (root.contains("pipeline")) read_pipeline(root["pipeline"], plan);
    if (root.contains("units")) read_units(root["units"], plan.units);
    plan.check_updates("plan.read " + file_ + ": ", names_);
    return plan;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what, const std::string& hint) const {
    throw UserError(Exit::usage, "plan.read", file_ + ": " + key + ": " + what, hint);
  }

  void known_keys(const toml::table& table, const std::string& prefix, const std::vector<std::string>& known) const {
    for (const auto& [key, value] : table) {
      const std::string name(key.str());
      if (std::find(known.begin(), known.end(), name) == known.end())
        fail(prefix + name, "unknown key", "did you mean " + prefix + nearest(name, known).front() + "?");
    }
  }

  int64_t integer(const toml::table& table, const std::string& prefix, const std::string& key, int64_t least,
                  int64_t fallback) const {
    const toml::node* node = table.get(key);
    if (!node) return fallback;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < least || *value > INT32_MAX) {
      std::ostringstream found;
      node->visit([&](const auto& n) { found << n; });
      fail(prefix + key, "found " + found.str(), "expected a whole number, at least " + std::to_string(least));
    }
    return *value;
  }

  std::string text(const toml::table& table, const std::string& prefix, const std::string& key) const {
    const auto value = table[key].value_exact<std::string>();
    if (!value) fail(prefix + key, "not a string", "write " + key + " = \"...\"");
    return *value;
  }

  void read_formats(const toml::table& root, Plan& plan) const {
    const std::string where = "plan.read " + file_ + ": ";
    if (root.contains("masters")) plan.states.masters = masters_of(text(root, "", "masters"), where + "masters");
    if (root.contains("moments")) plan.states.moments = moments_of(text(root, "", "moments"), where + "moments");
    const auto type = [&](const char* key, DType fallback) {
      return root.contains(key) ? dtype_of(text(root, "", key), where + key, kComputeTypes) : fallback;
    };
    plan.compute = type("compute_dtype", DType::f32);
    plan.reduce = type("reduce_dtype", DType::f32);
    plan.grad = type("grad_dtype", DType::f32);
    plan.param_dtype = plan.compute;
    plan.param_dtype = type("param_dtype", plan.gathered());
  }

  void read_updates(const toml::table& root, Plan& plan) const {
    if (root.contains("update")) plan.update = update_of(text(root, "", "update"), "plan.read " + file_ + ": update");
    plan.update_threads = static_cast<int>(integer(root, "", "update_threads", 0, plan.update_threads));
  }

  void read_experts(const toml::table& root, Plan& plan) const {
    plan.experts = static_cast<int>(integer(root, "", "experts", 1, plan.experts));
    if (root.contains("idle")) plan.idle = tier_of(text(root, "", "idle"), "plan.read " + file_ + ": idle");
  }

  void read_mesh(toml::node_view<toml::node> node, Mesh& mesh) const {
    const toml::table* table = node.as_table();
    if (!table) fail("mesh", "not a table", "write [mesh] and below it, for example, dp_shard = 2");
    std::vector<std::string> axes;
    for (Axis axis : kAllAxes) axes.emplace_back(axis_name(axis));
    known_keys(*table, "mesh.", axes);
    for (Axis axis : kAllAxes)
      mesh[axis] = static_cast<int>(integer(*table, "mesh.", std::string(axis_name(axis)), 1, 1));
  }

  void read_pipeline(toml::node_view<toml::node> node, Plan& plan) const {
    const toml::table* table = node.as_table();
    if (!table) fail("pipeline", "not a table", "write [pipeline] and below it schedule = \"1f1b\"");
    known_keys(*table, "pipeline.", {"schedule", "chunks", "first"});
    Pipeline& pipeline = plan.pipeline;
    if (table->contains("schedule"))
      pipeline.schedule =
          pipeline_schedule_of(text(*table, "pipeline.", "schedule"), "plan.read " + file_ + ": pipeline.schedule");
    pipeline.chunks = static_cast<int>(integer(*table, "pipeline.", "chunks", 1, 1));
    if (pipeline.chunks > 1 && pipeline.schedule != PipelineSchedule::interleaved)
      fail("pipeline.chunks", "only the interleaved schedule has several", "write schedule = \"interleaved\"");
    const int stages = plan.stages();
    if (stages > static_cast<int>(names_.size()))
      fail("pipeline", std::to_string(stages) + " stages for " + std::to_string(names_.size()) + " units",
           "every stage needs one: use fewer ranks on pp, or chunks");
    if (!table->contains("first")) return;
    const toml::array* list = (*table)["first"].as_array();
    if (!list || static_cast<int>(list->size()) != stages)
      fail("pipeline.first", "not a list of " + std::to_string(stages) + " units",
           "name the first unit of each stage, pp x chunks of them");
    for (const toml::node& item : *list) {
      const std::string unit = item.value_or(std::string());
      const auto found = std::find(names_.begin(), names_.end(), unit);
      const int index = static_cast<int>(found - names_.begin());
      if (found == names_.end())
        fail("pipeline.first", "no unit of the model is named '" + unit + "'",
             "did you mean '" + nearest(unit, names_).front() + "'?");
      if (pipeline.first.empty() ? index != 0 : index <= pipeline.first.back())
        fail("pipeline.first", "'" + unit + "' is out of order",
             "begin with '" + names_.front() + "' and go on in the order of the model");
      pipeline.first.push_back(index);
    }
  }

  void read_units(toml::node_view<toml::node> node, std::vector<UnitPlan>& units) const {
    const toml::array* list = node.as_array();
    if (!list) fail("units", "not a list of tables", "write [[units]] and below it name = \"blocks.0-3\"");
    for (size_t n = 0; n < list->size(); ++n) {
      const std::string prefix = "units[" + std::to_string(n) + "].";
      const toml::table* table = (*list)[n].as_table();
      if (!table) fail("units[" + std::to_string(n) + "]", "not a table", "write [[units]] and below it its keys");
      read_unit(*table, prefix, units);
    }
  }

  void read_unit(const toml::table& table, const std::string& prefix, std::vector<UnitPlan>& units) const {
    known_keys(table, prefix,
               {"name", "activations", "sites", "strategy", "reduce", "parameters", "gradients", "states", "offload_to",
                "update_on", "reshard_after_forward"});
    if (!table.contains("name")) fail(prefix + "name", "missing", "say which units are meant, for example \"*\"");
    const std::string pattern = text(table, prefix, "name");
    const auto chosen = matching(pattern, names_);
    if (chosen.empty())
      fail(prefix + "name", "no unit of the model is named '" + pattern + "'",
           names_.empty() ? "the model has no units" : "did you mean '" + nearest(pattern, names_).front() + "'?");
    for (size_t u : chosen) read_choices(table, prefix, units[u]);
  }

  void read_choices(const toml::table& table, const std::string& prefix, UnitPlan& unit) const {
    const std::string where = "plan.read " + file_ + ": " + prefix;
    if (table.contains("activations"))
      unit.activations = policy_of(text(table, prefix, "activations"), where + "activations");
    for (const auto& [key, tier] : {std::pair("parameters", &unit.parameters),
                                    {"gradients", &unit.gradients},
                                    {"states", &unit.states},
                                    {"update_on", &unit.update_on}})
      if (table.contains(key)) *tier = tier_of(text(table, prefix, key), where + key);
    if (table.contains("offload_to")) {
      unit.offload_to = tier_of(text(table, prefix, "offload_to"), where + "offload_to");
      if (unit.offload_to == Tier::device)
        fail(prefix + "offload_to", "found 'device'",
             "what leaves the device rests on \"host\" or \"nvme\"; activations = \"keep\" leaves it there");
    }
    if (table.contains("sites")) read_sites(table, prefix, where, unit);
    if (table.contains("strategy")) unit.strategy = strategy_of(text(table, prefix, "strategy"), where + "strategy");
    if (table.contains("reduce")) {
      const std::string reduce = text(table, prefix, "reduce");
      if (reduce != "each" && reduce != "once")
        fail(prefix + "reduce", "found '" + reduce + "'", "expected \"each\" (micro-batch) or \"once\" (a step)");
      unit.reduce_once = reduce == "once";
    }
    if (!table.contains("reshard_after_forward")) return;
    const auto reshard = table["reshard_after_forward"].value_exact<bool>();
    if (!reshard)
      fail(prefix + "reshard_after_forward", "not true or false", "true is full_shard, false shard_grad_op");
    const Strategy meant = *reshard ? Strategy::full_shard : Strategy::shard_grad_op;
    if (table.contains("strategy") && unit.strategy != meant)
      fail(prefix + "reshard_after_forward", "contradicts strategy = \"" + std::string(name(unit.strategy)) + "\"",
           "keep one of the two keys");
    unit.strategy = meant;
  }

  void read_sites(const toml::table& table, const std::string& prefix, const std::string& where, UnitPlan& unit) const {
    const toml::table* sites = table["sites"].as_table();
    if (!sites) fail(prefix + "sites", "not a table", "write sites = { self_attn = \"keep\" }");
    unit.sites.clear();
    for (const auto& [key, value] : *sites) {
      const std::string site(key.str()), at = prefix + "sites." + site;
      const auto word = value.value_exact<std::string>();
      if (const toml::table* inner = value.as_table(); inner && !inner->empty())
        fail(at, "a table",
             "a name with a dot is written in quotes: { \"" + site + "." + std::string(inner->begin()->first.str()) +
                 "\" = \"keep\" }");
      if (!word) fail(at, "not a string", "write \"keep\", \"offload\", \"int8\" ...");
      const Policy policy = plan::policy_of(*word, where + "sites." + site);
      if (policy == Policy::recompute && unit.activations != Policy::recompute)
        fail(at, "recompute is for a whole unit", "set activations = \"recompute\" and name the sites to keep");
      if (policy == Policy::rebuild)
        fail(at, "rebuild is for a whole unit",
             "set activations = \"rebuild\"; sites name what is done with what it keeps");
      unit.sites[site] = policy;
    }
  }

  const std::string& file_;
  const std::vector<std::string>& names_;
};

}  // namespace

std::string Plan::to_toml(const std::vector<std::string>& unit_names) const {
  check_internal(unit_names.size() == units.size(), "plan.write",
                 std::to_string(units.size()) + " units, but " + std::to_string(unit_names.size()) + " names");
  std::ostringstream out;
  out << "# " << summary() << "\n"
      << "global_batch = " << global_batch << "\n"
      << "micro_batch = " << micro_batch << "\n"
      << "prefetch = " << prefetch << "\n"
      << "update = \"" << name(update) << "\"\n"
      << "masters = \"" << name(states.masters) << "\"\n"
      << "moments = \"" << name(states.moments) << "\"\n"
      << "param_dtype = \"" << name(gathered()) << "\"\n"
      << "compute_dtype = \"" << name(compute) << "\"\n"
      << "reduce_dtype = \"" << name(reduce) << "\"\n";
  if (rounds_gradients()) out << "grad_dtype = \"" << name(grad) << "\"\n";
  if (update_threads > 0) out << "update_threads = " << update_threads << "\n";
  if (experts > 1) out << "experts = " << experts << "\nidle = \"" << name(idle) << "\"\n";
  out << "\n[mesh]\n";
  for (Axis axis : kAllAxes)
    if (mesh[axis] > 1 || axis == Axis::dp_shard) out << axis_name(axis) << " = " << mesh[axis] << "\n";
  if (mesh[Axis::pp] > 1) {
    out << "\n[pipeline]\nschedule = \"" << name(pipeline.schedule) << "\"\nchunks = " << pipeline.chunks
        << "\nfirst = [";
    for (int stage = 0; stage < stages(); ++stage)
      out << (stage > 0 ? ", " : "") << nlohmann::json(unit_names[first_unit(stage)]).dump();
    out << "]\n";
  }
  for (size_t first = 0; first < units.size();) {
    const Numbered start = numbered(unit_names[first]);
    size_t last = first;
    while (start.index >= 0 && last + 1 < units.size() && units[last + 1] == units[first] &&
           unit_names[last + 1] == start.stem + std::to_string(start.index + static_cast<int64_t>(last + 1 - first)))
      ++last;
    std::string label = unit_names[first];
    if (last > first) label += "-" + std::to_string(numbered(unit_names[last]).index);
    out << "\n[[units]]\nname = " << nlohmann::json(label).dump()  // a JSON string is a TOML string
        << "\nactivations = \"" << name(units[first].activations) << "\"\nstrategy = \"" << name(units[first].strategy)
        << "\"\n";
    for (const auto& [key, tier] : {std::pair("parameters", units[first].parameters),
                                    {"gradients", units[first].gradients},
                                    {"states", units[first].states},
                                    {"update_on", units[first].update_on}})
      if (tier != Tier::device) out << key << " = \"" << name(tier) << "\"\n";
    if (units[first].offload_to != Tier::host) out << "offload_to = \"" << name(units[first].offload_to) << "\"\n";
    if (units[first].reduce_once) out << "reduce = \"once\"\n";
    if (!units[first].sites.empty()) {
      std::string sites;
      for (const auto& [site, policy] : units[first].sites)
        sites += (sites.empty() ? "" : ", ") + nlohmann::json(site).dump() + " = \"" + std::string(name(policy)) + "\"";
      out << "sites = { " << sites << " }\n";
    }
    first = last + 1;
  }
  return out.str();
}

Plan Plan::from_toml(const std::string& text, const std::string& file, const std::vector<std::string>& unit_names) {
  return Reader(file, unit_names).read(text);
}

}  // namespace tessera::plan
