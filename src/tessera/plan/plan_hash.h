#pragma once
// A plan's name in metrics, checkpoints and predictions: what was priced and what ran have the same, or are not the same.
//
//   plan_hash(planned.plan());                           // "3f2ab84c09d1e775"
#include <string>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// 16 hex digits of the SHA-256 of the plan's text (Plan::to_toml) with units by number. Plans of the same hash make the
/// same schedules of the same model.
std::string plan_hash(const Plan& plan);

}  // namespace tessera::plan
