#pragma once
// The charts of the report, each a card of HTML: curves as SVG, memory as bars of boxes, lanes as SVG that scrolls.
//
//   out << curve_card("Loss", runs, [](const ReportInput::Step& s) { return s.loss; }, /*logarithmic=*/true);
#include <string>

#include "tessera/report/report_input.h"

namespace tessera::report {

/// One line a run; a run's steps are thinned to a few hundred points, each the mean of a stretch. Empty without steps.
std::string curve_card(const std::string& title, const std::vector<ReportInput::Run>& runs,
                       double (*value)(const ReportInput::Step&), bool logarithmic);
/// Which colour is which run; empty for a single one.
std::string run_legend(const std::vector<ReportInput::Run>& runs);
std::string memory_card(const std::vector<ReportInput::Rank>& ranks);
/// Every rank has a block of lanes; ranks beyond the first 16 are counted, not drawn.
std::string lanes_card(const std::vector<ReportInput::Bar>& bars, const std::string& title);
std::string table_card(const ReportInput::Table& table);

}  // namespace tessera::report
