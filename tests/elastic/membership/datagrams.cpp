#include <muster/elastic/membership/datagrams.hpp>

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "catch.hpp"

namespace {

using muster::detail::address;
using muster::detail::datagram_socket;

// Returns the next genuine datagram. Returns nothing if no datagram arrives for five seconds.
std::optional<std::string> next(datagram_socket& socket) {
  pollfd watched{socket.file(), POLLIN, 0};
  for (std::size_t budget = 100000; budget > 0 && ::poll(&watched, 1, 5000) == 1;) {
    if (auto text = socket.receive(budget)) return text;
  }
  return std::nullopt;
}

// A sender on this host that knows the port, but not the token.
class stranger {
 public:
  explicit stranger(const std::vector<address>& recipients)
      : recipient_(recipients.front()), file_(::socket(recipient_.family(), SOCK_DGRAM, 0)) {}
  [[nodiscard]] bool send(std::string_view text) const {
    return ::sendto(file_.get(), text.data(), text.size(), MSG_DONTWAIT, recipient_.get(), recipient_.length()) >= 0;
  }

 private:
  address recipient_;
  muster::detail::descriptor file_;
};

}  // namespace

TEST_CASE("datagrams without the token take no room of those that have it") {
  datagram_socket here("lo", "the test", "token"), member("lo", "the test", "token"), other("lo", "the test", "secret");
  const auto place = here.parse_endpoints(here.endpoints(), true);
  REQUIRE_FALSE(place.empty());
  const stranger outside(place);

  // More datagrams than a socket buffer holds; no member reads meanwhile.
  int sent = 0;
  for (int i = 0; i < 20000; ++i) sent += outside.send(std::string(i % 2 == 0 ? 40 : 1000, 'x')) ? 1 : 0;
  for (int i = 0; i < 2000; ++i) other.send(std::string(200, 'y'), place);
  REQUIRE(sent > 10000);
  member.send("a heartbeat", {place.front()});
  pollfd watched{here.file(), POLLIN, 0};
  REQUIRE(::poll(&watched, 1, 5000) == 1);
  std::size_t budget = 1;  // the filter has let no other datagram through
  CHECK(here.receive(budget) == "a heartbeat");
}

TEST_CASE("datagrams with the mark of the job, and without its signature, are dropped, so many a turn") {
  datagram_socket here("lo", "the test", "token"), member("lo", "the test", "token");
  const auto place = here.parse_endpoints(here.endpoints(), true);
  REQUIRE_FALSE(place.empty());

  // A datagram that a listener on the network has read, with one character changed.
  datagram_socket seen("lo", "the test", "token");
  member.send("a heartbeat", {seen.parse_endpoints(seen.endpoints(), true).front()});
  std::string whole(1000, '\0');
  pollfd watched{seen.file(), POLLIN, 0};
  REQUIRE(::poll(&watched, 1, 5000) == 1);
  whole.resize(static_cast<std::size_t>(::recv(seen.file(), whole.data(), whole.size(), 0)));
  whole.back() = 'T';
  const stranger outside(place);
  for (int i = 0; i < 50; ++i) REQUIRE(outside.send(whole));
  member.send("the next", {place.front()});

  std::size_t budget = 20;
  CHECK_FALSE(here.receive(budget));
  CHECK(budget == 0);
  CHECK(next(here) == "the next");
}
