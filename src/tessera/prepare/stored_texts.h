#pragma once
// Captions that another program encoded: files of a table's row in place of what text encoders make (data.texts).
//
//   for (const data::RowFile& file : text_files(item)) ...            // of the row, by their role in the clip's entry
//   CachedText text = stored_text(item.context, item.pooled, job);    // [n, D] and [P], as the model takes them
//
// The cache keeps them in the clip's entry (put_text, take_text), so that a changed file makes it stale as a changed clip does.
#include "tessera/data/cache.h"
#include "tessera/data/item.h"
#include "tessera/job/job.h"
#include "tessera/prepare/encoded.h"

namespace tessera::prepare {

std::vector<data::RowFile> text_files(const data::Item& item);

/// What an entry's texts have to fit, for its key; empty where captions are encoded.
std::string text_form(const recipe::Recipe::Data& data, const job::Job& job);

/// Either may stand behind ones: [1, n, D], [1, P]. Throws UserError (input) naming the file, what it has, and what the
/// model takes.
CachedText stored_text(const data::Path& context, const data::Path& pooled, const job::Job& job);
/// Of data.null_text; nothing where that is empty.
EncodedText stored_null_text(const recipe::Recipe::Data& data, const job::Job& job);

/// Warns where a model that trained on captions of another program would sample prompts that encoders with random weights
/// encode.
void tell_random_prompts(const recipe::Recipe::Data& data);

at::Tensor tensor_of(const data::CachedTensor& stored);
void put_text(CachedText text, data::CachedClip& clip);
CachedText take_text(data::CachedClip& clip);

}  // namespace tessera::prepare
