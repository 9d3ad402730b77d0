#pragma once
// Training checkpoints: every rank saves the pieces it holds, rank 0 makes them one checkpoint, any layout reads it.
//
//   save_rank(partial, rank, pieces);                // every rank, also with no pieces; then a barrier
//   if (rank == 0) commit(partial, final, world, manifest);
//   ...
//   TrainingCheckpoint saved(final);
//   saved.read({"blocks.0.ffn.0.weight", "param", DType::f32, {13824, 5120}, {}, begin, end}, values);
//
// See folders.h [Note: whole or absent] for what a crash can leave behind.
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

/// What a rank holds of a tensor: elements [begin, end), row-major, of a box of it.
struct TensorRange {
  std::string name, kind;  ///< kind: param, master_low, exp_avg, ...
  DType dtype = DType::f32;
  Shape shape;                  ///< of the whole tensor
  Box box = {};                 ///< what tensor parallelism cut; empty: the whole tensor
  int64_t begin = 0, end = -1;  ///< -1: to the end of the box
};

/// The same with box and end filled in; throws InternalError when it is no part of its shape.
TensorRange resolved(TensorRange range, std::string_view where);

struct Piece {
  TensorRange range;
  const void* data;  ///< borrowed until save_rank returns; null: `fetch` has it
  /// Bytes that are not in host memory: brings them there, until the next call of any piece. Called twice.
  std::function<const void*()> fetch = {};
};

/// Whether to write, asked when all bytes were read and none is written. `broken`: "exp_avg of blocks.0.ffn.0.weight", the
/// first tensor with a value that is not finite; empty: there is none.
using Agree = std::function<bool(const std::string& broken)>;

/// Writes rank-00000.safetensors and, last, rank-00000.parts.json into `partial`, creating the folder. Every rank of
/// the world calls it; what several ranks hold alike (dp_replicate) is given by one of them. False, and nothing is written,
/// where `agree` says so (null: it never does).
bool save_rank(const Path& partial, int rank, const std::vector<Piece>& pieces, const Agree& agree = {});

/// After all `world` ranks have saved: merges their parts into `manifest` (its `tensors` are replaced), checks that
/// they tile every tensor, writes manifest.json and renames `partial` to `final`. One rank calls it.
void commit(const Path& partial, const Path& final, int world, Manifest manifest);
/// The same. `beside` adds what other programs read to `partial`, which reads as a whole checkpoint by then; after it the
/// manifest is written again, so that it is the last (see [Note: whole or absent]).
void commit_with(const Path& partial, const Path& final, int world, Manifest manifest,
                 const std::function<void()>& beside);

/// A whole checkpoint, readable on any layout. Not for several threads at once.
class TrainingCheckpoint {
 public:
  /// Reads the manifest and sees that all files are there. Throws UserError (input).
  explicit TrainingCheckpoint(const Path& folder);

  const Path& path() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  bool contains(const std::string& name, const std::string& kind) const { return find(name, kind) != nullptr; }
  /// Null when there is none.
  const TensorRecord* find(const std::string& name, const std::string& kind) const {
    const auto found = index_.find({name, kind});
    return found == index_.end() ? nullptr : found->second;
  }

  /// Fills `to` with the range, from whatever parts hold it. Dtype and shape must be those saved, else UserError
  /// (input) "expected [..], file has [..]". The checksum of a part is verified when it is first touched.
  void read(const TensorRange& range, void* to);
  /// The same as fp32; `range.dtype` is not looked at, the saved one must be floating.
  void read_f32(const TensorRange& range, float* to);

 private:
  const TensorRecord& record(const TensorRange& range) const;
  const SafetensorsFile& verified(const TensorRecord& tensor, const Part& part);

  Path folder_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, const TensorRecord*> index_;  ///< (name, kind), into manifest_
  std::map<std::string, SafetensorsFile> files_;                              ///< opened so far
  std::set<std::pair<std::string, std::string>> verified_;                    ///< (file, key)
};

// Which checkpoint a run goes on from, and what it leaves behind when that is an earlier one.
//
//   const Resume resume = choose_resume(recipe.run.resume, "runs/a", /*launched=*/std::nullopt);
//   if (!resume.beyond.empty()) ...                      // going back: these belong to the line that is left
//
// [Note: lines] Checkpoints that follow from run.resume = DIR say so ("resumed_from" of their manifests). While none
// does, DIR is where the run begins, also after a restart; from the first one on the same command goes on from the
// newest.

inline constexpr const char* kResumedFrom = "resumed_from";  ///< a field of Manifest::extra

struct Resume {
  std::optional<Path> from;  ///< nothing: the run begins anew
  std::vector<Path> beyond;  ///< whole checkpoints of the run that lie behind `from` on the line it leaves
  std::string line;          ///< kResumedFrom of the checkpoints that follow; empty: none
  bool gone_on = false;      ///< run.resume names a folder, and the run has gone on from there already
  bool back = false;         ///< the run diverged: `from` is its newest proved checkpoint, if there is one
};

/// Whether run.resume = `asked` names a folder from which the newest checkpoint of the run follows, or the newest whose
/// manifest can be read; it may be pruned by now.
bool has_gone_on(const std::string& asked, const Path& run);

/// `asked`: run.resume. `launched`: this is a restart by a launcher that began then, in seconds since 1970: with run.resume
/// = "no" the run goes on from what it saved since, and begins anew while that is nothing. `diverged`: the start before this
/// one ended so, and what it saved last is not worth going on from; a checkpoint of the run that `asked` names is taken all
/// the same. Throws UserError (input) for a folder that is no checkpoint.
Resume choose_resume(const std::string& asked, const Path& run, std::optional<double> launched, bool diverged = false);

/// "checkpoints/step-000050, step 50, manifest 1a2b3c4d", by which ranks compare; "none".
std::string describe(const Resume& resume);

/// Whether it is a folder as ColossalAI's trainers save it, epoch*-global_step*: weights, states of an optimiser, and
/// running_states.json.
bool is_trainer_folder(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
