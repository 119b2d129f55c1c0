// The rows of a query by ranges of a key, when they are wanted.
#include <muster/data/sources/postgres.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/number.hpp>
#include "blocked_records.hpp"
#include "postgres_session.hpp"
#include "table_columns.hpp"

namespace muster::inline v0 {
namespace {

// Of rows in a range: a read of the server is large against what it takes to ask for it.
constexpr std::uint64_t range_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_rows_of_range = 1 << 14;
constexpr std::size_t cache_bytes = std::size_t{64} << 20;

// Of PostgreSQL's catalogue of types.
constexpr Oid bool_type = 16, int8_type = 20, int2_type = 21, int4_type = 23, float4_type = 700;

class ranges {
 public:
  ranges(std::string connection, const std::string& query, const postgres_options& how)
      : connection_(std::move(connection)), how_(how), rows_of_("(" + query + "\n) AS muster_query") {
    const detail::session server(connection_);
    name_ = "postgres:" + server.database();
    key_ = server.name(how.key);
    describe(server, query);
    (void)server.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
    find_ranges(server);
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::size_t features() const noexcept { return columns_.features; }
  [[nodiscard]] const std::vector<std::uint64_t>& firsts() const noexcept { return firsts_; }
  [[nodiscard]] std::uint64_t digest(const std::string& query) const {
    muster::digest all;
    all.add(query).add(firsts_.back()).add(static_cast<std::uint64_t>(how_.missing));
    for (const std::size_t place : columns_.places) all.add(std::uint64_t{place});
    for (const std::string& key : keys_) all.add(key);
    return all.value();
  }

  void read(std::size_t number, detail::record_block& to) {
    const bool last = number + 2 == keys_.size();
    const std::string command = "COPY (SELECT " + selected_ + " FROM " + rows_of_ + " WHERE " + key_ +
                                " >= " + keys_[number] + " AND " + key_ + (last ? " <= " : " < ") + keys_[number + 1] +
                                " ORDER BY " + key_ + ") TO STDOUT (FORMAT binary)";
    parse(fetch(command), number, to);
  }

 private:
  // Which columns there are, and how each is asked for.
  void describe(const detail::session& server, const std::string& query) {
    const auto none = server.run("SELECT * FROM " + rows_of_ + " LIMIT 0");
    for (int column = 0; column < PQnfields(none.get()); ++column) names_.emplace_back(PQfname(none.get(), column));
    if (std::ranges::find(names_, how_.key) == names_.end()) {
      const auto meant = closest(how_.key, names_);
      throw configuration_error("there is no key '" + how_.key + "' in the query '" + query + "' (its columns are " +
                                std::to_string(names_.size()) + " others); " +
                                (meant ? "did you mean '" + *meant + "'?" : "name one of them"));
    }
    std::vector<std::string> ignored = how_.ignore;
    ignored.push_back(how_.key);
    columns_ = detail::plan_columns(names_, names_.size(), how_.label, ignored, name_);
    for (std::size_t column = 0; column < names_.size(); ++column) {
      if (columns_.places[column] == detail::ignored) continue;
      const Oid type = PQftype(none.get(), static_cast<int>(column));
      const bool single =
          type == bool_type || type == int2_type || type == int4_type || type == int8_type || type == float4_type;
      selected_ += (selected_.empty() ? "" : ", ") + server.name(names_[column]) + (type == bool_type ? "::int" : "") +
                   (single ? "::float4" : "::float8");
    }
  }

  void find_ranges(const detail::session& server) {
    const std::uint64_t rows =
        std::clamp<std::uint64_t>(range_bytes / (columns_.features * sizeof(float)), 1, most_rows_of_range);
    const auto found = server.run("SELECT count(*), count(" + key_ + "), max(" + key_ + ") FROM " + rows_of_);
    const auto number = [&](int column) {
      return parse_number<std::uint64_t>(PQgetvalue(found.get(), 0, column)).value_or(0);
    };
    const std::uint64_t count = number(0);
    if (count == 0) throw data_error({name_}, "the query selects no rows; check it");
    if (number(1) != count) {
      throw data_error({name_}, "the key " + how_.key + " is missing in " + std::to_string(count - number(1)) +
                                    " rows (every row has one); choose another column");
    }
    // Behind a cursor of the server: of a large table even the beginnings of ranges are many.
    (void)server.run("DECLARE muster_ranges NO SCROLL CURSOR FOR SELECT first FROM (SELECT " + key_ +
                     " AS first, row_number() OVER (ORDER BY " + key_ + ") - 1 AS place FROM " + rows_of_ +
                     ") AS muster_keys WHERE place % " + std::to_string(rows) + " = 0 ORDER BY place");
    for (;;) {
      const auto some =
          server.run("FETCH " + std::to_string(std::max<std::size_t>(how_.fetch, 1)) + " FROM muster_ranges");
      const int got = PQntuples(some.get());
      if (got == 0) break;
      for (int row = 0; row < got; ++row) {
        firsts_.push_back(keys_.size() * rows);
        keys_.push_back(server.literal(PQgetvalue(some.get(), row, 0)));
      }
    }
    firsts_.push_back(count);
    keys_.push_back(server.literal(PQgetvalue(found.get(), 0, 2)));
  }

  // What a range has, on a connection that no other thread uses; a lost one is made again, for a while.
  std::string fetch(const std::string& command) {
    const auto start = clock::now();
    constexpr std::chrono::milliseconds longest_pause{5000};
    std::chrono::milliseconds pause{100};
    for (;; pause = std::min(2 * pause, longest_pause)) {
      try {
        std::unique_ptr<detail::session> own = take();
        if (!own) own = std::make_unique<detail::session>(connection_, how_.timeout);
        std::string all = own->copy(command);
        const std::lock_guard lock(mutex_);
        idle_.push_back(std::move(own));
        return all;
      } catch (const detail::lost_connection& lost) {
        if (seconds_since(start) + seconds(pause).count() > how_.timeout.count()) {
          throw data_error({name_}, "cannot be read, and has been tried again for " +
                                        std::to_string(static_cast<int>(how_.timeout.count())) + " s (" + lost.what() +
                                        "); go on from the last checkpoint when the server is back");
        }
      }
      {
        const std::lock_guard lock(mutex_);
        idle_.clear();  // those are most likely lost too
      }
      std::this_thread::sleep_for(pause);
    }
  }

  std::unique_ptr<detail::session> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    auto one = std::move(idle_.back());
    idle_.pop_back();
    return one;
  }

