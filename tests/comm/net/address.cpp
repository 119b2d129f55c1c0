#include <muster/comm/net/address.hpp>

#include <algorithm>
#include <string>

#include <muster/core/error.hpp>

#include "catch.hpp"

using namespace muster::detail;

TEST_CASE("host and port are read in every spelling, and nothing else is") {
  CHECK(parse_host_port("node1:29500", "x").host == "node1");
  CHECK(parse_host_port("node1:29500", "x").port == 29500);
  CHECK(parse_host_port("10.0.0.1:1", "x").host == "10.0.0.1");
  CHECK(parse_host_port("[2001:db8::1]:65535", "x").host == "2001:db8::1");
  CHECK(parse_host_port("[2001:db8::1]:65535", "x").port == 65535);
  for (const std::string bad : {"",
                                ":",
                                "node1",
                                "node1:",
                                ":29500",
                                "node1:0",
                                "node1:65536",
                                "node1:-1",
                                "node1: 80",
                                "node1:80x",
                                "::1:80",
                                "2001:db8::1",
                                "[::1]",
                                "[::1]80",
                                "[::1]:",
                                "[::1",
                                "[node1]:80",
                                "[10.0.0.1]:80",
                                "a b:80",
                                "u@h:80",
                                "h/:80",
                                "node1:99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_host_port(bad, "--rendezvous"), muster::configuration_error);
    CHECK_THROWS_WITH(parse_host_port(bad, "--rendezvous"), contains("--rendezvous cannot be '" + bad + "'"));
  }
}

TEST_CASE("an address is printed as it is read") {
  for (const std::string text :
       {"127.0.0.1:80", "0.0.0.0:0", "255.255.255.255:65535", "[::]:1", "[2001:db8::1]:4711"}) {
    const auto read = address::parse(text);
    CHECK(read.to_string() == text);
    CHECK(address(read.get(), read.length()) == read);
    CHECK(read.with_port(7).port() == 7);
    CHECK(read.with_port(7).host() == read.host());
  }
  for (const std::string bad : {"", "127.0.0.1", "::1", "[127.0.0.1]:80", "::1:80", "localhost:80", "1.2.3:80",
                                "127.0.0.1:65536", "[::1%lo]:80"}) {
    CAPTURE(bad);
    CHECK(address::parse(bad).empty());
  }
  CHECK_FALSE(address::parse("10.0.0.1:1") == address::parse("10.0.0.1:2"));
  CHECK_FALSE(address::parse("10.0.0.1:1") == address::parse("10.0.0.2:1"));
  CHECK_FALSE(address::parse("0.0.0.0:1") == address::parse("[::]:1"));
  CHECK(address::parse("127.8.0.1:1").is_loopback());
  CHECK(address::parse("[::1]:1").is_loopback());
  CHECK(address::parse("[::ffff:127.0.0.1]:1").is_loopback());
  CHECK_FALSE(address::parse("128.0.0.1:1").is_loopback());
  CHECK(address::parse("[fe80::1]:1").is_link_local());
  CHECK(address::parse("169.254.3.4:1").is_link_local());
}

TEST_CASE("names are looked up, numbers are not") {
  const auto found = resolve({"localhost", 4711});
  REQUIRE_FALSE(found.empty());
  for (const auto& candidate : found) {
    CHECK(candidate.is_loopback());
    CHECK(candidate.port() == 4711);
  }
  REQUIRE(resolve({"203.0.113.7", 5}).size() == 1);
  CHECK(resolve({"203.0.113.7", 5}).front().to_string() == "203.0.113.7:5");
  CHECK_THROWS_AS(resolve({"no-such-host.invalid", 5}), muster::configuration_error);
  CHECK_THROWS_WITH(resolve({"no-such-host.invalid", 5}), contains("host 'no-such-host.invalid' cannot be found ("));
}

TEST_CASE("this host's addresses are chosen by interface, subnet and address") {
  const auto all = all_interface_addresses();
  REQUIRE_FALSE(all.empty());
  const auto loopback = std::find_if(all.begin(), all.end(), [](const auto& entry) { return entry.ip.is_loopback(); });
  if (loopback == all.end()) {
    WARN("SKIPPED: the loopback interface is down");
    return;
  }
  for (const auto& entry : all) CHECK(is_own(entry.ip.with_port(9)));
  CHECK_FALSE(is_own(address::parse("203.0.113.7:9")));
  for (const auto& word : {loopback->interface, loopback->ip.host(), std::string("127.0.0.0/8")}) {
    const auto chosen = own_addresses(word, "--interface");
    REQUIRE_FALSE(chosen.empty());
    for (const auto& candidate : chosen) CHECK(candidate.is_loopback());
  }
  CHECK(own_addresses("0.0.0.0/0,::/0", "x").size() == all.size());
  CHECK(own_addresses("127.0.0.1,127.0.0.0/8", "x").front().host() == "127.0.0.1");

  // The loopback does not reach other hosts: it is used only by hosts without other addresses.
  CHECK(own_addresses("here", "x").front().is_loopback());
  const auto automatic = own_addresses("auto", "x");
  const bool alone = std::all_of(all.begin(), all.end(), [](const auto& entry) { return entry.ip.is_loopback(); });
  for (const auto& entry : automatic) CHECK(entry.is_loopback() == alone);

  for (const std::string bad :
       {"", "nic9", "203.0.113.0/24", "127.0.0.0/33", "127.0.0.0/x", "127.0.0.1,", "127.0.0.1,nic9"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(own_addresses(bad, "--interface"), muster::configuration_error);
    CHECK_THROWS_WITH(own_addresses(bad, "--interface"), contains("--interface cannot be '" + bad + "'"));
    CHECK_THROWS_WITH(own_addresses(bad, "--interface"), contains(loopback->interface + " 127.0.0.1"));
  }
}
