#include "tessera/checkpoint/hub.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "tessera/base/check.h"
#include "tessera/base/foreign_file.h"
#include "tessera/checkpoint/weight_file.h"
#include "tessera/families/releases.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = "hf:";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// A name of an organisation, a repository or a revision: no part of it leads out of its folder.
bool is_name(std::string_view text) {
  const auto sign = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= 96 && text.front() != '.' && std::ranges::all_of(text, sign);
}

bool there(const Path& path) {
  std::error_code unseen;
  return fs::exists(path, unseen);
}

/// The revision that refs/main names; empty where there is none, or no such text.
std::string main_revision(const Path& repository) {
  constexpr int64_t kMost = 256;
  const Path file = repository / "refs" / "main";
  if (!there(file)) return "";
  try {
    std::string text = read_foreign(file, kMost, "hub");
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    return is_name(text) ? text : "";
  } catch (const UserError&) {
    return "";
  }
}

}  // namespace

std::optional<HubName> hub_name(const std::string& text) {
  const bool marked = text.starts_with(kMark);
  std::string rest = marked ? text.substr(kMark.size()) : text;
  while (marked && rest.starts_with('/')) rest.erase(0, 1);  // hf://ORG/NAME
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return std::nullopt;
  const size_t second = std::min(rest.find('/', slash + 1), rest.size());
  HubName name{rest.substr(0, second), rest.substr(std::min(second + 1, rest.size())), marked};
  if (!is_name(name.repository.substr(0, slash)) || !is_name(name.repository.substr(slash + 1))) return std::nullopt;
  for (const Path& part : Path(name.inside))
    if (part == "..") return std::nullopt;
  return name;
}

Path hub_cache() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return Path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return Path(cache) / "huggingface/hub";
  return Path(environment("HOME")) / ".cache/huggingface/hub";
}

std::string found_at(const std::string& text) {
  if (text.empty() || there(text)) return text;
  const std::optional<HubName> name = hub_name(text);
  if (!name) return text;
  const Path plain = name->inside.empty() ? Path(name->repository) : Path(name->repository) / name->inside;
  if (name->marked && there(plain)) return plain.string();
  std::string folder = name->repository;
  folder.replace(folder.find('/'), 1, "--");
  const Path repository = hub_cache() / ("models--" + folder);
  const std::string revision = main_revision(repository);
  if (revision.empty()) return text;
  const Path snapshot = repository / "snapshots" / revision;
  const Path found = name->inside.empty() ? snapshot : snapshot / name->inside;
  return there(found) ? found.string() : text;
}

Path snapshot_of(const Path& path) {
  const Path found = found_at(path.string());
  if (!there(found / "snapshots")) return found;
  const std::string revision = main_revision(found);
  return revision.empty() ? found : found / "snapshots" / revision;
}

std::string fetched_by(const std::string& text) {
  std::string folder;
  const families::Release* release = families::release_at(text, &folder);
  const std::optional<HubName> name = hub_name(text);
  const auto owner = [](const std::string& repository) { return repository.substr(0, repository.find('/') + 1); };
  std::string command;
  if (name && (name->marked || (release && owner(name->repository) == owner(release->repository)))) {
    command = "hf download " + name->repository;
  } else if (release) {
    command = families::download_line(families::repository_of(*release, folder),
                                      is_weight_file(folder) ? std::string() : folder);
  }
  return command.empty() ? command : "; " + command + " fetches it";
}

}  // namespace tessera::checkpoint
