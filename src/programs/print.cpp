#include "print.hpp"

#include <cstdio>
#include <string>

namespace {

// Returns texts and numbers unchanged, and the elements of lists and objects separated by commas.
std::string on_one_line(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null() || (value.is_array() && value.empty())) return "-";
  if (!value.is_structured()) return value.dump();
  std::string line;
  for (const auto& [name, part] : value.items())
    line += (line.empty() ? "" : ", ") + (value.is_object() ? name + " " : "") + on_one_line(part);
  return line;
}

void print(const json& report) {
  for (const auto& [name, value] : report.items()) {
    if (!value.is_structured()) {
      std::printf("%-13s %s\n", name.c_str(), on_one_line(value).c_str());
      continue;
    }
    if (value.empty()) continue;
    std::printf("%s\n", name.c_str());
    for (const auto& [part, content] : value.items())
      std::printf("  %s%s\n", value.is_object() ? (part + ": ").c_str() : "", on_one_line(content).c_str());
  }
}

}  // namespace

void show(const json& report, bool as_json) {
  if (as_json) {
    std::printf("%s\n", report.dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    print(report);
  }
}
