#pragma once

#include <muster/core/error.hpp>

#include <algorithm>
#include <numeric>
#include <system_error>

#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE std::string data_location::to_string() const {
  std::string text = file;
  if (line != 0) text += ":" + std::to_string(line);
  if (line != 0 && column != 0) text += ":" + std::to_string(column);
  if (offset) text += (text.empty() ? "byte " : ": byte ") + std::to_string(*offset);
  return text;
}

namespace detail {

// Returns the begin of an error's text: its location, or nothing if the location is unknown.
inline std::string before_problem(const data_location& location) {
  const std::string place = location.to_string();
  return place.empty() ? place : place + ": ";
}

// Returns the location with a file name that contains no secrets.
inline data_location location_without_secrets(data_location location) {
  location.file = detail::without_secrets(location.file);
  return location;
}

inline bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

inline char small(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Returns true for a key whose value is secret. The list holds the ends of such keys: the keys of signed addresses have
// a prefix, as in X-Amz-Signature.
inline bool is_secret_key(std::string_view key) {
  constexpr std::string_view ends[] = {"password",      "passwd",     "pwd",    "sig",        "signature",
                                       "credential",    "token",      "secret", "secret_key", "access_key",
                                       "accesskey",     "api_key",    "apikey", "secretkey",  "auth",
                                       "authorization", "accesskeyid"};
  std::string lower(key);
  std::ranges::transform(lower, lower.begin(), small);
  std::ranges::replace(lower, '-', '_');
  return std::ranges::any_of(ends, [&](std::string_view end) { return lower.ends_with(end); });
}

inline constexpr std::string_view hidden = "...";

// Hides users and passwords: the text between "://" and the last '@' before the end of the server's name. A password
// may contain characters that should have been encoded. After a colon that no port follows, a '@' after a slash
// therefore also ends a password.
inline void hide_users(std::string& text) {
  for (std::size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at)) {
    at += 3;
    const std::size_t word_end = std::min(text.find_first_of(" \t\n'\"", at), text.size());
    std::size_t end = std::min(text.find_first_of("/?#", at), word_end);
    const std::size_t colon = text.find(':', at);
    if (colon < end && text.find_first_not_of("0123456789", colon + 1) < end) end = word_end;
    const std::size_t user = text.rfind('@', end);
    if (user != std::string::npos && user >= at && user < end) text.replace(at, user - at, hidden);
  }
}

// Hides the values of secret keys in addresses and database connections: KEY=VALUE, KEY = VALUE and KEY='VALUE'.
inline void hide_values(std::string& text) {
  for (std::size_t at = text.find('='); at != std::string::npos; at = text.find('=', at + 1)) {
    const std::size_t key_end = text.find_last_not_of(' ', at == 0 ? 0 : at - 1) + 1;
    std::size_t key = std::min(key_end, at);
    while (key > 0 && (is_letter(text[key - 1]) || text[key - 1] == '_' || text[key - 1] == '-')) --key;
    if (!is_secret_key(std::string_view(text).substr(key, key_end - key))) continue;
    const std::size_t begin = std::min(text.find_first_not_of(' ', at + 1), text.size());
    if (text.compare(begin, hidden.size(), hidden) == 0) continue;  // hidden by an earlier call
    std::size_t end = begin;
    if (text[begin] == '\'') {
      for (++end; end < text.size() && text[end] != '\''; ++end) end += text[end] == '\\' ? 1 : 0;
      end = std::min(end + 1, text.size());
    } else {
      end = std::min(text.find_first_of("&?# \t\n'\")", begin), text.size());
    }
    text.replace(begin, end - begin, hidden);
  }
}

}  // namespace detail

MUSTER_INLINE std::string detail::without_secrets(std::string_view text) {
  std::string result(text);
  detail::hide_users(result);
  detail::hide_values(result);
  return result;
}

MUSTER_INLINE data_error::data_error(data_location location, const std::string& text)
    : error(error_kind::data, detail::before_problem(detail::location_without_secrets(location)) + text),
      where_(detail::location_without_secrets(std::move(location))),
      problem_(detail::before_problem(where_).size()) {}

MUSTER_INLINE source_error::source_error(data_location location, const std::string& text)
    : error(error_kind::source, detail::before_problem(detail::location_without_secrets(location)) + text),
      where_(detail::location_without_secrets(std::move(location))),
      problem_(detail::before_problem(where_).size()) {}

MUSTER_INLINE peer_failure::peer_failure(std::vector<int> ranks, const std::string& text, int status)
    : error(error_kind::peer_failure, text), ranks_(std::move(ranks)), status_(status) {}

namespace detail {

inline std::string timeout_text(const std::string& operation, std::uint64_t sequence, const std::vector<int>& missing,
                                double seconds) {
  std::string text = operation + ", collective " + std::to_string(sequence) + " of its group, did not finish in " +
                     detail::printed("%g", seconds) + " s (";
  text += missing.empty() ? "every rank arrived, none failed" : "not seen in it: rank " + format_ranks(missing);
  return text + "); check those ranks, or raise --timeout / MUSTER_TIMEOUT";
}

}  // namespace detail

MUSTER_INLINE timeout_error::timeout_error(std::string operation, std::uint64_t sequence, std::vector<int> missing,
                                           double waited)
    : error(error_kind::timeout, detail::timeout_text(operation, sequence, missing, waited)),
      operation_(std::move(operation)),
      sequence_(sequence),
      missing_(std::move(missing)) {}

MUSTER_INLINE timeout_error::timeout_error(std::string operation, std::vector<int> missing, const std::string& text)
    : error(error_kind::timeout, text), operation_(std::move(operation)), sequence_(0), missing_(std::move(missing)) {}

MUSTER_INLINE int exit_status_of(std::exception_ptr failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const error& failed) {
    return failed.exit_status();
  } catch (...) {
    return static_cast<int>(error_kind::other);
  }
}

MUSTER_INLINE std::string describe(std::exception_ptr failure) {
  std::string text = "unknown exception (not derived from std::exception)";
  try {
    std::rethrow_exception(failure);
  } catch (const std::system_error& failed) {
    text = failed.what();
    if (failed.code() == std::errc::resource_unavailable_try_again && text == failed.code().message())  // std::thread's
      text =
          "no thread can be started (" + text + "); raise the limit of processes (ulimit -u, or the cgroup's pids.max)";
  } catch (const std::exception& failed) {
    text = failed.what();
  } catch (...) {  // the text above remains
  }
  if (const auto frames = text.find("\nException raised from "); frames != std::string::npos)
    text.resize(frames);  // LibTorch's errors end with a list of frames
  return detail::on_one_line(text);
}

MUSTER_INLINE std::string format_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<std::string> runs;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == first + 1) last = first;  // "0 and 1" reads better than "0-1"
    runs.push_back(std::to_string(ranks[first]) + (last > first ? "-" + std::to_string(ranks[last]) : ""));
    first = last + 1;
  }
  std::string text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) text += i + 1 == runs.size() ? " and " : ", ";
    text += runs[i];
  }
  return text;
}

MUSTER_INLINE std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 4) + 1;
  for (const auto& candidate : candidates) {
    std::vector<std::size_t> row(candidate.size() + 1);  // Levenshtein distance, one row at a time
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t substituted = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}}  // namespace muster::v0
