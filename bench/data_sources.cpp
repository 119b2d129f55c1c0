#include "data_sources.hpp"

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/random.hpp>
#include <muster/data/order/permutation.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/raw.hpp>
#include <muster/data/sources/synthetic.hpp>

namespace {

void append_number(std::string& text, const char* format, double number) {
  char word[64];
  std::snprintf(word, sizeof word, format, number);
  text += word;
}

void parse(benchmark::State& state, std::size_t bytes, const std::function<std::uint64_t(int)>& read) {
  for (auto _ : state) benchmark::DoNotOptimize(read(static_cast<int>(state.range(0))));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void register_text(const char* name, std::size_t bytes, std::function<std::uint64_t(int)> read) {
  benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { parse(state, bytes, read); })
      ->Arg(1)
      ->Arg(2)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

// A folder with the same records in muster's format and as a raw file, removed when the program ends.
struct record_folder {
  static constexpr std::size_t bytes_in_all = std::size_t{192} << 20;

  explicit record_folder(std::size_t record_bytes) : count(bytes_in_all / record_bytes) {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster-bench-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
    const muster::data::record_schema schema{
        muster::data::record_form::fixed, {{"values", muster::dtype::uint8, {record_bytes}}}, 0, {"label"}};
    muster::data::record_set_writer writer(path / "records", schema);
    muster::atomic_file raw((path / "raw").string());
    muster::random_stream random(record_bytes);
    std::vector<std::byte> record(record_bytes);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t at = 0; at < record.size(); at += 64) record[at] = static_cast<std::byte>(random.below(256));
      const auto label = static_cast<float>(i % 10);
      writer.append(record, {&label, 1});
      raw.write(record);
    }
    writer.commit();
    raw.commit();
  }
  ~record_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  record_folder(const record_folder&) = delete;
  record_folder& operator=(const record_folder&) = delete;

  std::filesystem::path path;
  std::size_t count;
};

enum class id_order { sequential, shuffled, in_blocks };

std::vector<muster::sample_id> make_order(std::size_t count, std::size_t record_bytes, id_order order) {
  std::vector<muster::sample_id> ids(count);
  std::iota(ids.begin(), ids.end(), muster::sample_id{0});
  if (order == id_order::sequential) return ids;
  if (order == id_order::shuffled) {
    const muster::data::detail::permutation shuffled(1, 0, count);
    for (std::size_t i = 0; i < count; ++i) ids[i] = shuffled[i];
    return ids;
  }
  // Reads blocks of 4 MiB in random order, shuffled within a window of four blocks.
  const std::size_t each = (std::size_t{4} << 20) / record_bytes;
  const std::size_t blocks = (count + each - 1) / each;
  const muster::data::detail::permutation shuffled(1, 0, blocks);
  std::size_t at = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t id = shuffled[block] * each; id < std::min(count, (shuffled[block] + 1) * each); ++id)
      ids[at++] = id;
  }
  muster::random_stream random(2);
  for (std::size_t first = 0; first < count; first += 4 * each) {
    const std::size_t size = std::min(4 * each, count - first);
    for (std::size_t k = size; k > 1; --k) std::swap(ids[first + k - 1], ids[first + random.below(k)]);
  }
  return ids;
}

