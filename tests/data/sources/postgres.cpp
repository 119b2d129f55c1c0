// Tests queries on a real server, which the test starts and stops.
#include <muster/data/open.hpp>

#ifdef MUSTER_HAS_POSTGRES

#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/data/sources/postgres.hpp>
#include "../postgres_server.hpp"
#include "catch.hpp"

TEST_CASE("the rows of a query of PostgreSQL are read as its server prints them") {
  const postgres_server postgres;
  if (!postgres.started()) return;
  const std::string connection = postgres.connection();
  const std::string query =
      "SELECT i AS id, i % 3 AS y, i / 7.0::float8 AS a, (i * 0.001)::numeric AS b, i % 2 = 0 AS c, "
      "(-i)::bigint AS d FROM generate_series(1, 2500) AS i ORDER BY i";
  const auto read = muster::data::read_postgres(connection, query, {.label = "y", .ignore = {"id"}});
  REQUIRE(read.size() == 2500);
  REQUIRE(read.features() == 4);
  CHECK(read.name() == "postgres:postgres");
  for (std::size_t k = 0; k < read.size(); ++k) {
    const auto i = static_cast<double>(k + 1);
    REQUIRE(read.label(k) == float((k + 1) % 3));
    REQUIRE(read.row(k)[0] == static_cast<float>(i / 7.0));
    REQUIRE(read.row(k)[1] == static_cast<float>(i * 0.001));
    REQUIRE(read.row(k)[2] == float((k + 1) % 2 == 0));
    REQUIRE(read.row(k)[3] == -static_cast<float>(i));
  }
  const auto alike = muster::data::read_postgres(connection, "SELECT 1, 2, '1e-50'");  // two columns with the same name
  CHECK(alike.row(0)[1] == 2);
  CHECK(alike.row(0)[2] == 0);
  CHECK_THROWS_WITH(muster::data::read_postgres(connection, "SELECT 1e300::float8"),
                    contains("larger than a float can hold"));
  const auto by_name = muster::open_dataset("postgres:" + connection + "?query=SELECT 1 AS a, 2 AS \"b\"&label=a");
  CHECK(by_name.label(0) == 1);
  CHECK(by_name.row(0)[0] == 2);

  using muster::configuration_error;
  CHECK_THROWS_WITH(muster::data::read_postgres(connection, "SELECT NULL::int AS a, 1 AS b"),
                    contains("postgres:postgres:1:1: a value is missing"));
  CHECK(std::isnan(
      muster::data::read_postgres(connection, "SELECT NULL::int", {.missing = muster::data::missing_values::nan})
          .row(0)[0]));
  CHECK_THROWS_WITH(muster::data::read_postgres(connection, "SELECT 1 AS a, 'x' AS b"),
                    contains(":1:2: 'x' is not a number"));
  const auto data =
      muster::data::read_postgres(connection, "VALUES ('1'), ('x'), ('3')", {}, {.keep_bad_records = true});
  REQUIRE(data.bad().size() == 1);
  CHECK(data.bad()[0].id == 1);
  CHECK_THROWS_WITH(muster::data::read_postgres(connection, "SELECT 1 AS price", {.label = "prize"}),
                    contains("did you mean 'price'?"));
  CHECK_THROWS_WITH(muster::data::read_postgres(connection, "SELEKT 1"), contains("refuses the query (ERROR"));
  CHECK_THROWS_AS(muster::data::read_postgres(connection, "SELECT 1; DROP TABLE x"), configuration_error);
  CHECK_THROWS_AS(muster::data::read_postgres(connection, "SELECT 1 WHERE false"), muster::data_error);
  CHECK_THROWS_AS(muster::open_dataset("postgres:" + connection), configuration_error);
  muster::data::postgres_options short_of_patience;
  short_of_patience.timeout = muster::seconds(0.5);
  CHECK_THROWS_WITH(muster::data::read_postgres("host=/nowhere password=secret", "SELECT 1", short_of_patience),
                    contains("cannot connect") && !contains("secret"));
  CHECK_THROWS_AS(muster::data::read_postgres("host=/nowhere", "SELECT 1", short_of_patience), muster::source_error);
  CHECK_THROWS_AS(muster::data::read_postgres(connection + " dbname=none", "SELECT 1"), configuration_error);
}

