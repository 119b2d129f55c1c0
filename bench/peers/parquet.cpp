// Reads a Parquet file once and prints the seconds of opening and of reading: peer_parquet bare|order|shuffled FILE.
// `bare` reads all columns by libparquet's column readers, `order` and `shuffled` read batches of muster on one thread.
// bench/peers/parquet.py compares them.
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <parquet/column_reader.h>
#include <parquet/file_reader.h>

#include <muster/core/clock.hpp>
#include <muster/data.hpp>

namespace {

constexpr std::int64_t batch = 1024;

template <class Type>
double read_column(parquet::ColumnReader& column) {
  auto& reader = static_cast<parquet::TypedColumnReader<Type>&>(column);
  std::array<typename Type::c_type, batch> values;
  std::array<std::int16_t, batch> levels;
  double sum = 0;
  while (reader.HasNext()) {
    std::int64_t count = 0;
    reader.ReadBatch(batch, levels.data(), nullptr, values.data(), &count);
    if (count != 0) sum += static_cast<double>(values[0]);
  }
  return sum;
}

double read_bare(const std::string& path) {
  const auto file = parquet::ParquetFileReader::OpenFile(path, /*memory_map=*/true);
  double sum = 0;
  for (int group = 0; group < file->metadata()->num_row_groups(); ++group) {
    const auto rows = file->RowGroup(group);
    for (int k = 0; k < file->metadata()->num_columns(); ++k) {
      const auto column = rows->Column(k);
      sum += column->type() == parquet::Type::DOUBLE  ? read_column<parquet::DoubleType>(*column)
             : column->type() == parquet::Type::INT64 ? read_column<parquet::Int64Type>(*column)
                                                      : read_column<parquet::FloatType>(*column);
    }
  }
  return sum;
}

double read_batches(const muster::data::any_record_source& source, bool shuffled) {
  auto loader = shuffled ? source | muster::shuffle(1) | muster::batch(4096) : source | muster::batch(4096);
  double sum = 0;
  while (auto rows = loader.next({.rank = 0, .world = 1})) {
    sum += static_cast<double>(rows.values<float>()[0]);
    loader.commit();
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string_view mode = argv[1];
  const bool bare = mode == "bare";
  std::optional<muster::data::any_record_source> source;
  auto start = muster::clock::now();
  if (!bare) source = muster::open_source("parquet:" + std::string(argv[2]), {.threads = 1});
  const double opened = muster::seconds_since(start);
  start = muster::clock::now();
  const double sum = bare ? read_bare(argv[2]) : read_batches(*source, mode == "shuffled");
  std::printf("%.6f %.6f %g\n", opened, muster::seconds_since(start), sum);
}
