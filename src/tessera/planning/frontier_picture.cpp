// The picture of a frontier: device memory to the right, the step over that with all memory upwards, in logarithms.
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "tessera/base/units.h"
#include "tessera/planning/frontier.h"
#include "tessera/report/page.h"

namespace tessera::planning {

namespace {

using report::escape_html;

constexpr double kWidth = 760, kHeight = 400, kLeft = 60, kRight = 24, kTop = 56, kBottom = 48;
constexpr std::array<const char*, 4> kColours = {"#7457c9", "#d9822b", "#3b7ddd", "#3d9a5f"};

std::string host_text(int64_t host) { return host == 0 ? "no host memory" : format_bytes(host) + " of host memory"; }

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", ratio);
  return text;
}

class FrontierPicture {
 public:
  explicit FrontierPicture(const Frontier& found) : found_(found), left_(log_of(found.devices.front())) {
    right_ = std::max(log_of(found.devices.back()), left_ + 1e-9);
    for (const FrontierPoint& point : found.grid)
      if (point.fits) highest_ = std::max(highest_, found.ratio(point));
  }

  std::string marks() {
    out_ << "<g font-family='system-ui,sans-serif' font-size='12' fill='#66665f'>";
    axes();
    for (size_t h = 0; h < found_.hosts.size(); ++h) curve(h);
    out_ << "</g>";
    return out_.str();
  }

 private:
  static double log_of(int64_t bytes) { return std::log(static_cast<double>(bytes)); }
  double x(int64_t bytes) const {
    return kLeft + (log_of(bytes) - left_) / (right_ - left_) * (kWidth - kLeft - kRight);
  }
  double y(double ratio) const {
    return kTop + (1 - std::log(ratio) / std::log(highest_)) * (kHeight - kTop - kBottom);
  }

  void text(double at_x, double at_y, const char* anchor, const std::string& said) {
    out_ << "<text x='" << at_x << "' y='" << at_y << "' text-anchor='" << anchor << "'>" << escape_html(said)
         << "</text>";
  }

  void axes() {
    constexpr int kLines = 5;
    for (int i = 0; i <= kLines; ++i) {
      const double ratio = std::pow(highest_, static_cast<double>(i) / kLines);
      out_ << "<line x1='" << kLeft << "' x2='" << kWidth - kRight << "' y1='" << y(ratio) << "' y2='" << y(ratio)
           << "' stroke='#99999955'/>";
      text(kLeft - 8, y(ratio) + 4, "end", ratio_text(ratio));
    }
    double free = 0;  // where the last label ends
    constexpr double kLabel = 62;
    for (const int64_t bytes : found_.devices) {
      out_ << "<line x1='" << x(bytes) << "' x2='" << x(bytes) << "' y1='" << kHeight - kBottom << "' y2='"
           << kHeight - kBottom + 4 << "' stroke='#999999'/>";
      const bool last = bytes == found_.devices.back();
      if (last ? x(bytes) < free : x(bytes) < free || x(bytes) > x(found_.devices.back()) - kLabel) continue;
      text(x(bytes), kHeight - kBottom + 18, last ? "end" : "middle", format_bytes(bytes));
      free = x(bytes) + kLabel;
    }
    text(kLeft, kHeight - 10, "start",
         "device memory of a rank; 100 % of it would be " + format_bytes(found_.all_bytes));
    text(kLeft - 44, 18, "start",
         found_.model + " on " + found_.machine + ": a step over that with all memory (" +
             format_seconds(found_.all_seconds) + ")");
  }

  void curve(size_t h) {
    const std::string colour = kColours[h % kColours.size()];
    const double legend = kLeft - 44 + static_cast<double>(h) * 176;
    out_ << "<rect x='" << legend << "' y='29' width='10' height='10' rx='2' fill='" << colour << "'/>";
    text(legend + 15, 38, "start", host_text(found_.hosts[h]));
    std::ostringstream line, dots;
    for (size_t d = 0; d < found_.devices.size(); ++d) {
      const FrontierPoint& point = found_.at(h, d);
      if (!point.fits) continue;
      const double at_x = x(point.device), at_y = y(found_.ratio(point));
      line << at_x << "," << at_y << " ";
      dots << "<circle cx='" << at_x << "' cy='" << at_y << "' r='3.5' fill='" << colour << "'><title>"
           << escape_html(format_bytes(point.device) + ", " + host_text(point.host) + ": " +
                          ratio_text(found_.ratio(point)) + ", " + format_seconds(point.seconds) + "\n" + point.plan)
           << "</title></circle>";
    }
    out_ << "<polyline fill='none' stroke='" << colour << "' stroke-width='2' points='" << line.str() << "'/>"
         << dots.str();
  }

  const Frontier& found_;
  double left_, right_ = 0, highest_ = 1.05;
  std::ostringstream out_;
};

std::string view_box() {
  std::ostringstream out;
  out << "viewBox='0 0 " << kWidth << " " << kHeight << "'";
  return out.str();
}

}  // namespace

std::string frontier_svg(const Frontier& found) {
  std::ostringstream out;
  out << "<svg xmlns='http://www.w3.org/2000/svg' " << view_box() << " width='" << kWidth << "' height='" << kHeight
      << "'><rect width='100%' height='100%' fill='#ffffff'/>" << FrontierPicture(found).marks() << "</svg>\n";
  return out.str();
}

std::string frontier_page(const Frontier& found) {
  std::ostringstream out;
  const std::string title = "Frontier of " + found.model;
  out << "<h1>" << escape_html(title) << "</h1><p class=soft>" << escape_html(found.machine) << ", mesh "
      << escape_html(found.mesh) << ", " << found.tokens << " tokens a micro-batch</p><div class=card><svg "
      << view_box() << " role='img'>" << FrontierPicture(found).marks()
      << "</svg></div><div class=card><h2>Every point</h2><div class=scroll><table class=plain>"
         "<tr><th>device</th><th>host</th><th>step</th><th>over all memory</th><th>plan</th></tr>";
  for (const FrontierPoint& point : found.grid) {
    out << "<tr><td class=n>" << format_bytes(point.device) << "</td><td class=n>" << format_bytes(point.host)
        << "</td>";
    if (point.fits)
      out << "<td class=n>" << format_seconds(point.seconds) << "</td><td class=n>" << ratio_text(found.ratio(point))
          << "</td><td>" << escape_html(point.plan) << "</td></tr>";
    else
      out << "<td colspan=3 class=soft>no plan was found</td></tr>";
  }
  out << "</table></div></div>";
  return report::html_page(title, out.str());
}

}  // namespace tessera::planning
