#include "tessera/plan/plan_file.h"

#include <toml++/toml.h>
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tessera/base/check.h"
#include "tessera/base/hash.h"
#include "tessera/base/random.h"
#include "tessera/base/toml_text.h"
#include "tessera/plan/optimizers.h"
#include "tessera/plan/plan_rows.h"
#include "tessera/plan/toml_value.h"
#include "tessera/plan/unit_keys.h"

namespace tessera::plan {

std::string plan_hash(const Plan& plan) {
  std::vector<std::string> numbers;
  for (size_t u = 0; u < plan.units.size(); ++u) numbers.push_back(std::to_string(u));
  const Digest digest = sha256(to_toml(plan, numbers));
  std::string text;
  for (size_t i = 0; i < 8; ++i)
    for (const int half : {digest[i] >> 4, digest[i] & 15}) text += "0123456789abcdef"[half];
  return text;
}

namespace {

uint64_t hash_numbers(const std::vector<int64_t>& numbers) {
  return hash_text({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)});
}

}  // namespace

InstructionsHash instructions_hash(const Schedule& schedule) {
  std::vector<int64_t> work = {schedule.micros}, exact = {schedule.micros, schedule.arena, schedule.host_arena};
  for (const Instruction& in : schedule.list) {
    const int64_t what[] = {static_cast<int64_t>(in.op),
                            static_cast<int64_t>(in.lane),
                            static_cast<int64_t>(in.part),
                            static_cast<int64_t>(in.unit),
                            static_cast<int64_t>(in.micro),
                            static_cast<int64_t>(in.add),
                            in.frozen};
    const int64_t where[] = {in.bytes, in.slot, in.grad, in.scratch, in.target, in.host};
    exact.insert(exact.end(), std::begin(what), std::end(what));
    exact.insert(exact.end(), std::begin(where), std::end(where));
    exact.push_back(static_cast<int64_t>(in.wait.size()));
    exact.insert(exact.end(), in.wait.begin(), in.wait.end());
    if (in.part == Part::states) continue;
    work.insert(work.end(), std::begin(what), std::end(what));
    work.push_back(carries_tokens(in.op) ? 0 : in.bytes);
  }
  return {hash_numbers(work), hash_numbers(exact)};
}

namespace {

std::vector<std::string> keys_of(auto rows, std::vector<std::string> keys) {
  for (const auto& row : rows) keys.emplace_back(row.key);
  return keys;
}

class Reader {
 public:
  Reader(const std::string& file, const std::vector<std::string>& names) : file_(file), names_(names) {}

  Plan read(const std::string& text) const {
    toml::table root;
    try {
      root = parse_toml(text, file_);
    } catch (const toml::parse_error& error) {
      throw UserError(Exit::usage, "plan.read",
                      file_ + ":" + std::to_string(error.source().begin.line) + ": " + std::string(error.description()),
                      "correct the line, or write a plan with 'tessera plan' and start from it");
    }
    check_known_keys(root, "", file_, keys_of(plan_rows(), {"mesh", "pipeline", "units"}));
    Plan plan;
    plan.units.resize(names_.size());
    read_rows(plan_rows(), root, "", plan);
    if (!root.contains("param_dtype")) {
      plan.param_dtype = plan.compute;
      plan.param_dtype = plan.gathered();
    }
    if (const TomlValue mesh = value(root, "mesh")) read_mesh(mesh, plan.mesh);
    plan.check_types("plan.read " + file_ + ": ");
    if (const TomlValue pipeline = value(root, "pipeline")) read_pipeline(pipeline, plan);
    if (const TomlValue units = value(root, "units")) read_units(units, plan);
    plan.check_updates("plan.read " + file_ + ": ", names_);
    plan.check_experts("plan.read " + file_ + ": units", names_);
    return plan;
  }

 private:
  TomlValue value(const toml::table& table, std::string_view key, const std::string& prefix = "") const {
    return {table, key, prefix, file_};
  }

  template <class S>
  void read_rows(std::span<const Row<S>> rows, const toml::table& table, const std::string& prefix, S& to) const {
    for (const Row<S>& row : rows)
      if (const TomlValue found = value(table, row.key, prefix)) row.read(to, found);
  }

  void read_mesh(const TomlValue& mesh, Mesh& to) const {
    const toml::table& table = mesh.table("write [mesh] and below it, for example, dp_shard = 2");
    std::vector<std::string> axes;
    for (Axis axis : kAllAxes) axes.emplace_back(axis_name(axis));
    check_known_keys(table, "mesh.", file_, axes);
    for (Axis axis : kAllAxes)
      if (const TomlValue size = value(table, axis_name(axis), "mesh.")) to[axis] = static_cast<int>(size.integer(1));
  }

