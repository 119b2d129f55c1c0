#pragma once

#include <muster/data/open.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>

#include <muster/core/descriptor.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/text.hpp>
#include <muster/data/mixture.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/sources/cifar.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/image_folder.hpp>
#include <muster/data/sources/jsonl.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/npy.hpp>
#include <muster/data/sources/npz.hpp>
#include <muster/data/sources/parquet.hpp>
#include <muster/data/sources/postgres.hpp>
#include <muster/data/sources/raw.hpp>
#include <muster/data/sources/safetensors.hpp>
#include <muster/data/sources/tar.hpp>
#include <muster/data/sources/text_format.hpp>
#include <muster/data/sources/tfrecord.hpp>
#include <muster/data/sources/tfrecord_examples.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constinit std::atomic<detail::query_opener> opener_of_queries{nullptr};
inline constinit std::atomic<detail::parquet_opener> opener_of_parquet{nullptr};
inline constinit std::atomic<detail::arrow_opener> opener_of_arrow{nullptr};
inline constinit std::atomic<detail::parquet_creator> creator_of_parquet{nullptr};

inline constexpr std::size_t any_number = std::numeric_limits<std::size_t>::max() - 1;

inline bool flag(spec_reader& spec, const std::string& name, bool fallback) {
  return spec.choice_of<bool>(name, fallback, {{"1", true}, {"0", false}});
}

/// Returns the path after all options have been taken. Remaining options are refused before a file is opened.
inline std::string path_of(spec_reader& spec) {
  std::string path = spec.path();
  spec.finish(spec.name() + ":PATH");
  return path;
}

inline std::vector<std::string> paths_of(spec_reader& spec, std::size_t least, std::size_t most) {
  auto paths = spec.paths(least, most);
  spec.finish(spec.name() + ":PATH");
  return paths;
}

// Takes the options of a source at an address: SCHEME:https://..., or the address itself.
inline http_options http_of(spec_reader& spec, http_options options) {
  const std::string_view path = std::string_view(spec.text()).substr(spec.name().size() + 1);
  if (!muster::detail::is_remote(path) && !muster::detail::is_remote(spec.text())) return options;
  options.cache = spec.take("cache").value_or(options.cache);
  options.disk = spec.whole_of("disk", options.disk);
  options.timeout = seconds(spec.number_of("timeout", options.timeout.count(), 0, true));
  return options;
}

inline read_options with_text_options(spec_reader& spec, read_options options) {
  options.http = http_of(spec, options.http);
  options.min_features = spec.whole_of("features", options.min_features);
  options.keep_bad_records = spec.choice_of<bool>("bad", options.keep_bad_records, {{"fail", false}, {"keep", true}});
  return options;
}

inline opened_source open_libsvm(spec_reader& spec, const read_options& defaults) {
  read_options options = with_text_options(spec, defaults);
  options.layout =
      spec.choice_of("layout", options.layout,
                     {{"automatic", layout::automatic}, {"dense", layout::dense}, {"sparse", layout::sparse}});
  const std::string path = path_of(spec);
  return detail::open_text("libsvm:" + path, path, options,
                           [&](std::string_view) { return detail::format_of_libsvm(path, options); });
}

inline char delimiter_of(spec_reader& spec) {
  const auto value = spec.take("delimiter");
  if (!value) return ',';
  constexpr std::pair<std::string_view, char> names[] = {
      {"comma", ','}, {"semicolon", ';'}, {"tab", '\t'}, {"space", ' '}, {"pipe", '|'}};
  for (const auto& [name, character] : names) {
    if (name == *value) return character;
  }
  if (value->size() != 1)
    spec.refuse("delimiter '" + *value + "' is longer than one character",
                "give a character, or comma, semicolon, tab, space, pipe");
  return value->front();
}

inline std::vector<std::string> words_of(std::string_view text) {
  const auto words = muster::detail::listed(text);
  return {words.begin(), words.end()};
}

inline missing_values missing_of(spec_reader& spec) {
  return spec.choice_of("missing", missing_values::fail,
                        {{"fail", missing_values::fail}, {"zero", missing_values::zero}, {"nan", missing_values::nan}});
}