TEST_CASE("a label of PostgreSQL is kept exactly, or its row is bad") {
  const postgres_server postgres;
  if (!postgres.started()) return;
  const std::pair<std::string, std::optional<float>> cases[] = {{"1::int", 1.0f},
                                                                {"true", 1.0f},
                                                                {"-0.0::float8", 0.0f},
                                                                {"0.1::float8", 0.1f},
                                                                {"0.1::float4", 0.1f},
                                                                {"2.50::numeric", 2.5f},
                                                                {"16777216::float4", 16777216.0f},
                                                                {"16777217::int", std::nullopt},
                                                                {"9007199254740993::bigint", std::nullopt},
                                                                {"9007199254740993::numeric", std::nullopt},
                                                                {"1.99999999999::float8", std::nullopt},
                                                                {"1e300::float8", std::nullopt},
                                                                {"NULL::int", std::nullopt},
                                                                {"NULL::text", std::nullopt},
                                                                {"'NaN'::float8", std::nullopt},
                                                                {"'NaN'::numeric", std::nullopt},
                                                                {"'Infinity'::float4", std::nullopt}};
  for (const auto missing :
       {muster::data::missing_values::fail, muster::data::missing_values::zero, muster::data::missing_values::nan}) {
    for (const auto& [value, label] : cases) {
      CAPTURE(value);
      for (const std::string key : {"", "k"}) {
        const std::string query = "SELECT 1 AS k, 2 AS a, " + value + " AS y";
        const muster::data::postgres_options options{.label = "y", .ignore = {"k"}, .missing = missing, .key = key};
        const auto source = key.empty() ? muster::data::any_record_source(muster::data::read_postgres(
                                              postgres.connection(), query, options, {.keep_bad_records = true}))
                                        : muster::data::postgres_source(postgres.connection(), query, options,
                                                                        {.keep_bad_records = true});
        std::vector<muster::bad_record> bad;
        const muster::sample_id id = 0;
        float found = -1;
        source.read({&id, 1}, {{}, {&found, 1}}, &bad);
        CHECK(bad.empty() == label.has_value());
        CHECK(found == label.value_or(0));
        CHECK_FALSE(std::signbit(found));
      }
    }
  }
  CHECK_THROWS_WITH(muster::data::read_postgres(postgres.connection(), "SELECT 1 AS y, 2 AS y, 3 AS z", {.label = "y"}),
                    contains("two columns of postgres:postgres have the name 'y'"));
}

TEST_CASE("keys of PostgreSQL have all of their digits, whatever its roles print") {
  const postgres_server postgres;
  if (!postgres.started()) return;
  CHECK(postgres.command("ALTER ROLE muster SET extra_float_digits = 0"));
  CHECK(postgres.command("ALTER ROLE muster SET datestyle = 'SQL, DMY'"));
  for (const std::string key :
       {"i / 3.0::float8", "(i / 3.0)::float4", "'2024-10-27'::timestamp + i * interval '0.7 second'"}) {
    CAPTURE(key);
    const auto source = muster::data::postgres_source(
        postgres.connection(), "SELECT " + key + " AS k, i AS a FROM generate_series(0, 39999) AS i", {.key = "k"});
    std::vector<muster::sample_id> ids(source.size());
    std::iota(ids.begin(), ids.end(), muster::sample_id{0});
    std::vector<float> values(ids.size());
    source.read(ids, {std::as_writable_bytes(std::span(values)), {}});
    CHECK(values.back() == 39999);
  }
}

