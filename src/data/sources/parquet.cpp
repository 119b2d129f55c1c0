// The rows of Parquet files, in a separate library so that the core does not depend on libparquet.
#include <muster/data/sources/parquet.hpp>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include <arrow/buffer.h>
#include <arrow/io/memory.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <arrow/util/key_value_metadata.h>
#include <nlohmann/json.hpp>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/spec.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/parallel.hpp>

#include "parquet_columns.hpp"

namespace muster { inline namespace v0 { namespace data {
namespace {

using detail::column_kind;
using detail::table_column;

// Size of the decoded records of a block, and of the cache. The order block_window mixes 16 blocks.
constexpr std::uint64_t block_bytes = std::uint64_t{6} << 20;
constexpr std::size_t cache_bytes = std::size_t{112} << 20;
// Size of the records that all columns are read for at a time: they stay in the processor's cache.
constexpr std::uint64_t tile_bytes = std::uint64_t{1} << 17;
constexpr std::size_t most_mapped = std::size_t{16} << 20;
constexpr std::string_view no_partition = "__HIVE_DEFAULT_PARTITION__";  // the value null in a folder's name

using partition = std::pair<std::string, std::optional<std::string>>;

// Calls f() and converts the exceptions of libparquet into a data_error.
template <class F>
auto read_file(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const parquet::ParquetException& wrong) {
    std::string reason = wrong.what();
    std::ranges::replace(reason, '\n', ' ');
    throw data_error({path}, "cannot be read as Parquet (" + reason + "); write the file again");
  }
}

struct parquet_file {
  std::string path;
  std::vector<partition> partitions;  // of the folders KEY=VALUE in the path
  std::shared_ptr<const mapped_file> file{};
  std::shared_ptr<parquet::FileMetaData> footer{};
  std::vector<int> leaves{};            // for each column of the source, its index in the file
  std::vector<std::uint64_t> groups{};  // for each row group its first row, then the number of rows
  std::uint64_t first = 0;              // id of the first row

  [[nodiscard]] std::unique_ptr<parquet::ParquetFileReader> open() const {
    parquet::ReaderProperties properties;
    properties.set_page_checksum_verification(true);
    const std::string_view text = file->text();
    const auto bytes = std::make_shared<arrow::Buffer>(text);
    return parquet::ParquetFileReader::Open(std::make_shared<arrow::io::BufferReader>(bytes), properties, footer);
  }
};

// The readers of all columns in a row group, in front of row `next`.
struct group_reader {
  std::size_t file = 0;
  int group = 0;
  std::uint64_t next = 0;
  std::unique_ptr<parquet::ParquetFileReader> opened{};
  std::vector<std::unique_ptr<detail::parquet_column_reader>> columns{};  // null: a partition
  bool is_new = true;
};

// Adds the files of a folder, in the order of their paths. Counts files that have other names.
void add_folder(const std::filesystem::path& folder, const std::vector<partition>& partitions,
                std::vector<parquet_file>& files, std::uint64_t& left_out) {
  std::vector<std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) entries.push_back(entry.path());
  std::ranges::sort(entries, {}, [](const auto& path) { return path.native(); });
  for (const auto& path : entries) {
    const std::string name = path.filename().string();
    const std::string ending = path.extension().string();
    if (name.starts_with(".") || name.starts_with("_")) continue;  // as _SUCCESS and _metadata
    if (std::filesystem::is_directory(path)) {
      auto inner = partitions;
      if (const auto equals = name.find('='); equals != std::string::npos && equals != 0) {
        const std::string value = name.substr(equals + 1);
        inner.emplace_back(muster::detail::decoded(name.substr(0, equals)),
                           value == no_partition ? std::nullopt : std::optional(muster::detail::decoded(value)));
      }
      add_folder(path, inner, files, left_out);
    } else if (ending == ".parquet" || ending == ".parq" || ending == ".pq") {
      files.push_back({path.string(), partitions});
    } else {
      ++left_out;
    }
  }
}

class parquet_table {
 public:
  parquet_table(const std::vector<std::string>& paths, const parquet_options& options) : options_(options) {
    find_files(paths);
    detail::parallel_for(files_.size(), options_.threads, [&](std::size_t i) { open_file(files_[i]); });
    plan();
    for (parquet_file& file : files_) match(file);
    detail::parallel_for(files_.size(), options_.threads, [&](std::size_t i) { index_groups(files_[i]); });
    for (table_column& column : plan_.columns)
      if (column.is_field && column.shape.empty()) column.shape = first_shape(column);
    detail::place_columns(plan_, files_[0].path);
    name_classes();
  }