inline opened_source open_csv(spec_reader& spec, const read_options& defaults) {
  csv_options csv;
  csv.delimiter = delimiter_of(spec);
  csv.header =
      spec.choice_of("header", csv_header::automatic,
                     {{"automatic", csv_header::automatic}, {"1", csv_header::present}, {"0", csv_header::absent}});
  csv.label = spec.take("label").value_or("");
  csv.ignore = words_of(spec.take("ignore").value_or(""));
  csv.missing = missing_of(spec);
  const read_options options = with_text_options(spec, defaults);
  const std::string path = path_of(spec);
  return detail::open_text("csv:" + path, path, options,
                           [&](std::string_view text) { return detail::format_of_csv(text, path, csv, options); });
}

inline opened_source open_jsonl(spec_reader& spec, const read_options& defaults) {
  jsonl_options jsonl;
  jsonl.label = spec.take("label").value_or("");
  jsonl.ignore = words_of(spec.take("ignore").value_or(""));
  jsonl.classes = words_of(spec.take("classes").value_or(""));
  jsonl.missing = missing_of(spec);
  const read_options options = with_text_options(spec, defaults);
  const std::string path = path_of(spec);
  return open_text("jsonl:" + path, path, options,
                   [&](std::string_view text) { return format_of_jsonl(text, path, jsonl, options); });
}

inline opened_source open_npy_files(spec_reader& spec, const read_options& options) {
  const auto http = http_of(spec, options.http);
  const auto paths = paths_of(spec, 1, 2);
  return any_record_source(open_npy(paths[0], paths.size() > 1 ? paths[1] : "", http));
}

inline opened_source open_safetensors_file(spec_reader& spec, const read_options& options) {
  const auto http = http_of(spec, options.http);
  const std::string tensor = spec.take("tensor").value_or(""), label = spec.take("label").value_or("");
  return any_record_source(open_safetensors(path_of(spec), tensor, label, http));
}

inline opened_source open_npz_file(spec_reader& spec, const read_options& options) {
  const auto http = http_of(spec, options.http);
  const std::string array = spec.take("array").value_or(""), label = spec.take("label").value_or("");
  return any_record_source(open_npz(path_of(spec), array, label, http));
}

inline cifar_split split_of(spec_reader& spec) {
  return spec.choice_of("split", cifar_split::train, {{"train", cifar_split::train}, {"test", cifar_split::test}});
}

// A specification names both sets, like a folder with both, and `split` selects the set.
inline opened_source open_idx_files(spec_reader& spec, const read_options& options) {
  const auto http = http_of(spec, options.http);
  const auto images = spec.take("test-images"), labels = spec.take("test-labels");
  const auto split = split_of(spec);
  if (images.has_value() != labels.has_value())
    spec.refuse(std::string("test-images and test-labels belong together, and test-") + (images ? "labels" : "images") +
                    " is not given",
                "give both or none");
  if (split == cifar_split::test && !images)
    spec.refuse("it has no test set", "add ?test-images=IMAGES&test-labels=LABELS");
  const auto paths = paths_of(spec, 1, 2);
  if (split == cifar_split::test) return any_record_source(open_idx(*images, *labels, http));
  return any_record_source(open_idx(paths[0], paths.size() > 1 ? paths[1] : "", http));
}

// Opens the four files under their published names, plain or .gz.
inline opened_source open_mnist_files(spec_reader& spec, const read_options& /*options*/) {
  const std::string split = split_of(spec) == cifar_split::train ? "train" : "t10k";
  const std::string folder = path_of(spec);
  const auto file = [&](const char* which) {
    const std::string plain = folder + "/" + split + which;
    return std::filesystem::exists(plain) || !std::filesystem::exists(plain + ".gz") ? plain : plain + ".gz";
  };
  return any_record_source(open_idx(file("-images-idx3-ubyte"), file("-labels-idx1-ubyte")));
}

inline opened_source open_cifar10_files(spec_reader& spec, const read_options& /*options*/) {
  const auto split = split_of(spec);
  return any_record_source(open_cifar10(path_of(spec), split));
}

inline opened_source open_cifar100_files(spec_reader& spec, const read_options& /*options*/) {
  const auto split = split_of(spec);
  const auto labels = spec.choice_of(
      "labels", cifar100_labels::fine,
      {{"fine", cifar100_labels::fine}, {"coarse", cifar100_labels::coarse}, {"both", cifar100_labels::both}});
  return any_record_source(open_cifar100(path_of(spec), split, labels));
}