  void read_pipeline(const TomlValue& given, Plan& plan) const {
    const toml::table& table = given.table("write [pipeline] and below it schedule = \"1f1b\"");
    check_known_keys(table, "pipeline.", file_, {"schedule", "chunks", "first"});
    Pipeline& pipeline = plan.pipeline;
    if (const TomlValue schedule = value(table, "schedule", "pipeline."))
      pipeline.schedule = pipeline_schedule_of(schedule.text(), schedule.where());
    const TomlValue chunks = value(table, "chunks", "pipeline."), first = value(table, "first", "pipeline.");
    if (chunks) pipeline.chunks = static_cast<int>(chunks.integer(1));
    if (pipeline.chunks > 1 && pipeline.schedule != PipelineSchedule::interleaved)
      chunks.fail("only the interleaved schedule has several", "write schedule = \"interleaved\"");
    const int stages = plan.stages();
    if (stages > static_cast<int>(names_.size()))
      given.fail(std::to_string(stages) + " stages for " + std::to_string(names_.size()) + " units",
                 "every stage needs one: use fewer ranks on pp, or chunks");
    if (first) read_first(first, stages, pipeline);
  }

  void read_first(const TomlValue& first, int stages, Pipeline& pipeline) const {
    const toml::array* list = first.node().as_array();
    if (!list || static_cast<int>(list->size()) != stages)
      first.fail("not a list of " + std::to_string(stages) + " units",
                 "name the first unit of each stage, pp x chunks of them");
    for (const toml::node& item : *list) {
      const std::string unit = item.value_or(std::string());
      const auto found = std::find(names_.begin(), names_.end(), unit);
      const int index = static_cast<int>(found - names_.begin());
      if (found == names_.end())
        first.fail("no unit of the model is named '" + unit + "'",
                   "did you mean '" + nearest(unit, names_).front() + "'?");
      if (pipeline.first.empty() ? index != 0 : index <= pipeline.first.back())
        first.fail("'" + unit + "' is out of order",
                   "begin with '" + names_.front() + "' and go on in the order of the model");
      pipeline.first.push_back(index);
    }
  }

  /// Tables of one expert, which have its number, are read after those of all.
  void read_units(const TomlValue& units, Plan& plan) const {
    const toml::array* list = units.node().as_array();
    if (!list) units.fail("not a list of tables", "write [[units]] and below it name = \"blocks.0-3\"");
    for (const bool of_one : {false, true})
      for (size_t n = 0; n < list->size(); ++n) {
        const std::string name = "units[" + std::to_string(n) + "]";
        const toml::table* table = (*list)[n].as_table();
        if (!table)
          throw UserError(Exit::usage, "plan.read", file_ + ": " + name + ": not a table",
                          "write [[units]] and below it its keys");
        const TomlValue expert = value(*table, "expert", name + ".");
        if (static_cast<bool>(expert) != of_one) continue;
        std::vector<UnitPlan>& to = of_one ? units_of(expert, plan) : plan.units;
        read_unit(*table, name + ".", to);
      }
    std::erase_if(plan.of_expert, [&](const auto& own) { return own.second == plan.units; });
  }

  static std::vector<UnitPlan>& units_of(const TomlValue& expert, Plan& plan) {
    const int64_t number = expert.integer(1);
    if (number >= plan.experts)
      expert.fail("found " + std::to_string(number) + ", the plan has experts = " + std::to_string(plan.experts),
                  "experts count from 0; tables without the key are of all");
    return plan.of_expert.emplace(static_cast<int>(number), plan.units).first->second;
  }

  void read_unit(const toml::table& table, const std::string& prefix, std::vector<UnitPlan>& units) const {
    check_known_keys(table, prefix, file_, keys_of(unit_rows(), {"name", "expert"}));
    const TomlValue name = value(table, "name", prefix);
    if (!name) name.fail("missing", "set name to the units that the table is for, for example \"*\"");
    const std::string pattern = name.text();
    const auto chosen = matching(pattern, names_);
    if (chosen.empty())
      name.fail("no unit of the model is named '" + pattern + "'",
                names_.empty() ? "the model has no units" : "did you mean '" + nearest(pattern, names_).front() + "'?");
    for (size_t u : chosen) read_rows(unit_rows(), table, prefix, units[u]);
  }

  const std::string& file_;
  const std::vector<std::string>& names_;
};

template <class S>
void write_rows(std::ostream& out, std::span<const Row<S>> rows, const S& from) {
  for (const Row<S>& row : rows)
    if (row.written(from)) out << row.key << " = " << row.text(from) << "\n";
}

/// One table for each run of units with equal settings. Of an `expert`, those units that differ from `all`, with the keys
/// that make the difference too.
void write_units(std::ostream& out, const std::vector<UnitPlan>& units, const std::vector<std::string>& unit_names,
                 const std::vector<UnitPlan>& all, int expert) {
  for (size_t first = 0; first < units.size();) {
    const Numbered start = numbered(unit_names[first]);
    size_t last = first;
    while (start.index >= 0 && last + 1 < units.size() && units[last + 1] == units[first] &&
           all[last + 1] == all[first] &&
           unit_names[last + 1] == start.stem + std::to_string(start.index + static_cast<int64_t>(last + 1 - first)))
      ++last;
    const UnitPlan &unit = units[first], &of_all = all[first];
    std::string label = unit_names[first];
    if (last > first) label += "-" + std::to_string(numbered(unit_names[last]).index);
    first = last + 1;
    if (expert > 0 && unit == of_all) continue;
    out << "\n[[units]]\nname = " << nlohmann::json(label).dump() << "\n";  // a JSON string is a TOML string
    if (expert > 0) out << "expert = " << expert << "\n";
    for (const Row<UnitPlan>& row : unit_rows())
      if (row.written(unit) || (row.written(of_all) && row.text(unit) != row.text(of_all)))
        out << row.key << " = " << row.text(unit) << "\n";
  }
}

}  // namespace