  // Returns the description of the source's blocks: parts of row groups that do not extend over a multiple of the
  // order's block.
  [[nodiscard]] detail::block_index index() {
    detail::block_index index;
    for (parquet_file& file : files_) {
      file.first = size_;
      size_ += file.groups.back();
    }
    if (size_ == 0) throw data_error({files_[0].path}, "has no rows; check how it was made");
    index.mean_bytes =
        std::max<std::uint64_t>(plan_.record_bytes != 0 ? plan_.record_bytes : stored_bytes() / size_, 1);
    index.order_block = std::max<std::uint64_t>(block_bytes / (index.mean_bytes + sizeof(float)), 1);
    for (std::size_t i = 0; i < files_.size(); ++i) {
      index.name += (i == 0 ? "parquet:" : ",") + muster::detail::without_secrets(files_[i].path);
      index.files.push_back(files_[i].file);
      for (std::size_t group = 0; group + 1 < files_[i].groups.size(); ++group) {
        const std::uint64_t end = files_[i].first + files_[i].groups[group + 1];
        for (std::uint64_t at = files_[i].first + files_[i].groups[group]; at < end;) {
          index.firsts.push_back(at);
          at = std::min(end, (at / index.order_block + 1) * index.order_block);
        }
      }
    }
    if (!named_.empty()) index.name = "parquet:" + named_;
    index.firsts.push_back(size_);
    firsts_ = index.firsts;
    index.schema = plan_.schema;
    index.columns = plan_.names;
    index.notes = notes_;
    index.keep_bad = true;
    index.digest = digest();
    return index;
  }

  // Makes the records of a block.
  void read(std::size_t number, detail::record_block& block) {
    const auto after = std::ranges::upper_bound(files_, firsts_[number], {}, &parquet_file::first);
    const parquet_file* const found = &*std::prev(after);
    const std::uint64_t row = firsts_[number] - found->first;
    const auto group = static_cast<int>(std::ranges::upper_bound(found->groups, row) - found->groups.begin()) - 1;
    const std::uint64_t row_in_group = row - found->groups[static_cast<std::size_t>(group)];
    detail::parquet_rows rows{{block.bytes.data(), plan_.record_bytes, block.labels.data()}, block};
    const std::uint64_t count = firsts_[number + 1] - firsts_[number];
    if (plan_.record_bytes == 0) block.ends.resize(count);
    std::uint64_t passed = 0;  // rows whose pages were passed in order to reach the block, which maps them
    read_file(found->path, [&] {
      group_reader reader = take(static_cast<std::size_t>(found - files_.data()), group, row_in_group);
      if (std::exchange(reader.is_new, false)) passed = row_in_group;
      const std::uint64_t tile =
          std::clamp<std::uint64_t>(tile_bytes / std::max<std::uint64_t>(plan_.record_bytes, 1), 128, 4096);
      for (rows.first = 0; rows.first < count; rows.first += rows.count) {
        rows.count = std::min<std::uint64_t>(tile, count - rows.first);
        for (std::size_t k = 0; k < plan_.columns.size(); ++k) {
          if (reader.columns[k])
            reader.columns[k]->read(rows);
          else
            fill_partition(*found, plan_.columns[k], rows);
        }
      }
      reader.next += count;
      keep(std::move(reader));
    });
    report_bad(*found, row, firsts_[number], rows);
    forget(*found, group, passed + count);
  }

