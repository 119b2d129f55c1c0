#include <muster/data/open.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/data/cifar.hpp>
#include <muster/data/csv.hpp>
#include <muster/data/idx.hpp>
#include <muster/data/libsvm.hpp>
#include <muster/data/load.hpp>
#include <muster/data/npy.hpp>
#include <muster/data/raw.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/tfrecord.hpp>
#include "source_options.hpp"

namespace muster::inline v0 {
namespace {

using detail::source_options;

constinit std::atomic<detail::query_reader> reader_of_queries{nullptr};

// Samples in memory, or records that are read when they are wanted.
using opened_source = std::variant<dataset, any_record_source>;

constexpr std::size_t any_number = std::numeric_limits<std::size_t>::max() - 1;

read_options with_text_options(source_options& from, read_options options) {
  options.min_features = from.number("features", options.min_features);
  options.keep_bad_records = from.choice<bool>("bad", options.keep_bad_records, {{"fail", false}, {"keep", true}});
  return options;
}

opened_source open_libsvm(source_options& from, const read_options& given) {
  read_options options = with_text_options(from, given);
  options.layout =
      from.choice("layout", options.layout,
                  {{"automatic", layout::automatic}, {"dense", layout::dense}, {"sparse", layout::sparse}});
  from.finish();
  return read_libsvm(from.path(), options);
}

char delimiter_of(source_options& from) {
  const auto value = from.take("delimiter");
  if (!value) return ',';
  constexpr std::pair<std::string_view, char> names[] = {
      {"comma", ','}, {"semicolon", ';'}, {"tab", '\t'}, {"space", ' '}, {"pipe", '|'}};
  for (const auto& [name, character] : names) {
    if (name == *value) return character;
  }
  if (value->size() != 1) from.refuse("delimiter", *value, "give one character, or comma, semicolon, tab, space, pipe");
  return value->front();
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const auto end = std::min(text.find(','), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

missing_values missing_of(source_options& from) {
  return from.choice("missing", missing_values::fail,
                     {{"fail", missing_values::fail}, {"zero", missing_values::zero}, {"nan", missing_values::nan}});
}

opened_source open_csv(source_options& from, const read_options& given) {
  csv_options csv;
  csv.delimiter = delimiter_of(from);
  csv.header =
      from.choice("header", csv_header::automatic,
                  {{"automatic", csv_header::automatic}, {"1", csv_header::present}, {"0", csv_header::absent}});
  csv.label = from.take("label").value_or("");
  csv.ignore = words_of(from.take("ignore").value_or(""));
  csv.missing = missing_of(from);
  const read_options options = with_text_options(from, given);
  from.finish();
  return read_csv(from.path(), csv, options);
}

opened_source open_idx_files(source_options& from, const read_options& /*options*/) {
  const auto paths = from.paths(1, 2);
  from.finish();
  return any_record_source(open_idx(paths[0], paths.size() > 1 ? paths[1] : ""));
}

opened_source open_npy_files(source_options& from, const read_options& /*options*/) {
  const auto paths = from.paths(1, 2);
  from.finish();
  return any_record_source(open_npy(paths[0], paths.size() > 1 ? paths[1] : ""));
}

cifar_split split_of(source_options& from) {
  return from.choice("split", cifar_split::train, {{"train", cifar_split::train}, {"test", cifar_split::test}});
}

opened_source open_cifar10_files(source_options& from, const read_options& /*options*/) {
  const auto split = split_of(from);
  from.finish();
  return any_record_source(open_cifar10(from.path(), split));
}

opened_source open_cifar100_files(source_options& from, const read_options& /*options*/) {
  const auto split = split_of(from);
  const auto labels = from.choice(
      "labels", cifar100_labels::fine,
      {{"fine", cifar100_labels::fine}, {"coarse", cifar100_labels::coarse}, {"both", cifar100_labels::both}});
  from.finish();
  return any_record_source(open_cifar100(from.path(), split, labels));
}

std::optional<dtype> type_named(std::string_view name) {
  for (int i = 1; i <= static_cast<int>(dtype::extended); ++i) {
    if (to_string(static_cast<dtype>(i)) == name) return static_cast<dtype>(i);
  }
  return std::nullopt;
}

std::vector<std::uint64_t> shape_of(source_options& from) {
  const auto text = from.take("shape");
  std::vector<std::uint64_t> shape;
  if (!text) return shape;
  for (std::string_view rest = *text;;) {
    const auto end = rest.find('x');
    const auto extent = parse_number<std::uint64_t>(rest.substr(0, end));
    if (!extent) from.refuse("shape", *text, "give extents such as 3x32x32");
    shape.push_back(*extent);
    if (end == std::string_view::npos) return shape;
    rest.remove_prefix(end + 1);
  }
}

opened_source open_raw_files(source_options& from, const read_options& /*options*/) {
  raw_layout layout;
  const std::string type = from.take("type").value_or("uint8");
  const auto known = type_named(type);
  if (!known) from.refuse("type", type, "give a type such as uint8 or float32");
  layout.type = *known;
  layout.shape = shape_of(from);
  layout.skip = from.number("skip", 0);
  layout.offset = from.number("offset", 0);
  layout.record_bytes = from.number("record", 0);
  if (const auto label = from.take("label")) {
    const auto at = label->find('@');
    const auto label_type = type_named(label->substr(0, at));
    const auto offset =
        parse_number<std::uint64_t>(at == std::string::npos ? "" : std::string_view(*label).substr(at + 1));
    if (!label_type || !offset) from.refuse("label", *label, "give a type and the byte it is at, such as uint8@0");
    layout.labels = {{"label", *label_type, *offset}};
  }
  const auto paths = from.paths(1, any_number);
  from.finish();
  return any_record_source(open_raw(paths, layout));
}

opened_source open_tfrecord_files(source_options& from, const read_options& options) {
  tfrecord_options chosen{.threads = options.threads};
  chosen.compressed = from.flag("compressed", false);
  chosen.check = from.flag("check", true);
  const auto paths = from.paths(1, any_number);
  from.finish();
  return any_record_source(tfrecord_files(paths, chosen));
}

opened_source open_record_files(source_options& from, const read_options& options) {
  record_read_options chosen{.threads = options.threads};
  if (!from.flag("check", true)) chosen.checks = record_checks::never;
  from.finish();
  return any_record_source(record_files(from.path(), chosen));
}

opened_source open_query(source_options& from, const read_options& given) {
  const std::string query = from.take("query").value_or("");
  const std::string label = from.take("label").value_or("");
  const auto ignore = words_of(from.take("ignore").value_or(""));
  const auto missing = missing_of(from);
  const read_options options = with_text_options(from, given);
  from.finish();
  if (query.empty()) {
    throw configuration_error("'" + from.text() + "' has no query (a database has many tables); add ?query=SELECT...");
  }
  const detail::query_reader read = reader_of_queries;
  if (read == nullptr) {
    throw configuration_error(
        "postgres: cannot be read (this program was built without muster's postgres component); "
        "link muster::postgres");
  }
  return read(from.path(), query, label, ignore, missing, options);
}

struct known_source {
  source_info info;
  opened_source (*open)(source_options& from, const read_options& options);
};

const std::vector<known_source>& known_sources() {
  static const std::vector<known_source> table = {
      {{"libsvm", "PATH", "features=N&layout=automatic|dense|sparse&bad=fail|keep",
        "text of LIBSVM or SVMlight, plain, .gz or .zst: `label index:value ...`, indices from 1"},
       open_libsvm},
      {{"csv", "PATH",
        "label=COLUMN&header=automatic|1|0&delimiter=,&ignore=COLUMN,COLUMN&missing=fail|zero|nan&features=N&"
        "bad=fail|keep",
        "a table of numbers as text, plain, .gz or .zst; a column is a name of the header or a number from 0"},
       open_csv},
      {{"idx", "IMAGES[,LABELS]", "", "MNIST and its kin, plain or compressed"}, open_idx_files},
      {{"cifar10", "FOLDER", "split=train|test", "CIFAR-10 in its binary form; also one of its files"},
       open_cifar10_files},
      {{"cifar100", "FOLDER", "split=train|test&labels=fine|coarse|both", "CIFAR-100 in its binary form"},
       open_cifar100_files},
      {{"npy", "PATH[,LABELS]", "", "an array of NumPy; a record is a slice along its first extent"}, open_npy_files},
      {{"raw", "PATH[,PATH...]", "shape=AxBxC&type=uint8&offset=N&label=uint8@N&record=N&skip=N",
        "records of one size, their features `offset` bytes from their start, behind `skip` bytes"},
       open_raw_files},
      {{"tfrecord", "PATH[,PATH...]", "compressed=0|1&check=1|0", "payloads of TFRecord files, as bytes"},
       open_tfrecord_files},
      {{"records", "PATH", "check=1|0", "muster's own format: a file, or a folder with a manifest"}, open_record_files},
      {{"postgres", "CONNECTION",
        "query=SELECT...&label=COLUMN&ignore=COLUMN,COLUMN&missing=fail|zero|nan&features=N&bad=fail|keep",
        "rows of a PostgreSQL query; a connection is \"host=db dbname=training\" or \"postgresql://db/training\""},
       open_query},
  };
  return table;
}

opened_source open_any(std::string_view specification, const read_options& options) {
  source_options from(specification);
  std::string list;
  std::vector<std::string> known;
  for (const known_source& source : known_sources()) {
    if (source.info.scheme == from.scheme()) return source.open(from, options);
    list += (known.empty() ? "" : ", ") + std::string(source.info.scheme);
    known.emplace_back(source.info.scheme);
  }
  const auto meant = closest(from.scheme(), known);
  throw configuration_error("unknown source '" + from.scheme() + "' in '" + from.text() + "' (known: " + list + "); " +
                            (meant ? "did you mean " + *meant + "?" : "choose one of these"));
}

}  // namespace

void detail::set_query_reader(query_reader reader) noexcept { reader_of_queries = reader; }

const std::vector<source_info>& source_table() {
  static const std::vector<source_info> table = [] {
    std::vector<source_info> rows;
    for (const known_source& source : known_sources()) rows.push_back(source.info);
    return rows;
  }();
  return table;
}

any_record_source open_source(std::string_view specification, const read_options& options) {
  return std::visit([](auto&& opened) { return any_record_source(std::move(opened)); },
                    open_any(specification, options));
}

dataset open_dataset(std::string_view specification, const read_options& options) {
  opened_source opened = open_any(specification, options);
  if (auto* const samples = std::get_if<dataset>(&opened)) return std::move(*samples);
  return load(std::get<any_record_source>(opened), options);
}

}  // namespace muster::inline v0
