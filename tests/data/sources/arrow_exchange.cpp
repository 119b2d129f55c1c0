// A library for package_arrow.py: gives streams of Arrow to muster and takes streams from it, without a copy by Python.
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/text.hpp>
#include <muster/data/arrow.hpp>

namespace {

std::string last_problem;
std::unique_ptr<muster::data::any_record_source> opened;

int run(const auto& f) {
  try {
    f();
    return 0;
  } catch (const muster::error& failed) {
    last_problem = failed.what();
    return failed.exit_status();
  }
}

}  // namespace

extern "C" {

const char* exchange_problem() { return last_problem.c_str(); }

/// Opens a stream as a source. `columns`, `label`, `classes` and `missing` are texts as in a specification.
int exchange_open(ArrowArrayStream* stream, const char* columns, const char* label, const char* classes, int missing) {
  return run([&] {
    muster::data::column_options options;
    for (const auto word : muster::detail::listed(columns)) options.columns.emplace_back(word);
    for (const auto word : muster::detail::listed(classes)) options.classes.emplace_back(word);
    options.label = label;
    options.missing = static_cast<muster::data::missing_values>(missing);
    opened = std::make_unique<muster::data::any_record_source>(muster::data::open_arrow(*stream, options, "arrow", 1));
  });
}
void exchange_close() { opened.reset(); }
const char* exchange_schema() { return (last_problem = to_string(opened->schema())).c_str(); }
std::uint64_t exchange_digest() { return opened->digest(); }
int exchange_mapped() { return opened->mapped() ? 1 : 0; }
/// Returns the address of a mapped record.
const void* exchange_view(std::uint64_t id) {
  std::span<const std::byte> view;
  opened->views({&id, 1}, {&view, 1});
  return view.data();
}

/// Writes the records as dump_source does, in the order `ids`.
int exchange_dump(const char* file, const std::uint64_t* ids, std::uint64_t count) {
  return run([&] {
    std::ofstream out(file, std::ios::binary);
    const std::span all(ids, count);
    std::vector<std::uint64_t> sizes(count);
    opened->sizes(all, sizes);
    std::size_t sum = 0;
    for (const std::uint64_t size : sizes) sum += size;
    std::vector<std::byte> bytes(sum);
    const std::size_t width = opened->schema().labels.size();
    std::vector<float> labels(count * width);
    std::vector<muster::bad_record> bad;
    opened->read(all, {bytes, labels}, &bad);
    std::size_t at = 0;
    for (std::size_t k = 0, next_bad = 0; k < count; at += sizes[k++]) {
      out.write(reinterpret_cast<const char*>(&sizes[k]), sizeof sizes[k]);
      out.write(reinterpret_cast<const char*>(bytes.data() + at), static_cast<std::streamsize>(sizes[k]));
      out.write(reinterpret_cast<const char*>(labels.data() + k * width),
                static_cast<std::streamsize>(width * sizeof(float)));
      const bool is_bad = next_bad < bad.size() && bad[next_bad].id == ids[k];
      next_bad += is_bad ? 1 : 0;
      out.put(is_bad ? 1 : 0);
    }
  });
}
std::uint64_t exchange_size() { return opened->size(); }

/// Makes a stream of the source.
int exchange_export(ArrowArrayStream* stream, std::uint64_t rows) {
  return run([&] { *stream = muster::data::export_arrow(*opened, rows); });
}

}  // extern "C"
