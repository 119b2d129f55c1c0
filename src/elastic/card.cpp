#include "card.hpp"

#include <sstream>

namespace muster::inline v0::detail {

std::string member_card::encode() const {
  return std::to_string(process.process) + " " + std::to_string(process.started) + " " + words;
}

member_card member_card::decode(std::string_view text) {
  member_card read;
  std::istringstream rest{std::string(text)};
  rest >> read.process.process >> read.process.started;
  std::getline(rest >> std::ws, read.words);
  return read;
}

}  // namespace muster::inline v0::detail
