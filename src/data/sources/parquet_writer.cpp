// Records as a Parquet file, written by libparquet from the tables of export_arrow().
#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <arrow/c/bridge.h>
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <arrow/type_traits.h>
#include <arrow/util/key_value_metadata.h>
#include <parquet/arrow/writer.h>
#include <parquet/exception.h>
#include <nlohmann/json.hpp>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/data/arrow.hpp>

#include "parquet_columns.hpp"

namespace muster { inline namespace v0 { namespace data { namespace detail {
namespace {

// Size of the records that libparquet encodes at a time, for which it needs several times as many bytes, and of the
// records of a row group, whose encoded pages it holds.
constexpr std::size_t batch_bytes = std::size_t{2} << 20, group_bytes = std::size_t{16} << 20;
// libparquet 26 loses rows if pages have one byte.
constexpr std::size_t least_page_bytes = 1024;

/// The file, as a stream of libarrow. Keeps the first exception, because libarrow returns errors.
class file_stream final : public arrow::io::OutputStream {
 public:
  explicit file_stream(std::string path) : file_(std::move(path)) {}

  arrow::Status Write(const void* data, std::int64_t bytes) override {
    try {
      file_.write(std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)));
      return arrow::Status::OK();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
      return arrow::Status::IOError("it cannot be written");
    }
  }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  [[nodiscard]] arrow::Result<std::int64_t> Tell() const override { return static_cast<std::int64_t>(file_.size()); }
  [[nodiscard]] bool closed() const override { return closed_; }

  [[nodiscard]] std::exception_ptr failure() const { return failure_; }
  void commit() { file_.commit(); }
  [[nodiscard]] std::uint64_t size() const { return file_.size(); }

 private:
  atomic_file file_;
  std::exception_ptr failure_;
  bool closed_ = false;
};

/// Records as a source, of which export_arrow() makes a table.
class batch_records : public source_with_facts {
 public:
  batch_records(const source_facts& facts, const record_run& run) : run_(&run) { facts_ = &facts; }

  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
    std::ranges::copy_n(run_->sizes.begin() + static_cast<std::ptrdiff_t>(ids[0]), std::ssize(ids), out.begin());
  }
  // The caller reads all records in order.
  void read(std::span<const sample_id> /*ids*/, const record_rows& rows, std::vector<bad_record>* /*bad*/) const {
    std::ranges::copy(run_->bytes, rows.bytes.begin());
    std::ranges::copy(run_->labels, rows.labels.begin());
  }

 private:
  const record_run* run_;
};

class parquet_file_writer final : public parquet_writer {
 public:
  parquet_file_writer(std::string path, const record_schema& schema, const table_names& columns,
                      const record_file_options& options)
      : path_(std::move(path)),
        facts_{path_, 0, 0, schema, {}, columns},
        output_(std::make_shared<file_stream>(path_)) {
    if (options.alignment != 0)
      throw configuration_error("'" + path_ + "' is a Parquet file (which has no alignment); leave the alignment out");
    require([&] { return open(options); });
  }

  void append(std::span<const std::byte> record, std::span<const float> labels) override {
    const record_schema& schema = facts_.schema;
    if ((schema.form == record_form::fixed && record.size() != schema.record_bytes()) ||
        labels.size() != schema.labels.size())
      throw configuration_error("a record for '" + path_ + "' has " + std::to_string(record.size()) + " bytes and " +
                                std::to_string(labels.size()) +
                                " labels (which the schema has not); append records of the source's schema");
    run_.bytes.insert(run_.bytes.end(), record.begin(), record.end());
    run_.labels.insert(run_.labels.end(), labels.begin(), labels.end());
    run_.sizes.push_back(record.size());
    constexpr std::size_t around = sizeof(std::uint64_t);  // of records without bytes
    if (run_.bytes.size() + around * run_.sizes.size() >= batch_bytes) write_batch();
  }

  std::uint64_t commit() override {
    if (!run_.sizes.empty()) write_batch();
    if (!group_)
      throw configuration_error("'" + path_ + "' would have no records (none was appended); append at least one");
    require([&] { return writer_->Close(); });
    output_->commit();
    return output_->size();
  }

