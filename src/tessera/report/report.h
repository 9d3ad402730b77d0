#pragma once
// Draws one run, or several over one another, as a self-contained page: curves, memory, lanes over time, frames.
// Inline SVG and base64 pictures only, readable on a phone and in the dark.
//
//   std::string page = render_report({.title = "runs/a", .runs = {{"runs/a", steps}}, .lanes = ...});
#include <string>

#include "tessera/report/report_input.h"

namespace tessera::report {

std::string render_report(const ReportInput& input);

}  // namespace tessera::report