// Reads batches of 128 records for an epoch, copied out of the mapped files.
void read_records(benchmark::State& state, const muster::data::any_record_source& source,
                  const std::vector<muster::sample_id>& ids) {
  constexpr std::size_t batch = 128;
  const std::size_t size = source.schema().record_bytes();
  std::vector<std::byte> bytes(batch * size);
  std::vector<float> labels(batch);
  for (auto _ : state) {
    for (std::size_t at = 0; at < ids.size(); at += batch) {
      const auto part = std::span(ids).subspan(at, std::min(batch, ids.size() - at));
      source.read(part, {bytes, source.schema().labels.empty() ? std::span<float>() : std::span(labels)});
      benchmark::DoNotOptimize(bytes.data());
      benchmark::ClobberMemory();
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(ids.size() * size));
}

void register_records(std::size_t record_bytes) {
  static std::vector<std::unique_ptr<record_folder>> folders;  // Exists until the program ends.
  struct lazy_folder {
    std::size_t record_bytes;
    const record_folder* folder = nullptr;
  };
  auto lazy = std::make_shared<lazy_folder>(lazy_folder{record_bytes});
  const auto folder = [lazy]() -> const record_folder& {
    if (lazy->folder == nullptr) {
      folders.push_back(std::make_unique<record_folder>(lazy->record_bytes));
      lazy->folder = folders.back().get();
    }
    return *lazy->folder;
  };
  constexpr std::pair<const char*, id_order> orders[] = {
      {"sequential", id_order::sequential}, {"shuffled", id_order::shuffled}, {"in_blocks", id_order::in_blocks}};
  for (const auto& [name, order] : orders) {
    const auto add = [&, name = name, order = order](const std::string& kind, auto open) {
      benchmark::RegisterBenchmark((kind + "/" + std::to_string(record_bytes) + "/" + name).c_str(),
                                   [=](benchmark::State& state) {
                                     const auto source = open(folder());
                                     read_records(state, source, make_order(source.size(), record_bytes, order));
                                   })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    };
    add("records", [](const record_folder& at) {
      return muster::data::any_record_source(muster::data::record_files((at.path / "records").string()));
    });
    add("records_unchecked", [](const record_folder& at) {
      return muster::data::any_record_source(
          muster::data::record_files((at.path / "records").string(), {.checks = muster::data::record_checks::never}));
    });
    add("raw", [record_bytes](const record_folder& at) {
      return muster::data::any_record_source(
          muster::data::open_raw({(at.path / "raw").string()}, {.shape = {record_bytes}}));
    });
  }
}

void checksum(benchmark::State& state) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(muster::crc32c(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

}  // namespace

std::string dense_libsvm_text(std::size_t rows) {
  const auto data = muster::data::synthetic_epsilon(rows, 1);
  std::string text;
  for (std::size_t i = 0; i < rows; ++i) {
    text += data.label(i) > 0 ? "+1" : "-1";
    for (std::size_t j = 0; j < data.features(); ++j) {
      text += ' ' + std::to_string(j + 1) + ':';
      append_number(text, "%.6g", double(data.row(i)[j]));
    }
    text += '\n';
  }
  return text;
}

std::string sparse_libsvm_text(std::size_t rows) {
  muster::random_stream random(1);
  std::string text;
  for (std::size_t i = 0; i < rows; ++i) {
    text += random.below(4) == 0 ? "+1 " : "-1 ";
    for (std::uint64_t k = 0; k < 14; ++k) text += std::to_string(1 + 8 * k + random.below(8)) + ":1 ";
    text += '\n';
  }
  return text;
}

std::string csv_text(std::size_t rows) {
  const auto data = muster::data::synthetic_epsilon((rows + 19) / 20, 1);  // Each generated row is used twenty times.
  std::string text = "label";
  for (int column = 0; column < 100; ++column) text += ",f" + std::to_string(column);
  text += '\n';
  for (std::size_t i = 0; i < rows; ++i) {
    text += i % 2 == 0 ? "1" : "-1";
    for (std::size_t j = 0; j < 100; ++j) {
      text += ',';
      append_number(text, "%.6g", double(data.row(i / 20)[i % 20 * 100 + j]) * 100);
    }
    text += '\n';
  }
  return text;
}

void write_texts(const source_texts& texts, const std::string& folder) {
  muster::write_atomically(folder + "/dense.svm", texts.dense);
  muster::write_atomically(folder + "/sparse.svm", texts.sparse);
  muster::write_atomically(folder + "/table.csv", texts.csv);
}

void register_sources(const source_texts& texts) {
  const auto libsvm = [](std::string_view text) {
    return [text](int threads) { return muster::data::parse_libsvm(text, "text", {.threads = threads}).digest(); };
  };
  register_text("libsvm_dense/threads", texts.dense.size(), libsvm(texts.dense));
  register_text("libsvm_sparse/threads", texts.sparse.size(), libsvm(texts.sparse));
  register_text("csv/threads", texts.csv.size(), [text = std::string_view(texts.csv)](int threads) {
    return muster::data::parse_csv(text, "text", {.label = "label"}, {.threads = threads}).digest();
  });
  for (const std::size_t record_bytes : {3072U, 16384U}) register_records(record_bytes);
  benchmark::RegisterBenchmark("crc32c", checksum)->Arg(64)->Arg(3072)->Arg(1 << 20);
}
