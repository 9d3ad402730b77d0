// Reads a Parquet file, or an Arrow file as datasets' save_to_disk writes it, by Arrow: some thousand rows at a time, of one
// thread, in bounded memory, since its bytes are foreign.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/metadata.h>
#include <parquet/statistics.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/files/parquet_rows.h"

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

/// {bytes, path}: a file that the table holds or names.
bool is_file(const arrow::DataType& type) {
  if (type.id() != arrow::Type::STRUCT) return false;
  const auto& fields = static_cast<const arrow::StructType&>(type);
  const auto bytes = fields.GetFieldByName("bytes"), path = fields.GetFieldByName("path");
  return bytes && path && is_text(*path->type()) &&
         (bytes->type()->id() == arrow::Type::BINARY || bytes->type()->id() == arrow::Type::LARGE_BINARY);
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

/// A column that is told, and of files whether the table has their bytes: a batch of a Parquet file comes without these.
struct Column {
  std::string name;
  bool is_file = false, inside = false;
};

struct Columns {
  std::vector<Column> list;
  std::vector<int> leaves;  ///< columns of the file that they are made of

  void tell(const TesseraParquetRows& rows) const {
    std::vector<const char*> names;
    for (const Column& column : list) names.push_back(column.name.c_str());
    rows.columns(rows.to, names.data(), static_cast<int64_t>(names.size()));
  }
};

const parquet::arrow::SchemaField* child_of(const parquet::arrow::SchemaField& field, std::string_view name) {
  for (const parquet::arrow::SchemaField& child : field.children)
    if (child.field->name() == name) return &child;
  return nullptr;
}

/// Whether some row has bytes in a column, by what the file counts; their pages are not read.
bool any_value(const parquet::FileMetaData& file, int leaf) {
  for (int g = 0; g < file.num_row_groups(); ++g) {
    const auto chunk = file.RowGroup(g)->ColumnChunk(leaf);
    const auto counts = chunk->statistics();
    if (!counts || !counts->HasNullCount() || counts->null_count() < chunk->num_values()) return true;
  }
  return false;
}

Columns columns_of(const parquet::arrow::FileReader& reader) {
  Columns columns;
  for (const parquet::arrow::SchemaField& field : reader.manifest().schema_fields) {
    if (is_file(*field.field->type())) {
      const auto *bytes = child_of(field, "bytes"), *path = child_of(field, "path");
      if (!bytes || !path) continue;
      columns.list.push_back(
          {field.field->name(), true, any_value(*reader.parquet_reader()->metadata(), bytes->column_index)});
      columns.leaves.push_back(path->column_index);
    } else if (has_text_form(*field.field->type())) {
      columns.list.push_back({field.field->name()});
      add_leaves(field, columns.leaves);
    }
  }
  return columns;
}

std::string_view text_at(const arrow::Array& values, int64_t i) {
  if (values.IsNull(i)) return {};
  if (values.type_id() == arrow::Type::STRING) return static_cast<const arrow::StringArray&>(values).GetView(i);
  if (values.type_id() == arrow::Type::LARGE_STRING)
    return static_cast<const arrow::LargeStringArray&>(values).GetView(i);
  return {};
}

/// Of a column of files.
void tell_file(const arrow::StructArray& files, int64_t i, int64_t place, bool inside, const TesseraParquetRows& rows) {
  if (files.IsNull(i)) return;
  const auto paths = files.GetFieldByName("path");
  const std::string_view path = paths ? text_at(*paths, i) : std::string_view();
  if (path.empty() && !inside) return;
  rows.file(rows.to, place, path.data(), static_cast<int64_t>(path.size()), inside ? 1 : 0);
}

arrow::Status tell_rows(const arrow::RecordBatch& batch, const std::vector<Column>& columns,
                        const TesseraParquetRows& rows) {
  ARROW_RETURN_NOT_OK(batch.ValidateFull());
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const Column& column : columns) {
    arrays.push_back(batch.GetColumnByName(column.name));
    if (!arrays.back()) return arrow::Status::Invalid("columns that its schema does not have");
  }
  for (int64_t i = 0; i < batch.num_rows(); ++i) {
    rows.row(rows.to);
    for (size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].is_file) {
        const auto& files = static_cast<const arrow::StructArray&>(*arrays[c]);
        const auto bytes = files.GetFieldByName("bytes");  // in an Arrow file each row says it
        tell_file(files, i, static_cast<int64_t>(c), bytes ? !bytes->IsNull(i) : columns[c].inside, rows);
      } else {
        ARROW_RETURN_NOT_OK(Texts(rows, static_cast<int64_t>(c)).add(*arrays[c], i));
      }
    }
  }
  return arrow::Status::OK();
}

/// Bytes of a batch's files from row `first` of it on; whether it was enough.
arrow::Result<bool> tell_bytes(const arrow::Array& files, int64_t first, const TesseraParquetFiles& to) {
  if (files.type_id() != arrow::Type::STRUCT) return arrow::Status::Invalid("a column that holds no files");
  ARROW_RETURN_NOT_OK(files.ValidateFull());
  const auto bytes = static_cast<const arrow::StructArray&>(files).GetFieldByName("bytes");
  if (!bytes || (bytes->type_id() != arrow::Type::BINARY && bytes->type_id() != arrow::Type::LARGE_BINARY))
    return arrow::Status::Invalid("a column that holds no files");
  for (int64_t i = first; i < bytes->length(); ++i) {
    std::string_view view;
    if (bytes->IsValid(i))
      view = bytes->type_id() == arrow::Type::BINARY ? static_cast<const arrow::BinaryArray&>(*bytes).GetView(i)
                                                     : static_cast<const arrow::LargeBinaryArray&>(*bytes).GetView(i);
    if (to.file(to.to, view.data(), static_cast<int64_t>(view.size())) != 0) return true;
  }
  return false;
}

