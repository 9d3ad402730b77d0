// Configurations of models that nobody has: refused by their field before anything is made of them.
#include <functional>

#include "bounded.h"
#include "tessera/models/audio/wav2vec2.h"
#include "tessera/models/opensora/config.h"
#include "tessera/models/sana/config.h"
#include "tessera/models/stdit/config.h"
#include "tessera/models/text/gemma2.h"
#include "tessera/models/text/umt5.h"
#include "tessera/models/vae/wan_config.h"

namespace tessera::models {
namespace {

struct Reader {
  std::string before, field;  // what the reader asks for before the field that counts its blocks
  std::function<void(const std::string&)> read;
};

TEST(ModelAttacks, ABillionLayersAreRefused) {
  const std::string file = "config.json";
  const Reader readers[] = {
      {"", "num_layers", [&](const std::string& text) { sana::parse_config(text, file); }},
      {"", "depth", [&](const std::string& text) { opensora::parse_config(text, file); }},
      {"", "depth_single_blocks", [&](const std::string& text) { opensora::parse_config(text, file); }},
      {"", "depth", [&](const std::string& text) { stdit::parse_config(text, file); }},
      {"", "num_res_blocks", [&](const std::string& text) { wan_vae::parse_config(text, file); }},
      {"", "num_hidden_layers", [&](const std::string& text) { wav2vec::parse_config(text, file); }},
      {R"("vocab_size":8,"num_heads":1,)", "num_layers",
       [&](const std::string& text) { umt5::parse_config(text, file); }},
      {R"("vocab_size":8,"hidden_size":8,"intermediate_size":8,)", "num_hidden_layers",
       [&](const std::string& text) { gemma2::parse_config(text, file); }},
  };
  for (const Reader& reader : readers)
    for (const char* layers : {"1000000000", "1048576", "18446744073709551615"}) {
      SCOPED_TRACE(reader.field + " " + layers);
      expect_refused_cheaply([&] { reader.read("{" + reader.before + "\"" + reader.field + "\":" + layers + "}"); },
                             {"config.json: ", reader.field.starts_with("depth") ? "depth" : reader.field, "expected"});
    }
}

}  // namespace
}  // namespace tessera::models
