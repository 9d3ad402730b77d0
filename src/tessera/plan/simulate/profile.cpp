#include "tessera/plan/simulate/profile.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/target.h"
#include "tessera/base/text.h"
#include "tessera/base/toml_text.h"
#include "tessera/plan/schedule.h"

namespace tessera::plan {

double TimeGrid::at(const std::string& kind, const std::vector<double>& sizes) const {
  check_internal(sizes.size() == axes.size() && seconds.contains(kind), "plan.profile", "no times of " + kind);
  const std::vector<double>& times = seconds.at(kind);
  std::vector<size_t> below(axes.size());  // index of the point below
  std::vector<double> part(axes.size());   // of the way to the next point, on a logarithmic scale
  double beyond = 1;
  for (size_t a = 0; a < axes.size(); ++a) {
    const std::vector<double>& axis = axes[a];
    const double size = std::clamp(sizes[a], axis.front(), axis.back());
    beyond *= sizes[a] / size;
    if (axis.size() == 1) continue;
    const auto next = std::upper_bound(axis.begin() + 1, axis.end() - 1, size);
    below[a] = static_cast<size_t>(next - axis.begin()) - 1;
    part[a] = std::log(size / axis[below[a]]) / std::log(*next / axis[below[a]]);
  }
  double sum = 0;
  for (size_t corner = 0; corner < size_t{1} << axes.size(); ++corner) {
    double weight = 1;
    size_t index = 0;
    for (size_t a = 0; a < axes.size(); ++a) {
      const bool upper = corner >> a & 1;
      weight *= upper ? part[a] : 1 - part[a];
      index = index * axes[a].size() + std::min(below[a] + upper, axes[a].size() - 1);
    }
    if (weight != 0) sum += weight * std::log(times[index]);
  }
  return beyond * std::exp(sum);
}

namespace {

/// Calls a function for every number of a profile with its key "table.key". Reading, writing and checking share it.
template <class P, class Visit>
void each_number(P& p, const Visit& visit) {
  visit("node.host_memory", p.host_memory);
  visit("node.host_bandwidth", p.host_bandwidth);
  visit("node.host_link", p.host_link);
  visit("node.host_link_back", p.host_link_back);
  visit("node.both_ways", p.both_ways);
  visit("node.disk", p.disk);
  visit("node.disk_read", p.disk_read);
  visit("node.disk_write", p.disk_write);
  visit("node.copy_steal", p.copy_steal);
  visit("node.copy_beside", p.copy_beside);
  visit("node.wake", p.wake);
  visit("device.memory", p.device.memory);
  visit("device.bandwidth", p.device.bandwidth.top);
  visit("device.bandwidth_half", p.device.bandwidth.half);
  visit("device.norm", p.device.norm.top);
  visit("device.norm_half", p.device.norm.half);
  visit("device.stream", p.device.stream.top);
  visit("device.stream_half", p.device.stream.half);
  visit("device.dispatch", p.device.dispatch);
  visit("device.cached", p.device.cached);
  visit("device.uncached", p.device.uncached);
  visit("device.kept_write", p.device.kept_write);
  visit("device.kept_read", p.device.kept_read);
  visit("link.gather", p.link.gather);
  visit("link.reduce", p.link.reduce);
  visit("link.exchange", p.link.exchange);
  visit("link.send", p.link.send);
  visit("link.latency", p.link.latency);
  visit("link.steal", p.steal);
  visit("link.beside", p.beside);
  visit("nic.gather", p.nic.gather);
  visit("nic.reduce", p.nic.reduce);
  visit("nic.exchange", p.nic.exchange);
  visit("nic.send", p.nic.send);
  visit("nic.latency", p.nic.latency);
}

template <class P, class Visit>
void each_table(P& p, const Visit& visit) {
  visit("gemm", p.device.gemm);
  visit("attention", p.device.attention);
  visit("attention_backward", p.device.attention_backward);
}

/// A profile's grids: their table, the names of their axes, the kinds of call.
template <class P, class Visit>
void each_grid(P& p, const Visit& visit) {
  const std::vector<std::string> sizes = {"rows", "in", "out"},
                                 calls = {"forward", "input_gradient", "weight_gradient"};
  visit("products", p.device.products, sizes, calls);
  visit("uncached_products", p.device.uncached_products, sizes, calls);
  visit("attentions", p.device.attentions, std::vector<std::string>{"queries", "keys"},
        std::vector<std::string>{"forward", "backward"});
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  const std::string written = text;
  return written.find_first_of(".e") == std::string::npos ? written + ".0" : written;
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + number(value);
  return "[" + text + "]";
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (int op = 0; op <= static_cast<int>(Op::gather_outer); ++op) names.emplace_back(plan::name(static_cast<Op>(op)));
  return names;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : file_(file) {
    try {
      root_ = parse_toml(text, file);
    } catch (const toml::parse_error& error) {
      fail("line " + std::to_string(error.source().begin.line), std::string(error.description()));
    }
  }

  Profile read() {
    Profile p;
    p.name = root_["name"].value_or(std::filesystem::path(file_).stem().string());
    p.source = root_["source"].value_or(std::string());
    p.devices = static_cast<int>(root_["devices"].value_or(int64_t{0}));
    p.target = root_["target"].value_or(std::string());
    p.machine = root_["machine"].value_or(std::string());
    if (!p.target.empty()) target(p.target, "plan.profile: " + file_);
    known_.insert(known_.end(), {"name", "source", "machine", "target", "devices"});
    each_number(p, [&](const std::string& key, auto& value) { read_number(key, value); });
    each_table(p, [&](const std::string& table, RateByDtype& rates) { read_rates(table, rates); });
    each_grid(p, [&](const std::string& table, std::map<std::string, TimeGrid>& grids, const auto& axes,
                     const auto& kinds) { read_grids(table, grids, axes, kinds); });
    read_operators(p.device.operators);
    read_starts(p.starts);
    read_waits(p.waits);
    read_algorithms(p.algorithms);
    refuse_unknown(root_, "");
    for (const auto& [key, share] : {std::pair("link.beside", p.beside), {"node.both_ways", p.both_ways}})
      if (share <= 0 || share > 1) fail(key, "expected a share, above 0 and at most 1");
    if (p.device.gemm.empty()) fail("gemm", "no rate of any dtype, for example fp32 = [100e9, 1e6]");
    if (p.device.stream.top <= 0) fail("device.stream", "expected bytes/s above zero");
    if (p.device.bandwidth.top <= 0) p.device.bandwidth = p.device.stream;
    return p;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw UserError(Exit::input, "plan.profile", file_ + ": " + key + ": " + what,
                    "tessera probe --show cpu prints a whole profile to compare with");
  }

  template <class T>
  void read_number(const std::string& key, T& value) {
    known_.push_back(key);
    const auto node = root_.at_path(key);
    if (!node) return;
    const auto found = node.template value<double>();
    if (!found || !(*found >= 0)) fail(key, "expected a number, zero or more");
    value = static_cast<T>(*found);
  }

  void read_rates(const std::string& name, RateByDtype& rates) {
    const toml::table* table = root_[name].as_table();
    if (!table) return;
    for (const auto& [key, node] : *table) {
      const std::string place = name + "." + std::string(key.str());
      known_.push_back(place);
      const toml::array* pair = node.as_array();
      const auto item = [&](size_t i) { return pair && pair->size() == 2 ? (*pair)[i].value<double>() : std::nullopt; };
      const auto top = item(0), half = item(1);
      if (!top || !half || *top <= 0 || *half < 0)
        fail(place, "expected [FLOP/s of large work, FLOPs done at half of it]");
      rates[std::string(key.str())] = {*top, *half};
    }
  }

  void read_grids(const std::string& name, std::map<std::string, TimeGrid>& grids, const std::vector<std::string>& axes,
                  const std::vector<std::string>& kinds) {
    const toml::table* table = root_[name].as_table();
    if (!table) return;
    for (const auto& [dtype, node] : *table) {
      const std::string place = name + "." + std::string(dtype.str());
      const toml::table* of_dtype = node.as_table();
      if (!of_dtype) fail(place, "expected a table with " + axes.front() + " and the other sizes, and the times");
      TimeGrid& grid = grids[std::string(dtype.str())];
      size_t points = 1;
      for (const std::string& axis : axes) {
        grid.axes.push_back(numbers(*of_dtype, place + ".", axis));
        const std::vector<double>& sizes = grid.axes.back();
        if (std::ranges::adjacent_find(sizes, std::greater_equal<>()) != sizes.end())
          fail(place + "." + axis, "expected ascending sizes");
        points *= sizes.size();
      }
      for (const std::string& kind : kinds) {
        grid.seconds[kind] = numbers(*of_dtype, place + ".", kind);
        if (grid.seconds[kind].size() != points)
          fail(place + "." + kind, "expected " + std::to_string(points) + " times, one for each point of the sizes");
      }
    }
  }

  /// Numbers above zero, at least one.
  std::vector<double> numbers(const toml::table& table, const std::string& prefix, const std::string& key) {
    known_.push_back(prefix + key);
    std::vector<double> result;
    constexpr size_t kMost = 4096;
    if (const toml::array* list = table[key].as_array())
      for (const toml::node& item : *list) {
        const auto found = item.value<double>();
        if (!found || !(*found > 0) || result.size() == kMost)
          fail(prefix + key, "expected a list of numbers above zero, at most " + std::to_string(kMost));
        result.push_back(*found);
      }
    if (result.empty()) fail(prefix + key, "expected a list of numbers above zero");
    return result;
  }

  void read_operators(std::map<std::string, OperatorRates>& operators) {
    const toml::table* table = root_["operators"].as_table();
    if (!table) return;
    for (const auto& [kind, node] : *table) {
      const std::string place = "operators." + std::string(kind.str());
      const std::vector<double> four = items(node, place);
      if (four.size() != 4 || !(four[0] > 0) || !(four[1] >= 0) || !(four[2] > 0) || !(four[3] >= 0))
        fail(place, "expected [bytes/s, bytes done at half of it, and both of the backward]");
      operators[std::string(kind.str())] = {{four[0], four[1]}, {four[2], four[3]}};
    }
  }

  /// The numbers of a list under `place`, -1 for what is none.
  std::vector<double> items(const toml::node& node, const std::string& place) {
    known_.push_back(place);
    std::vector<double> found;
    if (const toml::array* list = node.as_array())
      for (const toml::node& item : *list) found.push_back(item.value<double>().value_or(-1));
    return found;
  }

  void read_starts(std::map<std::string, double, std::less<>>& starts) {
    const toml::table* table = root_["starts"].as_table();
    if (!table) return;
    const std::vector<std::string> ops = op_names();
    for (const auto& [key, node] : *table) {
      const std::string op(key.str()), place = "starts." + op;
      if (std::ranges::find(ops, op) == ops.end())
        fail(place, "no instruction has this name; did you mean " + nearest(op, ops).front() + "?");
      read_number(place, starts[op]);
    }
  }

  void read_waits(std::map<std::string, Wait, std::less<>>& waits) {
    const toml::table* table = root_["waits"].as_table();
    if (!table) return;
    for (const auto& [purpose, node] : *table) {
      const std::string place = "waits." + std::string(purpose.str());
      std::vector<double> both = items(node, place);
      if (both.size() == 2) both.resize(4, 0.0);  // as profiles were before they had shares
      if (both.size() != 4 || std::ranges::any_of(both, [](double value) { return !(value >= 0); }))
        fail(place,
             "expected [seconds of one in a forward, in a backward, and the shares of those instructions' seconds "
             "that it takes too]");
      waits[std::string(purpose.str())] = {{both[0], both[2]}, {both[1], both[3]}};
    }
  }

  void read_algorithms(ProductChoices& algorithms) {
    const toml::table* table = root_["algorithms"].as_table();
    if (!table) return;
    for (const auto& [key, node] : *table) {
      const std::string name(key.str()), place = "algorithms." + name;
      known_.push_back(place);
      const std::string text = node.value_or(std::string());
      if (text.empty()) fail(place, "expected a text");
      (name == "library" ? algorithms.library : algorithms.chosen[name]) = text;
    }
    if (algorithms.library.empty()) fail("algorithms.library", "expected the library that can read the algorithms");
  }

  void refuse_unknown(const toml::table& table, const std::string& prefix) const {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      if (const toml::table* inner = node.as_table()) {
        refuse_unknown(*inner, name + ".");
      } else if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
        fail(name, "unknown key; did you mean " + nearest(name, known_).front() + "?");
      }
    }
  }