inline opened_source open_image_folder(spec_reader& spec, const read_options& /*options*/) {
  return any_record_source(image_folder(path_of(spec)));
}

inline std::vector<std::uint64_t> shape_of(spec_reader& spec) {
  const auto text = spec.take("shape");
  std::vector<std::uint64_t> shape;
  if (!text) return shape;
  for (const auto word : muster::detail::split(*text, 'x')) {
    const auto extent = parse_number<std::uint64_t>(word);
    if (!extent)
      spec.refuse("shape '" + *text + "' is not a list of numbers separated by x", "write such as shape=3x32x32");
    shape.push_back(*extent);
  }
  return shape;
}

inline dtype type_of(spec_reader& spec, dtype fallback) {
  const auto type = spec.take("type");
  if (!type) return fallback;
  const auto parsed_type = detail::dtype_named(*type);
  if (parsed_type == dtype::none)
    spec.refuse("type '" + *type + "' is unknown", "write such as type=uint8 or type=float32");
  return parsed_type;
}

inline opened_source open_tar_files(spec_reader& spec, const read_options& options) {
  tar_options chosen{.data = spec.take("data").value_or(""), .threads = options.threads};
  chosen.http = http_of(spec, options.http);
  chosen.type = type_of(spec, dtype::none);
  chosen.shape = shape_of(spec);
  if (chosen.type == dtype::none && !chosen.shape.empty())
    spec.refuse("it has a shape and no type", "add such as &type=float32");
  chosen.labels = words_of(spec.take("label").value_or(""));
  chosen.classes = words_of(spec.take("classes").value_or(""));
  if (chosen.labels.empty() && !chosen.classes.empty())
    spec.refuse("it has classes and no label", "add such as &label=cls");
  std::vector<std::string> files;
  for (const std::string& path : paths_of(spec, 1, any_number))
    for (std::string& each : expand_ranges(path)) files.push_back(std::move(each));
  return any_record_source(tar_samples(files, chosen));
}

inline opened_source open_raw_files(spec_reader& spec, const read_options& /*options*/) {
  raw_layout layout;
  layout.type = type_of(spec, dtype::uint8);
  layout.shape = shape_of(spec);
  layout.skip = spec.whole_of("skip", 0);
  layout.count = spec.whole_of("count", 0);
  layout.offset = spec.whole_of("offset", 0);
  layout.record_bytes = spec.whole_of("record", 0);
  if (const auto label = spec.take("label")) {
    const auto at = label->find('@');
    const auto label_type = detail::dtype_named(label->substr(0, at));
    const auto offset =
        parse_number<std::uint64_t>(at == std::string::npos ? "" : std::string_view(*label).substr(at + 1));
    if (label_type == dtype::none || !offset)
      spec.refuse("label '" + *label + "' is not a type and a byte offset", "write such as label=uint8@0");
    layout.labels = {{"label", label_type, *offset}};
  }
  const auto paths = paths_of(spec, 1, any_number);
  return any_record_source(open_raw(paths, layout));
}

inline opened_source open_tfrecord_files(spec_reader& spec, const read_options& options) {
  tfrecord_options chosen{.threads = options.threads, .http = http_of(spec, options.http)};
  chosen.compressed = flag(spec, "compressed", false);
  chosen.check = flag(spec, "check", true);
  const auto features = spec.take("features");
  const std::vector<std::string> labels = words_of(spec.take("label").value_or(""));
  const auto paths = paths_of(spec, 1, any_number);
  if (!features && labels.empty()) return any_record_source(tfrecord_files(paths, chosen));
  example_columns columns{parse_example_features(features.value_or("")), labels};
  return any_record_source(tfrecord_examples(tfrecord_files(paths, chosen), std::move(columns)));
}