/// A Parquet file, open.
struct Parquet {
  arrow::CappedMemoryPool pool{arrow::default_memory_pool(), kMostBytes};
  std::unique_ptr<parquet::arrow::FileReader> reader;

  arrow::Status open(const std::string& file) {
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
    return builder.Build(&reader);
  }
};

arrow::Status read_parquet(const std::string& file, const TesseraParquetRows& rows) {
  Parquet opened;
  ARROW_RETURN_NOT_OK(opened.open(file));
  const Columns columns = columns_of(*opened.reader);
  columns.tell(rows);
  if (columns.list.empty()) return arrow::Status::OK();
  std::vector<int> groups(static_cast<size_t>(opened.reader->num_row_groups()));
  for (size_t g = 0; g < groups.size(); ++g) groups[g] = static_cast<int>(g);
  ARROW_ASSIGN_OR_RAISE(const auto batches, opened.reader->GetRecordBatchReader(groups, columns.leaves));
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (!batch) return arrow::Status::OK();
    ARROW_RETURN_NOT_OK(tell_rows(*batch, columns.list, rows));
  }
}

arrow::Status read_parquet_files(const std::string& file, const std::string& column, int64_t first,
                                 const TesseraParquetFiles& files) {
  Parquet opened;
  ARROW_RETURN_NOT_OK(opened.open(file));
  std::vector<int> leaves;
  for (const parquet::arrow::SchemaField& field : opened.reader->manifest().schema_fields)
    if (field.field->name() == column && is_file(*field.field->type()))
      if (const auto* bytes = child_of(field, "bytes")) leaves.push_back(bytes->column_index);
  if (leaves.empty()) return arrow::Status::Invalid("no column of files is called " + column);
  const auto metadata = opened.reader->parquet_reader()->metadata();
  for (int g = 0; g < metadata->num_row_groups(); ++g) {
    const int64_t count = metadata->RowGroup(g)->num_rows();
    if (first >= count) {
      first -= count;
      continue;
    }
    ARROW_ASSIGN_OR_RAISE(const auto batches, opened.reader->GetRecordBatchReader({g}, leaves));
    for (;;) {
      ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
      if (!batch) return arrow::Status::OK();
      if (first >= batch->num_rows()) {
        first -= batch->num_rows();
        continue;
      }
      ARROW_ASSIGN_OR_RAISE(const bool enough, tell_bytes(*batch->column(0), first, files));
      if (enough) return arrow::Status::OK();
      first = 0;
    }
  }
  return arrow::Status::Invalid("it has no such row");
}

/// The batches of an .arrow file, whose bytes stay on the disk until they are asked for.
arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> open_arrow(const std::string& file, arrow::MemoryPool& pool) {
  ARROW_ASSIGN_OR_RAISE(auto input, arrow::io::MemoryMappedFile::Open(file, arrow::io::FileMode::READ));
  arrow::ipc::IpcReadOptions how = arrow::ipc::IpcReadOptions::Defaults();
  how.memory_pool = &pool;
  how.use_threads = false;
  return arrow::ipc::RecordBatchStreamReader::Open(std::move(input), how);
}

arrow::Status read_arrow(const std::string& file, const TesseraParquetRows& rows) {
  arrow::CappedMemoryPool pool(arrow::default_memory_pool(), kMostBytes);
  ARROW_ASSIGN_OR_RAISE(const auto batches, open_arrow(file, pool));
  Columns columns;
  for (const auto& field : batches->schema()->fields())
    if (is_file(*field->type()) || has_text_form(*field->type()))
      columns.list.push_back({field->name(), is_file(*field->type())});
  columns.tell(rows);
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (!batch) return arrow::Status::OK();
    ARROW_RETURN_NOT_OK(tell_rows(*batch, columns.list, rows));
  }
}

arrow::Status read_arrow_files(const std::string& file, const std::string& column, int64_t first,
                               const TesseraParquetFiles& files) {
  arrow::CappedMemoryPool pool(arrow::default_memory_pool(), kMostBytes);
  ARROW_ASSIGN_OR_RAISE(const auto batches, open_arrow(file, pool));
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (!batch) return arrow::Status::Invalid("it has no such row");
    if (first >= batch->num_rows()) {
      first -= batch->num_rows();
      continue;
    }
    const auto found = batch->GetColumnByName(column);
    if (!found) return arrow::Status::Invalid("no column of files is called " + column);
    return tell_bytes(*found, first, files).status();
  }
}

/// 0, or 1 and why `act` failed.
template <class Act>
int told(char* why, int64_t bytes, const Act& act) {
  std::string text;
  try {
    const arrow::Status status = act();
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

bool is_arrow(std::string_view file) { return file.ends_with(".arrow"); }

}  // namespace

__attribute__((visibility("default"))) int tessera_read_parquet(const char* file, const TesseraParquetRows* rows,
                                                                char* why, int64_t bytes) {
  return told(why, bytes, [&] { return is_arrow(file) ? read_arrow(file, *rows) : read_parquet(file, *rows); });
}

__attribute__((visibility("default"))) int tessera_read_parquet_files(const char* file, const char* column,
                                                                      int64_t first, const TesseraParquetFiles* files,
                                                                      char* why, int64_t bytes) {
  return told(why, bytes, [&] {
    return is_arrow(file) ? read_arrow_files(file, column, first, *files)
                          : read_parquet_files(file, column, first, *files);
  });
}