  const std::string file_;
  toml::table root_;
  std::vector<std::string> known_;
};

}  // namespace

WaitOf WaitOf::of(double work, double wait, double more_work, double longer_wait) {
  const double few = std::max(0.0, wait), many = std::max(0.0, longer_wait);
  if (!(more_work > work) || many <= few) return {(few + many) / 2, 0};
  const double share = std::min((many - few) / (more_work - work), many / more_work);
  return {std::max(0.0, many - share * more_work), share};  // a rounding is not to make a start of -1e-20
}

std::string Profile::to_toml() const {
  std::string text =
      "# Rates of one node: bytes, bytes/s, FLOP/s, seconds. A rate is [of large work, work done at half of it].\n";
  text += "name = " + in_quotes(name) + "\nsource = " + in_quotes(source) + "\n" +
          (machine.empty() ? "" : "machine = " + in_quotes(machine) + "\n") +
          (target.empty() ? "" : "target = " + in_quotes(target) + "\n") + "devices = " + std::to_string(devices) +
          "\n";
  std::string table;
  each_number(*this, [&](const std::string& key, const auto& value) {
    const size_t dot = key.find('.');
    if (key.substr(0, dot) != table) table = key.substr(0, dot), text += "\n[" + table + "]\n";
    if constexpr (std::is_integral_v<std::decay_t<decltype(value)>>)
      text += key.substr(dot + 1) + " = " + std::to_string(value) + "\n";
    else
      text += key.substr(dot + 1) + " = " + number(value) + "\n";
  });
  each_table(*this, [&](const std::string& name, const RateByDtype& rates) {
    text += "\n[" + name + "]\n";
    for (const auto& [dtype, rate] : rates)
      text += dtype + " = [" + number(rate.top) + ", " + number(rate.half) + "]\n";
  });
  if (!device.operators.empty()) text += "\n[operators]\n";
  for (const auto& [kind, rates] : device.operators)
    text += kind + " = [" + number(rates.forward.top) + ", " + number(rates.forward.half) + ", " +
            number(rates.backward.top) + ", " + number(rates.backward.half) + "]\n";
  if (!starts.empty()) text += "\n[starts]\n";
  for (const auto& [op, seconds] : starts) text += op + " = " + number(seconds) + "\n";
  if (!waits.empty()) text += "\n[waits]\n";
  for (const auto& [purpose, wait] : waits)
    text += purpose + " = [" + number(wait.forward.start) + ", " + number(wait.backward.start) + ", " +
            number(wait.forward.share) + ", " + number(wait.backward.share) + "]\n";
  if (!algorithms.chosen.empty()) text += "\n[algorithms]\nlibrary = " + in_quotes(algorithms.library) + "\n";
  for (const auto& [product, algorithm] : algorithms.chosen)
    text += in_quotes(product) + " = " + in_quotes(algorithm) + "\n";
  each_grid(*this,
            [&](const std::string& name, const std::map<std::string, TimeGrid>& grids, const auto& axes, const auto&) {
              for (const auto& [dtype, grid] : grids) {
                text += "\n[" + name + "." + dtype + "]\n";
                for (size_t a = 0; a < axes.size(); ++a) text += axes[a] + " = " + list(grid.axes[a]) + "\n";
                for (const auto& [kind, seconds] : grid.seconds) text += kind + " = " + list(seconds) + "\n";
              }
            });
  return text;
}

