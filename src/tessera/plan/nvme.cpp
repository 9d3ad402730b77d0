#include "tessera/plan/nvme.h"

#include <algorithm>
#include <string>

#include "tessera/base/check.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

bool uses_nvme(const Plan& plan) {
  return (plan.experts > 1 && plan.idle == Tier::nvme) ||
         std::any_of(plan.units.begin(), plan.units.end(), [](const UnitPlan& unit) {
           return unit.parameters == Tier::nvme || unit.gradients == Tier::nvme || unit.states == Tier::nvme ||
                  (unit.offloads() && unit.offload_to == Tier::nvme);
         });
}

void require_nvme_folder(std::string_view folder, std::string_view who) {
  if (folder.empty())
    throw UserError(Exit::usage, "plan.nvme", std::string(who) + ", and plan.nvme names no folder",
                    "set plan.nvme to a folder on the disk to use");
}

}  // namespace tessera::plan
