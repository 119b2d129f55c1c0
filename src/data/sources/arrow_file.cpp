// Files of Arrow's IPC format, read by libarrow and handed over by the Arrow C stream interface.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arrow/buffer.h>
#include <arrow/c/bridge.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>

#include <muster/core/error.hpp>
#include <muster/data/arrow.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include <muster/data/sources/parquet.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace {

// Returns all batches of a file, which refer to the mapped file.
arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> read_batches(const std::shared_ptr<const mapped_file>& file) {
  const std::string_view text = file->text();
  const std::shared_ptr<arrow::Buffer> bytes(new arrow::Buffer(text), [file](arrow::Buffer* buffer) { delete buffer; });
  const auto input = std::make_shared<arrow::io::BufferReader>(bytes);
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches;
  std::shared_ptr<arrow::Schema> schema;
  if (text.starts_with("ARROW1")) {
    ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchFileReader::Open(input));
    schema = reader->schema();
    for (int number = 0; number < reader->num_record_batches(); ++number) {
      ARROW_ASSIGN_OR_RAISE(auto batch, reader->ReadRecordBatch(number));
      batches.push_back(std::move(batch));
    }
  } else {
    ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ipc::RecordBatchStreamReader::Open(input));
    schema = reader->schema();
    ARROW_ASSIGN_OR_RAISE(batches, reader->ToRecordBatches());
  }
  for (const auto& batch : batches) ARROW_RETURN_NOT_OK(batch->ValidateFull());
  return arrow::RecordBatchReader::Make(std::move(batches), schema);
}

}  // namespace

any_record_source open_arrow_file(const std::string& path, const parquet_options& options) {
  const auto file = std::make_shared<const mapped_file>(path, compressed_files::as_they_are, options.http);
  const auto reader = read_batches(file);
  ArrowArrayStream stream{};
  const auto exported = reader.ok() ? arrow::ExportRecordBatchReader(*reader, &stream) : reader.status();
  if (!exported.ok()) {
    std::string reason = exported.ToString();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    throw data_error({path}, "cannot be read as an Arrow file (" + reason + "); write the file again");
  }
  return open_arrow(stream, options, path, options.threads);
}

}}}  // namespace muster::v0::data