std::string to_toml(const Plan& plan, const std::vector<std::string>& unit_names) {
  check_internal(unit_names.size() == plan.units.size(), "plan.write",
                 std::to_string(plan.units.size()) + " units, but " + std::to_string(unit_names.size()) + " names");
  std::ostringstream out;
  out << "# " << plan.summary() << "\n";
  write_rows(out, plan_rows(), plan);
  out << "\n[mesh]\n";
  for (Axis axis : kAllAxes)
    if (plan.mesh[axis] > 1 || axis == Axis::dp_shard) out << axis_name(axis) << " = " << plan.mesh[axis] << "\n";
  if (plan.mesh[Axis::pp] > 1) {
    out << "\n[pipeline]\nschedule = \"" << name(plan.pipeline.schedule) << "\"\nchunks = " << plan.pipeline.chunks
        << "\nfirst = [";
    for (int stage = 0; stage < plan.stages(); ++stage)
      out << (stage > 0 ? ", " : "") << nlohmann::json(unit_names[plan.first_unit(stage)]).dump();
    out << "]\n";
  }
  write_units(out, plan.units, unit_names, plan.units, 0);
  for (const auto& [expert, own] : plan.of_expert) write_units(out, own, unit_names, plan.units, expert);
  return out.str();
}

Plan plan_of_toml(const std::string& text, const std::string& file, const std::vector<std::string>& unit_names) {
  return Reader(file, unit_names).read(text);
}

namespace {

/// "blocks.2", "blocks.2 and blocks.3", "blocks.2, blocks.3 and 5 more".
std::string listed(const std::vector<size_t>& units, const std::vector<std::string>& names) {
  constexpr size_t kNamed = 2;
  std::string text = names[units[0]];
  if (units.size() == kNamed) return text + " and " + names[units[1]];
  if (units.size() > kNamed) text += ", " + names[units[1]] + " and " + std::to_string(units.size() - kNamed) + " more";
  return text;
}

void warn_about_units(const toml::array& tables, const std::vector<std::string>& names,
                      std::vector<std::string>& notes) {
  std::vector<int> apart(names.size()), all(names.size());
  for (const toml::node& node : tables) {
    const std::string pattern = (*node.as_table())["name"].value_or(std::string());
    for (const size_t u : matching(pattern, names)) ++(pattern.ends_with('*') ? all : apart)[u];
  }
  std::vector<size_t> nowhere, twice;
  for (size_t u = 0; u < names.size(); ++u) {
    if (apart[u] + all[u] == 0) nowhere.push_back(u);
    if (apart[u] > 1) twice.push_back(u);
  }
  if (!nowhere.empty() && nowhere.size() < names.size())
    notes.push_back("no [[units]] table names " + listed(nowhere, names) +
                    ": full_shard, keeping all on the device (name = \"*\" in the first table covers all units)");
  if (!twice.empty())
    notes.push_back("two [[units]] tables name " + listed(twice, names) + ": the later table applies");
}

}  // namespace

std::vector<std::string> plan_warnings(const std::string& text, const Plan& plan,
                                       const std::vector<std::string>& names) {
  std::vector<std::string> notes;
  const toml::table root = parse_toml(text);
  if (const toml::array* tables = root["units"].as_array()) warn_about_units(*tables, names, notes);
  const Plan untouched;
  for (const Row<Plan>& row : plan_rows()) {
    if (!row.idle || row.text(plan) == row.text(untouched)) continue;
    if (const std::string why(row.idle(plan)); !why.empty())
      notes.push_back(std::string(row.key) + " = " + row.text(plan) + " has no effect: " + why);
  }
  if (root.contains("pipeline") && plan.mesh[Axis::pp] == 1)
    notes.push_back("[pipeline] has no effect: the mesh has no pp");
  std::vector<size_t> nothing_sent;
  bool sent = false;  // by any unit: then the key covers all units, those without offload included
  for (size_t u = 0; u < plan.units.size(); ++u) {
    if (plan.units[u].offload_to != Tier::nvme) continue;
    sent |= plan.units[u].offloads();
    nothing_sent.push_back(u);
  }
  if (!nothing_sent.empty() && !sent)
    notes.push_back("offload_to = \"nvme\" of " + listed(nothing_sent, names) +
                    " has no effect: no activations are offloaded there (activations = \"offload\" does that)");
  return notes;
}

}  // namespace tessera::plan
