#include <muster/data/open.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>

#include <muster/data/mixture.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/sources/cifar.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/image_folder.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/npy.hpp>
#include <muster/data/sources/postgres.hpp>
#include <muster/data/sources/raw.hpp>
#include <muster/data/sources/tfrecord.hpp>
#include <muster/data/sources/tfrecord_examples.hpp>
#include "../core/descriptor.hpp"
#include "../core/text.hpp"
#include "sources/text.hpp"

namespace muster { inline namespace v0 {
namespace {

constinit std::atomic<detail::query_opener> opener_of_queries{nullptr};

constexpr std::size_t any_number = std::numeric_limits<std::size_t>::max() - 1;

bool flag(spec_reader& from, const std::string& name, bool fallback) {
  return from.choice_of<bool>(name, fallback, {{"1", true}, {"0", false}});
}

/// The path, once all options have been taken: whatever is left of them is refused before a file is touched.
std::string path_of(spec_reader& from) {
  std::string path = from.path();
  from.finish(from.name() + ":PATH");
  return path;
}

std::vector<std::string> paths_of(spec_reader& from, std::size_t least, std::size_t most) {
  auto paths = from.paths(least, most);
  from.finish(from.name() + ":PATH");
  return paths;
}

// Of a source at an address: SCHEME:https://..., or the address itself.
http_options http_of(spec_reader& from, http_options options) {
  const std::string_view path = std::string_view(from.text()).substr(from.name().size() + 1);
  if (!detail::is_far(path) && !detail::is_far(from.text())) return options;
  options.cache = from.take("cache").value_or(options.cache);
  options.disk = from.whole_of("disk", options.disk);
  options.timeout = seconds(from.number_of("timeout", options.timeout.count(), 0, true));
  return options;
}

read_options with_text_options(spec_reader& from, read_options options) {
  options.http = http_of(from, options.http);
  options.min_features = from.whole_of("features", options.min_features);
  options.keep_bad_records = from.choice_of<bool>("bad", options.keep_bad_records, {{"fail", false}, {"keep", true}});
  return options;
}

opened_source open_libsvm(spec_reader& from, const read_options& given) {
  read_options options = with_text_options(from, given);
  options.layout =
      from.choice_of("layout", options.layout,
                     {{"automatic", layout::automatic}, {"dense", layout::dense}, {"sparse", layout::sparse}});
  const std::string path = path_of(from);
  return detail::open_text("libsvm:" + path, path, options,
                           [&](std::string_view) { return detail::format_of_libsvm(path, options); });
}

char delimiter_of(spec_reader& from) {
  const auto value = from.take("delimiter");
  if (!value) return ',';
  constexpr std::pair<std::string_view, char> names[] = {
      {"comma", ','}, {"semicolon", ';'}, {"tab", '\t'}, {"space", ' '}, {"pipe", '|'}};
  for (const auto& [name, character] : names) {
    if (name == *value) return character;
  }
  if (value->size() != 1)
    from.refuse("delimiter '" + *value + "' is more than a character",
                "give one, or comma, semicolon, tab, space, pipe");
  return value->front();
}

std::vector<std::string> words_of(std::string_view text) {
  const auto words = detail::listed(text);
  return {words.begin(), words.end()};
}

missing_values missing_of(spec_reader& from) {
  return from.choice_of("missing", missing_values::fail,
                        {{"fail", missing_values::fail}, {"zero", missing_values::zero}, {"nan", missing_values::nan}});
}

opened_source open_csv(spec_reader& from, const read_options& given) {
  csv_options csv;
  csv.delimiter = delimiter_of(from);
  csv.header =
      from.choice_of("header", csv_header::automatic,
                     {{"automatic", csv_header::automatic}, {"1", csv_header::present}, {"0", csv_header::absent}});
  csv.label = from.take("label").value_or("");
  csv.ignore = words_of(from.take("ignore").value_or(""));
  csv.missing = missing_of(from);
  const read_options options = with_text_options(from, given);
  const std::string path = path_of(from);
  return detail::open_text("csv:" + path, path, options,
                           [&](std::string_view text) { return detail::format_of_csv(text, path, csv, options); });
}

opened_source open_npy_files(spec_reader& from, const read_options& options) {
  const auto http = http_of(from, options.http);
  const auto paths = paths_of(from, 1, 2);
  return any_record_source(open_npy(paths[0], paths.size() > 1 ? paths[1] : "", http));
}

cifar_split split_of(spec_reader& from) {
  return from.choice_of("split", cifar_split::train, {{"train", cifar_split::train}, {"test", cifar_split::test}});
}

// Both sets are in one text, as the two of a folder are, and `split` says which.
opened_source open_idx_files(spec_reader& from, const read_options& options) {
  const auto http = http_of(from, options.http);
  const auto images = from.take("test-images"), labels = from.take("test-labels");
  const auto split = split_of(from);
  if (images.has_value() != labels.has_value())
    from.refuse(std::string("test-images and test-labels belong together, and test-") + (images ? "labels" : "images") +
                    " is not given",
                "give both or none");
  if (split == cifar_split::test && !images)
    from.refuse("it has no test set", "add ?test-images=IMAGES&test-labels=LABELS");
  const auto paths = paths_of(from, 1, 2);
  if (split == cifar_split::test) return any_record_source(open_idx(*images, *labels, http));
  return any_record_source(open_idx(paths[0], paths.size() > 1 ? paths[1] : "", http));
}

// The four files as they are published, plain or .gz.
opened_source open_mnist_files(spec_reader& from, const read_options& /*options*/) {
  const std::string split = split_of(from) == cifar_split::train ? "train" : "t10k";
  const std::string folder = path_of(from);
  const auto file = [&](const char* which) {
    const std::string plain = folder + "/" + split + which;
    return std::filesystem::exists(plain) || !std::filesystem::exists(plain + ".gz") ? plain : plain + ".gz";
  };
  return any_record_source(open_idx(file("-images-idx3-ubyte"), file("-labels-idx1-ubyte")));
}

opened_source open_cifar10_files(spec_reader& from, const read_options& /*options*/) {
  const auto split = split_of(from);
  return any_record_source(open_cifar10(path_of(from), split));
}

opened_source open_cifar100_files(spec_reader& from, const read_options& /*options*/) {
  const auto split = split_of(from);
  const auto labels = from.choice_of(
      "labels", cifar100_labels::fine,
      {{"fine", cifar100_labels::fine}, {"coarse", cifar100_labels::coarse}, {"both", cifar100_labels::both}});
  return any_record_source(open_cifar100(path_of(from), split, labels));
}

opened_source open_image_folder(spec_reader& from, const read_options& /*options*/) {
  return any_record_source(image_folder(path_of(from)));
}

std::vector<std::uint64_t> shape_of(spec_reader& from) {
  const auto text = from.take("shape");
  std::vector<std::uint64_t> shape;
  if (!text) return shape;
  for (const auto word : detail::split(*text, 'x')) {
    const auto extent = parse_number<std::uint64_t>(word);
    if (!extent) from.refuse("shape '" + *text + "' is not numbers with x between them", "write such as shape=3x32x32");
    shape.push_back(*extent);
  }
  return shape;
}

opened_source open_raw_files(spec_reader& from, const read_options& /*options*/) {
  raw_layout layout;
  const std::string type = from.take("type").value_or("uint8");
  const auto known = detail::dtype_named(type);
  if (known == dtype::none) from.refuse("type '" + type + "' is unknown", "write such as type=uint8 or type=float32");
  layout.type = known;
  layout.shape = shape_of(from);
  layout.skip = from.whole_of("skip", 0);
  layout.offset = from.whole_of("offset", 0);
  layout.record_bytes = from.whole_of("record", 0);
  if (const auto label = from.take("label")) {
    const auto at = label->find('@');
    const auto label_type = detail::dtype_named(label->substr(0, at));
    const auto offset =
        parse_number<std::uint64_t>(at == std::string::npos ? "" : std::string_view(*label).substr(at + 1));
    if (label_type == dtype::none || !offset)
      from.refuse("label '" + *label + "' is not a type and the byte it is at", "write such as label=uint8@0");
    layout.labels = {{"label", label_type, *offset}};
  }
  const auto paths = paths_of(from, 1, any_number);
  return any_record_source(open_raw(paths, layout));
}

opened_source open_tfrecord_files(spec_reader& from, const read_options& options) {
  tfrecord_options chosen{.threads = options.threads, .http = http_of(from, options.http)};
  chosen.compressed = flag(from, "compressed", false);
  chosen.check = flag(from, "check", true);
  const auto features = from.take("features");
  const std::vector<std::string> labels = words_of(from.take("label").value_or(""));
  const auto paths = paths_of(from, 1, any_number);
  if (!features && labels.empty()) return any_record_source(tfrecord_files(paths, chosen));
  example_columns columns{parse_example_features(features.value_or("")), labels};
  return any_record_source(tfrecord_examples(tfrecord_files(paths, chosen), std::move(columns)));
}

opened_source open_record_files(spec_reader& from, const read_options& options) {
  record_read_options chosen{.threads = options.threads};
  if (!flag(from, "check", true)) chosen.checks = record_checks::never;
  chosen.shards = from.name() == "shards";
  if (!chosen.shards) chosen.every = from.whole_of("every", 0);
  chosen.follow = flag(from, "follow", chosen.every != 0);
  const bool far = detail::is_far(from.name() + "://");
  chosen.http = http_of(from, options.http);
  if (chosen.shards) {
    constexpr std::uint64_t most_weight = 1'000'000'000;
    chosen.local = flag(from, "local", false);
    chosen.weight = from.whole_of("weight", 1);
    if (chosen.weight < 1 || chosen.weight > most_weight)
      from.refuse("weight " + std::to_string(chosen.weight) + " is not possible", "give 1 to 1000000000");
  }
  std::string path = (far ? from.name() + ":" : "") + path_of(from);
  const auto is_set = [&](std::string_view alone) {  // without a '=' it is part of the path
    if (!path.ends_with(alone) || from.text().find(alone) == std::string::npos) return false;
    path.resize(path.size() - alone.size());
    return true;
  };
  if (is_set("?follow")) chosen.follow = true;
  if (chosen.shards && is_set("?local")) chosen.local = true;
  return any_record_source(record_files(path, chosen));
}

opened_source open_query(spec_reader& from, const read_options& given) {
  const std::string query = from.take("query").value_or("");
  postgres_options how;
  how.label = from.take("label").value_or("");
  how.ignore = words_of(from.take("ignore").value_or(""));
  how.missing = missing_of(from);
  how.key = from.take("key").value_or("");
  how.timeout = seconds(from.number_of("timeout", how.timeout.count(), 0, false));
  const read_options options = with_text_options(from, given);
  const std::string connection = from.value("connection");  // libpq decodes it
  from.finish(from.name() + ":CONNECTION");
  if (query.empty()) from.refuse("it has no query, and a database has many tables", "add ?query=SELECT...");
  const detail::query_opener open = opener_of_queries;
  if (open == nullptr) {  // the text may hold a password
    throw configuration_error(
        "postgres: cannot be read (this program was built without muster's postgres component); "
        "link muster::postgres");
  }
  return open(connection, query, how, options);
}

struct known_source {
  source_info info;
  source_opener open;
};

std::mutex mutex_of_sources;

constexpr std::string_view server_options = "cache=FOLDER&disk=BYTES&timeout=SECONDS&check=1|0&follow=0|1&every=STEPS";

// With the mutex held.
std::vector<known_source>& known_sources() {
  static std::vector<known_source> table = {
      {{"libsvm", "PATH", "features=N&layout=automatic|dense|sparse&bad=fail|keep",
        "text of LIBSVM or SVMlight, plain, .gz or .zst: `label index:value ...`, indices from 1"},
       open_libsvm},
      {{"csv", "PATH",
        "label=COLUMN&header=automatic|1|0&delimiter=,&ignore=COLUMN,COLUMN&missing=fail|zero|nan&features=N&"
        "bad=fail|keep",
        "a table of numbers as text, plain, .gz or .zst; a column is a name of the header or a number from 0"},
       open_csv},
      {{"idx", "IMAGES[,LABELS]", "test-images=IMAGES&test-labels=LABELS&split=train|test",
        "MNIST and its kin, plain or compressed"},
       open_idx_files},
      {{"mnist", "FOLDER", "split=train|test", "MNIST and its kin by their published names, plain or .gz"},
       open_mnist_files},
      {{"cifar10", "FOLDER", "split=train|test", "CIFAR-10 in its binary form; also one of its files"},
       open_cifar10_files},
      {{"cifar100", "FOLDER", "split=train|test&labels=fine|coarse|both", "CIFAR-100 in its binary form"},
       open_cifar100_files},
      {{"images", "FOLDER", "", "JPEG files as FOLDER/CLASS/NAME.JPEG, as ILSVRC has them; a record is a file's bytes"},
       open_image_folder},
      {{"npy", "PATH[,LABELS]", "", "an array of NumPy; a record is a slice along its first extent"}, open_npy_files},
      {{"raw", "PATH[,PATH...]", "shape=AxBxC&type=uint8&offset=N&label=uint8@N&record=N&skip=N",
        "records of one size, their features `offset` bytes from their start, behind `skip` bytes"},
       open_raw_files},
      {{"tfrecord", "PATH[,PATH...]",
        "features=NAME:TYPE[AxB],NAME:TYPE[..N],NAME:bytes&label=NAME,NAME&compressed=0|1&check=1|0",
        "payloads of TFRecord files: features of a tf.train.Example or SequenceExample, or all of them as bytes"},
       open_tfrecord_files},
      {{"records", "PATH", "check=1|0&follow=0|1&every=STEPS",
        "muster's own format: a file, or a folder with a manifest, which may grow meanwhile (follow, every)"},
       open_record_files},
      {{"shards", "FOLDER", "local=0|1&weight=N&check=1|0&follow=0|1",
        "a folder of records with files at different ranks (local), as muster-data shard makes it"},
       open_record_files},
      {{"https", "//SERVER/FOLDER", server_options,
        "a folder of records on a server, which come when they are wanted, into a cache of the host"},
       open_record_files},
      {{"http", "//SERVER/FOLDER", server_options, "the same without encryption"}, open_record_files},
      {{"s3", "//BUCKET/FOLDER", server_options, "the same in an object store; AWS_* in the environment says which"},
       open_record_files},
      {{"mix", "SOURCE=WEIGHT[,SOURCE=WEIGHT...]", "",
        "several sources, each with its proportion of every batch; a comma within a source is %2C"},
       nullptr},  // open_any() opens it
      {{"postgres", "CONNECTION",
        "query=SELECT...&label=COLUMN&ignore=COLUMN,COLUMN&missing=fail|zero|nan&features=N&bad=fail|keep&key=COLUMN&"
        "timeout=SECONDS",
        "rows of a PostgreSQL query; a connection is \"host=db dbname=training\" or \"postgresql://db/training\""},
       open_query},
  };
  return table;
}

// What follows "mix:", where sources have options of their own: SOURCE=WEIGHT,SOURCE=WEIGHT, a comma being %2C.
any_record_source open_mixture(std::string_view text, const read_options& options) {
  std::vector<mixture_part> parts;
  for (const std::string& word : words_of(text)) {
    const auto weight_at = word.rfind('=');
    const auto weight =
        parse_number<double>(weight_at == std::string::npos ? "" : std::string_view(word).substr(weight_at + 1));
    if (!weight) {
      throw configuration_error("source 'mix:" + detail::without_secrets(text) + "' cannot be used ('" +
                                detail::without_secrets(word) +
                                "' has no weight); write such as mix:records:a=0.7,records:b=0.3");
    }
    std::string name = word.substr(0, weight_at);
    for (auto at = name.find("%2C"); at != std::string::npos; at = name.find("%2C", at + 1)) name.replace(at, 3, ",");
    parts.push_back({open_source(name, options), *weight});
  }
  return any_record_source(mixture(std::move(parts)));
}

opened_source open_any(std::string_view specification, const read_options& options) {
  detail::prepare_process();
  constexpr std::string_view mix = "mix:";
  if (specification.starts_with(mix)) return open_mixture(specification.substr(mix.size()), options);
  auto from = spec_reader::of_source(specification);
  const known_source found = [&] {
    std::vector<std::pair<std::string, const known_source*>> known;
    const std::lock_guard held(mutex_of_sources);
    for (const known_source& source : known_sources()) known.emplace_back(source.info.scheme, &source);
    return *from.choose("scheme", from.name(), known);
  }();
  opened_source opened = found.open(from, options);
  from.finish(from.name() + ":" + std::string(found.info.placeholder));  // the library's have, before they opened
  return opened;
}

}  // namespace

void detail::set_query_opener(query_opener opener) noexcept { opener_of_queries = opener; }

std::vector<source_info> source_table() {
  std::vector<source_info> rows;
  const std::lock_guard held(mutex_of_sources);
  for (const known_source& source : known_sources()) rows.push_back(source.info);
  return rows;
}

void register_source(const source_info& info, source_opener open) {
  static std::deque<std::string> texts;  // which the table goes on to refer to
  const std::lock_guard held(mutex_of_sources);
  auto& table = known_sources();
  std::vector<std::string> schemes;
  for (const known_source& source : table) schemes.emplace_back(source.info.scheme);
  detail::require_registrable("source", info.scheme, schemes, open != nullptr);
  const auto kept = [](std::string_view text) -> std::string_view { return texts.emplace_back(text); };
  table.push_back({{kept(info.scheme), kept(info.placeholder), kept(info.options), kept(info.help)}, open});
}

any_record_source open_source(std::string_view specification, const read_options& options) {
  read_options asked = options;
  asked.on_demand = true;
  opened_source opened = open_any(specification, asked);
  if (opened.samples) return *std::move(opened.samples);
  return *std::move(opened.records);
}

dataset open_dataset(std::string_view specification, const read_options& options) {
  opened_source opened = open_any(specification, options);
  if (opened.samples) return *std::move(opened.samples);
  return load(*opened.records, options);
}

}}  // namespace muster::v0
