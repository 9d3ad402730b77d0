#pragma once
// Models of the Hugging Face hub in the cache that its clients keep on this machine. Nothing is fetched.
//
//   found_at("hf:Wan-AI/Wan2.1-T2V-1.3B/vae");   // ~/.cache/huggingface/hub/models--Wan-AI--Wan2.1-T2V-1.3B/snapshots/.../vae
//   hub_name("Wan-AI/Wan2.1-T2V-1.3B")->repository;
#include <optional>
#include <string>

#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {

struct HubName {
  std::string repository;  ///< "Wan-AI/Wan2.1-T2V-1.3B"
  std::string inside;      ///< a file or folder of it; empty: all of it
  bool marked = false;     ///< written with "hf:": it can be nothing else
};

/// What "hf:ORG/NAME", "ORG/NAME" and either with "/FILE" behind it name; nothing for other texts. A path of two folders
/// looks the same: where it exists, it is meant.
std::optional<HubName> hub_name(const std::string& text);

/// The folder of the cache: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in XDG_CACHE_HOME or ~/.cache.
Path hub_cache();

/// The path that a recipe's text means: itself where it exists; else the snapshot of the revision that refs/main names in
/// the cache, where it is there; else the text as it was.
std::string found_at(const std::string& text);

/// The same of a path; of a folder of the cache itself (models--ORG--NAME) that snapshot.
Path snapshot_of(const Path& path);

/// "; hf download ... fetches it", the command that brings what a path or a model of the hub lacks, so that the same recipe
/// finds it: into that folder, or into the cache. Empty where nothing released has such a name.
std::string fetched_by(const std::string& text);

}  // namespace tessera::checkpoint
