#pragma once
// The released models by the names of their repositories and folders, and the files that a download brings.
//
//   if (const Release* release = release_at("ckpts/Wan2.1-T2V-1.3B-Diffusers")) release->preset;      // wan2.1-t2v-1.3b
//   download_line(*release);                        // hf download Wan-AI/Wan2.1-T2V-1.3B --local-dir Wan2.1-T2V-1.3B
#include <string>
#include <string_view>
#include <vector>

namespace tessera::families {

struct ReleasePart {
  std::string file;      ///< or folder, with a slash behind it
  double gigabytes = 0;  ///< about
};

struct Release {
  std::string preset;                       ///< model.preset of its size
  std::string repository;                   ///< on the hub: "Wan-AI/Wan2.1-T2V-1.3B"
  std::vector<ReleasePart> parts;           ///< what training reads of it
  std::vector<std::string> names = {};      ///< what further repositories, folders and files of it begin with
  bool two_experts = false;                 ///< each of the preset's size
  std::vector<std::string> elsewhere = {};  ///< repositories with the parts that it lacks

  double gigabytes() const;
};

const std::vector<Release>& releases();

/// The release that a path ends in, or that its file lies in: by the names of its folders and of its file, whose case and
/// separators do not matter and which may go on ("-Diffusers", "_bf16"). Null where no part of it is such a name.
/// `folder`: the path as far as that name.
const Release* release_at(std::string_view path, std::string* folder = nullptr);
/// That of a preset, null where it was never released.
const Release* release_of_preset(std::string_view preset);

/// The repository of the form that a folder's name tells: Wan's has one of diffusers' form beside its own.
std::string repository_of(const Release& release, std::string_view folder);

/// Whether `name`, a file's or a folder's, begins with `known`, in any case and with any separators.
bool begins_with_name(std::string_view name, std::string_view known);

/// The command that fetches a repository into a folder, empty: one of its name.
std::string download_line(std::string_view repository, const std::string& folder = {});

}  // namespace tessera::families
