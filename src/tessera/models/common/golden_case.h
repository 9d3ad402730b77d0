#pragma once
// A model's part of `verify`: converts a golden case of the model's own kind to its inputs, and its results to the
// tensors that the case expects.
//
//   const DenoiserCase kCase = {"dit_s2v", samples, output, input_grads};
//
// Parameters that programs store together (checkpoint/row_part.h), put together.
//
//   stored_together({{"blocks.0.attn.q.weight", q}, ...}, name);          // {"blocks.0.attn.qkv.weight", [q; k; v]}
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/net/encoders.h"
#include "tessera/net/model.h"
#include "tessera/ops/tensor.h"

namespace tessera::models {

/// The tensors of a case's file.
class CaseTensors {
 public:
  virtual ~CaseTensors() = default;
  virtual std::string label() const = 0;  ///< CASE/FILE, for messages
  virtual bool has(const std::string& name) const = 0;
  virtual std::vector<std::string> names(const std::string& prefix) const = 0;
  /// In its own dtype (8-bit floats, and inputs in 16 bits, as fp32). Throws UserError (input) when it is missing.
  virtual at::Tensor tensor(const std::string& name) const = 0;
};

/// The rows of caption i that the mask keeps. Throws UserError (input) where they do not come first.
int64_t rows_of(const CaseTensors& file, const char* mask, int64_t i);

/// Results under the names of the case, in the order of the report. Integers are compared exactly.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A further recorded call with the same weights, of which the output alone is expected.
struct DenoiserCall {
  std::string output;  ///< its name in the case; of each sample, where it ends in a dot; without a dot: what stands for
                       ///< "out" in the names of all outputs, where a case has them
  /// Makes sample i of the case that of the call.
  void (*change)(net::Sample& sample, const CaseTensors& file, int64_t i);
  std::string input = {};  ///< that only files with this call have; empty: all have it
};

/// For denoisers whose cases have inputs beside in.x, in.context and extras.
struct DenoiserCase {
  std::string kind;  ///< of case.json
  /// `about`: the file's entry in case.json.
  std::vector<net::Sample> (*samples)(const CaseTensors& file, const std::string& about);
  NamedTensors (*outputs)(const std::vector<at::Tensor>& predictions);
  /// `file`: for inputs of which a sample takes a part.
  NamedTensors (*input_grads)(const std::vector<std::map<std::string, at::Tensor>>& grads, const CaseTensors& file);
  std::vector<std::string> weights = {"model.safetensors"};  ///< one after the other, of any naming
  std::string grad_naming = "tessera";                       ///< of the parameters in grad.*
  /// Its config.json with sizes that it leaves to the tensors of a file; null: it has all.
  std::string (*config)(const std::string& json, const CaseTensors& file) = nullptr;
  std::string adapter = {};  ///< file of a LoRA, of which config.json's "_lora" tells rank, alpha and targets; or empty
  std::vector<DenoiserCall> calls = {};
  /// What the case has of the inputs that the model makes of samples; null: nothing.
  NamedTensors (*inputs)(const net::Denoiser& model, const std::vector<net::Sample>& samples) = nullptr;
};

/// What a program makes of pixels for a model, with an autoencoder that case.json names.
struct InputCase {
  std::string kind;       ///< of case.json; cases of a denoiser may have such files beside their own
  std::string files;      ///< how their names begin
  std::string tolerance;  ///< its key in case.json
  NamedTensors (*results)(const CaseTensors& file, const net::VideoCodec& codec);
  /// Bounds of results whose names begin like this, in place of the tolerance.
  std::vector<std::pair<std::string, double>> bounds = {};
};

struct TextEncoderCase {
  std::string kind;
  net::Batch (*pack)(const net::TextEncoder& encoder, const CaseTensors& file);
  /// `hidden`: the last unit's output. `parameter`: gathers a whole parameter by its official name; all ranks call it.
  NamedTensors (*results)(const net::TextEncoder& encoder, const CaseTensors& file, const at::Tensor& hidden,
                          const std::function<at::Tensor(const std::string& name)>& parameter);
  std::string prompts = {};  ///< kind of a case of prompts, from their text to the rows that a denoiser gets; or empty
  /// A boundary tensor of the encoder as the case has out.hidden_states.N: what block N gets, 0 on. Null: it has none.
  at::Tensor (*state)(const net::TextEncoder& encoder, const CaseTensors& file, const at::Tensor& rows) = nullptr;
  bool last_state_is_result = true;  ///< the one behind the last block is normalised, as the result is
  /// The encoder with the layers that TextEncoderMake::from_json leaves out; null: it leaves out none.
  std::unique_ptr<net::TextEncoder> (*whole)(const std::string& json, const std::string& file) = nullptr;
};

struct AudioEncoderCase {
  std::string kind;
  NamedTensors (*results)(const net::AudioEncoder& encoder, const CaseTensors& file);
};

/// "in.x.2": the name in a case of what sample 2 has, where a kind keeps samples apart.
std::string of_sample(const std::string& name, size_t sample);
/// "out.0", "out.1", ...
NamedTensors outputs_of_samples(const std::vector<at::Tensor>& predictions);

/// fp32 tensors under the names that `name` gives, parts of one tensor as that tensor, at the place of the first of
/// them.
std::vector<std::pair<std::string, at::Tensor>> stored_together(
    const std::vector<std::pair<std::string, at::Tensor>>& ours,
    const std::function<std::string(const std::string&)>& name);

}  // namespace tessera::models