inline opened_source open_record_files(spec_reader& spec, const read_options& options) {
  record_read_options chosen{.threads = options.threads};
  if (!flag(spec, "check", true)) chosen.checks = record_checks::never;
  chosen.shards = spec.name() == "shards";
  if (!chosen.shards) chosen.every = spec.whole_of("every", 0);
  chosen.follow = flag(spec, "follow", chosen.every != 0);
  const bool far = muster::detail::is_remote(spec.name() + "://");
  chosen.http = http_of(spec, options.http);
  if (chosen.shards) {
    constexpr std::uint64_t most_weight = 1'000'000'000;
    chosen.local = flag(spec, "local", false);
    chosen.weight = spec.whole_of("weight", 1);
    if (chosen.weight < 1 || chosen.weight > most_weight)
      spec.refuse("weight " + std::to_string(chosen.weight) + " is not possible", "give 1 to 1000000000");
  }
  std::string path = (far ? spec.name() + ":" : "") + path_of(spec);
  const auto is_set = [&](std::string_view alone) {  // without a '=' the text is part of the path
    if (!path.ends_with(alone) || spec.text().find(alone) == std::string::npos) return false;
    path.resize(path.size() - alone.size());
    return true;
  };
  if (is_set("?follow")) chosen.follow = true;
  if (chosen.shards && is_set("?local")) chosen.local = true;
  return any_record_source(record_files(path, chosen));
}

inline opened_source open_query(spec_reader& spec, const read_options& defaults) {
  const std::string query = spec.take("query").value_or("");
  postgres_options postgres;
  postgres.label = spec.take("label").value_or("");
  postgres.ignore = words_of(spec.take("ignore").value_or(""));
  postgres.missing = missing_of(spec);
  postgres.key = spec.take("key").value_or("");
  postgres.timeout = seconds(spec.number_of("timeout", postgres.timeout.count(), 0, false));
  const read_options options = with_text_options(spec, defaults);
  const std::string connection = spec.value("connection");  // libpq decodes the text
  spec.finish(spec.name() + ":CONNECTION");
  if (query.empty()) spec.refuse("it has no query, and a database has many tables", "add ?query=SELECT...");
  const detail::query_opener open = opener_of_queries;
  if (open == nullptr) {  // the specification is not shown, because it may contain a password
    throw configuration_error("postgres: cannot be read (" + muster::detail::linked_without("postgres") +
                              "); link muster::postgres");
  }
  return open(connection, query, postgres, options);
}

inline opened_source open_parquet_files(spec_reader& spec, const read_options& options) {
  parquet_options chosen;
  chosen.threads = options.threads;
  chosen.http = http_of(spec, options.http);
  chosen.label = spec.take("label").value_or("");
  chosen.classes = words_of(spec.take("classes").value_or(""));
  chosen.columns = words_of(spec.take("columns").value_or(""));
  chosen.ignore = words_of(spec.take("ignore").value_or(""));
  chosen.missing = missing_of(spec);
  if (chosen.label.empty() && !chosen.classes.empty())
    spec.refuse("it has classes and no label", "add such as &label=kind");
  const bool is_arrow = spec.name() == "arrow";
  const auto paths = paths_of(spec, 1, is_arrow ? 1 : any_number);
  if (opener_of_parquet == nullptr)
    throw configuration_error("'" + muster::detail::without_secrets(paths[0]) + "' cannot be read (" +
                              muster::detail::linked_without("parquet") + "); link muster::parquet");
  return is_arrow ? opener_of_arrow.load()(paths[0], chosen) : opener_of_parquet.load()(paths, chosen);
}

struct known_source {
  source_info info;
  source_opener open;
};

inline std::mutex mutex_of_sources;

inline constexpr std::string_view server_options =
    "cache=FOLDER&disk=BYTES&timeout=SECONDS&check=1|0&follow=0|1&every=STEPS";

