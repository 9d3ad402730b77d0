// The keys of a [[units]] table.
#include <nlohmann/json.hpp>

#include "tessera/plan/plan_rows.h"
#include "tessera/plan/row_kinds.h"

namespace tessera::plan {

namespace {

void read_offload_to(UnitPlan& unit, const TomlValue& value) {
  unit.offload_to = tier_of(value.text(), value.where());
  if (unit.offload_to == Tier::device)
    value.fail("found 'device'",
               "expected \"host\" or \"nvme\"; to keep activations on the device set activations = \"keep\"");
}

void read_reduce(UnitPlan& unit, const TomlValue& value) {
  const std::string reduce = value.text();
  if (reduce != "each" && reduce != "once")
    value.fail("found '" + reduce + "'", "expected \"each\" (micro-batch) or \"once\" (a step)");
  unit.reduce_once = reduce == "once";
}

void read_reshard(UnitPlan& unit, const TomlValue& value) {
  const auto reshard = value.node().value_exact<bool>();
  if (!reshard) value.fail("not true or false", "true is full_shard, false shard_grad_op");
  const Strategy meant = *reshard ? Strategy::full_shard : Strategy::shard_grad_op;
  if (value.beside("strategy") && unit.strategy != meant)
    value.fail("contradicts strategy = " + in_quotes(name(unit.strategy)), "keep one of the two keys");
  unit.strategy = meant;
}

void read_site(UnitPlan& unit, const std::string& site, const TomlValue& value) {
  if (const toml::table* inner = value.node().as_table(); inner && !inner->empty())
    value.fail("a table", "a name with a dot is written in quotes: { \"" + site + "." +
                              std::string(inner->begin()->first.str()) + "\" = \"keep\" }");
  const auto word = value.node().value_exact<std::string>();
  if (!word) value.fail("not a string", "write \"keep\", \"offload\", \"int8\" ...");
  const Policy policy = policy_of(*word, value.where());
  if (policy == Policy::recompute && !unit.recomputes())
    value.fail("recompute is for a whole unit", "set activations = \"recompute\" and name the sites to keep");
  if (policy == Policy::rebuild)
    value.fail("rebuild is for a whole unit",
               "set activations = \"rebuild\"; sites name what is done with what it keeps");
  unit.sites[site] = policy;
}

void read_sites(UnitPlan& unit, const TomlValue& value) {
  const toml::table& sites = value.table("write sites = { self_attn = \"keep\" }");
  unit.sites.clear();
  for (const auto& [key, node] : sites)
    read_site(unit, std::string(key.str()), {sites, key.str(), value.name() + ".", value.file()});
}

std::string sites_text(const UnitPlan& unit) {
  std::string text;
  for (const auto& [site, policy] : unit.sites)  // a JSON string is a TOML string
    text += (text.empty() ? "" : ", ") + nlohmann::json(site).dump() + " = " + in_quotes(name(policy));
  return "{ " + text + " }";
}

constexpr Row<UnitPlan> kUnitRows[] = {
    enum_row<UnitPlan, &UnitPlan::activations>("activations", always),
    enum_row<UnitPlan, &UnitPlan::strategy>("strategy", always),
    enum_row<UnitPlan, &UnitPlan::parameters>("parameters"),
    enum_row<UnitPlan, &UnitPlan::gradients>("gradients"),
    enum_row<UnitPlan, &UnitPlan::states>("states"),
    enum_row<UnitPlan, &UnitPlan::update_on>("update_on"),
    {"offload_to", read_offload_to, [](const UnitPlan& unit) { return in_quotes(name(unit.offload_to)); },
     changed<UnitPlan, &UnitPlan::offload_to>},
    {"reduce", read_reduce, [](const UnitPlan& unit) { return in_quotes(unit.reduce_once ? "once" : "each"); },
     changed<UnitPlan, &UnitPlan::reduce_once>},
    {"sites", read_sites, sites_text, changed<UnitPlan, &UnitPlan::sites>},
    {"reshard_after_forward", read_reshard,
     [](const UnitPlan& unit) { return std::string(unit.strategy == Strategy::full_shard ? "true" : "false"); }, never},
};

}  // namespace

std::span<const Row<UnitPlan>> unit_rows() { return kUnitRows; }

}  // namespace tessera::plan
