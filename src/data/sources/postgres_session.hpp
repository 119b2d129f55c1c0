// A connection to PostgreSQL; private to muster::postgres.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include <libpq-fe.h>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

struct close_connection {
  void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
};
struct free_result {
  void operator()(PGresult* result) const noexcept { PQclear(result); }
};
struct free_memory {
  void operator()(char* memory) const noexcept { PQfreemem(memory); }
};
using query_result = std::unique_ptr<PGresult, free_result>;

/// The connection is lost, or was never there: another may do.
class lost_connection : public configuration_error {
  using configuration_error::configuration_error;
};

/// A message of the server in one line, without its line end.
inline std::string one_line(const char* message) {
  std::string text = message;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class session {
 public:
  /// A server that sends nothing for so long is given up: the connection is lost then.
  explicit session(const std::string& connection, seconds patience = seconds::max()) : patience_(patience) {
    // Of a keyword that is there twice the last one counts, which is the user's.
    constexpr std::array<const char*, 3> words = {"connect_timeout", "dbname", nullptr};
    const std::array<const char*, 3> values = {"10", connection.c_str(), nullptr};
    connection_.reset(PQconnectdbParams(words.data(), values.data(), /*expand_dbname=*/1));
    if (connection_ != nullptr && PQstatus(connection_.get()) == CONNECTION_OK) return;
    throw lost_connection("cannot connect to the database (" +
                          one_line(connection_ ? PQerrorMessage(connection_.get()) : "out of memory") +
                          "); check the connection");
  }
  /// One command; several in one text are refused by the server.
  [[nodiscard]] query_result run(const std::string& command) const {
    query_result result;
    if (PQsendQueryParams(connection_.get(), command.c_str(), 0, nullptr, nullptr, nullptr, nullptr, 0) == 0) refuse();
    for (;;) {
      while (PQisBusy(connection_.get()) != 0) wait();
      query_result next(PQgetResult(connection_.get()));
      if (!next) break;
      result = std::move(next);
      if (PQresultStatus(result.get()) == PGRES_COPY_OUT) break;
    }
    const auto status = PQresultStatus(result.get());
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_COPY_OUT) refuse();
    return result;
  }
  /// All that a COPY ... TO STDOUT sends.
  [[nodiscard]] std::string copy(const std::string& command) const {
    (void)run(command);
    std::string all;
    for (;;) {
      char* row = nullptr;
      const int size = PQgetCopyData(connection_.get(), &row, /*async=*/1);
      const std::unique_ptr<char, free_memory> held(row);
      if (size == -1) break;
      if (size < -1) refuse();
      if (size == 0) {
        wait();
      } else {
        all.append(row, static_cast<std::size_t>(size));
      }
    }
    bool done = true;
    for (;;) {
      while (PQisBusy(connection_.get()) != 0) wait();
      const query_result last(PQgetResult(connection_.get()));
      if (!last) break;
      done = done && PQresultStatus(last.get()) == PGRES_COMMAND_OK;
    }
    if (!done) refuse();
    return all;
  }
  [[nodiscard]] std::string database() const { return PQdb(connection_.get()); }
  /// A name, or a value, as it stands in a command.
  [[nodiscard]] std::string name(const std::string& of) const {
    return std::unique_ptr<char, free_memory>(PQescapeIdentifier(connection_.get(), of.data(), of.size())).get();
  }
  [[nodiscard]] std::string literal(const std::string& of) const {
    return std::unique_ptr<char, free_memory>(PQescapeLiteral(connection_.get(), of.data(), of.size())).get();
  }

 private:
  // For more of what the server sends.
  void wait() const {
    pollfd socket{PQsocket(connection_.get()), POLLIN, 0};
    const double most = 1000.0 * patience_.count();
    const int milliseconds = most < 1e9 ? static_cast<int>(most) : -1;  // the user's own deadline is the server's then
    const int found = ::poll(&socket, 1, milliseconds);
    if (found == 0) throw lost_connection("the database has sent nothing for too long; check the server");
    if (found > 0 && PQconsumeInput(connection_.get()) == 0) refuse();
  }
  [[noreturn]] void refuse() const {
    const std::string why = one_line(PQerrorMessage(connection_.get()));
    if (PQstatus(connection_.get()) == CONNECTION_OK)
      throw configuration_error("the database refuses the query (" + why + "); correct it");
    throw lost_connection("the connection to the database is lost (" + why + "); check the server");
  }

  seconds patience_;
  std::unique_ptr<PGconn, close_connection> connection_;
};

}  // namespace muster::inline v0::detail
