// Kinds that are tables: tokenizers' ids, published sizes of pictures, published names and shapes of models' tensors.
// A mesh means nothing to them.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/row_part.h"
#include "tessera/data/aspect_ratios.h"
#include "tessera/data/text/prompt_ids.h"
#include "tessera/data/text/text.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/models/common/config_reader.h"
#include "tessera/models/registry.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
using Expected = std::map<std::string, at::Tensor>;

Json read(const fs::path& path) { return parse_ordered_json(checkpoint::read_text(path), path.string()); }

/// The file of a tokenizer, and how its pipeline calls it.
struct Way {
  const char* file;
  std::vector<int64_t> (data::Tokenizer::*encode)(std::string_view, int64_t) const;
};
constexpr Way kWays[] = {{"tokenizer.json", &data::Tokenizer::encode_clean},
                         {"tokenizer.model", &data::Tokenizer::encode_clean},
                         {"spiece.model", &data::Tokenizer::encode_written},
                         {"vocab.json", &data::Tokenizer::encode}};

/// ids.<row> and n.<row> of a folder's tokens.json.
CaseFile check_tokenizer(const std::string& name, const fs::path& folder, const Way& way, const Settings& facts) {
  check_input(facts.value("padding_side", std::string("right")) == "right", "verify",
              name + ": padding_side, this build pads on the right");
  for (const char* shown : {"bos_id", "eos_id", "unk_id", "size", "vocab_size"})
    facts.read(shown);  // by the ids that are compared
  const fs::path path = folder / "tokens.json";
  const Json rows = read(path);
  Expected expected;
  for (size_t i = 0; i < rows.size(); ++i) {
    expected["out.ids." + std::to_string(i)] = whole_numbers(rows[i].at("ids"));
    expected["out.n." + std::to_string(i)] = at::tensor(rows[i].at("n").get<int64_t>(), at::kLong);
  }
  CaseFile file(name, path, std::move(expected));
  const data::Tokenizer tokenizer(way.file == std::string("vocab.json") ? folder : folder / way.file);
  const bool composes = data::compose("e\u0301") == "\u00E9";  // a build with ICU
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    const auto text = row.at("text").get<std::string>();
    // accents are joined by ICU
    const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if ((row.contains("ftfy") || row.contains("nfc")) && !ascii && !composes) continue;
    const auto length = row.value("max_length", facts.at("max_length").get<int64_t>());
    std::vector<int64_t> ids = (tokenizer.*way.encode)(text, length);
    const auto count = static_cast<int64_t>(ids.size());
    // a case has padding behind all of its ids, or behind none
    const auto padded = static_cast<int64_t>(row.at("ids").size()) == length ? length : count;
    ids.resize(static_cast<size_t>(padded), facts.at("pad_id").get<int64_t>());
    file.compare("out.ids." + std::to_string(i), whole_numbers(ids), 0.0);
    file.compare("out.n." + std::to_string(i), at::tensor(count, at::kLong), 0.0);
  }
  return file;
}

/// Conversations of chats.json: their text, their ids and where the prompt begins among them.
CaseFile check_conversations(const std::string& name, const fs::path& folder, const Way& way, int64_t length) {
  const fs::path path = folder / "chats.json";
  const Settings rows(read(path));
  const data::Tokenizer tokenizer(way.file == std::string("vocab.json") ? folder : folder / way.file);
  Expected expected, computed;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Settings row = rows.at(i);
    const std::string number = "." + std::to_string(i);
    const Settings system = row.at("system");
    std::optional<std::string> said;
    if (!system.is_null()) said = system.get<std::string>();
    const data::Conversation chat(tokenizer, said);
    const std::string text = chat.text(row.at("user").get<std::string>());
    const std::vector<int64_t> ids = tokenizer.encode_clean(text, row.value("max_length", length));
    const auto add = [&](const char* of, const at::Tensor& recorded, const at::Tensor& ours) {
      expected["out." + std::string(of) + number] = recorded;
      computed["out." + std::string(of) + number] = ours;
    };
    add("text", bytes_of(row.at("text").get<std::string>()), bytes_of(text));
    add("ids", whole_numbers(row.at("ids")), whole_numbers(ids));
    add("n", whole_numbers({row.at("n").get<int64_t>()}), whole_numbers({static_cast<int64_t>(ids.size())}));
    add("crop_start", whole_numbers({row.at("crop_start").get<int64_t>()}), whole_numbers({chat.prompt_begin()}));
  }
  CaseFile file(name, path, std::move(expected));
  for (const auto& [of, value] : computed) file.compare(of, value, 0.0);
  if (const auto unread = rows.unread({}); !unread.empty())
    file.refuse_run("chats", "chats.json: " + unread.front() + " is not known to this build");
  return file;
}

