#include "tessera/models/inspect.h"

#include <cstdio>

#include "commands.h"

namespace tessera::apps {

Command inspect_command() {
  Command c;
  c.name = "inspect";
  c.summary =
      "Describes a checkpoint, LoRA or cache file.\nIt reads headers only and executes nothing, also of a .pth file.";
  c.usage = "inspect [--json] [--tensors] PATH";
  c.example = "tessera inspect Wan2.1_VAE.pth";
  c.flags = {{"--json", "", "print JSON"}, {"--tensors", "", "print a line for every tensor"}};
  c.run = [](const Arguments& arguments) {
    const bool all = arguments.has("--tensors");
    models::Inspection what = models::inspect(arguments.only_word("file or folder"), all);
    if (!arguments.has("--json")) {
      std::fputs(models::to_text(what).c_str(), stdout);
      return 0;
    }
    if (all)
      for (const auto& row : what.rows)
        what.json["list"].push_back({{"name", row.name}, {"shape", row.shape}, {"dtype", row.dtype}});
    std::puts(what.json.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return 0;
  };
  return c;
}

}  // namespace tessera::apps
