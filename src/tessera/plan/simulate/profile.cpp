#include "tessera/plan/simulate/profile.h"

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/base/quotes.h"
#include "tessera/base/target.h"
#include "tessera/base/toml_text.h"

namespace tessera::plan {

namespace {

/// Calls a function for every number of a profile with its key "table.key". Reading, writing and checking share it.
template <class P, class Visit>
void each_number(P& p, const Visit& visit) {
  visit("node.host_memory", p.host_memory);
  visit("node.host_bandwidth", p.host_bandwidth);
  visit("node.host_link", p.host_link);
  visit("node.disk", p.disk);
  visit("node.disk_read", p.disk_read);
  visit("node.disk_write", p.disk_write);
  visit("device.memory", p.device.memory);
  visit("device.bandwidth", p.device.bandwidth.top);
  visit("device.bandwidth_half", p.device.bandwidth.half);
  visit("device.stream", p.device.stream.top);
  visit("device.stream_half", p.device.stream.half);
  visit("link.gather", p.link.gather);
  visit("link.reduce", p.link.reduce);
  visit("link.latency", p.link.latency);
  visit("link.steal", p.steal);
  visit("nic.gather", p.nic.gather);
  visit("nic.reduce", p.nic.reduce);
  visit("nic.latency", p.nic.latency);
}

template <class P, class Visit>
void each_table(P& p, const Visit& visit) {
  visit("gemm", p.device.gemm);
  visit("attention", p.device.attention);
  visit("attention_backward", p.device.attention_backward);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  const std::string written = text;
  return written.find_first_of(".e") == std::string::npos ? written + ".0" : written;
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
    if (!p.target.empty()) target(p.target, "plan.profile: " + file_);
    known_.insert(known_.end(), {"name", "source", "target", "devices"});
    each_number(p, [&](const std::string& key, auto& value) { read_number(key, value); });
    each_table(p, [&](const std::string& table, RateByDtype& rates) { read_rates(table, rates); });
    refuse_unknown(root_, "");
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

std::string Profile::to_toml() const {
  std::string text =
      "# Rates of one node: bytes, bytes/s, FLOP/s, seconds. A rate is [of large work, work done at half of it].\n";
  text += "name = " + in_quotes(name) + "\nsource = " + in_quotes(source) + "\n" +
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
  return text;
}

Profile parse_profile(std::string_view text, const std::string& file) { return Reader(text, file).read(); }

Profile find_profile(std::string_view name_or_file) {
  std::vector<std::string> known;
  for (const Profile& p : shipped_profiles()) {
    const std::string counted = std::to_string(p.devices) + "x" + p.name;  // "8xh200" is "h200"
    if (p.name == name_or_file || counted == name_or_file) return p;
    known.push_back(p.name);
  }
  const std::string file(name_or_file);
  std::error_code unseen;  // the name may be too long for one
  if (std::filesystem::exists(file, unseen) && !std::filesystem::is_directory(file, unseen))
    return parse_profile(read_foreign(file, kMostTomlBytes, "plan.profile"), file);
  if (file.find_first_of("./") != std::string::npos)
    throw UserError(Exit::input, "plan.profile", file + ": cannot be opened",
                    "tessera probe --out " + file + " writes one");
  std::string all;
  for (const auto& name : known) all += (all.empty() ? "" : ", ") + name;
  throw UserError(
      Exit::usage, "plan.profile", "unknown profile '" + file + "'",
      "did you mean " + nearest(file, known).front() + "? There are " + all + ", or a file of tessera probe");
}

}  // namespace tessera::plan
