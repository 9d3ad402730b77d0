#include "tessera/report/page.h"

#include <map>

#include "tessera/base/text.h"

namespace tessera::report {

namespace {

// Wide things (lanes, tables, frames, texts) scroll within their card, so that the page itself never does. Long words break
// anywhere, but for those of a table: its columns are as wide as their longest word, or a label would be a letter wide.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fafaf8;--fg:#1c1c1a;--soft:#66665f;--line:#dcdcd6;--card:#fff;
--r0:#2f6fde;--r1:#d0721c;--r2:#2f8f57;--r3:#b8406a;--r4:#7457c9;--r5:#7d6a1f;--mem:#2f6fde}
@media(prefers-color-scheme:dark){:root{--bg:#141413;--fg:#ecece6;--soft:#a2a29a;--line:#33332f;--card:#1d1d1b;
--r0:#7aa8ff;--r1:#f0a35a;--r2:#63c48d;--r3:#ee7fa4;--r4:#ab95f5;--r5:#cdb75a;--mem:#7aa8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere;-webkit-text-size-adjust:100%}
main{max-width:1080px;margin:0 auto;padding:28px 16px 60px}
h1{font-size:26px;line-height:1.25;margin:0}h2{font-size:17px;margin:0 0 10px}p{margin:10px 0 0}
.soft{color:var(--soft)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:14px;margin-top:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin-top:16px;min-width:0}
.grid .card{margin-top:0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin-top:18px}
.facts div{border-left:3px solid var(--r0);padding-left:10px}.facts b{display:block;font-size:18px;font-weight:600}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
svg .head{fill:var(--fg);font-weight:600}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}.lanes{min-width:760px}
.rank{margin-bottom:12px}.bar{display:flex;height:20px;margin-top:4px}.bar i{display:block;height:100%;flex:none}
.bar.planned{height:6px}.bar.planned i{background:var(--soft)}
.strip{display:flex;gap:3px;margin:4px 0 10px;overflow-x:auto}.strip img{flex:1 0 auto;width:84px;min-width:72px;max-width:132px;border-radius:3px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;overflow-wrap:break-word}
th,td{text-align:right;padding:4px 12px 4px 0;vertical-align:top}th{color:var(--soft);font-weight:500;vertical-align:bottom}
td{white-space:nowrap}td:first-child{white-space:normal}th:first-child,td:first-child{text-align:left}
tr+tr td{border-top:1px solid var(--line)}
pre{overflow-x:auto;font-size:12.5px;margin:10px 0 0;overflow-wrap:normal}
.key{display:inline-block;margin-right:14px}.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
details summary{cursor:pointer;font-weight:600}
.no{color:#d04a3a;font-weight:600}.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:16px;align-items:start;margin-top:16px}.two .card{margin-top:0}
.plain th,.plain td{text-align:left;white-space:normal}.plain .n{text-align:right;white-space:nowrap}
.scroll td:first-child{min-width:4.5em}.scroll .plain td:first-child{min-width:15em}.scroll .plain td:last-child{min-width:8em}
.plain .key{margin-right:0;white-space:nowrap}.fill{height:10px;border-radius:3px;margin-top:6px}
@media(max-width:600px){main{padding:18px 12px 40px}h1{font-size:21px}.card{padding:12px}.curve text{font-size:17px}}
)css";

}  // namespace

std::string html_page(const std::string& title, const std::string& body) {
  return "<!doctype html><html lang=en><meta charset=utf-8>"
         "<meta name=viewport content='width=device-width,initial-scale=1'><title>" +
         escape_html(title) + "</title><style>" + kStyle + "</style><main>" + body + "</main></html>\n";
}

std::string escape_html(const std::string& text) {
  static const std::map<char, std::string> named = {
      {'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (char c : printable(text, Lines::kept)) {
    const auto it = named.find(c);
    if (it == named.end())
      out += c;
    else
      out += it->second;
  }
  return out;
}

std::string kind_colour(const std::string& kind) {
  static const std::map<std::string, std::string> known = {
      {"forward", "#3b7ddd"},      {"backward", "#7457c9"},       {"recompute", "#4fb0c6"},    {"gather", "#3d9a5f"},
      {"reduce", "#d9822b"},       {"reduce_outer", "#c4622d"},   {"gather_outer", "#2d9cc4"}, {"update", "#c94f6d"},
      {"norm", "#98823c"},         {"loss", "#888888"},           {"flush", "#555555"},        {"stash", "#b07a4a"},
      {"fetch", "#7f9c3c"},        {"compress", "#a8733a"},       {"expand", "#8a9a55"},       {"compute", "#3b7ddd"},
      {"exposed comm", "#d9822b"}, {"exposed copies", "#b07a4a"}, {"bubble", "#888888"},       {"optimiser", "#c94f6d"},
      {"parameters", "#3d9a5f"},   {"gradients", "#d9822b"},      {"states", "#c94f6d"},       {"slots", "#98823c"},
      {"activations", "#3b7ddd"},  {"temporaries", "#7457c9"},    {"host", "#5f7a8c"}};
  const auto it = known.find(kind);
  return it == known.end() ? "#999999" : it->second;
}

std::string legend_key(const std::string& colour, const std::string& label) {
  return "<span class=key><i style='background:" + colour + "'></i>" + escape_html(label) + "</span>";
}

}  // namespace tessera::report
