// The rows of a query, in a separate library so that the core does not depend on libpq.
#include <muster/data/sources/postgres.hpp>

#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <libpq-fe.h>

#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/number.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/source_patience.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/label.hpp>
#include <muster/data/sources/blocked_records.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/table_columns.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace {

// Size of the rows of a range: large enough that the latency of a request to the server is small in comparison.
constexpr std::uint64_t range_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_rows_of_range = 1 << 14;
constexpr std::size_t cache_bytes = std::size_t{64} << 20;

using query_result = std::unique_ptr<PGresult, muster::detail::freed_by<&PQclear>>;
using query_text = std::unique_ptr<char, muster::detail::freed_by<&PQfreemem>>;

// The connection is lost or could not be opened. A new connection may work.
class lost_connection : public source_error {
 public:
  explicit lost_connection(const std::string& text) : source_error({}, text) {}
};

// Returns a message of the server as one line without line end.
std::string one_line(const char* message) {
  std::string text = message;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// A reader of the fields of a row in the binary COPY format. NULL is an empty optional.
class row_fields {
 public:
  explicit row_fields(std::string_view row) noexcept : rest_(row) {}

  std::optional<std::string_view> next() {
    const std::string_view size = take(4);
    return size == "\xff\xff\xff\xff" ? std::nullopt : std::optional(take(number<std::uint32_t>(size)));
  }
  std::string_view take(std::size_t bytes) {
    if (bytes > rest_.size()) throw configuration_error("the database sends truncated rows; check the server");
    const std::string_view field = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return field;
  }
  template <class T>
  static T number(std::string_view big_endian) {
    T value = 0;
    for (const char byte : big_endian) value = static_cast<T>(value << 8 | static_cast<unsigned char>(byte));
    return value;
  }

 private:
  std::string_view rest_;
};

// A connection to the database.
class session {
 public:
  // Connects within `time`. The connection counts as lost if the server sends nothing for the time `patience`.
  session(const std::string& connection, seconds time, seconds patience = seconds::max()) : patience_(patience) {
    // The last value of a repeated keyword counts, so the user's connection string overrides these values.
    constexpr std::array<const char*, 3> words = {"connect_timeout", "dbname", nullptr};
    const std::string most = std::to_string(std::clamp(static_cast<int>(time.count()), 2, 10));
    const std::array<const char*, 3> values = {most.c_str(), connection.c_str(), nullptr};
    connection_.reset(PQconnectdbParams(words.data(), values.data(), /*expand_dbname=*/1));
    if (connection_ != nullptr && PQstatus(connection_.get()) == CONNECTION_OK) {
      // Requests all digits in the text of numbers, and ISO dates, independently of the role's settings.
      (void)run("SELECT set_config('extra_float_digits', '3', false), set_config('datestyle', 'ISO, YMD', false)");
      return;
    }
    const std::string text = "cannot connect to the database (" +
                             one_line(connection_ ? PQerrorMessage(connection_.get()) : "out of memory") +
                             "); check the connection";
    const auto state = PQpingParams(words.data(), values.data(), /*expand_dbname=*/1);
    // A server without a free connection answers the ping. Its refusal has no code here, only a text.
    const bool is_full = text.find("connection slots") != std::string::npos ||
                         text.find("too many clients") != std::string::npos ||
                         text.find("too many connections") != std::string::npos;
    if (state == PQPING_REJECT || state == PQPING_NO_RESPONSE || is_full) throw lost_connection(text);
    throw configuration_error(text);
  }
  // Runs one command. The server refuses a text with several commands.
  [[nodiscard]] query_result run(const std::string& command) const {
    query_result result;
    if (PQsendQueryParams(connection_.get(), command.c_str(), 0, nullptr, nullptr, nullptr, nullptr, 0) == 0) refuse();
    for (query_result next = next_result(); next; next = next_result()) {
      result = std::move(next);
      if (PQresultStatus(result.get()) == PGRES_COPY_OUT) break;
    }
    const auto status = PQresultStatus(result.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_COPY_OUT) refuse();
    return result;
  }
  // Calls each(fields) for each row that a query selects.
  template <class Each>
  void select(const std::string& query, const Each& each) const {
    (void)run("COPY (" + query + ") TO STDOUT (FORMAT binary)");
    for (int size = 0; size != -1;) {
      char* data = nullptr;
      size = PQgetCopyData(connection_.get(), &data, /*async=*/1);
      const query_text buffer(data);
      if (size < -1) refuse();
      if (size == 0) wait();
      if (size <= 0) continue;
      // A message has one row, which begins with the number of fields, or -1 after the last row. The first message
      // begins with a header.
      row_fields row(std::string_view(data, static_cast<std::size_t>(size)));
      std::string_view count = row.take(2);
      if (count == "PG") {
        constexpr std::size_t signature_and_flags = 15;
        (void)row.take(signature_and_flags - count.size());
        (void)row.next();  // header extension
        count = row.take(2);
      }
      if (count != "\xff\xff") each(row);
    }
    bool done = true;
    while (const query_result result = next_result()) done = done && PQresultStatus(result.get()) == PGRES_COMMAND_OK;
    if (!done) refuse();
  }
  [[nodiscard]] std::string database() const { return PQdb(connection_.get()); }
  // Returns a value quoted for a command.
  [[nodiscard]] std::string literal(const std::string& value) const {
    return query_text(PQescapeLiteral(connection_.get(), value.data(), value.size())).get();
  }

 private:
  // Returns the next result of the command, or null after the last result.
  query_result next_result() const {
    while (PQisBusy(connection_.get()) != 0) wait();
    return query_result(PQgetResult(connection_.get()));
  }
  // Waits until the server sends more data.
  void wait() const {
    pollfd socket{PQsocket(connection_.get()), POLLIN, 0};
    const double most = 1000.0 * patience_.count();
    // -1: no deadline. Then only the user's settings of the connection limit the time.
    const int milliseconds = most < 1e9 ? static_cast<int>(most) : -1;
    const int found = ::poll(&socket, 1, milliseconds);
    if (found == 0) throw lost_connection("the database has sent nothing for too long; check the server");
    if (found > 0 && PQconsumeInput(connection_.get()) == 0) refuse();
  }
  [[noreturn]] void refuse() const {
    const std::string reason = one_line(PQerrorMessage(connection_.get()));
    if (PQstatus(connection_.get()) == CONNECTION_OK)
      throw configuration_error("the database refuses the query (" + reason + "); correct it");
    throw lost_connection("the connection to the database is lost (" + reason + "); check the server");
  }

  seconds patience_;
  std::unique_ptr<PGconn, muster::detail::freed_by<&PQfinish>> connection_;
};

// Calls use(remaining time), and again with increasing pauses while the connection is lost, until the timeout.
template <class Use>
void with_patience(const std::string& name, seconds timeout, const Use& use) {
  const auto start = clock::now();
  const seconds patience = muster::detail::within_source_patience(timeout);
  constexpr std::chrono::milliseconds longest_pause{5000};
  for (std::chrono::milliseconds pause{100};; pause = std::min(2 * pause, longest_pause)) {
    try {
      return use(patience - seconds(seconds_since(start)));
    } catch (const lost_connection& lost) {
      if (seconds_since(start) + seconds(pause).count() > patience.count()) {
        throw source_error({name}, "cannot be read, and has been tried again for " +
                                       std::to_string(static_cast<int>(patience.count())) + " s (" + lost.what() +
                                       "); go on from the last checkpoint when the server is back");
      }
    }
    std::this_thread::sleep_for(pause);
  }
}

class table {
 public:
  table(std::string connection, std::string query, const postgres_options& postgres, const read_options& options)
      : connection_(std::move(connection)), query_(std::move(query)), options_(postgres) {
    with_patience("postgres", options_.timeout,
                  [&](seconds time) { server_ = std::make_unique<session>(connection_, time); });
    if (options.layout == layout::sparse) {
      throw configuration_error(
          "the rows of a query are dense (the sparse layout was requested); remove the layout option");
    }
    name_ = "postgres:" + server_->database();
    (void)server_->run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    describe();
    width_ = std::max(columns_.features, options.min_features);
  }

  dataset read_all(const read_options& options) const {
    std::vector<float> values, labels;
    std::vector<bad_record> bad;
    server_->select(selected_, [&](row_fields& fields) {
      labels.push_back(0);
      values.resize(values.size() + width_);
      row_places rows{.labels = labels.data(), .width = width_, .values = values.data(), .step = width_};
      rows.bad = options.keep_bad_records ? &bad : nullptr;
      read_row(fields, labels.size() - 1, labels.size() - 1, rows);
    });
    if (labels.empty()) throw data_error({name_}, "the query selects no rows; check it");
    dataset_builder builder = dataset_builder::dense(name_, labels.size(), width_);
    std::copy(labels.begin(), labels.end(), builder.labels().begin());
    for (std::size_t row = 0; row < labels.size(); ++row) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * width_), width_, builder.row(row).begin());
    }
    builder.set_bad(std::move(bad));
    builder.set_columns(columns_.names, {});
    return builder.finish(options.threads);
  }

  // Determines the ranges that read() reads, from the current state of the database.
  detail::block_index find_ranges(bool keep_bad) {
    const std::uint64_t rows = std::clamp<std::uint64_t>(range_bytes / (width_ * sizeof(float)), 1, most_rows_of_range);
    const auto found = server_->run("SELECT count(*), count(" + key_ + "), max(" + key_ + ") FROM " + rows_of_);
    const auto number = [&](int column) {
      return parse_number<std::uint64_t>(PQgetvalue(found.get(), 0, column)).value_or(0);
    };
    const std::uint64_t count = number(0);
    if (count == 0) throw data_error({name_}, "the query selects no rows; check it");
    if (number(1) != count) {
      throw data_error({name_}, "the key " + options_.key + " is missing in " + std::to_string(count - number(1)) +
                                    " rows (every row has one); choose another column");
    }
    server_->select("SELECT first::text FROM (SELECT " + key_ + " AS first, row_number() OVER (ORDER BY " + key_ +
                        ") - 1 AS place FROM " + rows_of_ + ") AS muster_keys WHERE place % " + std::to_string(rows) +
                        " = 0 ORDER BY place",
                    [&](row_fields& fields) {
                      firsts_.push_back(keys_.size() * rows);
                      keys_.push_back(server_->literal(std::string(fields.next().value_or(""))));
                    });
    firsts_.push_back(count);
    keys_.push_back(server_->literal(PQgetvalue(found.get(), 0, 2)));
    server_.reset();
    muster::digest all;
    all.add(query_).add(count).add(static_cast<std::uint64_t>(options_.missing));
    for (const std::size_t place : columns_.roles) all.add(std::uint64_t{place});
    for (const std::string& key : keys_) all.add(key);
    detail::block_index index;
    index.name = name_;
    index.columns = columns_.names;
    index.digest = all.value();
    index.schema = detail::dense_schema(width_);
    index.firsts = firsts_;
    index.mean_bytes = width_ * sizeof(float);
    index.keep_bad = keep_bad;
    return index;
  }

  // Reads a range on a connection that no other thread uses. Replaces a lost connection, and retries until the timeout.
  void read(std::size_t number, detail::record_block& block) {
    const bool last = number + 2 == keys_.size();
    const std::string query = selected_ + " WHERE " + key_ + " >= " + keys_[number] + " AND " + key_ +
                              (last ? " <= " : " < ") + keys_[number + 1] + " ORDER BY " + key_;
    const std::uint64_t row_count = firsts_[number + 1] - firsts_[number];
    with_patience(name_, options_.timeout, [&](seconds time) {
      try {
        std::unique_ptr<session> connection = take();
        if (!connection) connection = std::make_unique<session>(connection_, time, std::max(time, seconds(1)));
        std::uint64_t row = 0;
        block.bad.clear();
        const row_places rows = block.rows();
        connection->select(query, [&](row_fields& fields) {
          if (row == row_count) refuse_rows(number);
          read_row(fields, row, firsts_[number] + row, rows);
          ++row;
        });
        if (row != row_count) refuse_rows(number);
        const std::lock_guard lock(mutex_);
        idle_.push_back(std::move(connection));
      } catch (const lost_connection&) {
        const std::lock_guard lock(mutex_);
        idle_.clear();  // idle connections are most likely lost too
        throw;
      }
    });
  }

 private:
  // The encoding of a column's values.
  enum class kind { of_4_bytes, of_8_bytes, text };
  using row_places = detail::row_places;

  // Asks the server for the columns of the query. Writes the SELECT of all columns that are read: small numbers as
  // float4, float8 unchanged, other types and the label as text. Throws configuration_error if the key is missing.
  void describe() {
    const auto empty_result = server_->run("SELECT * FROM (" + query_ + "\n) AS muster_query LIMIT 0");
    std::string aliases;  // aliases, because names may occur twice
    for (int column = 0; column < PQnfields(empty_result.get()); ++column) {
      names_.emplace_back(PQfname(empty_result.get(), column));
      aliases += (column == 0 ? "c" : ", c") + std::to_string(column);
    }
    rows_of_ = "(" + query_ + "\n) AS muster_query(" + aliases + ")";
    std::vector<std::string> ignore = options_.ignore;
    if (!options_.key.empty()) {
      const auto found = std::ranges::find(names_, options_.key);
      if (found == names_.end()) {
        const auto suggestion = closest(options_.key, names_);
        throw configuration_error("there is no key '" + options_.key + "' in the query '" + query_ +
                                  "' (its columns are " + std::to_string(names_.size()) + " others); " +
                                  (suggestion ? "did you mean '" + *suggestion + "'?" : "name a listed column"));
      }
      key_ = "c" + std::to_string(found - names_.begin());
      ignore.push_back(options_.key);
    }
    columns_ = detail::plan_columns(names_, options_.label, ignore, name_);
    for (std::size_t column = 0; column < names_.size(); ++column) {
      // Object identifiers of types in PostgreSQL's catalogue (pg_type).
      constexpr Oid bool_type = 16, int8_type = 20, int2_type = 21, int4_type = 23, float4_type = 700,
                    float8_type = 701;
      const Oid type = PQftype(empty_result.get(), static_cast<int>(column));
      const bool is_small =
          type == bool_type || type == int8_type || type == int2_type || type == int4_type || type == float4_type;
      const bool is_exact_label =
          columns_.roles[column] == detail::label_place;  // a label is read as text, with all digits
      kinds_.push_back(is_exact_label        ? kind::text
                       : is_small            ? kind::of_4_bytes
                       : type == float8_type ? kind::of_8_bytes
                                             : kind::text);
      if (columns_.roles[column] == detail::ignored_place) continue;
      constexpr const char* as[] = {"::float4", "", "::text"};
      selected_ += (selected_.empty() ? "SELECT c" : ", c") + std::to_string(column) +
                   (type == bool_type ? "::int" : "") + as[static_cast<std::size_t>(kinds_.back())];
    }
    selected_ += " FROM " + rows_of_;
  }

  float read_value(std::size_t column, std::optional<std::string_view> bytes, std::uint64_t row) const {
    const data_location location{name_, row + 1, column + 1};
    const auto refuse = [&](const std::string& problem) {
      throw data_error(location, problem + " in column " + names_[column] + "; correct the query");
    };
    float value = std::numeric_limits<float>::quiet_NaN();
    if (bytes && kinds_[column] == kind::of_4_bytes) {
      value = std::bit_cast<float>(row_fields::number<std::uint32_t>(*bytes));
    } else if (bytes && kinds_[column] == kind::of_8_bytes) {
      value = static_cast<float>(std::bit_cast<double>(row_fields::number<std::uint64_t>(*bytes)));
    } else if (bytes && *bytes != "NaN") {
      const auto [end, code] = detail::parse_float(bytes->data(), bytes->data() + bytes->size(), value);
      if (code != std::errc() || end != bytes->data() + bytes->size())
        refuse("'" + std::string(bytes->substr(0, 40)) + "' is not a number that a float can hold");
      if (columns_.roles[column] == detail::label_place && !detail::is_exact_label(*bytes, value))
        throw data_error(location, detail::no_label(*bytes, " in column " + names_[column]));
    }
    if (std::isinf(value)) refuse("a value is larger than a float can hold");
    if (columns_.roles[column] == detail::label_place) {
      if (std::isnan(value)) throw data_error(location, detail::missing_label);
      return value + 0.0f;  // -0 is 0
    }
    if (!std::isnan(value)) return value;
    if (options_.missing == missing_values::fail) refuse("a value is missing (NULL or NaN)");
    return options_.missing == missing_values::zero ? 0 : value;
  }

  // Reads row `number` of the query into row `at` of `rows`.
  void read_row(row_fields& fields, std::size_t at, std::uint64_t number, const row_places& rows) const {
    try {
      for (std::size_t column = 0; column < names_.size(); ++column) {
        const std::size_t place = columns_.roles[column];
        if (place == detail::ignored_place) continue;
        const float value = read_value(column, fields.next(), number);
        (place == detail::label_place ? rows.labels[at] : rows.row(at)[place]) = value;
      }
    } catch (const data_error& error) {
      rows.refuse(at, number, error);
    }
  }

  std::unique_ptr<session> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    auto connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  [[noreturn]] void refuse_rows(std::size_t number) const {
    throw data_error({name_},
                     "has other rows from " + options_.key + " " + keys_[number] +
                         " on than when it was opened (the "
                         "table has changed, or the key has a value twice); choose a key that is unique, or convert "
                         "the rows first");
  }

  std::string connection_, query_;
  postgres_options options_;
  std::unique_ptr<session> server_;  // connection with the transaction that opened the table; null after find_ranges()
  std::string name_;
  std::vector<std::string> names_;
  std::vector<kind> kinds_;
  detail::table_columns columns_;
  std::size_t width_ = 0;
  std::string rows_of_, selected_, key_;
  std::vector<std::string> keys_;      // each range's first key, then the last key, as SQL literals
  std::vector<std::uint64_t> firsts_;  // each range's first row number, then the number of rows
  std::mutex mutex_;
  std::vector<std::unique_ptr<session>> idle_;  // connections that no thread uses; guarded by mutex_
};

}  // namespace

dataset read_postgres(const std::string& connection, const std::string& query, const postgres_options& postgres,
                      const read_options& options) {
  return table(connection, query, postgres, options).read_all(options);
}

any_record_source postgres_source(const std::string& connection, const std::string& query,
                                  const postgres_options& postgres, const read_options& options) {
  if (postgres.key.empty()) throw configuration_error("there is no key to read rows by; name a column, such as key=id");
  const auto opened = std::make_shared<table>(connection, query, postgres, options);
  detail::block_index index = opened->find_ranges(options.keep_bad_records);
  index.make = [opened](std::size_t number, detail::record_block& block) { opened->read(number, block); };
  return any_record_source(detail::blocked_records(std::move(index), cache_bytes));
}

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 { namespace detail {

extern const plugin postgres_plugin;
[[gnu::init_priority(101)]] const plugin postgres_plugin("postgres", [] {
  data::detail::set_query_opener([](const std::string& connection, const std::string& query,
                                    const data::postgres_options& postgres,
                                    const read_options& options) -> opened_source {
    if (postgres.key.empty()) return data::read_postgres(connection, query, postgres, options);
    return data::postgres_source(connection, query, postgres, options);
  });
});

}}}  // namespace muster::v0::detail
