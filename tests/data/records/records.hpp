// Random records in muster's own format, and their expected contents.
#pragma once

#include <string>
#include <vector>

#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include "../records.hpp"

inline muster::data::record_schema schema_of(muster::data::record_form form) {
  switch (form) {
    case muster::data::record_form::fixed:
      return {form, {{"image", muster::dtype::uint8, {3, 5, 2}}, {"weight", muster::dtype::float32, {}}}, 0, {"label"}};
    case muster::data::record_form::bytes:
      return {form, {}, 0, {}};
    case muster::data::record_form::sparse:
      return {form, {}, 1000, {"a", "b"}};
  }
  return {};
}

inline std::vector<expected_record> random_records(muster::random_stream& random,
                                                   const muster::data::record_schema& schema, std::size_t count) {
  std::vector<expected_record> records(count);
  for (auto& record : records) {
    std::size_t size = schema.record_bytes();
    if (schema.form == muster::data::record_form::bytes) size = random.below(10) == 0 ? 0 : random.below(300);
    if (schema.form == muster::data::record_form::sparse) size = 8 * random.below(30);
    record.bytes.resize(size);
    // Half of the records are easy to compress.
    const std::uint64_t values = random.below(2) == 0 ? 256 : 3;
    for (auto& byte : record.bytes) byte = static_cast<std::byte>(random.below(values));
    for (std::size_t k = 0; k < schema.labels.size(); ++k) record.labels.push_back(float(random.below(1000)) / 8);
  }
  return records;
}

template <class Writer>
void append_all(Writer& writer, const std::vector<expected_record>& records) {
  for (const auto& record : records) writer.append(record.bytes, record.labels);
}

inline muster::data::record_file_summary write_file(const std::string& path, const muster::data::record_schema& schema,
                                                    const std::vector<expected_record>& records,
                                                    const muster::data::record_file_options& options = {}) {
  muster::data::record_file_writer writer(path, schema, options);
  append_all(writer, records);
  return writer.commit();
}

inline std::string content_of(const std::string& path) {
  const muster::data::mapped_file file(path, muster::data::compressed_files::as_they_are);
  return std::string(file.text());
}
