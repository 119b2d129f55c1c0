#include "card.hpp"

#include <sstream>

namespace muster::inline v0::detail {
namespace {

constexpr std::string_view before_state = " | ";

}  // namespace

std::string member_card::encode() const {
  return std::to_string(process.process) + " " + std::to_string(process.started) + " " + words +
         std::string(before_state) + state;
}

member_card member_card::decode(std::string_view text) {
  member_card read;
  if (const auto at = text.find(before_state); at != std::string_view::npos) {
    read.state = text.substr(at + before_state.size());
    text = text.substr(0, at);
  }
  std::istringstream rest{std::string(text)};
  rest >> read.process.process >> read.process.started;
  std::getline(rest >> std::ws, read.words);
  return read;
}

}  // namespace muster::inline v0::detail