/// Height and width of each row of a table of sizes.
struct Sizes {
  std::vector<int64_t> recorded, ours;
  void add(const Json& size, const data::Bucket* bucket) {
    for (const Json& side : size) recorded.push_back(side.get<int64_t>());
    ours.push_back(bucket ? bucket->height : -1), ours.push_back(bucket ? bucket->width : -1);
  }
};

CaseFile compared(const CaseContext& context, const char* file_name, const std::map<std::string, Sizes>& tables) {
  Expected expected;
  for (const auto& [name, sizes] : tables) expected["out." + name] = whole_numbers(sizes.recorded).view({-1, 2});
  CaseFile file(context.name, context.folder / file_name, std::move(expected));
  for (const auto& [name, sizes] : tables) file.compare("out." + name, whole_numbers(sizes.ours).view({-1, 2}), 0.0);
  return file;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// Names and shapes of what a model's files hold under a naming.
Shapes shapes_under(const net::Denoiser& model, const std::string& naming) {
  Shapes shapes;
  for (const auto& unit : model.units())
    for (const plan::ParamSpec& param : unit->spec().params) {
      const std::string name = model.foreign_name(param.name, naming);
      const auto part = checkpoint::row_part(name);
      shapes[checkpoint::whole_name(name)] = part ? checkpoint::stored_shape(*part, param.shape) : param.shape;
    }
  return shapes;
}

/// The embedding of no caption in official files: it is no parameter, and travels beside the model (job/null_caption.h).
constexpr const char* kNoParameter = "y_embedder.y_embedding";

CaseFile check_published(const CaseContext& context, const std::string& name, const Settings& facts) {
  const fs::path path = context.folder / (name + ".json");
  const Settings published(read(path));
  Json config = published.at("config").peek();
  config["_class_name"] = published.at("_class_name").json();
  for (const char* words : {"checked", "not_checked"}) published.read(words);
  const std::pair<const char*, const char*> namings[] = {{"tensors", "diffusers"}, {"original", "official"}};
  Expected expected;
  expected["out.parameters"] = at::tensor(published.at("parameters").get<int64_t>(), at::kLong);
  for (const auto& [field, naming] : namings) {
    if (!published.contains(field)) continue;
    for (const auto& [name, shape] : published.at(field).items())
      expected["out." + std::string(naming) + "." + name] = whole_numbers(shape.get<std::vector<int64_t>>());
    expected.erase("out." + std::string(naming) + "." + kNoParameter);
  }
  CaseFile file(context.name, path, std::move(expected));
  std::unique_ptr<net::Denoiser> model;
  try {
    const models::ReadFields fields;
    published.at("config").text();
    const models::Family* family = models::family_of_config(config.dump());
    check_input(family != nullptr, "models", path.string() + ": no family has models of this _class_name");
    model = family->from_json(config.dump(), path.string(), {});
    if (published.contains("count") && published.at("count") != published.at("tensors").size())
      file.fail("out.parameters: count is not that of tensors");
    std::string unread;
    for (const std::string& key : published.unread(fields.paths())) unread += (unread.empty() ? "" : ", ") + key;
    check_input(unread.empty(), "verify", path.string() + ": " + printable(unread) + " is not known to this build",
                "is it the name of another setting, or does the case need a newer build?");
  } catch (const UserError& error) {
    if (error.code() == Exit::input && std::string_view(error.what()).starts_with("[verify]")) throw;
    file.note("refused", error.what());
    facts.read();
    for (const char* all : {"out.", "expect."}) file.leave_out(all, "this build has no such model");
    return file;
  }
  int64_t parameters = 0;
  for (const auto& unit : model->units())
    for (const plan::ParamSpec& param : unit->spec().params) parameters += param.numel();
  file.compare("out.parameters", at::tensor(parameters, at::kLong), 0.0);
  for (const auto& [key, count] :
       {std::pair("parameters", parameters), {"tensors", static_cast<int64_t>(published.at("tensors").size())}})
    if (facts.value(key, count) != count) file.fail("out." + std::string(key) + ": case.json has another number");
  for (const auto& [field, naming] : namings) {
    if (!published.contains(field)) continue;
    const std::string out = "out." + std::string(naming) + ".";
    const Shapes ours = shapes_under(*model, naming);
    for (const auto& [name, shape] : ours) file.compare(out + name, whole_numbers(shape), 0.0);
    for (const std::string& name : file.names(out))
      if (!ours.contains(name.substr(out.size()))) file.fail(name);
  }
  return file;
}

}  // namespace

