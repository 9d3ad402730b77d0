#pragma once
// Writes a dict of tensors as torch.save does; torch.load(PATH, weights_only=True) opens it.
//
//   TorchWriter out("model.pth", infos);
//   for (const TensorInfo& tensor : infos) out.write(data_of(tensor));
//   out.commit();
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/torch_zip.h"

namespace tessera::checkpoint {

/// Beside `path`, flushed and renamed (file.h). Every tensor is contiguous and has a storage of its own.
class TorchWriter {
 public:
  TorchWriter(const Path& path, std::vector<TensorInfo> tensors);

  void write(const void* data);  ///< all bytes of the next tensor, in the order given
  void commit();

 private:
  std::vector<TensorInfo> tensors_;
  size_t next_ = 0;
  ZipWriter zip_;
};

}  // namespace tessera::checkpoint
