#include "tessera/planning/frontier.h"

#include <gtest/gtest.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/base/check.h"
#include "tessera/models/registry.h"

namespace tessera::planning {
namespace {

constexpr const char* kSmallConfig =
    R"({"dim": 64, "num_heads": 2, "num_layers": 3, "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32,
        "text_dim": 48, "text_len": 8})";

class FrontierOfSmall : public ::testing::Test {
 protected:
  static PlanRequest request() {
    static const std::unique_ptr<net::Denoiser> model = models::make_denoiser({.config_text = kSmallConfig});
    PlanRequest r;
    r.model = model.get();
    r.model_name = "small <& quick>";
    r.latent = {16, 4, 16, 16};
    r.mesh = Mesh::parse("single");
    r.planner.global_batch = r.planner.micro_batch = 2;
    r.any_micro_batch = true;
    r.planner.host_budget = int64_t{1} << 20;
    r.run.steps = 10;
    return r;
  }
  static const Frontier& whole() {
    static const Frontier found = find_frontier(request());
    return found;
  }
};

/// Why the text is no well-formed XML of elements, attributes and text; empty if it is.
std::string malformed(const std::string& text) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '<') {
      if (text[at] == '>') return "a bare > at " + std::to_string(at);
      if (text[at] == '&' && text.find(';', at) > at + 5) return "a bare & at " + std::to_string(at);
      ++at;
      continue;
    }
    const size_t end = text.find('>', at);
    if (end == std::string::npos) return "no end of the tag at " + std::to_string(at);
    std::string tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag.substr(1) + "> closes nothing";
      open.pop_back();
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.pop_back();
    const size_t name = std::min(tag.find(' '), tag.size());
    if (!closed) open.push_back(tag.substr(0, name));
    for (size_t i = name; i < tag.size();) {  // name='value'
      if (std::isspace(static_cast<unsigned char>(tag[i]))) {
        ++i;
        continue;
      }
      const size_t equal = tag.find("='", i), close = equal == std::string::npos ? equal : tag.find('\'', equal + 2);
      if (close == std::string::npos) return "an attribute without quotes in <" + tag + ">";
      i = close + 1;
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> stays open";
}

TEST(FrontierDevices, AreRoundSizesFromATenthOnAndTheMostItself) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  std::vector<int64_t> sizes = frontier_devices(133 * kGiB);
  for (int64_t& size : sizes) {
    EXPECT_EQ(size % kGiB, 0);
    size /= kGiB;
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 133}));
  EXPECT_EQ(frontier_devices(1), std::vector<int64_t>{1});
}

TEST_F(FrontierOfSmall, IsNeverSlowerWithMoreMemoryAndKeepsEveryBudget) {
  const Frontier& found = whole();
  ASSERT_EQ(found.hosts.size(), 4u);
  ASSERT_GE(found.devices.size(), 8u);
  ASSERT_EQ(found.grid.size(), found.hosts.size() * found.devices.size());
  EXPECT_EQ(found.hosts.front(), 0);
  EXPECT_EQ(found.hosts.back(), request().planner.host_budget);
  EXPECT_EQ(found.devices.back(), found.all_bytes) << "the request has no budget";
  int slower = 0;
  for (size_t h = 0; h < found.hosts.size(); ++h)
    for (size_t d = 0; d < found.devices.size(); ++d) {
      const FrontierPoint& point = found.at(h, d);
      EXPECT_EQ(point.device, found.devices[d]);
      EXPECT_EQ(point.host, found.hosts[h]);
      for (const auto& [exists, h0, d0] : {std::tuple(h > 0, h - 1, d), {d > 0, h, d - 1}}) {
        if (!exists || !found.at(h0, d0).fits) continue;
        EXPECT_TRUE(point.fits) << h << ", " << d;
        EXPECT_LE(point.seconds, found.at(h0, d0).seconds) << h << ", " << d;
      }
      if (!point.fits) continue;
      EXPECT_LE(point.peak, point.device);
      EXPECT_LE(point.host_peak, point.host);
      EXPECT_GE(found.ratio(point), 1 - 1e-9);
      slower += found.ratio(point) > 1.01;
    }
  EXPECT_GT(slower, 3) << "little memory costs time";
  for (size_t h = 0; h < found.hosts.size(); ++h)
    EXPECT_NEAR(found.ratio(found.at(h, found.devices.size() - 1)), 1, 1e-3);
}

