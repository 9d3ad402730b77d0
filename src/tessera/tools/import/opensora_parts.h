#pragma once
// Options that the configurations of Open-Sora 1.x and 2.0 share.
#include <string>

#include "tessera/tools/options/dialect.h"

namespace tessera::tools {

/// data.buckets and train.global_batch of "bucket_config", whose items are 33x256px=TAKE,BATCH or
/// 33x256px=TAKE,SKIP,BATCH. Throws UserError (usage) showing an item that is neither. After the plugin: a batch is of
/// the ranks that share a sample.
void set_opensora_buckets(Translator& t);
/// plan.strategy and the mesh, of "plugin" and "plugin_config.*".
void set_opensora_plugin(Translator& t);
/// An encoder, `preset`, of a given name or folder, which has to hold `name`; `key` is the recipe's.
void set_opensora_encoder(Translator& t, const Given& g, const char* name, const char* preset, const std::string& key,
                          const char* tokenizer);
/// `key` = KIND=WEIGHT of the items TABLE.NAME, by `kind_of` their names: false where there is none that has a weight.
bool set_opensora_weights(Translator& t, const std::string& table, const std::string& key,
                          const std::vector<std::string>& known, std::string (*kind_of)(const std::string& name));
/// run.steps of "epochs".
void set_opensora_epochs(Translator& t);

}  // namespace tessera::tools