 private:
  void find_files(const std::vector<std::string>& paths) {
    std::uint64_t left_out = 0;
    for (const std::string& path : paths) {
      std::error_code none;
      if (muster::detail::is_remote(path) || !std::filesystem::is_directory(path, none)) {
        files_.push_back({path, {}});
        continue;
      }
      if (paths.size() == 1) named_ = path;
      const std::size_t before = files_.size();
      try {
        add_folder(path, {}, files_, left_out);
      } catch (const std::filesystem::filesystem_error& wrong) {
        throw data_error({path}, "cannot be listed (" + wrong.code().message() + "); check its permissions");
      }
      if (files_.size() == before)
        throw data_error({path},
                         "has no Parquet files (their names end with .parquet, .parq or .pq); check the folder");
    }
    if (files_.empty()) throw configuration_error("there are no Parquet files to open; name at least one");
    if (left_out != 0)
      notes_.push_back(std::to_string(left_out) +
                       " files whose names do not end with .parquet, .parq or .pq are left out");
  }

  void open_file(parquet_file& file) const {
    file.file = std::make_shared<const mapped_file>(file.path, compressed_files::as_they_are, options_.http);
    read_file(file.path, [&] { file.footer = file.open()->metadata(); });
    file.groups = {0};
    for (int group = 0; group < file.footer->num_row_groups(); ++group) {
      const std::int64_t rows = file.footer->RowGroup(group)->num_rows();
      if (rows < 0)
        throw data_error({file.path},
                         "row group " + std::to_string(group) + " has a negative number of rows; write the file again");
      file.groups.push_back(file.groups.back() + static_cast<std::uint64_t>(rows));
    }
    if (file.footer->num_rows() < 0 || file.groups.back() != static_cast<std::uint64_t>(file.footer->num_rows()))
      throw data_error({file.path}, "has row groups of " + std::to_string(file.groups.back()) +
                                        " rows (its footer has " + std::to_string(file.footer->num_rows()) +
                                        "); write the file again");
  }

  // Chooses the columns that are read, by the first file and the partitions.
  void plan() {
    const parquet_file& first = files_[0];
    std::vector<table_column> all = detail::columns_of(*first.footer->schema());
    for (const auto& [key, value] : first.partitions) {
      all.push_back({.name = key, .type = "partition", .kind = column_kind::number});
      const bool is_number = std::ranges::all_of(files_, [&, name = key](const parquet_file& file) {
        const auto found = std::ranges::find(file.partitions, name, &partition::first);
        float ignored = 0;
        return found == file.partitions.end() || !found->second ||
               detail::parse_float(found->second->data(), found->second->data() + found->second->size(), ignored).ptr ==
                   found->second->data() + found->second->size();
      });
      if (!is_number) all.back().kind = column_kind::text;
    }
    plan_ = detail::choose_columns(std::move(all), options_, first.path);
  }

  // Finds the columns in a file. Every file has the same columns with the same types.
  void match(parquet_file& file) {
    const auto all = detail::columns_of(*file.footer->schema());
    const auto fail = [&](const std::string& problem) { throw data_error({file.path}, problem); };
    std::set<std::string> names;
    for (const table_column& column : all)
      if (!names.insert(column.name).second) fail("has two columns '" + column.name + "'; rename one");
    for (const auto& [key, value] : file.partitions)
      if (!names.insert(key).second) fail("has a column '" + key + "' (a folder's name has this key too); rename one");
    for (const table_column& column : plan_.columns) {
      const auto found = std::ranges::find(all, column.name, &table_column::name);
      file.leaves.push_back(found == all.end() ? -1 : found->index);
      if (column.type == "partition" ? found == all.end() && names.contains(column.name)
                                     : found != all.end() && found->type == column.type &&
                                           found->is_field == column.is_field && found->count == column.count)
        continue;
      fail(found == all.end() ? "has no " + column.quoted() + ", which " + files_[0].path +
                                    " has; write the files with the same columns"
                              : column.quoted() + " has values of " + found->type + " (in " + files_[0].path + " of " +
                                    column.type + "); write the files with the same types");
    }
    if (!options_.columns.empty() || &file == files_.data()) return;
    std::set<std::string> known(options_.ignore.begin(), options_.ignore.end());
    for (const table_column& column : plan_.columns) known.insert(column.name);
    for (const std::string& name : names)
      if (!known.contains(name))
        fail("has a column '" + name + "', which " + files_[0].path +
             " has not; ignore it, or name the columns with columns=");
  }

