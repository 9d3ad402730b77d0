#pragma once
// A LoRA file of any program, opened: its modules under official names, and the scale of each.
//
//   LoraFile lora = LoraFile::open("style.safetensors");       // or a folder with one file of weights
//   for (const LoraModule& m : lora.modules()) m.name, m.rank, m.scale();
//   at::Tensor b = lora.values(*m.up);                         // fp32, shaped
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/lora_settings.h"
#include "tessera/models/convert_source.h"
#include "tessera/models/lora_names.h"
#include "tessera/torch_headers.h"

namespace tessera::models {

struct LoraModule {
  std::string name;    ///< official: "blocks.3.self_attn.q"
  std::string stored;  ///< as in the file, without prefix and ending
  std::optional<checkpoint::TensorInfo> down, up, up_bias, magnitude, diff, diff_bias;
  std::map<models::LoraPart, checkpoint::TensorInfo> factors;  ///< of LoHa and LoKr
  /// Of a module that the file has as one with others (models::lora_pieces): its rows of B, magnitude, bias, differences.
  std::optional<checkpoint::RowPart> rows;
  int64_t rank = 0;  ///< of A and B, or of factors; 0: there are only differences, or whole matrices
  double alpha = 0;  ///< as the program that wrote the file meant it
  bool rslora = false;
  double up_factor = 1;  ///< times B as stored is B: 1 but for files in which alpha was folded into B
  /// Of the magnitude: one for each input, for columns of W + s B A (LyCORIS' wd_on_out = False); else for each row.
  bool input_axis = false;
  bool base_lengths = false;  ///< of rows: it is times |W| / |W + s B A| already (checkpoint::kBaseLengths)
  double scale() const;       ///< of B A, and of what factors make; of LoKr with two whole matrices 1
  bool low_rank() const { return down.has_value(); }
  const char* kind() const;  ///< "LoRA", "LoHa", "LoKr"
  /// Whether it changes the weight by B A or by factors.
  bool changes() const { return low_rank() || !factors.empty(); }
  /// Rows of the change as the file has them, and its elements.
  int64_t rows_stored() const;
  int64_t elements() const;
};

class LoraFile {
 public:
  /// Throws UserError (input): no LoRA, LoHa or LoKr, an A without its B, ranks that do not match, a module whose
  /// name is not known, other tensors among them.
  /// `base`: the form of the model that it is for, where that is known.
  static LoraFile open(const std::filesystem::path& path, const models::WeightForm* base = nullptr);
  static LoraFile of(Source source, const models::WeightForm* base = nullptr);

  const std::filesystem::path& path() const { return source_.path; }
  const Source& source() const { return source_; }
  const std::string& naming() const { return names_.naming; }
  const models::WeightForm* form() const { return names_.form; }  ///< of the model whose modules it has; null: unknown
  /// Throws UserError (input) for adapters that belong to another base than the released one (PiSSA and others), and
  /// for names that several models have. Whoever uses a file's values for anything calls it first.
  void check_usable() const;
  const checkpoint::LoraSettings& settings() const { return settings_; }
  const std::vector<LoraModule>& modules() const { return modules_; }  ///< in file order
  const LoraModule* find(const std::string& module) const;             ///< by official name; null when absent
  bool has_alpha() const { return has_alpha_; }                        ///< otherwise alpha is taken to be the rank
  /// What the module adds to its weight, scaled: its own rows of [rows, elements / rows], fp32.
  at::Tensor change(const LoraModule& module) const;
  /// A tensor of the file as fp32.
  at::Tensor values(const checkpoint::TensorInfo& tensor) const;
  /// One of the module's that has a number for each row, or several: the module's own rows.
  at::Tensor rows_of(const LoraModule& module, const std::optional<checkpoint::TensorInfo>& tensor) const;

 private:
  void read_alphas();
  void check(LoraModule& module) const;
  void check_factors(LoraModule& module) const;
  void find_axis(LoraModule& module) const;
  void divide();

  Source source_;
  models::LoraNames names_;
  checkpoint::LoraSettings settings_;
  std::vector<LoraModule> modules_;
  std::map<std::string, checkpoint::TensorInfo> alphas_;  // by official module
  bool has_alpha_ = false;
};

/// What factors of LoHa or LoKr make, without their scale: [rows, elements / rows].
at::Tensor weight_change(const std::map<models::LoraPart, at::Tensor>& factors);

/// Whether the tensors are those of a LoRA, LoHa or LoKr.
bool is_lora(const Source& source);

}  // namespace tessera::models
