#include "tessera/checkpoint/experts_file.h"

#include <nlohmann/json.hpp>

#include "tessera/base/json.h"

namespace tessera::checkpoint {

namespace {

struct Field {
  const char* name;
  std::optional<double> ExpertsFacts::*value;
};
constexpr Field kFields[] = {{"boundary", &ExpertsFacts::boundary}, {"flow_shift", &ExpertsFacts::flow_shift}};

}  // namespace

ExpertsFacts read_experts_file(const Path& file) {
  const auto json = json_or_nothing(read_text(file));
  ExpertsFacts facts;
  if (!json.is_object()) return facts;
  for (const Field& field : kFields)
    if (const auto found = json.find(field.name); found != json.end() && found->is_number())
      facts.*field.value = found->get<double>();
  return facts;
}

void write_experts_file(const Path& file, const ExpertsFacts& facts) {
  auto json = nlohmann::ordered_json::object();
  for (const Field& field : kFields)
    if (facts.*field.value) json[field.name] = *(facts.*field.value);
  write_text(file, json.dump(2) + "\n");
}

}  // namespace tessera::checkpoint