// Returns the table of sources. The caller must hold mutex_of_sources.
inline std::vector<known_source>& known_sources() {
  static std::vector<known_source> table = {
      {{"libsvm", "PATH", "features=N&layout=automatic|dense|sparse&bad=fail|keep",
        "text of LIBSVM or SVMlight, plain, .gz or .zst: `label index:value ...`, indices from 1"},
       open_libsvm},
      {{"csv", "PATH",
        "label=COLUMN&header=automatic|1|0&delimiter=,&ignore=COLUMN,COLUMN&missing=fail|zero|nan&features=N&"
        "bad=fail|keep",
        "a table of numbers as text, plain, .gz or .zst; a column is a name of the header or a number from 0"},
       open_csv},
      {{"jsonl", "PATH", "label=KEY&classes=NAME,NAME&ignore=KEY,KEY&missing=fail|zero|nan&features=N&bad=fail|keep",
        "JSON lines, plain, .gz or .zst: a line is an object with numbers and arrays of numbers"},
       open_jsonl},
      {{"idx", "IMAGES[,LABELS]", "test-images=IMAGES&test-labels=LABELS&split=train|test",
        "MNIST and similar data sets, plain or compressed"},
       open_idx_files},
      {{"mnist", "FOLDER", "split=train|test", "MNIST and similar data sets under their published names, plain or .gz"},
       open_mnist_files},
      {{"cifar10", "FOLDER", "split=train|test", "CIFAR-10 in its binary format; also a single file"},
       open_cifar10_files},
      {{"cifar100", "FOLDER", "split=train|test&labels=fine|coarse|both", "CIFAR-100 in its binary format"},
       open_cifar100_files},
      {{"images", "FOLDER", "", "JPEG and PNG files as FOLDER/CLASS/NAME.JPEG, as in ILSVRC; a record is a file"},
       open_image_folder},
      {{"npy", "PATH[,LABELS]", "", "an array of NumPy; a record is a slice along its first extent"}, open_npy_files},
      {{"npz", "PATH", "array=NAME&label=NAME", "an array of a file of numpy.savez, plain or compressed"},
       open_npz_file},
      {{"safetensors", "PATH", "tensor=NAME&label=NAME",
        "a tensor of a safetensors file; a record is a slice along its first extent"},
       open_safetensors_file},
      {{"raw", "PATH[,PATH...]", "shape=AxBxC&type=uint8&offset=N&label=uint8@N&record=N&skip=N&count=N",
        "records of a fixed size, with features at byte `offset`, after a header of `skip` bytes; `count` in each "
        "file"},
       open_raw_files},
      {{"tar", "PATH[,PATH...]", "data=ENDING&label=ENDING|json.KEY,...&classes=NAME,NAME&type=float32&shape=AxBxC",
        "samples of WebDataset: files a.jpg, a.cls, b.jpg, b.cls in tar archives; PATH may have ranges such as "
        "{000..127}"},
       open_tar_files},
      {{"tfrecord", "PATH[,PATH...]",
        "features=NAME:TYPE[AxB],NAME:TYPE[..N],NAME:bytes&label=NAME,NAME&compressed=0|1&check=1|0",
        "payloads of TFRecord files: features of a tf.train.Example or SequenceExample, or whole payloads as bytes"},
       open_tfrecord_files},
      {{"parquet", "PATH[,PATH...]",
        "label=COLUMN&classes=NAME,NAME&columns=COLUMN,COLUMN&ignore=COLUMN,COLUMN&missing=fail|zero|nan",
        "rows of Parquet files, or of a folder, whose folders KEY=VALUE are columns"},
       open_parquet_files},
      {{"arrow", "PATH",
        "label=COLUMN&classes=NAME,NAME&columns=COLUMN,COLUMN&ignore=COLUMN,COLUMN&missing=fail|zero|nan",
        "rows of a file in Arrow's IPC format, as file or stream"},
       open_parquet_files},
      {{"records", "PATH", "check=1|0&follow=0|1&every=STEPS",
        "muster's own format: a file, or a folder with a manifest, which may grow during training (follow, every)"},
       open_record_files},
      {{"shards", "FOLDER", "local=0|1&weight=N&check=1|0&follow=0|1",
        "a folder of records with files at different ranks (local), as written by muster-data shard"},
       open_record_files},
      {{"https", "//SERVER/FOLDER", server_options,
        "a folder of records on a server, fetched on request into a cache on the host"},
       open_record_files},
      {{"http", "//SERVER/FOLDER", server_options, "the same without encryption"}, open_record_files},
      {{"s3", "//BUCKET/FOLDER", server_options,
        "the same in an object store, configured by AWS_* environment variables"},
       open_record_files},
      {{"mix", "SOURCE=WEIGHT[,SOURCE=WEIGHT...]", "",
        "several sources, each with its proportion of every batch; a comma within a source is %2C"},
       nullptr},  // opened by open_any()
      {{"postgres", "CONNECTION",
        "query=SELECT...&label=COLUMN&ignore=COLUMN,COLUMN&missing=fail|zero|nan&features=N&bad=fail|keep&key=COLUMN&"
        "timeout=SECONDS",
        "rows of a PostgreSQL query; a connection is \"host=db dbname=training\" or \"postgresql://db/training\""},
       open_query},
  };
  return table;
}