CaseResults verify_tokenizers(const CaseContext& context) {
  CaseResults results;
  for (const auto& [name, facts] : context.config.items()) {
    const fs::path folder = context.folder / facts.at("folder").get<std::string>();
    for (const Way& way : kWays)
      if (fs::exists(folder / way.file))
        results.push_back(check_tokenizer(context.name + "/" + name + "/" + way.file, folder, way, facts));
  }
  return results;
}

CaseResults verify_qwen_tokenizer(const CaseContext& context) {
  CaseResults results;
  for (const Way& way : kWays) {
    if (!fs::exists(context.folder / way.file)) continue;
    const std::string name = context.name + "/" + way.file;
    results.push_back(check_tokenizer(name, context.folder, way, context.config));
    if (fs::exists(context.folder / "chats.json"))
      results.push_back(check_conversations(name, context.folder, way, context.config.at("max_length")));
  }
  return results;
}

CaseResults verify_aspect_ratios(const CaseContext& context) {
  const Json tables = read(context.folder / "tables.json"), sizes = read(context.folder / "sizes.json");
  std::map<std::string, Sizes> bins, chosen;
  for (const auto& [name, table] : tables.items()) {
    const std::string ours = "ASPECT_RATIO_" + name + "_BIN";
    std::vector<data::Bucket> buckets, given;  // the case's own, in its order
    for (const Json& bin : table.at("bins"))
      given.push_back(
          {.frames = 1, .height = bin.at(1), .width = bin.at(2), .ratio = std::stod(bin.at(0).get<std::string>())});
    try {
      buckets = data::aspect_buckets(ours);
    } catch (const UserError&) {  // no table of ours has this name
    }
    for (const data::Bucket& bin : given) {
      const auto found = std::ranges::find(buckets, bin.ratio, &data::Bucket::ratio);
      // a table that was never published is the case's own: sizes are chosen from it, and that is all
      bins[name].add({bin.height, bin.width}, buckets.empty() ? &bin : found == buckets.end() ? nullptr : &*found);
    }
    if (!buckets.empty() && buckets.size() != given.size()) bins[name].ours.push_back(0), bins[name].ours.push_back(0);
    for (const Json& row : sizes.at(name)) {
      const data::ClipSize picture{.height = row.at("height"), .width = row.at("width"), .frames = 1, .image = true};
      const data::BucketChoice choice = data::choose_bucket(given, picture, 1);
      chosen[name].add(row.at("bin"), choice.bucket < 0 ? nullptr : &given[static_cast<size_t>(choice.bucket)]);
    }
  }
  CaseResults results;
  results.push_back(compared(context, "tables.json", bins));
  results.push_back(compared(context, "sizes.json", chosen));
  context.config.read("new_height_width");
  if (fs::exists(context.folder / "case.safetensors")) {
    CaseFile pictures(context.name, context.folder / "case.safetensors");
    pictures.leave_out("out.", "pictures are made in the size that was asked for, and not resized to it");
    results.push_back(std::move(pictures));
  }
  return results;
}

CaseResults verify_published_shapes(const CaseContext& context) {
  CaseResults results;
  for (const auto& [name, facts] : context.description.json.at("models").items())
    results.push_back(check_published(context, name, facts));
  return results;
}

}  // namespace tessera::tools
