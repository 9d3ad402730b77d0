#include "tessera/plan/plan_hash.h"

#include <iterator>
#include <vector>

#include "tessera/base/random.h"
#include "tessera/base/sha256.h"
#include "tessera/plan/plan_file.h"

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

}  // namespace tessera::plan
