#include "tessera/train/fault_injection.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "tessera/base/check.h"

namespace tessera::train {

namespace {

template <class Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

InjectedFault InjectedFault::parse(const std::string& text) {
  InjectedFault fault;
  bool acts = false;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals), value = equals == item.npos ? "" : item.substr(equals + 1);
    bool known = !value.empty();
    if (key == "rank")
      known = read_number(value, fault.rank);
    else if (key == "attempt")
      known = read_number(value, fault.attempt);
    else if (key == "step")
      known = read_number(value, fault.step.emplace());
    else if (key == "op")
      fault.op = value;
    else if (key == "unit")
      fault.unit = value;
    else if (key == "lane")
      fault.lane = value;
    else if (key == "do") {
      acts = true;
      if (value == "kill" || value == "stop" || value == "hang")
        fault.act = value;
      else
        known = read_number(value, fault.seconds);
    } else {
      known = false;
    }
    if (!known)
      throw UserError(Exit::usage, "train.drill", "TESSERA_DRILL: cannot read '" + item + "'",
                      "for example rank=1,step=3,op=reduce,do=stop (or kill, hang, or seconds)");
  }
  if (!acts) throw UserError(Exit::usage, "train.drill", "TESSERA_DRILL does not say what to do", "add do=kill");
  return fault;
}

void InjectedFault::at(int64_t now, const plan::Instruction& instruction) const {
  if ((step && *step != now) || name(instruction.op) != op) return;
  if (!unit.empty() && instruction.name != unit) return;
  if (!lane.empty() && name(instruction.lane) != lane) return;
  if (act == "kill") kill(getpid(), SIGKILL);
  if (act == "stop") kill(getpid(), SIGSTOP);
  while (act == "hang") pause();
  // A signal to the process may come to another thread first: this one goes no further meanwhile.
  std::this_thread::sleep_for(std::chrono::duration<double>(act.empty() ? seconds : 0.2));
}

std::optional<InjectedFault> injected_fault(int rank, int attempt) {
  const char* text = std::getenv("TESSERA_DRILL");
  if (!text) return std::nullopt;
  const InjectedFault fault = InjectedFault::parse(text);
  if (fault.rank != rank || fault.attempt != attempt) return std::nullopt;
  return fault;
}

}  // namespace tessera::train