std::string this_machine() {
  std::string processor;
  unsigned cores = 0;  // counted here: a C library may count those that this process is bound to
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with("processor")) ++cores;
    if (processor.empty() && line.starts_with("model name") && colon + 2 < line.size())
      processor = line.substr(colon + 2);
  }
  return (processor.empty() ? "unknown processor" : processor) + ", " +
         std::to_string(cores > 0 ? cores : std::thread::hardware_concurrency()) + " cores";
}

void check_machine(const Profile& profile, const std::string& here) {
  if (profile.machine.empty() || profile.machine == here) return;
  throw UserError(
      Exit::usage, "plan.profile",
      "profile " + profile.name + " was measured on another machine (" + profile.machine + "), this is " + here,
      "tessera probe --out FILE measures this one");
}

Profile parse_profile(std::string_view text, const std::string& file) { return Reader(text, file).read(); }

Profile find_profile(std::string_view name_or_file) {
  if (std::optional<Profile> shipped = shipped_profile(name_or_file)) return *std::move(shipped);
  const std::string file(name_or_file);
  std::error_code unseen;  // the name may be too long for one
  if (std::filesystem::exists(file, unseen) && !std::filesystem::is_directory(file, unseen))
    return parse_profile(read_foreign(file, kMostTomlBytes, "plan.profile"), file);
  if (file.find_first_of("./") != std::string::npos)
    throw UserError(Exit::input, "plan.profile", file + ": cannot be opened",
                    "tessera probe --out " + file + " writes one");
  throw UserError(Exit::usage, "plan.profile", "unknown profile '" + file + "'",
                  "did you mean " + nearest_profile(file) +
                      "? tessera list profiles has all; \"16GiB,90TFLOPs,600GB/s\" describes another GPU, and a file "
                      "of tessera probe has what was measured");
}

}  // namespace tessera::plan