  // Checks the footer's numbers of values, which readers rely on.
  void index_groups(const parquet_file& file) const {
    for (int group = 0; group < file.footer->num_row_groups(); ++group) {
      const auto part = read_file(file.path, [&] { return file.footer->RowGroup(group); });
      for (std::size_t k = 0; k < plan_.columns.size(); ++k) {
        if (file.leaves[k] < 0 || file.footer->schema()->Column(file.leaves[k])->max_repetition_level() != 0) continue;
        const auto values = read_file(file.path, [&] { return part->ColumnChunk(file.leaves[k])->num_values(); });
        if (values != part->num_rows())
          throw data_error({file.path}, plan_.columns[k].quoted() + " has " + std::to_string(values) +
                                            " values in row group " + std::to_string(group) + " (the group has " +
                                            std::to_string(part->num_rows()) + " rows); write the file again");
      }
    }
  }

  [[nodiscard]] std::vector<std::uint64_t> first_shape(const table_column& column) const {
    const auto number = static_cast<std::size_t>(&column - plan_.columns.data());
    for (const parquet_file& file : files_) {
      for (int group = 0; group < file.footer->num_row_groups(); ++group) {
        auto shape = read_file(file.path, [&] {
          return detail::shape_of_lists(*file.footer->schema()->Column(file.leaves[number]),
                                        file.open()->RowGroup(group)->GetColumnPageReader(file.leaves[number]));
        });
        if (!shape.empty()) return shape;
      }
    }
    throw data_error({files_[0].path},
                     column.quoted() + " has no list without missing values, and so no shape; ignore it");
  }

  // Returns the size of the stored values of all columns that are read.
  [[nodiscard]] std::uint64_t stored_bytes() const {
    std::uint64_t bytes = 0;
    for (const parquet_file& file : files_)
      for (int group = 0; group < file.footer->num_row_groups(); ++group)
        for (const int leaf : file.leaves)
          if (leaf >= 0)
            bytes += static_cast<std::uint64_t>(
                std::max<std::int64_t>(file.footer->RowGroup(group)->ColumnChunk(leaf)->total_uncompressed_size(), 0));
    return bytes;
  }

  [[nodiscard]] std::uint64_t digest() const {
    muster::digest all;
    for (const parquet_file& file : files_) {
      detail::add_sampled_content(all, file.file->bytes(), options_.threads);
      file.file->forget();
      for (const auto& [key, value] : file.partitions) all.add(key).add(value.value_or(std::string(no_partition)));
    }
    for (const table_column& column : plan_.columns) all.add(column.name).add(std::uint64_t{column.place});
    for (const std::string& name : plan_.schema.classes) all.add(name);
    return all.add(to_string(plan_.schema)).add(static_cast<std::uint64_t>(options_.missing)).value();
  }

  // Returns readers in front of a row: readers that have just read the row before, or new ones.
  group_reader take(std::size_t file, int group, std::uint64_t row) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find_if(idle_, [&](const group_reader& reader) {
        return reader.file == file && reader.group == group && reader.next == row;
      });
      if (found != idle_.end()) {
        group_reader reader = std::move(*found);
        idle_.erase(found);
        return reader;
      }
    }
    group_reader reader{file, group, row, files_[file].open()};
    const auto part = reader.opened->RowGroup(group);
    for (std::size_t k = 0; k < plan_.columns.size(); ++k) {
      const int leaf = files_[file].leaves[k];
      reader.columns.push_back(leaf < 0
                                   ? nullptr
                                   : detail::read_column(plan_.columns[k], *files_[file].footer->schema()->Column(leaf),
                                                         group, part->GetColumnPageReader(leaf), row, options_));
    }
    return reader;
  }
  void keep(group_reader reader) {
    const std::uint64_t rows = files_[reader.file].groups[static_cast<std::size_t>(reader.group) + 1] -
                               files_[reader.file].groups[static_cast<std::size_t>(reader.group)];
    if (reader.next == rows) return;
    const std::lock_guard lock(mutex_);
    constexpr std::size_t most_idle = 2;
    if (idle_.size() == most_idle) idle_.erase(idle_.begin());
    idle_.push_back(std::move(reader));
  }

