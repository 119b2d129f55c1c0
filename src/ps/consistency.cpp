#include <muster/ps/consistency.hpp>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0::ps {
namespace {

[[noreturn]] void refuse_consistency(std::string_view text, const std::string& why, const std::string& suggestion) {
  throw configuration_error("consistency '" + std::string(text) + "' cannot be used (" + why + "); " + suggestion);
}

std::uint64_t number_of(std::string_view text, std::string_view number, const std::string& example) {
  const auto read = parse_number<std::uint64_t>(number);
  if (!read) refuse_consistency(text, "'" + std::string(number) + "' is no number", "write such as " + example);
  return *read;
}

}  // namespace

consistency parse_consistency(std::string_view text) {
  consistency read;
  const auto comma = text.find(',');
  const auto first = text.substr(0, comma);
  const auto colon = first.find(':');
  const auto name = first.substr(0, colon);
  if (name == "bounded") {
    if (colon == std::string_view::npos)
      refuse_consistency(text, "bounded needs a number of clocks", "write such as bounded:2");
    read.what = consistency::kind::bounded;
    read.bound = number_of(text, first.substr(colon + 1), "bounded:2");
  } else if (first == "bulk") {
    read.what = consistency::kind::bulk;
  } else if (first != "async") {
    const auto meant = closest(name, {"async", "bounded", "bulk"});
    refuse_consistency(text, "'" + std::string(first) + "' is not one of async, bounded:CLOCKS, bulk",
                       meant ? "did you mean " + *meant + "?" : "write such as bounded:2");
  }
  if (comma == std::string_view::npos) return read;
  const auto second = text.substr(comma + 1);
  if (second.starts_with("drop:")) {
    read.old_pushes = consistency::policy::drop;
  } else if (second.starts_with("damp:")) {
    read.old_pushes = consistency::policy::damp;
  } else {
    refuse_consistency(text, "'" + std::string(second) + "' is neither drop:UPDATES nor damp:UPDATES",
                       "write such as async,damp:8");
  }
  if (read.what == consistency::kind::bulk)
    refuse_consistency(text, "no push of a bulk-synchronous step is older than another",
                       "leave out '," + std::string(second) + "'");
  read.fresh = number_of(text, second.substr(5), "async,damp:8");
  return read;
}

std::string to_string(const consistency& how) {
  std::string text = how.what == consistency::kind::asynchronous ? "async"
                     : how.what == consistency::kind::bulk       ? "bulk"
                                                                 : "bounded:" + std::to_string(how.bound);
  if (how.old_pushes == consistency::policy::drop) text += ",drop:" + std::to_string(how.fresh);
  if (how.old_pushes == consistency::policy::damp) text += ",damp:" + std::to_string(how.fresh);
  return text;
}

}  // namespace muster::inline v0::ps
