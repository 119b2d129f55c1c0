// The errors muster throws. Every text reads: problem (why) suggestion.
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

/// What kind of thing went wrong; the value is the exit status that `run_main` and the programs of muster end with.
enum class error_kind : int {
  other = 1,          ///< anything that is not one of the below, also an exception that is not muster's
  configuration = 2,  ///< a flag, a variable, an argument or a launcher environment that cannot be used
  data = 3,           ///< a file or a record that cannot be read
  peer_failure = 4,   ///< another rank died, left or gave up
  timeout = 5,        ///< a deadline passed
  mismatch = 6,       ///< the ranks called different collectives, or the same one with different arguments
  training = 7        ///< a training diverged: a value that it reports is not finite
};

namespace detail {

/// Returns the text for errors, logs, reports and files that others may read: without the user and password of an
/// address (scheme://user:password@host), and with "..." for the values of password=, token=, sig=, X-Amz-Signature=
/// and other keys by which an address or a connection is as good as a password.
[[nodiscard]] std::string without_secrets(std::string_view text);

}  // namespace detail

/// The base of all exceptions that muster throws on purpose.
class error : public std::runtime_error {
 public:
  /// `text` is one line: problem (why) suggestion. Passwords and signatures of addresses in it are left out.
  error(error_kind kind, const std::string& text) : std::runtime_error(detail::without_secrets(text)), kind_(kind) {}

  /// The kind, to switch on without a chain of catch clauses.
  [[nodiscard]] error_kind kind() const noexcept { return kind_; }

  /// The status a program that ends because of this error should exit with.
  [[nodiscard]] virtual int exit_status() const noexcept { return static_cast<int>(kind_); }

 private:
  error_kind kind_;
};

/// Something the user wrote (flag, variable, argument) cannot be used.
class configuration_error : public error {
 public:
  /// `text` names the flag, variable or argument.
  explicit configuration_error(const std::string& text) : error(error_kind::configuration, text) {}
};

/// Where in the data an error was found. Lines and columns count from 1; 0 means that the error is not about one. In
/// files that have no lines it is a byte instead, counted from 0.
struct data_location {
  std::string file;
  std::uint64_t line = 0;
  std::uint64_t column = 0;
  std::optional<std::uint64_t> offset = std::nullopt;

  /// "file", "file:line" or "file:line:column", the form editors jump to, or "file: byte 4096".
  [[nodiscard]] std::string to_string() const;
};

/// A file or a record cannot be read; the text begins with where that is.
class data_error : public error {
 public:
  /// `what()` is the location followed by `text`.
  data_error(data_location where, const std::string& text);

  /// The text without the place that it begins with.
  [[nodiscard]] std::string problem() const { return what() + problem_; }
  [[nodiscard]] const data_location& where() const noexcept { return where_; }
  [[nodiscard]] const std::string& file() const noexcept { return where_.file; }
  /// The record's line in the file, from 1; 0 if the error is about the file as a whole.
  [[nodiscard]] std::uint64_t record() const noexcept { return where_.line; }

 private:
  data_location where_;
  std::size_t problem_;  // where it begins in what()
};

/// One or more peers died, left, or gave up and told us why.
class peer_failure : public error {
 public:
  /// `ranks` are in the numbering of the group that failed. `status` is what the peer itself is about to exit with,
  /// so that all ranks of a job can end alike.
  peer_failure(std::vector<int> ranks, const std::string& text,
               int status = static_cast<int>(error_kind::peer_failure));

  /// The ranks that failed, as far as they are known; empty for a failure outside of a group, such as a store's.
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return ranks_; }
  [[nodiscard]] int exit_status() const noexcept override { return status_; }

 private:
  std::vector<int> ranks_;
  int status_;
};

/// A blocking call reached its deadline.
class timeout_error : public error {
 public:
  /// `sequence` counts the collectives of the group from 0; `missing` are the ranks of the group that were not seen in
  /// this call (empty when all arrived and one of them is merely slow to finish).
  timeout_error(std::string operation, std::uint64_t sequence, std::vector<int> missing, double seconds);
  /// One outside of collectives, in words of its own.
  timeout_error(std::string operation, std::vector<int> missing, const std::string& text);

  /// As the constructors have them; outside of collectives the sequence number is 0.
  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  [[nodiscard]] const std::vector<int>& missing() const noexcept { return missing_; }

 private:
  std::string operation_;
  std::uint64_t sequence_;
  std::vector<int> missing_;
};

/// The ranks of a group disagree about the collective they are in: operation, count, type or root.
class mismatch_error : public error {
 public:
  /// `text` names what differs, and at which ranks.
  explicit mismatch_error(const std::string& text) : error(error_kind::mismatch, text) {}
};

/// A training diverged: a loss, or another value that it reports, is not finite. The text names step and rank.
class training_error : public error {
 public:
  /// `text` names the value, the step and the rank.
  explicit training_error(const std::string& text) : error(error_kind::training, text) {}
};

/// The status a program should exit with for `failure`: `exit_status()` of muster's errors, 1 for all others.
[[nodiscard]] int exit_status_of(std::exception_ptr failure) noexcept;

/// The text of `failure` in one line, whatever its type.
[[nodiscard]] std::string describe(std::exception_ptr failure);

/// "0", "0 and 2", "0-3 and 7": how errors write a list of ranks. `ranks` need not be sorted.
[[nodiscard]] std::string format_ranks(std::vector<int> ranks);

/// The candidate closest to `word` in edit distance, when it is close enough to have been meant; for "did you mean".
[[nodiscard]] std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& candidates);

}}  // namespace muster::v0
