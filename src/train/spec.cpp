#include "spec.hpp"

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0::detail {

spec_reader::spec_reader(std::string_view what, std::string_view text) : what_(what), text_(text) {
  std::string_view rest = text_;
  std::string_view head = rest.substr(0, rest.find(','));
  const auto colon = head.find(':');
  name_ = head.substr(0, colon);
  has_number_ = colon != std::string_view::npos;
  if (has_number_) number_ = head.substr(colon + 1);
  while (head.size() < rest.size()) {
    rest = rest.substr(head.size() + 1);
    head = rest.substr(0, rest.find(','));
    const auto equals = head.find('=');
    const std::string key(head.substr(0, equals));
    const auto is_same = [&](const auto& one) { return one.first == key; };
    if (std::any_of(given_.begin(), given_.end(), is_same)) refuse("'" + key + "' is given twice", "give it once");
    given_.emplace_back(key, equals == std::string_view::npos ? std::string_view() : head.substr(equals + 1));
  }
}

void spec_reader::refuse(const std::string& why, const std::string& suggestion) const {
  throw configuration_error(what_ + " '" + text_ + "' cannot be used (" + why + "); " + suggestion);
}

std::string spec_reader::name(const std::vector<std::string>& names, const std::string& example) {
  const std::string named(name_);
  if (std::find(names.begin(), names.end(), named) != names.end()) return named;
  std::string list;
  for (const auto& one : names) list += (list.empty() ? "" : ", ") + one;
  const auto meant = closest(named, names);
  refuse("'" + named + "' is not one of " + list, meant ? "did you mean '" + *meant + "'?" : "write " + example);
}

double spec_reader::read(std::string_view called, std::string_view word, double low, bool open) const {
  const auto value = parse_number<double>(word);
  if (!value) refuse(std::string(called) + " '" + std::string(word) + "' is not a number", "write one such as 0.1");
  if (*value < low || (open && *value == low)) {
    refuse(std::string(called) + " " + std::string(word) + " is out of range",
           open ? "give a positive one" : "give one from 0 on");
  }
  return *value;
}

double spec_reader::number(std::string_view called, double low, bool open) {
  numbered_ = true;
  return read(called, number_, low, open);
}

bool spec_reader::take(const std::string& key, std::string_view& value) {
  known_.push_back(key);
  const auto found = std::find_if(given_.begin(), given_.end(), [&](const auto& one) { return one.first == key; });
  if (found == given_.end()) return false;
  value = found->second;
  given_.erase(found);
  return true;
}

double spec_reader::number_of(const std::string& key, double fallback, double low, bool open) {
  std::string_view word;
  return take(key, word) ? read(key, word, low, open) : fallback;
}

void spec_reader::finish(const std::string& example) {
  if (has_number_ && !numbered_) refuse("'" + std::string(name_) + "' takes no number", "write " + example);
  if (given_.empty()) return;
  std::string list;
  for (const auto& key : known_) list += (list.empty() ? "" : ", ") + key;
  const auto meant = closest(given_.front().first, known_);
  refuse("'" + given_.front().first + "' is not one of " + list,
         meant ? "did you mean '" + *meant + "'?" : "write such as " + example);
}

}  // namespace muster::inline v0::detail
