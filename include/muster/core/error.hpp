// The errors of muster. Every text has the form: problem (why) suggestion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace muster { inline namespace v0 {

/// The kind of an error. The value is the exit status of `run_main` and the programs of muster.
enum class error_kind : int {
  other = 1,          ///< any other error, including exceptions of other libraries
  configuration = 2,  ///< a flag, a variable, an argument or a launcher environment that cannot be used
  data = 3,           ///< a file or a record that cannot be read
  peer_failure = 4,   ///< another rank died, left or failed
  timeout = 5,        ///< a deadline passed
  mismatch = 6,       ///< the ranks called different collectives, or the same collective with different arguments
  training = 7,       ///< a training diverged: a reported value is not finite
  source = 8          ///< a server of data is away, and may come back
};

namespace detail {

/// Returns the text for errors, logs, reports and files that other users may read. The text has no user and password
/// in an address (scheme://user:password@host), and has "..." for the values of password=, token=, sig=,
/// X-Amz-Signature= and other keys whose value gives access to an address or a database.
[[nodiscard]] std::string without_secrets(std::string_view text);

}  // namespace detail

/// The base of all exceptions that muster throws intentionally.
class error : public std::runtime_error {
 public:
  /// Creates an error. `text` is a single line: problem (why) suggestion. Passwords and signatures of addresses in
  /// `text` are left out.
  error(error_kind kind, const std::string& text) : std::runtime_error(detail::without_secrets(text)), kind_(kind) {}

  /// Returns the kind, for a switch instead of a chain of catch clauses.
  [[nodiscard]] error_kind kind() const noexcept { return kind_; }

  /// Returns the exit status of a program that ends because of this error.
  [[nodiscard]] virtual int exit_status() const noexcept { return static_cast<int>(kind_); }

 private:
  error_kind kind_;
};

/// An error in the user's input (flag, variable, argument).
class configuration_error : public error {
 public:
  /// Creates an error. `text` names the flag, variable or argument.
  explicit configuration_error(const std::string& text) : error(error_kind::configuration, text) {}
};

/// A place in the data. Lines and columns count from 1; 0 means that the error has no line or column. In files without
/// lines the place is a byte offset, counted from 0.
struct data_location {
  std::string file;
  std::uint64_t line = 0;
  std::uint64_t column = 0;
  std::optional<std::uint64_t> offset = std::nullopt;

  /// Returns "file", "file:line" or "file:line:column", the form that editors recognise, or "file: byte 4096".
  [[nodiscard]] std::string to_string() const;
};

/// A file or a record that cannot be read. The text begins with the location.
class data_error : public error {
 public:
  /// Creates an error whose `what()` is the location followed by `text`.
  data_error(data_location location, const std::string& text);

  /// Returns the text without the location.
  [[nodiscard]] std::string problem() const { return what() + problem_; }
  [[nodiscard]] const data_location& where() const noexcept { return where_; }
  [[nodiscard]] const std::string& file() const noexcept { return where_.file; }
  /// Returns the record's line in the file, from 1; 0 if the error concerns the whole file.
  [[nodiscard]] std::uint64_t record() const noexcept { return where_.line; }

 private:
  data_location where_;
  std::size_t problem_;  // its offset in what()
};

/// A server of data that cannot be reached, or answers that it cannot work now. The same command may succeed later, so
/// no record is bad because of this error. The text begins with the location.
class source_error : public error {
 public:
  /// Creates an error whose `what()` is the location followed by `text`.
  source_error(data_location location, const std::string& text);

  /// Returns the text without the location.
  [[nodiscard]] std::string problem() const { return what() + problem_; }
  [[nodiscard]] const data_location& where() const noexcept { return where_; }

 private:
  data_location where_;
  std::size_t problem_;  // its offset in what()
};

/// A failure at one or more peers: they died, left, or reported an error.
class peer_failure : public error {
 public:
  /// Creates an error. `ranks` are numbers in the group that failed. `status` is the exit status of the peer itself, so
  /// that all ranks of a job can end with the same status.
  peer_failure(std::vector<int> ranks, const std::string& text,
               int status = static_cast<int>(error_kind::peer_failure));

  /// Returns the known failed ranks; empty for a failure outside a group, such as the failure of a store.
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return ranks_; }
  [[nodiscard]] int exit_status() const noexcept override { return status_; }

 private:
  std::vector<int> ranks_;
  int status_;
};

/// A blocking call reached its deadline.
class timeout_error : public error {
 public:
  /// Creates an error in a collective. `sequence` is the number of the collective in the group, from 0. `missing` are
  /// the ranks of the group that did not arrive in this call (empty when all ranks arrived and some rank is slow to
  /// finish). `waited` is the time until the deadline in seconds.
  timeout_error(std::string operation, std::uint64_t sequence, std::vector<int> missing, double waited);
  /// Creates an error outside collectives, with its own text.
  timeout_error(std::string operation, std::vector<int> missing, const std::string& text);

  /// Returns the constructors' arguments. Outside collectives the sequence number is 0.
  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  [[nodiscard]] const std::vector<int>& missing() const noexcept { return missing_; }

 private:
  std::string operation_;
  std::uint64_t sequence_;
  std::vector<int> missing_;
};

/// The ranks of a group disagree about a collective: operation, count, type or root.
class mismatch_error : public error {
 public:
  /// Creates an error. `text` names the difference, and its ranks.
  explicit mismatch_error(const std::string& text) : error(error_kind::mismatch, text) {}
};

/// A training diverged: a loss, or another reported value, is not finite. The text names step and rank.
class training_error : public error {
 public:
  /// Creates an error. `text` names the value, the step and the rank.
  explicit training_error(const std::string& text) : error(error_kind::training, text) {}
};

/// Returns the exit status of a program for `failure`: `exit_status()` of muster's errors, 1 for other exceptions.
[[nodiscard]] int exit_status_of(std::exception_ptr failure) noexcept;

/// Returns the text of `failure` in one line, for any type.
[[nodiscard]] std::string describe(std::exception_ptr failure);

/// Returns a list of ranks as errors format it: "0", "0 and 2", "0-3 and 7". `ranks` need not be sorted.
[[nodiscard]] std::string format_ranks(std::vector<int> ranks);

/// Returns the candidate closest to `word` in edit distance, if it is close enough to be a misspelling; for "did you
/// mean".
[[nodiscard]] std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& candidates);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