 private:
  /// Calls f(), and converts a failure.
  template <class F>
  void require(const F& f) {
    std::string reason;
    try {
      const arrow::Status done = f();
      if (done.ok()) return;
      reason = done.ToString();
    } catch (const parquet::ParquetException& wrong) {
      reason = wrong.what();
    }
    if (output_->failure()) std::rethrow_exception(output_->failure());
    std::ranges::replace(reason, '\n', ' ');
    throw configuration_error("'" + path_ + "' cannot be written as Parquet (" + reason +
                              "); choose another format, or other columns");
  }

  /// Returns the records of the run as Arrow's batches.
  arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> batches() {
    facts_.size = run_.sizes.size();
    ArrowArrayStream stream =
        export_arrow(any_record_source(batch_records(facts_, run_)), std::max<std::uint64_t>(facts_.size, 1));
    return arrow::ImportRecordBatchReader(&stream);
  }

  arrow::Status open(const record_file_options& options) {
    ARROW_ASSIGN_OR_RAISE(const auto reader, batches());
    std::set<std::string> names;
    for (const auto& field : reader->schema()->fields())
      if (!names.insert(field->name()).second)
        throw configuration_error("'" + path_ + "' would have two columns '" + field->name() +
                                  "' (columns are read by their names); rename one in the source");
    parquet::WriterProperties::Builder properties;
    properties.disable_dictionary()->enable_page_checksum();
    for (const auto& field : reader->schema()->fields()) choose_dictionary(*field, properties);
    if (options.block_bytes != 0)
      properties.compression(parquet::Compression::ZSTD)
          ->compression_level(options.level)
          ->data_pagesize(static_cast<std::int64_t>(std::max(options.block_bytes, least_page_bytes)));
    const auto schema = reader->schema()->WithMetadata(metadata());
    ARROW_ASSIGN_OR_RAISE(
        writer_, parquet::arrow::FileWriter::Open(*schema, arrow::default_memory_pool(), output_, properties.build(),
                                                  parquet::ArrowWriterProperties::Builder().store_schema()->build()));
    return arrow::Status::OK();
  }

  /// Returns the file's metadata: the names of the classes.
  [[nodiscard]] std::shared_ptr<const arrow::KeyValueMetadata> metadata() const {
    if (facts_.schema.classes.empty()) return nullptr;
    const nlohmann::json classes = facts_.schema.classes;
    const auto text = classes.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (nlohmann::json::parse(text) != classes)
      throw configuration_error("'" + path_ +
                                "' cannot have the names of the classes (a name is not UTF-8); rename it");
    return arrow::key_value_metadata({std::string(classes_key)}, {text});
  }

  /// Chooses a dictionary for a column of integers of 8 or 16 bits, which Parquet stores in 32 bits otherwise.
  static void choose_dictionary(const arrow::Field& field, parquet::WriterProperties::Builder& properties) {
    std::string path = field.name();
    const arrow::DataType* type = field.type().get();
    for (; type->num_fields() == 1; type = type->field(0)->type().get()) path += ".list.element";
    if (arrow::is_integer(type->id()) && arrow::bit_width(type->id()) <= 16) properties.enable_dictionary(path);
  }

  void write_batch() {
    require([&]() -> arrow::Status {
      ARROW_ASSIGN_OR_RAISE(const auto reader, batches());
      ARROW_ASSIGN_OR_RAISE(const auto batch, reader->Next());
      if (!group_ || *group_ >= group_bytes) {
        ARROW_RETURN_NOT_OK(writer_->NewBufferedRowGroup());
        group_ = 0;
      }
      return writer_->WriteRecordBatch(*batch);
    });
    *group_ += run_.bytes.size();
    run_.sizes.clear();
    run_.bytes.clear();
    run_.labels.clear();
  }

  std::string path_;
  source_facts facts_;
  std::shared_ptr<file_stream> output_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
  record_run run_;
  std::optional<std::size_t> group_;  // bytes of the records in the present row group
};

}  // namespace

std::unique_ptr<parquet_writer> open_parquet_writer(std::string path, const record_schema& schema,
                                                    const table_names& columns, const record_file_options& options) {
  return std::make_unique<parquet_file_writer>(std::move(path), schema, columns, options);
}

}}}}  // namespace muster::v0::data::detail
