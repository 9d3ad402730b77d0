#include "tessera/device/failure.h"

#include <chrono>
#include <mutex>

#include "tessera/device/backend.h"
#include "tessera/device/driver_watch.h"
#include "tessera/device/streams.h"

namespace tessera::device {

namespace {

struct Accounts {
  std::mutex mutex;
  std::list<std::function<std::string()>> of_living;
  std::string last_words;  // of those that went
};
Accounts& accounts() {
  static auto* once = new Accounts;  // owners that are statics may go after it would
  return *once;
}

std::string joined(std::string words, const std::string& more) {
  return words + (words.empty() || more.empty() ? "" : "; ") + more;
}

}  // namespace

bool has_failed() { return used() && !used()->fault().empty(); }

Failure::Failure(const std::string& account)
    : UserError(Exit::rank_lost, "device", account,
                "start again: a training run resumes from its newest checkpoint; if it recurs at the same place, "
                "TESSERA_SERIAL=1 names the operator"),
      account_(account) {}

std::optional<Failure> failure(const std::string& where) {
  if (!has_failed()) return std::nullopt;
  constexpr std::chrono::milliseconds kUntilTold(500);
  std::string account = "the GPU failed: " + used()->fault();
  if (const std::string xid = driver() ? driver()->take_fault(kUntilTold) : ""; !xid.empty()) account += ", " + xid;
  if (const std::string name = last_operator(); !name.empty()) account += ", in " + name;
  if (!where.empty()) return Failure(joined(account, where));
  const std::string at = under_way();
  return Failure(joined(account, !at.empty() ? "on the GPU " + at : labelled()));
}

UnderWay::UnderWay(std::function<std::string()> text) {
  const std::lock_guard lock(accounts().mutex);
  text_ = accounts().of_living.insert(accounts().of_living.end(), std::move(text));
}

UnderWay::~UnderWay() {
  const std::lock_guard lock(accounts().mutex);
  if (has_failed()) accounts().last_words = joined(accounts().last_words, (*text_)());
  accounts().of_living.erase(text_);
}

std::string under_way() {
  const std::lock_guard lock(accounts().mutex);
  std::string words = accounts().last_words;
  for (const auto& text : accounts().of_living) words = joined(words, text());
  return words;
}

}  // namespace tessera::device