TEST_F(FrontierOfSmall, HasPointsNoSlowerThanThePlanOfTheirBudgets) {
  const Frontier& found = whole();
  for (const size_t d : {found.devices.size() / 2, found.devices.size() - 2}) {
    const FrontierPoint& point = found.at(2, d);
    PlanRequest r = request();
    r.planner.budget = point.device, r.planner.host_budget = point.host;
    const Planned planned = make_plan_as_is(r);
    ASSERT_EQ(point.fits, planned.choice.fits);
    if (point.fits) EXPECT_LE(point.seconds, planned.choice.seconds * (1 + 1e-3));
  }
}

TEST_F(FrontierOfSmall, EndsAtTheBudgetOfTheRequestAndTellsOfEachPlan) {
  PlanRequest r = request();
  r.planner.budget = make_plan_as_is(r).choice.memory.peak * 3 / 4, r.planner.host_budget = 0;
  std::vector<int64_t> told;
  int64_t total = 0;
  const Frontier found = find_frontier(r, [&](int64_t done, int64_t of) { told.push_back(done), total = of; });
  EXPECT_EQ(found.hosts, std::vector<int64_t>{0});
  EXPECT_EQ(found.devices.back(), r.planner.budget);
  EXPECT_EQ(static_cast<size_t>(total), found.grid.size());
  ASSERT_EQ(told.size(), found.grid.size() + 1);
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], static_cast<int64_t>(i));
}

TEST_F(FrontierOfSmall, IsATableOf80ColumnsAndJsonWithEveryPoint) {
  const Frontier& found = whole();
  std::istringstream lines(frontier_text(found));
  size_t rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(rows, found.devices.size() + 5);
  const auto json = nlohmann::json::parse(frontier_json(found));
  EXPECT_EQ(json["all_memory"]["seconds"], found.all_seconds);
  ASSERT_EQ(json["points"].size(), found.grid.size());
  for (size_t i = 0; i < found.grid.size(); ++i) {
    EXPECT_EQ(json["points"][i]["device_budget"], found.grid[i].device);
    EXPECT_EQ(json["points"][i]["fits"], found.grid[i].fits);
    EXPECT_EQ(json["points"][i].contains("ratio"), found.grid[i].fits);
  }
}

TEST_F(FrontierOfSmall, IsAPictureThatParsesWithADotForEachPlan) {
  const Frontier& found = whole();
  const std::string svg = frontier_svg(found), page = frontier_page(found);
  EXPECT_EQ(malformed(svg), "");
  EXPECT_TRUE(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg' "));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf'"), std::string::npos);
  const auto count = [](const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return n;
  };
  const auto fitting = static_cast<size_t>(std::ranges::count_if(found.grid, &FrontierPoint::fits));
  EXPECT_EQ(count(svg, "<circle "), fitting);
  EXPECT_EQ(count(svg, "<polyline "), found.hosts.size());
  EXPECT_EQ(count(page, "<circle "), fitting);
  EXPECT_EQ(count(page, "<tr>"), found.grid.size() + 1);
  const size_t begin = page.find("<svg "), end = page.find("</svg>") + 6;
  EXPECT_EQ(malformed(page.substr(begin, end - begin)), "");
}

TEST_F(FrontierOfSmall, RefusesAPlanFileAndMemoryThatNoPlanFits) {
  const auto message = [](const PlanRequest& r) {
    try {
      find_frontier(r);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  PlanRequest by_hand = request();
  by_hand.by_hand = make_plan_as_is(by_hand).plan();
  EXPECT_NE(message(by_hand).find("plan.file fixes the plan"), std::string::npos) << message(by_hand);
  PlanRequest tiny = request();
  tiny.planner.budget = 4096;
  EXPECT_NE(message(tiny).find("nothing fits, not even with 4.00 KiB on the device"), std::string::npos)
      << message(tiny);
}

}  // namespace
}  // namespace tessera::planning
