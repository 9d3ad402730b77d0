// Reads a Parquet file by Arrow: some thousand rows at a time, of one thread, in bounded memory, since its bytes are foreign.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/parquet/rows.h"

namespace {

constexpr int64_t kMostBytes = int64_t{2} << 30;  ///< of the columns that are read of a row group, and of its pages
constexpr int64_t kRowsAtATime = 4096;
constexpr int kMostOfAName = 64 << 20, kMostOfAList = 100'000;  ///< bytes and items in what the file says of itself

bool is_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
}

/// Texts, in any of their forms.
bool holds_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return is_text(type);
}

bool has_text_form(const arrow::DataType& type) {
  const arrow::Type::type id = type.id();
  if (id == arrow::Type::LIST || id == arrow::Type::LARGE_LIST)
    return holds_text(*static_cast<const arrow::BaseListType&>(type).value_type());
  return holds_text(type) || arrow::is_integer(id) || arrow::is_decimal(id) || id == arrow::Type::BOOL ||
         id == arrow::Type::FLOAT || id == arrow::Type::DOUBLE;
}

/// The columns of the file that make a field: a list has some below it.
void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child, leaves);
}

class Texts {
 public:
  Texts(const TesseraParquetRows& rows, int64_t column) : rows_(rows), column_(column) {}

  arrow::Status add(const arrow::Array& values, int64_t i) const {
    if (values.IsNull(i)) return arrow::Status::OK();
    switch (values.type_id()) {
      case arrow::Type::STRING:
        return add(static_cast<const arrow::StringArray&>(values).GetView(i));
      case arrow::Type::LARGE_STRING:
        return add(static_cast<const arrow::LargeStringArray&>(values).GetView(i));
      case arrow::Type::STRING_VIEW:
        return add(static_cast<const arrow::StringViewArray&>(values).GetView(i));
      case arrow::Type::DICTIONARY: {
        const auto& coded = static_cast<const arrow::DictionaryArray&>(values);
        return add(*coded.dictionary(), coded.GetValueIndex(i));
      }
      case arrow::Type::LIST:
        return add_list(static_cast<const arrow::ListArray&>(values), i);
      case arrow::Type::LARGE_LIST:
        return add_list(static_cast<const arrow::LargeListArray&>(values), i);
      case arrow::Type::FLOAT:
        return add_number(static_cast<const arrow::FloatArray&>(values).Value(i));
      case arrow::Type::DOUBLE:
        return add_number(static_cast<const arrow::DoubleArray&>(values).Value(i));
      default: {
        ARROW_ASSIGN_OR_RAISE(const auto value, values.GetScalar(i));
        return add(value->ToString());
      }
    }
  }

 private:
  arrow::Status add(std::string_view text) const {
    rows_.text(rows_.to, column_, text.data(), static_cast<int64_t>(text.size()));
    return arrow::Status::OK();
  }

  template <class Number>
  arrow::Status add_number(Number value) const {
    if (!std::isfinite(value)) return arrow::Status::OK();  // how pandas writes that there is none
    char text[64];
    return add(std::string_view(text, std::to_chars(text, text + sizeof text, value).ptr));
  }

  template <class List>
  arrow::Status add_list(const List& list, int64_t i) const {
    for (int64_t at = list.value_offset(i); at < list.value_offset(i) + list.value_length(i); ++at)
      ARROW_RETURN_NOT_OK(add(*list.values(), at));
    return arrow::Status::OK();
  }

  const TesseraParquetRows& rows_;
  const int64_t column_;
};

struct Columns {
  int count = 0;
  std::vector<int> leaves;  ///< columns of the file that they are made of
};

/// Tells the columns that have a text form.
Columns tell_columns(const parquet::arrow::FileReader& reader, const TesseraParquetRows& rows) {
  std::vector<int> leaves;
  std::vector<const char*> names;
  for (const parquet::arrow::SchemaField& field : reader.manifest().schema_fields) {
    if (!has_text_form(*field.field->type())) continue;
    names.push_back(field.field->name().c_str());
    add_leaves(field, leaves);
  }
  rows.columns(rows.to, names.data(), static_cast<int64_t>(names.size()));
  return {static_cast<int>(names.size()), std::move(leaves)};
}

arrow::Status tell_rows(const arrow::RecordBatch& batch, int columns, const TesseraParquetRows& rows) {
  ARROW_RETURN_NOT_OK(batch.ValidateFull());
  if (batch.num_columns() != columns) return arrow::Status::Invalid("columns that its schema does not have");
  for (int64_t i = 0; i < batch.num_rows(); ++i) {
    rows.row(rows.to);
    for (int column = 0; column < batch.num_columns(); ++column)
      ARROW_RETURN_NOT_OK(Texts(rows, column).add(*batch.column(column), i));
  }
  return arrow::Status::OK();
}

arrow::Status read(const std::string& file, const TesseraParquetRows& rows) {
  arrow::CappedMemoryPool pool(arrow::default_memory_pool(), kMostBytes);
  ARROW_ASSIGN_OR_RAISE(const auto input, arrow::io::ReadableFile::Open(file, &pool));
  parquet::ArrowReaderProperties how(/*use_threads=*/false);
  how.set_batch_size(kRowsAtATime);
  how.set_pre_buffer(false);
  parquet::arrow::FileReaderBuilder builder;
  parquet::ReaderProperties limits(&pool);
  limits.set_thrift_string_size_limit(kMostOfAName);
  limits.set_thrift_container_size_limit(kMostOfAList);
  ARROW_RETURN_NOT_OK(builder.Open(input, limits));
  builder.memory_pool(&pool)->properties(how);
  std::unique_ptr<parquet::arrow::FileReader> reader;
  ARROW_RETURN_NOT_OK(builder.Build(&reader));
  const Columns columns = tell_columns(*reader, rows);
  if (columns.count == 0) return arrow::Status::OK();
  std::vector<int> groups(static_cast<size_t>(reader->num_row_groups()));
  for (size_t g = 0; g < groups.size(); ++g) groups[g] = static_cast<int>(g);
  ARROW_ASSIGN_OR_RAISE(const auto batches, reader->GetRecordBatchReader(groups, columns.leaves));
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (!batch) return arrow::Status::OK();
    ARROW_RETURN_NOT_OK(tell_rows(*batch, columns.count, rows));
  }
}

}  // namespace

__attribute__((visibility("default"))) int tessera_read_parquet(const char* file, const TesseraParquetRows* rows,
                                                                char* why, int64_t bytes) {
  std::string text;
  try {
    const arrow::Status status = read(file, *rows);
    if (status.ok()) return 0;
    text = status.message();
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an exception of no known kind";
  }
  std::snprintf(why, static_cast<size_t>(bytes), "%s", text.substr(0, text.find('\n')).c_str());
  return 1;
}
