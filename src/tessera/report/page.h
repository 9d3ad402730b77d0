#pragma once
// The frame of every HTML page that the program writes: one file that needs no other, light and dark, and no wider than its
// window.
//
//   write_text("plan.html", html_page("Plan of wan", "<h1>Plan of wan</h1>..."));
#include <string>

namespace tessera::report {

/// `body` is HTML; `title` is text.
std::string html_page(const std::string& title, const std::string& body);

/// Text fit for HTML.
std::string escape_html(const std::string& text);

/// "#3b7ddd": an operation or a part of memory has the same colour in every picture; grey for others.
std::string kind_colour(const std::string& kind);

/// An entry of a legend.
std::string legend_key(const std::string& colour, const std::string& label);

}  // namespace tessera::report