// Opens the sources after "mix:", which may have options: SOURCE=WEIGHT,SOURCE=WEIGHT, with %2C for a comma.
inline any_record_source open_mixture(std::string_view text, const read_options& options) {
  std::vector<mixture_part> parts;
  for (const std::string& word : words_of(text)) {
    const auto weight_at = word.rfind('=');
    const auto weight =
        parse_number<double>(weight_at == std::string::npos ? "" : std::string_view(word).substr(weight_at + 1));
    if (!weight) {
      throw configuration_error("source 'mix:" + muster::detail::without_secrets(text) + "' cannot be used ('" +
                                muster::detail::without_secrets(word) +
                                "' has no weight); write such as mix:records:a=0.7,records:b=0.3");
    }
    std::string name = word.substr(0, weight_at);
    for (auto at = name.find("%2C"); at != std::string::npos; at = name.find("%2C", at + 1)) name.replace(at, 3, ",");
    parts.push_back({open_source(name, options), *weight});
  }
  return any_record_source(mixture(std::move(parts)));
}

inline opened_source open_any(std::string_view specification, const read_options& options) {
  muster::detail::prepare_process();
  constexpr std::string_view mix = "mix:";
  if (specification.starts_with(mix)) return open_mixture(specification.substr(mix.size()), options);
  auto spec = spec_reader::of_source(specification);
  const known_source found = [&] {
    std::vector<std::pair<std::string, const known_source*>> sources;
    const std::lock_guard held(mutex_of_sources);
    for (const known_source& source : known_sources()) sources.emplace_back(source.info.scheme, &source);
    return *spec.choose("scheme", spec.name(), sources);
  }();
  opened_source opened = found.open(spec, options);
  // The library's own sources call finish() before they open files.
  spec.finish(spec.name() + ":" + std::string(found.info.placeholder));
  return opened;
}

}  // namespace detail

MUSTER_INLINE void detail::set_query_opener(query_opener opener) noexcept { detail::opener_of_queries = opener; }
MUSTER_INLINE void detail::set_parquet_openers(parquet_opener parquet, arrow_opener arrow,
                                               parquet_creator create) noexcept {
  detail::opener_of_arrow = arrow;
  detail::opener_of_parquet = parquet;
  detail::creator_of_parquet = create;
}

MUSTER_INLINE std::unique_ptr<parquet_writer> create_parquet(std::string path, const record_schema& schema,
                                                             const detail::table_names& columns,
                                                             const record_file_options& options) {
  if (detail::creator_of_parquet == nullptr)
    throw configuration_error("'" + path + "' cannot be written (" + muster::detail::linked_without("parquet") +
                              "); link muster::parquet");
  return detail::creator_of_parquet.load()(std::move(path), schema, columns, options);
}

MUSTER_INLINE std::vector<source_info> source_table() {
  std::vector<source_info> rows;
  const std::lock_guard held(detail::mutex_of_sources);
  for (const detail::known_source& source : detail::known_sources()) rows.push_back(source.info);
  return rows;
}

MUSTER_INLINE void register_source(const source_info& info, source_opener open) {
  static std::deque<std::string> texts;  // owns the strings to which the table refers
  const std::lock_guard held(detail::mutex_of_sources);
  auto& table = detail::known_sources();
  std::vector<std::string> schemes;
  for (const detail::known_source& source : table) schemes.emplace_back(source.info.scheme);
  muster::detail::require_registrable("source", info.scheme, schemes, open != nullptr);
  const auto stored = [](std::string_view text) -> std::string_view { return texts.emplace_back(text); };
  table.push_back({{stored(info.scheme), stored(info.placeholder), stored(info.options), stored(info.help)}, open});
}

MUSTER_INLINE any_record_source open_source(std::string_view specification, const read_options& options) {
  read_options requested = options;
  requested.on_demand = true;
  opened_source opened = detail::open_any(specification, requested);
  if (opened.samples) return *std::move(opened.samples);
  return *std::move(opened.records);
}

MUSTER_INLINE dataset open_dataset(std::string_view specification, const read_options& options) {
  opened_source opened = detail::open_any(specification, options);
  if (opened.samples) return *std::move(opened.samples);
  return load(*opened.records, options);
}

}}}  // namespace muster::v0::data