  // The binary format of COPY: a header, rows of a number of fields and their sizes and bytes, and -1; big-endian.
  void parse(const std::string& all, std::size_t number, detail::record_block& to) const {
    constexpr std::size_t signature_bytes = 11;
    std::size_t at = signature_bytes + 4;
    const auto next = [&]<class T>(T) {
      if (all.size() - std::min(at, all.size()) < sizeof(T))
        throw data_error({name_}, "sends rows that are cut short; check the server");
      T value = 0;
      for (std::size_t k = 0; k < sizeof(T); ++k)
        value = static_cast<T>(value << 8 | static_cast<unsigned char>(all[at + k]));
      at += sizeof(T);
      return value;
    };
    at += next(std::uint32_t{});  // an extension
    const std::uint64_t rows = firsts_[number + 1] - firsts_[number];
    std::uint64_t row = 0;
    for (; next(std::uint16_t{}) != 0xffff; ++row) {
      if (row == rows) refuse_rows(number);
      std::size_t column = 0;
      std::string problem;
      for (; column < names_.size(); ++column) {
        const std::size_t place = columns_.places[column];
        if (place == detail::ignored) continue;
        const std::uint32_t size = next(std::uint32_t{});
        const bool missing = size == 0xffffffff;
        const double value = missing     ? std::numeric_limits<double>::quiet_NaN()
                             : size == 4 ? double{std::bit_cast<float>(next(std::uint32_t{}))}
                                         : std::bit_cast<double>(next(std::uint64_t{}));
        float& into = place == detail::label_place ? to.labels[row] : to.row(row)[place];
        into = static_cast<float>(std::isnan(value) && how_.missing == missing_values::zero ? 0 : value);
        const bool wrong = std::isnan(value) ? how_.missing == missing_values::fail : std::isinf(into);
        if (!wrong || !problem.empty()) continue;
        problem = (std::isnan(value) ? "a value is missing (NULL or NaN)" : "a value is larger than a float can hold") +
                  std::string(" in column ") + names_[column] + "; correct the query";
        to.bad.push_back({firsts_[number] + row, {name_, firsts_[number] + row + 1, column + 1}, problem});
      }
      if (problem.empty()) continue;
      std::ranges::fill(to.row(row), 0.0f);
      to.labels[row] = 0;
    }
    if (row != rows) refuse_rows(number);
  }

  [[noreturn]] void refuse_rows(std::size_t number) const {
    throw data_error({name_},
                     "has other rows from " + how_.key + " " + keys_[number] +
                         " on than when it was opened (the "
                         "table has changed, or the key has a value twice); choose a key that is unique, or convert "
                         "the rows first");
  }

  std::string connection_;
  postgres_options how_;
  std::string rows_of_;
  std::string name_;
  std::string key_;
  std::vector<std::string> names_;
  detail::table_columns columns_;
  std::string selected_;
  std::vector<std::string> keys_;  // where ranges begin, and the last one, as literals
  std::vector<std::uint64_t> firsts_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<detail::session>> idle_;
};

}  // namespace

any_record_source postgres_source(const std::string& connection, const std::string& query, const postgres_options& how,
                                  const read_options& options) {
  if (how.key.empty()) throw configuration_error("there is no key to read rows by; name a column, such as key=id");
  if (options.layout == layout::sparse) {
    throw configuration_error("the rows of a query are dense (the sparse layout was asked for); leave the layout");
  }
  const auto found = std::make_shared<ranges>(connection, query, how);
  detail::block_index index;
  index.name = found->name();
  index.digest = found->digest(query);
  index.schema = detail::dense_schema(std::max(found->features(), options.min_features));
  index.firsts = found->firsts();
  index.mean_bytes = index.schema.record_bytes();
  index.keep_bad = options.keep_bad_records;
  index.make = [found](std::size_t number, detail::record_block& to) { found->read(number, to); };
  return any_record_source(detail::blocked_records(std::move(index), cache_bytes));
}

}  // namespace muster::inline v0
