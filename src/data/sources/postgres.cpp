// The rows of a query, a library of its own so that the core does not need libpq.
#include <muster/data/sources/postgres.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/open.hpp>
#include "decimal.hpp"
#include "postgres_session.hpp"
#include "table_columns.hpp"

namespace muster::inline v0 {
namespace {

using detail::session;
using result_ptr = detail::query_result;

using detail::ignored;
using detail::label_place;

float read_value(const PGresult& result, int row, int column, const postgres_options& how, const std::string& name,
                 std::uint64_t row_number, const std::string& column_name) {
  const std::string_view word(PQgetvalue(&result, row, column),
                              static_cast<std::size_t>(PQgetlength(&result, row, column)));
  const auto refuse = [&](const std::string& problem) {
    throw data_error({name, row_number, static_cast<std::uint64_t>(column) + 1},
                     problem + " in column " + column_name + "; correct the query");
  };
  if (PQgetisnull(&result, row, column) != 0 || word == "NaN") {
    if (how.missing == missing_values::fail) refuse("a value is missing (NULL or NaN)");
    return how.missing == missing_values::zero ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  if (word == "t" || word == "f") return word == "t" ? 1.0f : 0.0f;
  float value = 0;
  const auto [end, code] = detail::parse_float(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size()) {
    refuse("'" + std::string(word.substr(0, 40)) + "' is not a number that a float can hold");
  }
  return value;
}

}  // namespace

dataset read_postgres(const std::string& connection, const std::string& query, const postgres_options& how,
                      const read_options& options) {
  if (options.layout == layout::sparse) {
    throw configuration_error("the rows of a query are dense (the sparse layout was asked for); leave the layout");
  }
  const session server(connection);
  const std::string name = "postgres:" + server.database();
  (void)server.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
  (void)server.run("DECLARE muster_rows NO SCROLL CURSOR FOR " + query);
  const std::string fetch = "FETCH " + std::to_string(std::max<std::size_t>(how.fetch, 1)) + " FROM muster_rows";

  std::vector<std::string> names;
  detail::table_columns plan;
  std::vector<float> values, labels;
  std::vector<bad_record> bad;
  for (;;) {
    const result_ptr rows = server.run(fetch);
    if (plan.places.empty()) {
      for (int column = 0; column < PQnfields(rows.get()); ++column) names.emplace_back(PQfname(rows.get(), column));
      plan = detail::plan_columns(names, names.size(), how.label, how.ignore, name);
    }
    const int count = PQntuples(rows.get());
    if (count == 0) break;
    for (int row = 0; row < count; ++row) {
      const std::size_t first = values.size();
      values.resize(first + plan.features);
      labels.push_back(0);
      try {
        for (std::size_t column = 0; column < plan.places.size(); ++column) {
          const std::size_t place = plan.places[column];
          if (place == ignored) continue;
          const float value = read_value(*rows, row, static_cast<int>(column), how, name, labels.size(), names[column]);
          (place == label_place ? labels.back() : values[first + place]) = value;
        }
      } catch (const data_error& error) {
        if (!options.keep_bad_records) throw;
        std::fill(values.begin() + static_cast<std::ptrdiff_t>(first), values.end(), 0.0f);
        labels.back() = 0;
        bad.push_back({labels.size() - 1, error.where(), error.problem()});
      }
    }
  }
  if (labels.empty()) throw data_error({name}, "the query selects no rows; check it");

  const std::size_t features = std::max(plan.features, options.min_features);
  dataset_builder builder = dataset_builder::dense(name, labels.size(), features);
  std::copy(labels.begin(), labels.end(), builder.labels().begin());
  for (std::size_t row = 0; row < labels.size(); ++row) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * plan.features), plan.features,
                builder.row(row).begin());
  }
  builder.set_bad(std::move(bad));
  return builder.finish(options.threads);
}

bool detail::register_postgres() noexcept {
  set_query_reader(read_postgres);
  set_query_source(postgres_source);
  return true;
}

}  // namespace muster::inline v0
