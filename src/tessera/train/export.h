#pragma once
// Trained weights as other programs read them: a folder with config.json and safetensors files, with an
// index where they are several; and what a run exports of its saves and at its end.
#include <filesystem>
#include <string>

#include "tessera/comm/comm.h"
#include "tessera/engine/store/store.h"
#include "tessera/job/lora_run.h"
#include "tessera/models/convert_source.h"
#include "tessera/net/model.h"
#include "tessera/train/expert_schedule.h"
#include "tessera/train/parts.h"
#include "tessera/train/run_folder.h"

namespace tessera::train {

/// Bytes of an exported file, as `tessera convert` has it. A unit lies in one file, which may be larger for it.
inline constexpr int64_t kExportedFileBytes = int64_t{5} << 30;

/// The naming of what a run exports: diffusers' where its base at `path` has that, so that what read the base reads the
/// result. Empty for any other base, and for none: the model's own files' (net::Denoiser::file_naming).
std::string export_naming(const std::string& path);

/// All ranks take part; rank 0 writes. Memory: one gathered unit. fp32.
void export_model(const net::Denoiser& model, engine::Store& store, comm::Comm& comm, int rank,
                  const std::filesystem::path& folder, const std::string& naming = {});

/// The same from the parameters of a training checkpoint; one rank calls it. Memory: one unit.
void export_saved(const net::Denoiser& model, const models::Source& saved, const std::filesystem::path& folder,
                  const std::string& naming = {}, int64_t file_bytes = kExportedFileBytes);

/// What a run exports: model or adapters of every expert, in the run's folder.
struct Exports {
  const RunFolder& folder;
  const recipe::Recipe& recipe;  ///< of the whole run
  const job::Job& job;
  const std::vector<prepare::StageData>& data;
  const Parts& parts;
  const ExpertSchedule& experts;
  engine::Store& store;

  // of rank 0, of a checkpoint; no other rank is asked. A failure is told, and the run goes on
  /// What lies within a checkpoint: adapters, where each save has them.
  void beside(int64_t step, const std::filesystem::path& checkpoint) const;
  /// RUN/exports/step-000100, where each save has one. Behind its checkpoint, so that no start finds an export of a step to
  /// which the run has not come.
  void behind(int64_t step, const std::filesystem::path& checkpoint) const;
  bool has(int64_t step) const;  ///< whether that is there

  /// RUN/model and RUN/model_ema of the trained weights, each by itself: where one fails, the others are written. Gives the
  /// code of what failed. All ranks together.
  Exit model() const;

  job::LoraFacts lora_facts(int64_t step, const job::Expert& expert) const;
  Exit saved_parts(int64_t step, const std::filesystem::path& checkpoint, const std::filesystem::path& to) const;
  void save_beside_experts(const std::filesystem::path& model) const;
};

/// What becomes of an export or a report of a run's end that failed.
inline constexpr const char* kNextStart = "start the run again to repeat it";

}  // namespace tessera::train