  void fill_partition(const parquet_file& file, const table_column& column, detail::parquet_rows& rows) const {
    const auto& value = std::ranges::find(file.partitions, column.name, &partition::first)->second;
    const detail::column_target to{column, options_, column.quoted() + " (a folder's name)"};
    for (std::size_t row = 0; row < rows.count; ++row) {
      if (!value)
        to.missing(rows, row);
      else
        column.kind == column_kind::text ? to.put_class(rows, row, *value) : to.put_text(rows, row, *value);
    }
  }

  // Sets the names of the classes that create_parquet() stored.
  void name_classes() {
    const auto label = std::ranges::find(plan_.columns, detail::label_place, &table_column::place);
    if (label == plan_.columns.end() || label->kind != column_kind::number) return;
    for (const parquet_file& file : files_) {
      const auto stored = file.footer->key_value_metadata();
      const auto text = stored ? stored->Get(std::string(detail::classes_key)) : arrow::Status::KeyError("");
      std::vector<std::string> names;
      if (text.ok()) {
        const auto list = nlohmann::json::parse(*text, nullptr, false);
        const bool is_list = list.is_array() && !list.empty() &&
                             std::ranges::all_of(list, [](const auto& name) { return name.is_string(); });
        if (!is_list)
          throw data_error({file.path}, "has metadata muster.classes that are no list of names; write the file again");
        names = list.get<std::vector<std::string>>();
      }
      if (&file == files_.data()) plan_.schema.classes = plan_.names.classes = names;
      if (names != plan_.schema.classes)
        throw data_error({file.path}, "has other classes in its metadata muster.classes than " + files_[0].path +
                                          "; write the files with the same classes");
    }
  }

  void report_bad(const parquet_file& file, std::uint64_t row, sample_id first, detail::parquet_rows& rows) const {
    detail::record_block& block = rows.block;
    const auto clear = [&](std::size_t at) {
      block.labels[at] = 0;
      const bool is_fixed = plan_.record_bytes != 0;
      const std::uint64_t begin = is_fixed ? at * plan_.record_bytes : at == 0 ? 0 : block.ends[at - 1];
      std::fill(block.bytes.data() + begin,
                block.bytes.data() + (is_fixed ? begin + plan_.record_bytes : block.ends[at]), std::byte{0});
    };
    detail::report_bad_rows(rows, first, block.bad, clear, [&](std::size_t at) {
      return data_location{file.path, row + at + 1};
    });
  }

  // Releases mapped memory of a file, from time to time.
  void forget(const parquet_file& file, int group, std::uint64_t rows) {
    const auto part = file.footer->RowGroup(group);
    const auto bytes =
        static_cast<double>(std::max<std::int64_t>(part->total_compressed_size(), part->total_byte_size()));
    const auto used = static_cast<std::size_t>(bytes * double(rows) / double(part->num_rows()));
    if (mapped_.fetch_add(used) + used < most_mapped) return;
    mapped_ = 0;
    file.file->forget();
  }

  parquet_options options_;
  std::string named_;  // the folder, if it is the only path
  std::vector<parquet_file> files_;
  detail::table_plan plan_;
  std::vector<std::string> notes_;
  std::uint64_t size_ = 0;
  std::vector<std::uint64_t> firsts_;  // each block's first row, then the number of rows
  std::atomic<std::size_t> mapped_{0};
  std::mutex mutex_;
  std::vector<group_reader> idle_;  // readers that no thread uses; guarded by mutex_
};

}  // namespace

any_record_source open_parquet(const std::vector<std::string>& paths, const parquet_options& options) {
  const auto opened = std::make_shared<parquet_table>(paths, options);
  detail::block_index index = opened->index();
  index.make = [opened](std::size_t number, detail::record_block& block) { opened->read(number, block); };
  const std::size_t stored_classes = options.classes.empty() ? index.schema.classes.size() : 0;
  any_record_source source(detail::blocked_records(std::move(index), cache_bytes));
  return stored_classes == 0 ? source : with_classes(std::move(source), stored_classes);
}

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 { namespace detail {

extern const plugin parquet_plugin;
[[gnu::init_priority(101)]] const plugin parquet_plugin("parquet", [] {
  data::detail::set_parquet_openers(&data::open_parquet, &data::open_arrow_file, &data::detail::open_parquet_writer);
});

}}}  // namespace muster::v0::detail
