// Messages of the library, and callbacks that log themselves.
#include <muster/core/log.hpp>

#include <string>
#include <vector>

#include "catch.hpp"

TEST_CASE("a log callback may log, replace itself and throw") {
  std::vector<std::string> received;
  muster::set_log_callback([&](const muster::log_message& message) {
    received.emplace_back(message.text);
    if (message.text == "logs") muster::log(muster::log_level::error, "of the callback: goes to stderr");
    if (message.text == "throws") throw 1;
    if (message.text != "replaces") return;
    muster::set_log_callback(
        [&](const muster::log_message& next) { received.push_back("next: " + std::string(next.text)); });
    received.emplace_back("still there");
  });
  for (const char* const text : {"logs", "throws", "replaces", "last"}) muster::log(muster::log_level::error, text);
  muster::set_log_callback({});
  CHECK(received == std::vector<std::string>{"logs", "throws", "replaces", "still there", "next: last"});
}