TEST_CASE("rows of PostgreSQL by ranges of a key are those of the query, also when connections are lost on the way",
          "[slow]") {
  const postgres_server postgres;
  if (!postgres.started()) return;
  const std::string connection = postgres.connection();
  const std::string query =
      "SELECT i % 3 AS y, i / 7.0::float8 AS a, (i * 0.001)::numeric AS b, i % 2 = 0 AS c, (-i)::bigint AS d, "
      "CASE WHEN i % 1000 = 5 THEN NULL ELSE i::real / 3 END AS e, i * 2 AS id FROM generate_series(1, 40000) AS i";
  muster::data::postgres_options options{.label = "y", .missing = muster::data::missing_values::zero, .key = "id"};
  const auto expected_rows = muster::data::read_postgres(connection, query + " ORDER BY i",
                                                         {.label = "y", .ignore = {"id"}, .missing = options.missing});
  const auto ranges = muster::data::postgres_source(connection, query, options);
  REQUIRE(ranges.size() == expected_rows.size());
  REQUIRE(ranges.schema() == expected_rows.schema());
  CHECK_FALSE(ranges.mapped());
  CHECK(ranges.name() == "postgres:postgres");
  CHECK(muster::data::postgres_source(connection, query, options).digest() == ranges.digest());

  const auto read = [](const muster::data::any_record_source& source, std::vector<muster::sample_id> ids) {
    std::vector<std::byte> bytes(ids.size() * source.schema().record_bytes());
    std::vector<float> labels(ids.size());
    source.read(ids, {bytes, labels});
    return std::pair(bytes, labels);
  };
  std::vector<muster::sample_id> all(expected_rows.size());
  std::iota(all.begin(), all.end(), muster::sample_id{0});
  const auto expected = read(expected_rows, all);
  CHECK(read(ranges, all) == expected);
  const std::string terminate =
      "SELECT pg_terminate_backend(pid)::int FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
      "backend_type = 'client backend'";
  {
    const auto fresh = muster::data::postgres_source(connection, query, options);
    (void)read(fresh, {0});  // opens a connection
    (void)muster::data::read_postgres(connection, terminate);
    CHECK(read(fresh, all) == expected);
    std::vector<std::jthread> readers;
    std::array<bool, 3> equal{};
    const auto parallel = muster::data::postgres_source(connection, query, options);
    for (bool& is_equal : equal) readers.emplace_back([&] { is_equal = read(parallel, all) == expected; });
    readers.clear();
    CHECK(equal == std::array{true, true, true});
  }
  {
    const auto fresh =
        muster::open_source("postgres:" + connection + "?query=" + query + "&label=y&missing=zero&key=id");
    postgres.stop();
    std::jthread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      (void)postgres.start();
    });
    CHECK(read(fresh, all) == expected);
  }
  options.missing = muster::data::missing_values::fail;
  const auto strict = muster::data::postgres_source(connection, query, options);
  CHECK_THROWS_WITH(read(strict, all), contains("postgres:postgres:5:6: a value is missing (NULL or NaN) in column e"));
  const auto data = muster::data::postgres_source(connection, query, options, {.keep_bad_records = true});
  std::vector<muster::bad_record> bad;
  std::vector<float> labels(all.size());
  data.read(all, {{}, labels}, &bad);
  CHECK(bad.size() == 40);
  CHECK(labels[4] == 0);

  options.label = "";
  CHECK_THROWS_WITH(read(muster::data::postgres_source(
                             connection, "SELECT i / 2 AS id, i AS a FROM generate_series(1, 40000) AS i", options),
                         all),
                    contains("has other rows from id"));
  CHECK_THROWS_WITH(muster::data::postgres_source(connection, "SELECT NULL::int AS id, 1 AS a", options),
                    contains("is missing in 1 rows"));
  CHECK_THROWS_AS(muster::data::postgres_source(connection, "SELECT 1 AS id, 1 AS a WHERE false", options),
                  muster::data_error);
  options.key = "idd";
  CHECK_THROWS_WITH(muster::data::postgres_source(connection, query, options), contains("did you mean 'id'?"));
  options.key = "id";
  options.timeout = muster::seconds(0.3);
  const auto disconnected =
      muster::data::postgres_source(connection, "SELECT i AS id, i AS a FROM generate_series(1, 10) AS i", options);
  postgres.stop();
  CHECK_THROWS_WITH(read(disconnected, {3}), contains("postgres:postgres: cannot be read, and has been tried again"));
}

#endif
